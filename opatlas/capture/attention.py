"""The Runtime columns of attention rows.

A capture has the shapes of the sequence lengths and of the block table, and not their values, which the duration of
an attention kernel depends on. An ingest fills the shapes; `--attention-records` fills the values from records of
calls.

A captured row stands for all calls with its shapes, a record for one call. Rows without values get the values of the
first records with their shapes; each further distinct record adds a row. The other columns:

profiling            stay, and are copied to added rows: a capture does not tell its calls apart, so all these rows
                     have the average over all calls
microbench, status   of a row that gets values: emptied, because the replay assumed other lengths. The row as it was
                     is added to pruned/, with the reason
all others           stay, and are copied to added rows
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opatlas.capture.attention_records import (
    AVG_SEQ_LEN,
    KV_VALUES,
    SHAPES,
    DistinctRecords,
    JoinKey,
    Records,
    case_of,
    completeness,
    row_key,
)
from opatlas.capture.cases import add_counts
from opatlas.capture.launches import COMPLETENESS
from opatlas.data.cells import TableEdit, positions_by_key
from opatlas.data.csv_files import write_rows
from opatlas.data.database import PRUNED_REASON, Database
from opatlas.data.fold import TableFold
from opatlas.errors import OpAtlasError
from opatlas.row.columns import (
    ATTENTION_TYPES,
    INPUT_SLOTS,
    LEGACY_AVG_SEQ_LEN,
    OUTPUT_SLOTS,
    POOLED,
    RUNTIME_IN_SIGNATURE,
    RUNTIME_PREFIX,
)
from opatlas.row.communication import row_kind
from opatlas.row.signature import signatures_of
from opatlas.row.table import RowTable
from opatlas.text import parse_real

_PRUNED = "measured with assumed lengths, before --attention-records filled in the lengths of a call"
#: Columns about a single call that no record states.
_CALL_COLUMNS = (RUNTIME_PREFIX + "attn_state", RUNTIME_PREFIX + "kv_cache_mode", LEGACY_AVG_SEQ_LEN)
_WORD_MARKS = re.compile(r"[\s\[\](){}\"']+")
#: What a row says of its call: the cells of RUNTIME_IN_SIGNATURE, and for a row without lengths the mean number of
#: keys; "" if unknown.
_Call = tuple[tuple[str, ...], str]
#: What, Count, Place, Key and Reason of a record without a row, or of a row without a record.
Unmatched = tuple[str, int, str, str, str]


@dataclass
class FillResult:
    """The changes of rows by attention records.

    Attributes:
        rows: attention rows before.
        filled: rows that got values.
        added: rows that were added for further records.
        unchanged: rows that already had the values of a record.
        left_out: records beyond the limit of rows of a case; the number may count repeated records.
        pruned: measurements that were added to pruned/.
        unfilled: place and key of rows without lengths whose key no record has; the key is None where a shape is
            invalid.
        problems: files that could not be read or written.
    """

    rows: int = 0
    filled: int = 0
    added: int = 0
    unchanged: int = 0
    left_out: int = 0
    pruned: int = 0
    unfilled: list[tuple[str, JoinKey | None]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def row_keys(database: Database) -> set[JoinKey]:
    """Returns the keys of all attention rows. Skips files that cannot be read."""
    keys: set[JoinKey | None] = set()
    for kernel_type in ATTENTION_TYPES.intersection(database.kernel_types()):
        with suppress(OpAtlasError):
            keys.update(_keys(TableFold(database.read(kernel_type)).rows))
    return {key for key in keys if key is not None}


def fill_rows(database: Database, records: Records, limit: int) -> FillResult:
    """Fills the rows of all attention kernels; each CSV is replaced in one step.

    Args:
        limit: the largest number of rows that a captured row may become; 0: any number.

    Raises:
        OpAtlasError: the database cannot be locked. A file that cannot be read or written is a problem of the result.
    """
    outcome = FillResult()
    with database.lock():
        for kernel_type in sorted(ATTENTION_TYPES.intersection(database.kernel_types())):
            try:
                rows = _AttentionRows(database.read(kernel_type), limit)
                rows.fill_all(records.matched)
                if rows.counts.filled or rows.counts.added:
                    rows.fold.write(database)
                add_counts(outcome, rows.counts)
            except OpAtlasError as error:
                outcome.problems.append(str(error))
    return outcome


def _keys(rows: TableEdit) -> list[JoinKey | None]:
    names = (INPUT_SLOTS[0], RUNTIME_PREFIX + "operator_input_shapes_raw", *SHAPES)
    return [
        row_key(dict(zip(names, cells, strict=True))) for cells in zip(*(rows[name] for name in names), strict=True)
    ]


class _AttentionRows:
    """The rows of a CSV while they are filled."""

    def __init__(self, table: RowTable, limit: int) -> None:
        self.counts = FillResult(rows=len(table))
        self._table, self._limit = table, limit
        self.fold = TableFold(table)
        self._rows = self.fold.rows
        self._columns = [*table.columns]

    def fill_all(self, matched: Mapping[JoinKey, DistinctRecords]) -> None:
        slots = [column for column in (*INPUT_SLOTS, *OUTPUT_SLOTS) if column in self._columns]
        names = signatures_of(self._table.kernel_type, slots, self._table.cells)
        for (_, key), positions in positions_by_key(zip(names, _keys(self._rows), strict=True)).items():
            records = matched.get(key) if key is not None else None
            if records is not None:
                self._fill(positions, records.cells.values())
                self.counts.left_out += records.left_out
            else:
                self.counts.unfilled += [
                    (f"{self._table.kernel_type}.csv:{at + 2}", key)
                    for at in positions
                    if not self._rows[KV_VALUES][at].strip()
                ]

    def _fill(self, positions: Sequence[int], records: Iterable[Mapping[str, str]]) -> None:
        """Fills the rows of one captured case from the records of its key."""
        calls = positions_by_key(map(self._call, positions))
        open_calls = {call: [positions[i] for i in of_call] for call, of_call in calls.items()}
        # The cells of added rows, taken before anything changes.
        kind = row_kind(self._table.kernel_type)
        measured = [name for name in self._columns if kind.is_measured(name) or name in POOLED]
        base = {name: self._rows[name][positions[0]] for name in self._columns}
        base |= dict.fromkeys((*measured, *_CALL_COLUMNS), "")
        left, added = [], 0
        for cells in records:
            at = open_calls.pop((case_of(cells), ""), None)
            if at is None:
                left.append(cells)
                continue
            changed = [self._set(position, cells) for position in at]
            self.counts.filled += sum(changed)
            self.counts.unchanged += len(at) - sum(changed)
        for cells in left:
            fitting = next((call for call in open_calls if _fits(call, cells)), None)
            if fitting is not None:
                at = open_calls.pop(fitting)
                for position in at:
                    self._set(position, cells)
                self.counts.filled += len(at)
            elif self._limit and len(calls) + added >= self._limit:
                self.counts.left_out += 1
            else:
                self.fold.append({**base, **cells, COMPLETENESS: completeness(cells)})
                added += 1
        self.counts.added += added

    def _call(self, position: int) -> _Call:
        case = tuple([_plain(self._rows[name][position]) for name in RUNTIME_IN_SIGNATURE])
        has_lengths = bool(self._rows[KV_VALUES][position].strip())
        average = self._rows[AVG_SEQ_LEN][position] or self._rows[LEGACY_AVG_SEQ_LEN][position]
        return case, "" if has_lengths else _whole(average)

    def _set(self, position: int, cells: Mapping[str, str]) -> bool:
        """Fills the empty cells of a row. Returns whether there were any."""
        before = self._call(position)
        found = {name: text for name, text in cells.items() if text and not self._rows[name][position].strip()}
        changed = self._rows.set_cells(position, found)
        if changed or not self._rows[COMPLETENESS][position]:
            now = {name: self._rows[name][position] for name in cells}
            self._rows.set_cells(position, {COMPLETENESS: completeness(now)})
        if self._call(position) != before:
            if self.fold.has_duration(position):
                old = {name: self._table.cells(name)[position] for name in self._columns}
                self.fold.set_aside([{**old, PRUNED_REASON: _PRUNED}])
                self.counts.pruned += 1
            self.fold.clear(position)
        return changed


def _fits(call: _Call, cells: Mapping[str, str]) -> bool:
    """Returns whether a row and a record do not contradict each other."""
    case, average = call
    return (not average or average == _whole(cells[AVG_SEQ_LEN])) and all(
        not cell or cell == text for cell, text in zip(case, case_of(cells), strict=True)
    )


def _whole(average: str) -> str:
    number = parse_real(_plain(average)) or 0.0
    return str(round(number)) if 0 < number < float("inf") else ""


def _plain(cell: str) -> str:
    """Returns a cell as records have it: without brackets and quotes, and `16` for the `16.0` of pandas."""
    words = _WORD_MARKS.sub("", cell).strip(",").split(",")
    return ",".join(word.removesuffix(".0") for word in words)


def find_unmatched(records: Records, outcome: FillResult) -> list[Unmatched]:
    """Returns records without a row, the most frequent key first, then rows without values, in their order."""
    unmatched = sorted(records.unmatched.items(), key=lambda item: -item[1][0])
    return [
        *(("record", count, first, str(key), _why(key)) for key, (count, first) in unmatched),
        *(("row", 1, place, str(key or ""), _why(key)) for place, key in outcome.unfilled),
    ]


def _why(key: JoinKey | None) -> str:
    """Returns why a key can match nothing; "" where nothing has it."""
    if key is None:
        return "shapes are not lists of whole numbers"
    absent = [name for name, shape in (("query", key.query), ("key", key.key), ("value", key.value)) if shape is None]
    return f"no shape of {', '.join(absent)}" if absent else ""


def write_unmatched(database: Database, found: Sequence[Unmatched], at: float) -> Path | None:
    """Writes unmatched records and rows to reports/; no file without such entries. Raises OpAtlasError."""
    if not found:
        return None
    path = database.new_report_path("fill_runtime", at)
    rows: Iterable[Sequence[Any]] = found
    write_rows(path, ("What", "Count", "Place", "Key", "Reason"), rows)
    return path
