"""The Runtime columns of attention rows.

A capture has the shapes of the sequence lengths and of the block table, and not their values, which the duration of
an attention kernel depends on. An ingest fills the shapes; `--attention-records` fills the values from records of
calls.

A captured row stands for all calls with its shapes, a record for one call. Rows without values get the values of the
first records with their shapes; each further distinct record adds a row. The other columns:

profiling            stay, and are copied to added rows: a capture does not tell its calls apart, so all these rows
                     have the average over all calls
microbench, status   of a row that gets values: emptied, because the replay assumed other lengths. The row as it was
                     moves to pruned/, with the reason
all others           stay, and are copied to added rows
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from opatlas.capture.attention_records import (
    AVG_SEQ_LEN,
    KV_VALUES,
    SHAPES,
    CallValues,
    DistinctRecords,
    JoinKey,
    is_complete,
    row_key,
)
from opatlas.capture.cases import CaptureCase, CaptureCases
from opatlas.counts import add_counts
from opatlas.data.cells import TableEdit, positions_by_key
from opatlas.data.database import Database
from opatlas.data.fold import TableFold
from opatlas.data.pruned import PRUNED_REASON
from opatlas.errors import OpAtlasError
from opatlas.row.columns import (
    ATTENTION_TYPES,
    AVERAGE,
    INPUT_SHAPES,
    INPUT_SLOTS,
    LEGACY_AVG_SEQ_LEN,
    OUTPUT_SLOTS,
    POOLED,
    RUNTIME_IN_SIGNATURE,
    RUNTIME_PREFIX,
)
from opatlas.row.quality import valid_duration
from opatlas.row.row_kind import row_kind
from opatlas.row.signature import signatures_of
from opatlas.row.slots import split_cell
from opatlas.text import parse_real, printable

SOURCE_PROFILE = RUNTIME_PREFIX + "source_profile"
COMPLETENESS = RUNTIME_PREFIX + "metadata_completeness"

#: The input slots, of 31, whose shapes describe the batch.
_SHAPE_SLOTS = {
    RUNTIME_PREFIX + "actual_seq_lengths_shape": 5,
    RUNTIME_PREFIX + "actual_seq_lengths_kv_shape": 6,
    RUNTIME_PREFIX + "block_table_shape": 14,
}
#: Captures named in a cell; further captures are counted.
_SOURCES_NAMED = 3


@dataclass(frozen=True)
class Bundle:
    """A capture and the files beside it; None for a missing file."""

    capture: Path
    operator_details: Path | None
    trace_view: Path | None

    @classmethod
    def of(cls, capture: Path) -> Bundle:
        """Returns the bundle of a capture."""
        return cls(capture, _beside(capture, "operator_details.csv"), _beside(capture, "trace_view.json"))

    def name(self, root: Path) -> str:
        """Returns `rank_0/kernel_details.csv + trace_view.json`, from the last folder of `root` downwards."""
        root = root.resolve()
        above = root.parent if root.is_dir() else root.parent.parent
        capture = self.capture.resolve()
        relative = (
            capture.relative_to(above) if capture.is_relative_to(above) else Path(capture.parent.name, capture.name)
        )
        beside = [path.name for path in (self.operator_details, self.trace_view) if path is not None]
        return " + ".join([printable(relative.as_posix()), *beside])


def runtime_cells(case: CaptureCase, root: Path) -> dict[str, str]:
    """Returns the Runtime cells that a capture can fill; none for kernels other than attention.

    Args:
        root: the --profiling-path. Files are named from its last folder on, so that the database holds no path of the
            machine that ran the ingest.
    """
    if case.kernel_type not in ATTENTION_TYPES:
        return {}
    return {SOURCE_PROFILE: source_cell(source_names(case, root)), **shape_cells(case)}


def shape_cells(case: CaptureCase) -> dict[str, str]:
    """Returns the Runtime cells that follow from the shapes of an attention kernel; none for other kernels."""
    if case.kernel_type not in ATTENTION_TYPES:
        return {}
    shapes = split_cell(case.cells[INPUT_SHAPES])
    cells = {column: shapes[slot] if slot < len(shapes) else "" for column, slot in _SHAPE_SLOTS.items()}
    return {**cells, COMPLETENESS: "shapes-only" if any(cells.values()) else "none"}


def source_names(case: CaptureCase, root: Path) -> list[str]:
    """Returns the names of an attention kernel's captures and their bundles; none for other kernels."""
    return [Bundle.of(source).name(root) for source in case.sources] if case.kernel_type in ATTENTION_TYPES else []


def bundles(cases: Mapping[str, CaptureCases]) -> list[Bundle]:
    """Returns the captures with attention rows, in the order read."""
    captures = dict.fromkeys(
        source for kernel_type in ATTENTION_TYPES for case in cases.get(kernel_type, ()) for source in case.sources
    )
    return [Bundle.of(capture) for capture in captures]


def source_cell(names: Sequence[str]) -> str:
    """Returns the cell that names the captures of a row: the first ones, and how many more there are."""
    more = len(names) - _SOURCES_NAMED
    return "; ".join(names[:_SOURCES_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _beside(capture: Path, name: str) -> Path | None:
    path = capture.with_name(name)
    return path if path.is_file() else None


_PRUNED = "measured with assumed lengths, before --attention-records filled in the lengths of a call"
#: Columns about a single call that no record states.
_CALL_COLUMNS = (RUNTIME_PREFIX + "attn_state", RUNTIME_PREFIX + "kv_cache_mode", LEGACY_AVG_SEQ_LEN)
_WORD_MARKS = re.compile(r"[\s\[\](){}\"']+")


@dataclass(frozen=True)
class UnfilledRow:
    """An attention row that still lacks lengths: its place and its key; the key is None where a shape is invalid."""

    place: str
    key: JoinKey | None


@dataclass
class FillResult:
    """The changes of rows by attention records.

    Attributes:
        rows: attention rows before.
        filled: rows that got values.
        added: rows that were added for further records.
        unchanged: rows that already had the values of a record.
        left_out: records beyond the limit of rows of a case; the number may count repeated records.
        pruned: measurements that moved to pruned/.
        unfilled: rows without lengths whose key no record has.
        problems: files that could not be read or written.
    """

    rows: int = 0
    filled: int = 0
    added: int = 0
    unchanged: int = 0
    left_out: int = 0
    pruned: int = 0
    unfilled: list[UnfilledRow] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def row_keys(database: Database) -> set[JoinKey]:
    """Returns the keys of all attention rows. Skips files that cannot be read."""
    keys: set[JoinKey] = set()
    for kernel_type in _tables(database):
        with suppress(OpAtlasError):
            keys.update(key for key in _keys(TableEdit(database.read(kernel_type))) if key is not None)
    return keys


def fill_rows(database: Database, matched: Mapping[JoinKey, DistinctRecords], limit: int) -> FillResult:
    """Fills the rows of all attention kernels; each CSV is replaced in one step.

    Args:
        matched: records by their key.
        limit: the largest number of rows that a captured row may become; 0: any number.

    Raises:
        OpAtlasError: the database cannot be locked. A file that cannot be read or written is a problem of the result.
    """
    outcome = FillResult()
    with database.lock():
        for kernel_type in _tables(database):
            try:
                _fill_table(database, kernel_type, matched, limit, outcome)
            except OpAtlasError as error:
                outcome.problems.append(str(error))
    return outcome


def _tables(database: Database) -> list[str]:
    return [kernel_type for kernel_type in database.kernel_types() if kernel_type in ATTENTION_TYPES]


def _place(kernel_type: str, position: int) -> str:
    return f"{kernel_type}.csv:{position + 2}"


def _keys(edit: TableEdit) -> list[JoinKey | None]:
    names = (INPUT_SLOTS[0], RUNTIME_PREFIX + "operator_input_shapes_raw", *SHAPES)
    rows = zip(*(edit[name] for name in names), strict=True)
    return [row_key(dict(zip(names, cells, strict=True))) for cells in rows]


def _fill_table(
    database: Database, kernel_type: str, matched: Mapping[JoinKey, DistinctRecords], limit: int, outcome: FillResult
) -> None:
    table = database.read(kernel_type)
    fold = TableFold(table)
    rows = _AttentionRows(fold, table.columns)
    counts = FillResult(rows=len(table))
    slots = [column for column in (*INPUT_SLOTS, *OUTPUT_SLOTS) if column in table.columns]
    names = signatures_of(kernel_type, slots, table.cells)
    captured = positions_by_key(zip(names, _keys(rows.edit), strict=True))
    for (_, key), positions in captured.items():
        if key is not None and key in matched:
            rows.fill(positions, matched[key], limit, counts)
        else:
            kv_values = rows.edit[KV_VALUES]
            counts.unfilled += [
                UnfilledRow(_place(kernel_type, at), key) for at in positions if not kv_values[at].strip()
            ]
    if rows.measured:
        # Pruned rows are written first, so that each measurement is always in pruned/ or in the CSV.
        fold.set_aside({**row, PRUNED_REASON: _PRUNED} for row in table.rows(sorted(rows.measured)))
        counts.pruned = len(rows.measured)
    if counts.filled or counts.added:
        fold.write(database)
    add_counts(outcome, counts)


class _AttentionRows:
    """The rows of a CSV while they are filled.

    Attributes:
        measured: positions of rows that have lost their measurement.
    """

    def __init__(self, fold: TableFold, columns: Sequence[str]) -> None:
        self.edit = fold.rows
        self.measured: list[int] = []
        self._fold = fold
        self._columns = columns
        kind = row_kind(fold.kernel_type)
        self._measurement = [name for name in columns if kind.is_measured(name) or name in POOLED]

    def fill(self, positions: Sequence[int], chosen: DistinctRecords, limit: int, counts: FillResult) -> None:
        """Fills the rows of one captured case from the records of its key."""
        cases: dict[_Call, list[int]] = {}
        for position in positions:
            cases.setdefault(self._case(position), []).append(position)
        # The cells of added rows, taken before anything changes.
        base = {name: self.edit[name][positions[0]] for name in self._columns}
        base |= dict.fromkeys((*self._measurement, *_CALL_COLUMNS), "")
        open_cases = dict(cases)
        left: list[CallValues] = []
        for values in chosen.values():
            at = open_cases.pop(_Call(values.case, ""), None)
            if at is None:
                left.append(values)
                continue
            changed = [self._set(position, values) for position in at]
            counts.filled += sum(changed)
            counts.unchanged += len(at) - sum(changed)
        added = 0
        for values in left:
            fitting = next((call for call in open_cases if call.fits(values)), None)
            if fitting is not None:
                at = open_cases.pop(fitting)
                for position in at:
                    self._set(position, values)
                counts.filled += len(at)
            elif limit and len(cases) + added >= limit:
                counts.left_out += 1
            else:
                cells = values.cells()
                self._fold.append({**base, **cells, COMPLETENESS: _completeness(cells)})
                added += 1
        counts.added += added
        counts.left_out += chosen.left_out

    def _case(self, position: int) -> _Call:
        case = tuple([_plain(self.edit[name][position]) for name in RUNTIME_IN_SIGNATURE])
        has_lengths = bool(self.edit[KV_VALUES][position].strip())
        average = self.edit[AVG_SEQ_LEN][position] or self.edit[LEGACY_AVG_SEQ_LEN][position]
        return _Call(case, "" if has_lengths else _whole(average))

    def _set(self, position: int, values: CallValues) -> bool:
        """Fills the empty cells of a row. Returns whether there were any."""
        before = self._case(position)
        found = {name: text for name, text in values.cells().items() if text and not self.edit[name][position].strip()}
        changed = self.edit.set_cells(position, found)
        now = {name: self.edit[name][position] for name in values.cells()}
        if changed or not self.edit[COMPLETENESS][position]:
            self.edit.set_cells(position, {COMPLETENESS: _completeness(now)})
        if self._case(position) != before:
            if valid_duration(self.edit[AVERAGE][position]) is not None:
                self.measured.append(position)
            self._fold.clear(position)
        return changed


def _completeness(cells: dict[str, str]) -> str:
    return "complete" if is_complete(cells) else "partial"


@dataclass(frozen=True)
class _Call:
    """The facts that a row states about its call.

    Attributes:
        case: cells of RUNTIME_IN_SIGNATURE.
        average: mean number of keys, for a row without lengths; "" if unknown.
    """

    case: tuple[str, ...]
    average: str

    def fits(self, values: CallValues) -> bool:
        """Returns whether the row and a record do not contradict each other."""
        return (not self.average or self.average == _whole(values.average)) and all(
            not cell or cell == text for cell, text in zip(self.case, values.case, strict=True)
        )


def _whole(average: str) -> str:
    number = parse_real(_plain(average)) or 0.0
    return str(round(number)) if 0 < number < math.inf else ""


def _plain(cell: str) -> str:
    """Returns a cell as records have it: without brackets and quotes, and `16` for the `16.0` of pandas."""
    words = _WORD_MARKS.sub("", cell).strip(",").split(",")
    return ",".join(word.removesuffix(".0") for word in words)
