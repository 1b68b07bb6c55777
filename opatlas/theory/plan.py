"""Plans the theory rows of a kernel type, all rows that its patterns span or a sample, and appends them to its CSV."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product, zip_longest
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd

from opatlas.data.database import Database
from opatlas.data.fold import TableFold
from opatlas.row.columns import AVERAGE, BASE, EP_SIZE, EXPERT_LOAD, INPUT_DTYPES, INPUT_SHAPES, WITH_LOAD
from opatlas.row.location import parse_path
from opatlas.row.roofline import device_peak
from opatlas.row.signature import row_cells, signatures
from opatlas.row.slots import FP8, split_cell
from opatlas.row.table import RowTable
from opatlas.theory.catalog import CatalogKernel
from opatlas.theory.known_rows import KnownRows, sorted_forms
from opatlas.theory.refused_shapes import read_constraints, shape_of
from opatlas.theory.sources import Targets
from opatlas.theory.space import FLUSH_BUFFER_BYTES, Batch, Space, TheoryRow


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
        rows: the largest number of theory rows of a kernel type; 0: all points of the grid.
        seed: the same seed draws the same rows, for a given version of hypothesis.
        budget_bytes: memory for the tensors of a row and the buffer that flushes the cache.
        draw: draws the rows of a sample.
        is_npu: whether the database is one of an NPU; the slots of any other device are in ND.
        forms_of_database: whether rows take the dtypes and formats of the rows in the database.
        served: rows by kernel type and signature, in place of rows of the catalog's patterns.
        loads: the Expert Loads of kernels of experts, in turn; "" for equally many rows of each expert.
    """

    targets: Targets
    rows: int
    seed: int
    budget_bytes: int
    draw: DrawRows
    is_npu: bool = True
    forms_of_database: bool = True
    loads: tuple[str, ...] = ("",)
    served: Mapping[str, Mapping[str, TheoryRow]] = field(default_factory=dict)


@dataclass(frozen=True)
class KernelResult:
    """The result of a run for a kernel type. All values are plain, so that processes can exchange the result
    (a tuple comes back as a list).

    Attributes:
        added: rows that were added, or would be.
        existing: rows of the run that the database had before.
        largest_bytes, total_bytes: bytes of the tensors of the largest new row, and of all new rows.
        refused: rows left out because the device's kernel refuses them.
        over_budget: points of the grid left out because their tensors exceed the memory budget.
        smallest_bytes: bytes of the tensors of the smallest of these points; 0 if there are none.
        missing: sources of sizes that none of the models has, for each pattern without rows.
        unknown_dtypes: dtypes in the database without a known size; their rows give no forms.
    """

    kernel_type: str
    added: int = 0
    existing: int = 0
    largest_bytes: int = 0
    total_bytes: int = 0
    refused: int = 0
    over_budget: int = 0
    smallest_bytes: int = 0
    missing: tuple[str, ...] = ()
    unknown_dtypes: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelPlan:
    """The rows that a run adds to a kernel type.

    Attributes:
        frame: the rows.
        signatures, bytes: the signature of each row, and the bytes of its tensors.
        facts: the result, without the numbers of rows that are added.
    """

    frame: pd.DataFrame
    signatures: list[str]
    bytes: np.ndarray
    facts: KernelResult

    @property
    def result(self) -> KernelResult:
        """Numbers of rows added and left out."""
        sizes = self.bytes.tolist()
        return replace(self.facts, added=len(sizes), largest_bytes=max(sizes, default=0), total_bytes=sum(sizes))

    def without(self, known: Container[str]) -> KernelPlan:
        """Returns the plan without rows that the database has, or pruned, meanwhile."""
        kept = [place for place, name in enumerate(self.signatures) if name not in known]
        existing = self.facts.existing + len(self.signatures) - len(kept)
        return KernelPlan(
            self.frame.iloc[kept].reset_index(drop=True),
            [self.signatures[place] for place in kept],
            self.bytes[kept],
            replace(self.facts, existing=existing),
        )


def pattern_spaces(kernel: CatalogKernel, request: Request, known: KnownRows | None, database: Path) -> list[Space]:
    """Returns the space of each pattern of a kernel type.

    Args:
        database: the folder of the database. Its device has no rows in FP8 and FP4 if its data sheet has no FP8.
    """
    place = parse_path(database)
    peaks = device_peak(place[0]).tera_ops if place is not None else {}
    lacking = FP8 - peaks.keys() if peaks else frozenset[str]()
    lacking |= {"FLOAT8_E8M0", "FLOAT4_E2M1"} if lacking else set()
    in_nd = not request.is_npu and not (known is not None and known.has_captured_blocks)
    from_rows = known if request.forms_of_database else None
    spaces = []
    loads = request.loads if kernel.kernel_type in WITH_LOAD else ("",)
    for pattern, load in product(kernel.patterns, loads):
        loaded = replace(pattern, cells={**pattern.cells, EXPERT_LOAD: load}) if load else pattern
        forms = [
            form.in_nd() if in_nd else form
            for form in (from_rows.forms(pattern) if from_rows is not None else sorted_forms(pattern.forms))
            if lacking.isdisjoint((*form.input_dtypes, *form.output_dtypes))
        ]
        spaces.append(
            Space(kernel.kernel_type, loaded, list(dict.fromkeys(forms)), request.targets, request.budget_bytes)
        )
    return spaces


def plan_kernel(kernel: CatalogKernel, table: RowTable, request: Request) -> KernelPlan:
    """Returns the rows of a run that a table lacks; see `add_theory_rows`.

    Rows of earlier runs count towards `request.rows`, so that a repeated run adds nothing. Captured rows do not count.

    Raises:
        TableError: a row of the table cannot be read.
    """
    if request.served:
        return _without_known(_served_plan(kernel.kernel_type, request), table)
    known = KnownRows(kernel, table, request.targets) if len(table) else None
    spaces = pattern_spaces(kernel, request, known, table.path.parent)
    existing = table.signatures
    captured = {existing[at] for at in np.flatnonzero(table.captured.known)}
    batches, names, in_turn = _candidates(kernel.kernel_type, [space for space in spaces if len(space)], request)
    chosen: dict[str, int] = {}
    for place in in_turn:
        if not (request.rows and names[place] in captured):
            chosen.setdefault(names[place], place)
        if request.rows and len(chosen) == request.rows:
            break
    missing = request.rows - len(chosen)
    if missing > 0 and any(map(len, spaces)):
        drawn = request.draw(spaces, missing, seed=request.seed, exclude=captured | chosen.keys())
        chosen |= {name: len(names) + i for i, name in enumerate(drawn)}
        frame = pd.DataFrame([row.cells for row in drawn.values()], dtype=object)
        batches.append(Batch(frame, np.array([row.bytes for row in drawn.values()], dtype=np.int64)))
    frame = pd.concat([batch.frame for batch in batches], ignore_index=True) if batches else pd.DataFrame()
    places = list(chosen.values())
    facts = KernelResult(
        kernel.kernel_type,
        over_budget=sum(space.over_budget for space in spaces),
        smallest_bytes=min((space.smallest_over_budget for space in spaces if space.over_budget), default=0),
        missing=tuple(sorted({space.missing_source for space in spaces if space.missing_source})),
        unknown_dtypes=tuple(known.unknown_dtypes()) if known is not None else (),
    )
    sizes = np.concatenate([batch.bytes for batch in batches]) if batches else np.zeros(0, dtype=np.int64)
    return _without_known(KernelPlan(frame.iloc[places].fillna(""), list(chosen), sizes[places], facts), table)


def _served_plan(kernel_type: str, request: Request) -> KernelPlan:
    """Returns the rows of a list of calls that the memory budget allows."""
    limit, rows = request.budget_bytes - FLUSH_BUFFER_BYTES, request.served[kernel_type]
    chosen = {name: row for name, row in rows.items() if row.bytes <= limit}
    larger = [row.bytes for row in rows.values() if row.bytes > limit]
    facts = KernelResult(kernel_type, over_budget=len(larger), smallest_bytes=min(larger, default=0))
    frame = pd.DataFrame([row.cells for row in chosen.values()], dtype=object).fillna("")
    return KernelPlan(frame, list(chosen), np.array([row.bytes for row in chosen.values()], dtype=np.int64), facts)


def _without_known(plan: KernelPlan, table: RowTable) -> KernelPlan:
    """Returns a plan without rows that the device refuses, and without those of a table."""
    refused = _refused(table, plan)
    plan = plan.without(refused)
    facts = replace(plan.facts, existing=0, refused=len(refused))
    return replace(plan, facts=facts).without(set(table.signatures))


def _refused(table: RowTable, plan: KernelPlan) -> set[str]:
    """Returns the signatures of rows that the device of a table refuses, by the shapes that it was run with."""
    constraints = read_constraints(table) if table.kernel_type == "DispatchFFNCombine" else None
    if constraints is None or not constraints.trials or not plan.signatures:
        return set()
    cells = zip(plan.signatures, *(plan.frame[name] for name in (INPUT_SHAPES, INPUT_DTYPES, EP_SIZE)), strict=True)
    return {
        name
        for name, shapes, dtypes, ep_size in cells
        if not constraints.accepts(shape_of(shapes), ep_size=int(ep_size), weights=split_cell(dtypes)[1])
    }


def _candidates(
    kernel_type: str, spaces: Sequence[Space], request: Request
) -> tuple[list[Batch], list[str], Iterator[int]]:
    """Returns rows of the grids of some spaces, their signatures, and their places, the most important ones first.

    These are all rows, or those that every sample holds. The spaces of a sample take turns.
    """
    batches: list[Batch] = []
    orders: list[Iterable[int]] = []
    count = 0
    for space in spaces:
        positions = np.array(space.required(), dtype=np.int64) if request.rows else None
        if positions is None:
            orders.append(range(count, count + len(space)))
            batches += space.batches()
        else:
            # The rows of a batch are in the order of the grid.
            order = np.argsort(positions, kind="stable")
            orders.append((count + np.argsort(order, kind="stable")).tolist())
            batches += space.batches(positions[order])
        count += len(space) if positions is None else len(positions)
    names = [name for batch in batches for name in signatures(kernel_type, batch.frame)]
    if not request.rows:
        return batches, names, chain.from_iterable(orders)
    return batches, names, (place for places in zip_longest(*orders) for place in places if place is not None)


#: A theory row has an empty duration, where it has no other.
_COLUMNS = (*BASE, AVERAGE)


def read_table(database: Database, kernel_type: str) -> RowTable:
    """Reads the rows of a kernel type; an empty table if there is no CSV. Raises OpAtlasError."""
    return database.read_or_empty(kernel_type, _COLUMNS)


def add_theory_rows(database: Database, kernel: CatalogKernel, request: Request) -> KernelPlan:
    """Appends the rows of a run that the database lacks, and returns them.

    The CSV is replaced in one step. Rows that another process adds meanwhile are not added twice.

    Raises:
        OpAtlasError: a file cannot be read or written; the CSV is unchanged.
    """
    plan = plan_kernel(kernel, read_table(database, kernel.kernel_type), request)
    if not plan.signatures:
        return plan
    with database.lock():
        # Read again: the plan took some seconds, in which another process may have added rows.
        fold = TableFold(read_table(database, kernel.kernel_type))
        plan = plan.without({*fold.positions, *database.pruned(kernel.kernel_type).signatures})
        if plan.signatures:
            for name, cells in zip(plan.signatures, row_cells(plan.frame), strict=True):
                fold.append(cells, name)
            fold.write(database)
    return plan
