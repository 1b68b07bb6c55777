"""Plans the theory rows of a kernel type, all rows that its patterns span or a sample, and appends them to its CSV."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd

from opatlas.data.database import Database
from opatlas.data.fold import TableFold
from opatlas.data.pruned import pruned_signatures
from opatlas.row.columns import AVERAGE, BASE, EP_SIZE, INPUT_DTYPES, INPUT_SHAPES
from opatlas.row.location import parse_path
from opatlas.row.roofline import device_peak
from opatlas.row.signature import row_cells, signatures
from opatlas.row.slots import FP8, split_cell
from opatlas.row.table import RowTable
from opatlas.theory.catalog import CatalogKernel
from opatlas.theory.known_rows import KnownRows, sorted_forms
from opatlas.theory.refused_shapes import MoeShape, load_constraints
from opatlas.theory.report import KernelResult
from opatlas.theory.rows import Batch, TheoryRow
from opatlas.theory.sources import Targets, deal_by_calls
from opatlas.theory.space import Space, row_bytes

#: Returns for each row of a frame whether a device's kernel accepts the row.
Accepts = Callable[[pd.DataFrame], np.ndarray]


def acceptance_filter(database: Path, kernel_type: str) -> Accepts:
    """Returns a test for rows that a database's device accepts, by the shapes that were tried. Raises OpAtlasError."""
    constraints = load_constraints(database) if kernel_type == "DispatchFFNCombine" else None
    if constraints is None or not constraints.trials:
        return lambda frame: np.ones(len(frame), dtype=bool)

    def accepts(frame: pd.DataFrame) -> np.ndarray:
        cells = zip(frame[INPUT_SHAPES], frame[INPUT_DTYPES], frame[EP_SIZE], strict=True)
        return np.array(
            [
                constraints.accepts(_shape(shapes), ep_size=int(ep_size), weights=split_cell(dtypes)[1])
                for shapes, dtypes, ep_size in cells
            ],
            dtype=bool,
        )

    return accepts


def _shape(shapes: str) -> MoeShape:
    """Returns the sizes of a DispatchFFNCombine row: x is (M, H), slot 3 (M, k), slot 4 (E, N)."""
    slots = [[int(size) for size in words.split(",")] for words in split_cell(shapes)]
    (m, h), (_, top_k), (experts, n) = slots[0], slots[3], slots[4]
    return MoeShape(m=m, h=h, n=n, experts=experts, top_k=top_k)


class DrawRows(Protocol):
    """Draws random rows of some spaces; `opatlas.shapes.strategies.sample_rows` does so with hypothesis."""

    def __call__(
        self, spaces: Sequence[Space], count: int, *, seed: int, exclude: Container[str]
    ) -> dict[str, TheoryRow]:
        """Returns up to `count` distinct rows by signature, none of which is in `exclude`."""


@dataclass(frozen=True)
class Request:
    """The theory rows that a run requests.

    Attributes:
        targets: the models that the shapes come from.
        rows: the largest number of theory rows of a kernel type; 0: all points of the grid, or all sizes.
        seed: the same seed draws the same rows, for a given version of hypothesis.
        budget_bytes: memory for the tensors of a row and the buffer that flushes the cache.
        draw: draws the rows of a sample.
        sizes_per_shape: each shape has rows at so many sizes of its axes of tokens, and no other rows; 0: see `rows`.
        edges: whether `sizes_per_shape` has the edges of tiles besides.
        is_npu: whether the database is one of an NPU; the slots of any other device are in ND.
    """

    targets: Targets
    rows: int
    seed: int
    budget_bytes: int
    draw: DrawRows
    is_npu: bool = True
    sizes_per_shape: int = 0
    edges: bool = True


@dataclass(frozen=True)
class KernelPlan:
    """The rows that a run adds to a kernel type.

    Attributes:
        frame: the rows.
        signatures, bytes: the signature of each row, and the bytes of its tensors.
        result: numbers of rows added and left out.
    """

    frame: pd.DataFrame
    signatures: list[str]
    bytes: np.ndarray
    result: KernelResult

    def without(self, known: set[str]) -> KernelPlan:
        """Returns the plan without rows that another process has added meanwhile."""
        kept = np.array([signature not in known for signature in self.signatures], dtype=bool)
        existing = self.result.existing + int(np.count_nonzero(~kept))
        return replace(
            self,
            frame=self.frame[kept].reset_index(drop=True),
            signatures=[signature for signature in self.signatures if signature not in known],
            bytes=self.bytes[kept],
            result=replace(self.result, existing=existing).with_new(self.bytes[kept].tolist()),
        )


def pattern_spaces(
    kernel: CatalogKernel, request: Request, known: KnownRows | None, database: Path | None = None
) -> list[Space]:
    """Returns the space of each pattern of a kernel type.

    Args:
        database: the folder of the database. Its device has no rows in FP8 if its data sheet has no FP8.
    """
    place = parse_path(database) if database is not None else None
    peaks = device_peak(place[0]).tera_ops if place is not None else {}
    lacking = FP8 - peaks.keys() if peaks else frozenset[str]()
    in_nd = not request.is_npu and not (known is not None and known.has_captured_blocks)
    spaces = []
    for pattern in kernel.patterns:
        forms = [
            form.in_nd() if in_nd else form
            for form in (known.forms(pattern) if known is not None else sorted_forms(pattern.forms))
            if lacking.isdisjoint((*form.input_dtypes, *form.output_dtypes))
        ]
        spaces.append(
            Space(kernel.kernel_type, pattern, list(dict.fromkeys(forms)), request.targets, request.budget_bytes)
        )
    return spaces


def plan_kernel(
    kernel: CatalogKernel, table: RowTable, request: Request, *, forms_of_database: bool = True
) -> KernelPlan:
    """Returns the rows of a run that a table lacks; see `add_theory_rows`.

    Rows of earlier runs count towards `request.rows`, so that a repeated run adds nothing. Captured rows do not count.

    Raises:
        TableError: a row of the table cannot be read.
    """
    known = KnownRows(kernel, table, request.targets) if len(table) else None
    spaces = pattern_spaces(kernel, request, known if forms_of_database else None, table.path.parent)
    existing = table.signatures
    captured = {existing[at] for at in np.flatnonzero(table.captured.known)}
    wanted: Iterable[_PlannedRows]
    if request.sizes_per_shape:
        queues = [_rows_of_sizes(space, request) for space in spaces if len(space)]
        wanted = _parts(_choose(queues, captured, request.rows or sys.maxsize))
    elif request.rows:
        wanted = _sample(spaces, captured, request)
    else:
        wanted = map(_batch_rows, _all_batches(spaces))
    accepts = acceptance_filter(table.path.parent, kernel.kernel_type)
    before, seen = set(existing), set(existing)
    kept, found, repeated, refused = [], [], 0, 0
    for part in wanted:
        fresh = np.zeros(len(part.frame), dtype=bool)
        taken = accepts(part.frame)
        refused += int(np.count_nonzero(~taken))
        for i, signature in enumerate(part.signatures):
            if taken[i] and signature not in seen:
                seen.add(signature)
                fresh[i] = True
                found.append(signature)
        repeated += len(before.intersection(part.signatures))
        kept.append(_PlannedRows(part.frame[fresh], part.bytes[fresh], []))
    sizes = np.concatenate([part.bytes for part in kept]) if kept else np.zeros(0, dtype=np.int64)
    result = KernelResult(
        kernel.kernel_type,
        existing=repeated,
        refused=refused,
        over_budget=sum(space.over_budget for space in spaces),
        smallest_bytes=min((s.smallest_over_budget for s in spaces if s.over_budget), default=0),
        missing=tuple(sorted({space.missing_source for space in spaces if space.missing_source})),
        unknown_dtypes=tuple(known.unknown_dtypes()) if known is not None else (),
    ).with_new(sizes.tolist())
    frame = pd.concat([part.frame for part in kept], ignore_index=True).fillna("") if kept else pd.DataFrame()
    return KernelPlan(frame, found, sizes, result)


@dataclass
class _PlannedRows:
    """Rows of a run, with the bytes and the signature of each."""

    frame: pd.DataFrame
    bytes: np.ndarray
    signatures: list[str]


def _all_batches(spaces: Sequence[Space]) -> Iterator[Batch]:
    for space in spaces:
        yield from space.batches()


def _batch_rows(batch: Batch) -> _PlannedRows:
    frame = batch.frame()
    return _PlannedRows(frame, batch.row_bytes(), signatures(batch.kernel_type, frame))


#: Signature, part and position of a row.
_Entry = tuple[str, _PlannedRows, int]


def _sample(spaces: Sequence[Space], captured: set[str], request: Request) -> Iterator[_PlannedRows]:
    """Yields the required rows, pattern by pattern in turn, then drawn rows, `request.rows` in all."""
    queues = [_required(space) for space in spaces if len(space)]
    chosen = _choose(queues, captured, request.rows)
    yield from _parts(chosen)
    missing = request.rows - len(chosen)
    if missing <= 0 or not queues:
        return
    drawn = request.draw(spaces, missing, seed=request.seed, exclude=captured | chosen.keys())
    if drawn:
        frame = pd.DataFrame([row.cells() for row in drawn.values()], dtype=object)
        yield _PlannedRows(frame, np.array([row_bytes(row) for row in drawn.values()], dtype=np.int64), list(drawn))


def _choose(queues: Sequence[Iterable[_Entry]], captured: set[str], most: int) -> dict[str, tuple[_PlannedRows, int]]:
    """Returns the first rows of the queues, which take turns, by signature."""
    chosen: dict[str, tuple[_PlannedRows, int]] = {}
    for in_turn in zip_longest(*queues):
        for entry in in_turn:
            if entry is None or entry[0] in captured:
                continue
            chosen.setdefault(entry[0], entry[1:])
            if len(chosen) == most:
                return chosen
    return chosen


def _parts(chosen: Mapping[str, tuple[_PlannedRows, int]]) -> Iterator[_PlannedRows]:
    """Yields the chosen rows of each part."""
    for part in {id(part): part for part, _ in chosen.values()}.values():
        indices = [i for other, i in chosen.values() if other is part]
        yield _PlannedRows(part.frame.iloc[indices], part.bytes[indices], [part.signatures[i] for i in indices])


def _rows_of_sizes(space: Space, request: Request) -> Iterator[_Entry]:
    """Yields the rows of `Space.rows_of_sizes`, dealt among the models and among their shapes by calls."""
    lines: dict[tuple[int, int], list[tuple[int, _Entry]]] = {}
    for number, rows in enumerate(space.rows_of_sizes(request.sizes_per_shape, edges=request.edges)):
        part = _batch_rows(rows.batch)
        for i, (shape, turn) in enumerate(zip(rows.shapes.tolist(), rows.turns.tolist(), strict=True)):
            lines.setdefault((shape, number), []).append((turn, (part.signatures[i], part, i)))
    queues = [iter(sorted(line, key=itemgetter(0))) for line in lines.values()]
    for number in deal_by_calls([space.shapes[shape] for shape, _ in lines], [len(line) for line in lines.values()]):
        yield next(queues[number])[1]


def _required(space: Space) -> Iterator[_Entry]:
    """Returns the rows that every sample holds, the most important rows first."""
    positions = np.array(space.required(), dtype=np.int64)
    # The rows of a batch are in the order of the grid.
    order = np.argsort(positions, kind="stable")
    parts = [_batch_rows(batch) for batch in space.batches(positions[order])]
    entries = [(part.signatures[i], part, i) for part in parts for i in range(len(part.signatures))]
    by_position = {int(positions[index]): entry for index, entry in zip(order, entries, strict=True)}
    return (by_position[int(position)] for position in positions)


def read_table(database: Database, kernel_type: str) -> RowTable:
    """Reads the rows of a kernel type; an empty table if there is no CSV. Raises OpAtlasError."""
    path = database.csv_path(kernel_type)
    if path.exists():
        return database.read(kernel_type)
    return RowTable(kernel_type, path, pd.DataFrame({column: pd.Series(dtype=str) for column in (*BASE, AVERAGE)}))


def add_theory_rows(
    database: Database, kernel: CatalogKernel, request: Request, *, forms_of_database: bool = True
) -> KernelPlan:
    """Appends the rows of a run that the database lacks, and returns them.

    The CSV is replaced in one step. Rows that another process adds meanwhile are not added twice.

    Args:
        forms_of_database: whether rows take the dtypes and formats of the rows in the database.

    Raises:
        OpAtlasError: a file cannot be read or written; the CSV is unchanged.
    """
    path = database.csv_path(kernel.kernel_type)
    # The stamp is taken before reading, so that every later change is noticed.
    stamp = _stamp(path)
    table = read_table(database, kernel.kernel_type)
    plan = plan_kernel(kernel, table, request, forms_of_database=forms_of_database)
    plan = plan.without(set(pruned_signatures(database, kernel.kernel_type)))
    if not plan.signatures:
        return plan
    with database.lock():
        if _stamp(path) != stamp:
            table = read_table(database, kernel.kernel_type)
            plan = plan.without(set(table.signatures))
        if plan.signatures:
            fold = TableFold(table)
            for name, cells in zip(plan.signatures, row_cells(plan.frame), strict=True):
                fold.append(cells, name)
            fold.write(database)
    return plan


def append_rows(database: Database, kernel_type: str, rows: Sequence[Mapping[str, str]]) -> int:
    """Appends rows that a database lacks and has not pruned, and returns their number. The caller holds the lock.

    Args:
        rows: the cells of each row, as `TheoryRow.cells` gives them.

    Raises:
        OpAtlasError: the CSV cannot be read or written; it is unchanged.
    """
    fold = TableFold(read_table(database, kernel_type))
    added = fold.append_missing(rows, pruned_signatures(database, kernel_type))
    if added:
        fold.write(database)
    return added


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Returns numbers that change whenever a file changes; None if there is no file."""
    if not path.exists():
        return None
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns
