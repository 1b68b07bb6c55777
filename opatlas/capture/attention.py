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

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from opatlas.capture.cases import add_counts
from opatlas.capture.launches import COMPLETENESS, SHAPE_SLOTS
from opatlas.data.csv_files import positions_by_key
from opatlas.data.database import PRUNED_REASON, Database
from opatlas.data.fold import TableFold
from opatlas.errors import OpAtlasError, TableError
from opatlas.files import BROKEN_GZIP, open_stream
from opatlas.row import columns as col
from opatlas.row.communication import row_kind
from opatlas.row.quality import number_cell
from opatlas.row.signature import signatures_of
from opatlas.row.slots import split_cell
from opatlas.row.table import RowTable
from opatlas.text import MOST_DIGITS, is_text, parse_real
from opatlas.typed_json import DecodeError, decode

Shape = tuple[int, ...]
RAW_SHAPES = col.RUNTIME_PREFIX + "operator_input_shapes_raw"
#: Slots of FusedInferAttentionScore's 31 inputs.
_QUERY, _KEY, _VALUE, _MASK, _KV_LENGTHS, _BLOCK_TABLE = 0, 1, 2, 4, 6, 14
AVG_SEQ_LEN = col.RUNTIME_PREFIX + "avg_seq_len"
VALID_BLOCKS = col.RUNTIME_PREFIX + "block_table_valid_blocks"
Q_VALUES, KV_VALUES = col.RUNTIME_IN_SIGNATURE[:2]
_LAYOUT = col.RUNTIME_PREFIX + "input_layout"

#: Sizes and lengths have fewer digits than MOST_DIGITS.
_Size = Annotated[int, Meta(ge=0, lt=10**MOST_DIGITS)]
_Sizes = tuple[_Size, ...]


class JoinKey(NamedTuple):
    """The facts that both a capture and a recorded call have. None stands for a missing tensor or list."""

    query: Shape | None
    key: Shape | None
    value: Shape | None
    kv_sequences: int | None
    mask: Shape | None
    block_table: Shape | None

    def __str__(self) -> str:
        named = zip(self._fields, self, strict=True)
        return "; ".join(f"{name.replace('_', ' ')} {_cell(part) or 'none'}" for name, part in named)


#: Returns the Runtime cells of the rows of a key; None if it is of other batches.
KnownLengths = Callable[[JoinKey], Mapping[str, str] | None]


class CallRecord(msgspec.Struct, frozen=True):
    """A call of attention. Each field may be null or missing; other fields are ignored.

    Attributes:
        query_shape, key_shape, value_shape, atten_mask_shape, block_table_shape: lists of dimensions.
        actual_seq_lengths, actual_seq_lengths_kv: lists of lengths, as passed to the call.
        block_table_valid_blocks: blocks in use: one number, or one a sequence.
        num_heads, num_key_value_heads, sparse_mode, input_layout, block_size: arguments of the call.
    """

    query_shape: _Sizes | None = None
    key_shape: _Sizes | None = None
    value_shape: _Sizes | None = None
    atten_mask_shape: _Sizes | None = None
    block_table_shape: _Sizes | None = None
    actual_seq_lengths: _Sizes | None = None
    actual_seq_lengths_kv: _Sizes | None = None
    block_table_valid_blocks: _Size | _Sizes | None = None
    num_heads: _Size | None = None
    num_key_value_heads: _Size | None = None
    sparse_mode: _Size | None = None
    #: `BSND`, `TND_NTD`. A signature drops blanks, quotes and brackets, so that no row would have such a layout.
    input_layout: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.-]*\Z")] | None = None
    block_size: _Size | None = None

    @property
    def key(self) -> JoinKey:
        sequences = None if self.actual_seq_lengths_kv is None else len(self.actual_seq_lengths_kv)
        shapes = self.query_shape, self.key_shape, self.value_shape
        return JoinKey(*shapes, sequences, self.atten_mask_shape, self.block_table_shape)

    def cells(self) -> dict[str, str]:
        """Returns the Runtime cells of the call's row."""
        lengths, kv_lengths = self.actual_seq_lengths, self.actual_seq_lengths_kv
        values = (
            *(lengths, kv_lengths, self.num_heads),
            # 0 means as many key heads as query heads.
            *(self.num_key_value_heads or self.num_heads, self.sparse_mode, self.input_layout, self.block_size),
        )
        shapes = (
            None if lengths is None else len(lengths),
            None if kv_lengths is None else len(kv_lengths),
            self.block_table_shape,
        )
        return {
            **{name: _cell(value) for name, value in zip(col.RUNTIME_IN_SIGNATURE, values, strict=True)},
            AVG_SEQ_LEN: self._average(),
            VALID_BLOCKS: _cell(self.block_table_valid_blocks),
            **{name: _cell(shape) for name, shape in zip(SHAPE_SLOTS, shapes, strict=True)},
        }

    def _average(self) -> str:
        """Returns the mean number of keys of a sequence."""
        lengths = self.actual_seq_lengths_kv
        if not lengths:
            return ""
        # Lengths of TND without a block table are cumulative sums.
        is_sum = self.input_layout == "TND" and self.block_table_shape is None
        return number_cell((lengths[-1] if is_sum else sum(lengths)) / len(lengths))


def row_key(cells: Mapping[str, str]) -> JoinKey | None:
    """Returns the key of an attention row; None if a shape is invalid."""
    slots = split_cell(cells.get(RAW_SHAPES) or cells.get(col.INPUT_SHAPES, ""))
    try:
        shapes = [_shape(slots[at]) if at < len(slots) else None for at in range(_BLOCK_TABLE + 1)]
        _, kv_shape, table_shape = (_shape(split_cell(cells.get(name, ""))[0]) for name in SHAPE_SLOTS)
    except ValueError:
        return None
    kv_lengths = shapes[_KV_LENGTHS] or kv_shape
    sequences = None if kv_lengths is None else math.prod(kv_lengths)
    table = shapes[_BLOCK_TABLE] or table_shape
    return JoinKey(shapes[_QUERY], shapes[_KEY], shapes[_VALUE], sequences, shapes[_MASK], table)


def completeness(cells: Mapping[str, str]) -> str:
    """Returns whether the Runtime cells of a row state everything that the kernel's work depends on, as a cell."""
    # In other layouts the shape of the queries has their length.
    needed = [name for name in col.RUNTIME_IN_SIGNATURE if name != Q_VALUES or cells[_LAYOUT] == "TND"]
    return "complete" if all(cells[name] for name in needed) else "partial"


def case_of(cells: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the cells of RUNTIME_IN_SIGNATURE. Records with equal ones are the same case."""
    return tuple(cells[name] for name in col.RUNTIME_IN_SIGNATURE)


def _shape(word: str) -> Shape | None:
    return tuple(map(int, word.split(","))) if word else None


def _cell(value: int | str | Sequence[int] | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, (int, str)) else ",".join(map(str, value))


_PRUNED = "measured with assumed lengths, before --attention-records filled in the lengths of a call"
#: Columns about a single call that no record states.
_CALL_COLUMNS = (col.RUNTIME_PREFIX + "attn_state", col.RUNTIME_PREFIX + "kv_cache_mode", col.LEGACY_AVG_SEQ_LEN)
_WORD_MARKS = re.compile(r"[\s\[\](){}\"']+")
_BOM = b"\xef\xbb\xbf"
#: A record of a few thousand sequences takes some 50 kB.
_LONGEST_LINE = 1 << 24
_MALFORMED_NAMED = 10
_JSON_LINES = "Write one JSON object a line (`jq -c '.[]'` makes such lines of a JSON array)"


@lru_cache(maxsize=16)
def _parse(line: bytes) -> tuple[JoinKey, Mapping[str, str]]:
    """Cached, because lines repeat: every layer of a model makes the same call. Raises DecodeError."""
    record = decode(line, CallRecord, "")
    return record.key, record.cells()


@dataclass
class DistinctRecords:
    """The cells of the distinct records of a key, and how many were left out.

    Beyond a limit, those with the smallest digests stay. So the choice is unbiased, takes bounded memory, and does not
    depend on the order of the records.
    """

    cells: dict[bytes, Mapping[str, str]] = field(default_factory=dict)
    left_out: int = 0

    def add(self, cells: Mapping[str, str], limit: int) -> None:
        self.cells.setdefault(blake2b("|".join(case_of(cells)).encode(), digest_size=8).digest(), cells)
        if limit and len(self.cells) > 2 * limit:
            self.cut(limit)

    def cut(self, limit: int) -> Mapping[bytes, Mapping[str, str]]:
        """Returns the records that stay."""
        if limit and len(self.cells) > limit:
            kept = {*sorted(self.cells)[:limit]}
            self.left_out += len(self.cells) - limit
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
    limit: int,
    on_mb: Callable[[float], None],
    given: Sequence[KnownLengths] = (),
) -> FillResult:
    """Fills the rows of all attention kernels from records; each CSV is replaced in one step.

    Memory grows with the number of distinct keys, not of records.

    Args:
        limit: the largest number of rows that a captured row may become; 0: any number.
        on_mb: called with the MB read since the last call.
        given: for rows without lengths that no record has.

    Raises:
        OpAtlasError: the database cannot be locked. A file that cannot be read or written is a problem of the result.
    """
    done, tables = FillResult(), list[_AttentionRows]()
    with database.lock():
        for kernel_type in sorted(col.ATTENTION_TYPES.intersection(database.kernel_types())):
            try:
                tables.append(_AttentionRows(database.read(kernel_type), limit))
            except OpAtlasError as error:
                done.problems.append(str(error))
        matched = {key: DistinctRecords() for table in tables for key in table.keys if key is not None}
        unmatched: dict[JoinKey, tuple[int, str]] = {}
        for path in files:
            _read_records(path, matched, unmatched, limit, done, on_mb)
        most_first = sorted(unmatched.items(), key=lambda item: -item[1][0])
        done.unmatched = [("record", count, first, str(key)) for key, (count, first) in most_first]
        if (more := done.malformed_lines - _MALFORMED_NAMED) > 0:
            done.problems.append(f"and {more:,} more malformed lines")
        for table in tables:
            try:
                if table.fill(matched, given):
                    table.fold.write(database)
                add_counts(done, table.counts)
            except OpAtlasError as error:
                done.problems.append(str(error))
    return done


def _read_records(
    path: Path,
    matched: Mapping[JoinKey, DistinctRecords],
    unmatched: dict[JoinKey, tuple[int, str]],
    limit: int,
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
                    matched[key].add(cells, limit)
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

    def __init__(self, table: RowTable, limit: int) -> None:
        self.counts = FillResult(rows=len(table))
        self._table, self._limit = table, limit
        self.fold = TableFold(table)
        self._rows = self.fold.rows
        self._columns = [*table.columns]
        names = (col.INPUT_SHAPES, RAW_SHAPES, *SHAPE_SLOTS)
        cells = zip(*map(table.cells, names), strict=True)
        #: The key of each row.
        self.keys = [row_key(dict(zip(names, each, strict=True))) for each in cells]

    def fill(self, matched: Mapping[JoinKey, DistinctRecords], given: Sequence[KnownLengths]) -> bool:
        """Fills the rows from the records of their keys, or with given lengths. Returns whether a row changed."""
        slots = [column for column in (*col.INPUT_SLOTS, *col.OUTPUT_SLOTS) if column in self._columns]
        names = signatures_of(self._table.kernel_type, slots, self._table.cells)
        for (_, key), positions in positions_by_key(zip(names, self.keys, strict=True)).items():
            records = matched[key].cut(self._limit) if key is not None else {}
            if records:
                self._fill(positions, records.values())
            else:
                unfilled = [at for at in positions if not self._rows[KV_VALUES][at].strip()]
                found = [cells for lengths in given if key is not None and (cells := lengths(key))]
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
        case = tuple([_plain(self._rows[name][position]) for name in col.RUNTIME_IN_SIGNATURE])
        has_lengths = bool(self._rows[KV_VALUES][position].strip())
        average = self._rows[AVG_SEQ_LEN][position] or self._rows[col.LEGACY_AVG_SEQ_LEN][position]
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
