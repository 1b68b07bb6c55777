"""The Runtime columns of attention rows, from records of calls: one JSON object a line (`CallRecord`).

A capture has the shapes of the sequence lengths and of the block table, and not their values, which the duration of
an attention kernel depends on. An ingest fills the shapes; `--attention-records` fills the values from records that a
serving process wrote (attention_recorder.py), `--attention` with lengths that a user knows.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from opatlas.capture.launches import add_counts
from opatlas.data.database import PRUNED_REASON, Database
from opatlas.data.fold import TableFold
from opatlas.errors import OpAtlasError, TableError, noted
from opatlas.files import BROKEN_GZIP, open_stream
from opatlas.grouping import positions_by_key
from opatlas.row import attention as fia, columns as col
from opatlas.row.communication import row_kind
from opatlas.row.signature import signatures_of
from opatlas.row.table import RowTable
from opatlas.text import is_text, parse_real
from opatlas.typed_json import DecodeError, decode

_PRUNED = "measured with assumed lengths, before --attention-records filled in the lengths of a call"
#: Columns about a single call that no record states.
_CALL_COLUMNS = (col.RUNTIME_PREFIX + "attn_state", col.RUNTIME_PREFIX + "kv_cache_mode", col.LEGACY_AVG_SEQ_LEN)
_WORD_MARKS = re.compile(r"[\s\[\](){}\"']+")
_BOM = b"\xef\xbb\xbf"
#: A record of a few thousand sequences takes some 50 kB.
_LONGEST_LINE = 1 << 24
_MALFORMED_NAMED = 10
#: A captured row becomes at most so many rows, one for each distinct record.
_MOST_ROWS = 100
_JSON_LINES = "Write one JSON object a line (`jq -c '.[]'` makes such lines of a JSON array)"


@lru_cache(maxsize=16)
def _parse(line: bytes) -> tuple[fia.JoinKey, Mapping[str, str]]:
    """Cached, because lines repeat: every layer of a model makes the same call. Raises DecodeError."""
    record = decode(line, fia.CallRecord, "")
    return record.key, record.cells()


@dataclass
class DistinctRecords:
    """The cells of the distinct records of a key, and how many were left out.

    Beyond a limit, those with the smallest digests stay. So the choice is unbiased, takes bounded memory, and does not
    depend on the order of the records.
    """

    cells: dict[bytes, Mapping[str, str]] = field(default_factory=dict)
    left_out: int = 0

    def add(self, cells: Mapping[str, str]) -> None:
        self.cells.setdefault(blake2b("|".join(fia.case_of(cells)).encode(), digest_size=8).digest(), cells)
        if len(self.cells) > 2 * _MOST_ROWS:
            self.cut()

    def cut(self) -> Mapping[bytes, Mapping[str, str]]:
        """Returns the records that stay."""
        if len(self.cells) > _MOST_ROWS:
            kept = {*sorted(self.cells)[:_MOST_ROWS]}
            self.left_out += len(self.cells) - _MOST_ROWS
            self.cells = {digest: cells for digest, cells in self.cells.items() if digest in kept}
        return self.cells


@dataclass
class FillResult:
    """What records did to the rows of attention.

    Attributes:
        records: records, without malformed lines.
        malformed_lines: lines that are none; the first ones are among the problems.
        rows: attention rows before.
        filled: rows that got values.
        added: rows that were added for further records.
        unchanged: rows that already had the values of a record.
        left_out: records beyond the limit of rows of a case; the number may count repeated records.
        pruned: measurements that were added to pruned/.
        unmatched: what, number, `file:line` of the first, and key: of records without a row, the most frequent key
            first; then of rows without lengths whose key no record has.
        problems: files that could not be read completely, or not written.
    """

    records: int = 0
    malformed_lines: int = 0
    rows: int = 0
    filled: int = 0
    added: int = 0
    unchanged: int = 0
    left_out: int = 0
    pruned: int = 0
    unmatched: list[tuple[str, int, str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def fill_rows(
    database: Database,
    files: Iterable[Path],
    on_mb: Callable[[float], None],
    given: Sequence[Sequence[fia.Sequences]] = (),
) -> FillResult:
    """Fills the rows of all attention kernels from records; each CSV is replaced in one step.

    Memory grows with the number of distinct keys, not of records.

    Args:
        on_mb: called with the MB read since the last call.
        given: batches for rows without lengths that no record has; one that fits no row is a problem of the result.

    Raises:
        OpAtlasError: the database cannot be locked. A file that cannot be read or written is a problem of the result.
    """
    done, tables = FillResult(), list[_AttentionRows]()
    with database.lock():
        for kernel_type in sorted(col.ATTENTION_TYPES.intersection(database.kernel_types())):
            with noted(done.problems):
                tables.append(_AttentionRows(database.read(kernel_type)))
        matched = {key: DistinctRecords() for table in tables for key in table.keys if key is not None}
        for batch in given:
            if all(fia.batch_cells(key, batch) is None for key in matched):
                done.problems.append(_no_row_of(batch, matched))
        unmatched: dict[fia.JoinKey, tuple[int, str]] = {}
        for path in files:
            _read_records(path, matched, unmatched, done, on_mb)
        most_first = sorted(unmatched.items(), key=lambda item: -item[1][0])
        done.unmatched = [("record", count, first, str(key)) for key, (count, first) in most_first]
        if (more := done.malformed_lines - _MALFORMED_NAMED) > 0:
            done.problems.append(f"and {more:,} more malformed lines")
        for table in tables:
            with noted(done.problems):
                if table.fill(matched, given):
                    table.fold.write(database)
                add_counts(done, table.counts)
    return done


def rows_without_lengths(database: Database) -> int:
    """Returns the number of attention rows whose lengths are not known, without files that cannot be read."""
    found = 0
    for kernel_type in col.ATTENTION_TYPES.intersection(database.kernel_types()):
        with suppress(OpAtlasError):
            found += sum(not cell.strip() for cell in database.read(kernel_type).cells(fia.KV_VALUES))
    return found


def _no_row_of(batch: Sequence[fia.Sequences], keys: Iterable[fia.JoinKey]) -> str:
    there = [
        f"{key.kv_sequences} sequences with {key.query[0]} queries"
        + (f" and {key.key[0]} keys" * (not key.block_table))
        + " in all"
        for key in keys
        if key.query and key.key
    ]
    known = ", ".join(dict.fromkeys(there)) or "none"
    return f"--attention {'+'.join(map(str, batch))}: no row is of such a batch; the rows of attention are of: {known}"


def _read_records(
    path: Path,
    matched: Mapping[fia.JoinKey, DistinctRecords],
    unmatched: dict[fia.JoinKey, tuple[int, str]],
    done: FillResult,
    on_mb: Callable[[float], None],
) -> None:
    number = 0
    try:
        with open_stream(path, lambda size: on_mb(size / 1e6)) as file:
            while line := file.readline(_LONGEST_LINE):
                number += 1
                line = line.removeprefix(_BOM) if number == 1 else line
                if number == 1 and (not is_text(line) or line.lstrip().startswith(b"[")):
                    problem = "not JSON Lines in UTF-8 (a JSON array, UTF-16, a workbook, a packed file?)"
                    raise TableError(path, problem, _JSON_LINES)
                if len(line) == _LONGEST_LINE:
                    problem = f"longer than {_LONGEST_LINE >> 20} MB: not read from here"
                    raise TableError(path, problem, _JSON_LINES, line=number)
                if not line.strip():
                    continue
                try:
                    key, cells = _parse(line)
                except DecodeError as error:
                    done.malformed_lines += 1
                    if done.malformed_lines <= _MALFORMED_NAMED:
                        done.problems.append(str(TableError(path, error.problem, _JSON_LINES, line=number)))
                    continue
                done.records += 1
                if key in matched:
                    matched[key].add(cells)
                else:
                    count, first = unmatched.get(key, (0, f"{path}:{number}"))
                    unmatched[key] = count + 1, first
    except OpAtlasError as error:
        done.problems.append(str(error))
    except (*BROKEN_GZIP, OSError) as error:
        problem = f"cannot be read any further ({error}); the earlier lines were read"
        done.problems.append(str(TableError(path, problem, "Restore the file", line=number)))


#: What a row says of its call: the cells of RUNTIME_IN_SIGNATURE, and for a row without lengths the mean number of
#: keys; "" if unknown.
_Call = tuple[tuple[str, ...], str]


class _AttentionRows:
    """The rows of a CSV while they are filled."""

    def __init__(self, table: RowTable) -> None:
        self.counts = FillResult(rows=len(table))
        self._table = table
        self.fold = TableFold(table)
        self._rows = self.fold.rows
        self._columns = [*table.columns]
        names = (col.INPUT_SHAPES, fia.RAW_SHAPES, *fia.SHAPE_SLOTS)
        cells = zip(*map(table.cells, names), strict=True)
        #: The key of each row.
        self.keys = [fia.row_key(dict(zip(names, each, strict=True))) for each in cells]

    def fill(self, matched: Mapping[fia.JoinKey, DistinctRecords], given: Sequence[Sequence[fia.Sequences]]) -> bool:
        """Fills the rows from the records of their keys, or with given lengths. Returns whether a row changed."""
        slots = [column for column in (*col.INPUT_SLOTS, *col.OUTPUT_SLOTS) if column in self._columns]
        names = signatures_of(self._table.kernel_type, slots, self._table.cells)
        for (_, key), positions in positions_by_key(zip(names, self.keys, strict=True)).items():
            records = matched[key].cut() if key is not None else {}
            if records:
                self._fill(positions, records.values())
            else:
                unfilled = [at for at in positions if not self._rows[fia.KV_VALUES][at].strip()]
                found = [cells for batch in given if key is not None and (cells := fia.batch_cells(key, batch))]
                if found and unfilled:
                    self._fill(unfilled, found)
                    continue
                what = str(key or "shapes that are not lists of whole numbers")
                rows = [("row", 1, f"{self._table.kernel_type}.csv:{at + 2}", what) for at in unfilled]
                self.counts.unmatched += rows
            if key is not None:
                self.counts.left_out += matched[key].left_out
        return self.counts.filled + self.counts.added > 0

    def _fill(self, positions: Sequence[int], records: Iterable[Mapping[str, str]]) -> None:
        """Fills the rows of one captured case from the records of its key."""
        calls = positions_by_key(map(self._call, positions))
        open_calls = {call: [positions[i] for i in of_call] for call, of_call in calls.items()}
        # The cells of added rows, taken before anything changes.
        kind = row_kind(self._table.kernel_type)
        measured = [name for name in self._columns if kind.is_measured(name) or name in col.POOLED]
        base = {name: self._rows[name][positions[0]] for name in self._columns}
        base |= dict.fromkeys((*measured, *_CALL_COLUMNS), "")
        left, added = [], 0
        for cells in records:
            at = open_calls.pop((fia.case_of(cells), ""), None)
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
            elif len(calls) + added >= _MOST_ROWS:
                self.counts.left_out += 1
            else:
                self.fold.append({**base, **cells, fia.COMPLETENESS: fia.completeness(cells)})
                added += 1
        self.counts.added += added

    def _call(self, position: int) -> _Call:
        case = tuple([_plain(self._rows[name][position]) for name in col.RUNTIME_IN_SIGNATURE])
        has_lengths = bool(self._rows[fia.KV_VALUES][position].strip())
        average = self._rows[fia.AVG_SEQ_LEN][position] or self._rows[col.LEGACY_AVG_SEQ_LEN][position]
        return case, "" if has_lengths else _whole(average)

    def _set(self, position: int, cells: Mapping[str, str]) -> bool:
        """Fills the empty cells of a row. Returns whether there were any."""
        before = self._call(position)
        found = {name: text for name, text in cells.items() if text and not self._rows[name][position].strip()}
        changed = self._rows.set_cells(position, found)
        if changed or not self._rows[fia.COMPLETENESS][position]:
            now = {name: self._rows[name][position] for name in cells}
            self._rows.set_cells(position, {fia.COMPLETENESS: fia.completeness(now)})
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
    return (not average or average == _whole(cells[fia.AVG_SEQ_LEN])) and all(
        not cell or cell == text for cell, text in zip(case, fia.case_of(cells), strict=True)
    )


def _whole(average: str) -> str:
    number = parse_real(_plain(average)) or 0.0
    return str(round(number)) if 0 < number < float("inf") else ""


def _plain(cell: str) -> str:
    """Returns a cell as records have it: without brackets and quotes, and `16` for the `16.0` of pandas."""
    words = _WORD_MARKS.sub("", cell).strip(",").split(",")
    return ",".join(word.removesuffix(".0") for word in words)
