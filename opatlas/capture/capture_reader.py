"""Reads a profiler's table: kernel_details*.csv of torch_npu.profiler, op_summary*.csv of msprof, databases of both.

All versions of the header are read: `Block Dim` or `Block Num`, with or without `Device_id` and `OP State`, any group
of metrics, names in any case.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from opatlas.capture.ascend_database import LAUNCHED, database_columns, database_tables
from opatlas.capture.launches import CapturedLaunches, SkipReason
from opatlas.data.header import read_header
from opatlas.errors import TableError
from opatlas.row import columns as col
from opatlas.text import parse_real

TYPE, DURATION, CONTEXT_ID = "Type", "Duration(us)", "Context ID"
NAME, START, WAIT, STEP, STREAM, DEVICE = (
    *("Name", "Start Time(us)", "Wait Time(us)", "Step Id", "Stream ID", "Device_id"),
)

#: The names of kernel_details' columns in msprof's op_summary, or in other versions.
_SYNONYMS = {
    TYPE: "OP Type",
    DURATION: "Task Duration(us)",
    col.ACCELERATOR_CORE: "Task Type",
    col.OP_STATE: "Op State",
    NAME: "Op Name",
    START: "Task Start Time(us)",
    WAIT: "Task Wait Time(us)",
    "Block Dim": "Block Num",
    "Mix Block Dim": "Mix Block Num",
}

#: Columns that describe a launch. In a file without `Context ID` all other columns are counters.
_DESCRIPTIVE = frozenset(
    {
        *_SYNONYMS,
        *_SYNONYMS.values(),
        *(
            *col.BASE,
            STEP,
            STREAM,
            DEVICE,
            CONTEXT_ID,
            LAUNCHED,
            "Model ID",
            "Model Name",
            "Infer ID",
            "Task ID",
            "HF32 Eligible",
        ),
    }
)


def _key(name: str) -> str:
    return "".join(name.split()).lower()


_UNITS = re.compile(r"\((ns|us|ms|s)\)\Z")


def _is_descriptive(name: str) -> bool:
    """Returns whether a column describes a launch, with any unit or none: CANN 6 writes `Task Start Time`."""
    return _UNITS.sub("", _key(name)) in _DESCRIPTIVE_KEYS


#: Columns by their names in lower case without blanks: tools that rewrite captures may change the spelling.
_BY_KEY = {_key(name): name for name in (*_DESCRIPTIVE, *col.PIPE_UTILIZATION)}
_DESCRIPTIVE_KEYS = frozenset(_UNITS.sub("", _key(name)) for name in _DESCRIPTIVE)
_COLUMNS_SHOWN = 8
LEVEL_0_REMEDY = (
    "Take the capture again with profiler_level=ProfilerLevel.Level1 (torch_npu.profiler) or --task-time=l1 (msprof)"
)


@dataclass(frozen=True)
class CaptureHeader:
    """The columns of a capture.

    Attributes:
        names: every column in the file's order, by the profiler's name where only case and blanks differ.
        text: for `Type` and each base column, by our name, the file's column.
        duration: the file's column of durations.
        counters: the file's columns of counters.
    """

    names: tuple[str, ...]
    text: Mapping[str, str]
    duration: str
    counters: tuple[str, ...]

    @property
    def of_msprof(self) -> bool:
        """Whether the file is an op_summary of msprof, not a kernel_details."""
        return self.duration == _SYNONYMS[DURATION]


def read_capture_header(path: Path) -> CaptureHeader:
    """Returns the columns of a capture.

    Raises:
        TableError: the file cannot be read, is not a capture, or was taken at level 0, which records no shapes.
    """
    if _is_database(path):
        names = database_columns(path)
    else:
        # A capture may be given as a link.
        header = read_header(path.resolve())
        if header.lines > 1:
            remedy = "Leave the file out: no profiler writes such a header"
            raise TableError(path, "a column's name spans lines", remedy, line=1)
        names = _known_names([name.strip() for name in header.names])
    text = {column: found for column in (TYPE, *col.BASE) if (found := column_of(names, column))}
    duration = column_of(names, DURATION)
    lacking = [name for name, found in ((TYPE, text.get(TYPE)), (DURATION, duration)) if not found]
    if lacking:
        more = ", ..." if len(names) > _COLUMNS_SHOWN else ""
        problem = f"no column {' or '.join(map(repr, lacking))}; the columns are: {', '.join(names[:_COLUMNS_SHOWN])}"
        remedy = "Leave the file out: it is no kernel_details or op_summary file, with durations in microseconds"
        raise TableError(path, problem + more, remedy, line=1)
    if col.INPUT_SHAPES not in text:
        raise TableError(path, "taken at profiler level 0, which records no shapes", LEVEL_0_REMEDY, line=1)
    missing = [column for column in col.REQUIRED if column not in text]
    if missing:
        raise TableError(path, f"no column {', '.join(map(repr, missing))}", LEVEL_0_REMEDY, line=1)
    # The profiler writes the counters last, for every group of metrics.
    tail = names[names.index(CONTEXT_ID) + 1 :] if CONTEXT_ID in names else names
    counters = tuple(name for name in tail if name and not _is_descriptive(name))
    return CaptureHeader(tuple(names), text, duration, counters)


def _is_database(path: Path) -> bool:
    return path.suffix.lower() == ".db"


def _known_names(names: Sequence[str]) -> list[str]:
    """Returns the columns of a file, by the profiler's names where only case and blanks differ."""
    alike = Counter(map(_key, names))
    return [name if name in _DESCRIPTIVE or alike[_key(name)] > 1 else _BY_KEY.get(_key(name), name) for name in names]


def column_of(names: Sequence[str], column: str) -> str:
    """Returns a capture's column of what kernel_details calls `column`, by the file's version; "" if it has none."""
    return next((name for name in (column, _SYNONYMS.get(column)) if name in names), None) or ""


#: The tables of a block stay in the processor's cache: blocks of 8 MiB are 20 % slower.
#: Profilers write no line breaks inside cells, so a block may end after any line.
BLOCK_BYTES = 2 << 20
#: More threads would parse faster than one thread groups.
_WORKERS = 4
#: The longest line of a capture.
_LINE_BYTES = 64 << 20

#: `1,234.56` and `1,234,567` are numbers with separators; in `1,234` the comma may be a decimal one.
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+\.[0-9]+|[0-9]{1,3}(?:,[0-9]{3}){2,}")
#: A file with more malformed rows has a wrong header.
_MALFORMED_LIMIT = 10_000
_AGAIN = "Take the capture again"
#: The columns that group the launches of a block, with the type.
_KEY = (col.ACCELERATOR_CORE, *col.INPUT_SLOTS, *col.OUTPUT_SLOTS)
_WORD = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True)
class MalformedRow:
    """A row that cannot be read.

    Attributes:
        line: the line where the row begins.
        fields: the number of fields, which differs from the header's.
        lines: the lines of the row; more than 1 if an open quote includes further lines.
    """

    line: int
    fields: int
    lines: int = 1


@dataclass(frozen=True)
class Chunk:
    """Rows that were read together.

    Attributes:
        first_line: the line of the first row; the header is line 1.
        size_bytes: bytes of the rows in the file.
        rows: number of well-formed rows. A blank line counts as a row with empty cells.
        text: dictionary-encoded cells of `Type` and the base columns.
        duration_us: durations in microseconds; NaN where the cell is not a number.
        duration_words: the cells of the durations; None if all cells are numbers or empty.
        counters: values of each counter; NaN where the cell is not a number.
        malformed: the rows that cannot be read.
    """

    first_line: int
    size_bytes: int
    rows: int
    text: Mapping[str, pa.DictionaryArray]
    duration_us: np.ndarray
    duration_words: pa.DictionaryArray | None
    counters: Mapping[str, np.ndarray]
    malformed: tuple[MalformedRow, ...]

    def duration_text(self, row: int) -> str:
        """The duration cell of a well-formed row, counted from 0; "" for an empty cell or N/A."""
        if self.duration_words is not None:
            return str(self.duration_words[row].as_py()).strip()
        value = float(self.duration_us[row])
        return "" if math.isnan(value) else f"{value:g}"

    def line_of(self, row: int) -> int:
        """Returns the line of a well-formed row, counted from 0."""
        line = self.first_line + row
        for bad in self.malformed:
            if bad.line > line:
                break
            line += bad.lines
        return line


def read_capture(path: Path, root: Path, on_bytes: Callable[[int], None]) -> CapturedLaunches:
    """Reads the launches of a capture (`CaptureReader`)."""
    header = read_capture_header(path)
    launches = CapturedLaunches(path, root, header.counters, header.duration)
    for chunk in read_chunks(path, header):
        columns = [column for column in (TYPE, *_KEY) if column in chunk.text]
        groups, first = _group([chunk.text[column] for column in columns], chunk.rows)
        words = {column: _words_at(chunk.text.get(column), first) for column in (TYPE, col.OP_STATE, *_KEY)}
        kinds = np.empty(len(first), dtype=np.int32)
        is_blank = np.zeros(len(first), dtype=bool)
        for group, row in enumerate(first.tolist()):
            cells = {column: words[column][group] for column in _KEY}
            kernel_type, state = words[TYPE][group], words[col.OP_STATE][group]
            is_blank[group] = not any((kernel_type, *cells.values()))
            kinds[group] = launches.kind(kernel_type, cells, chunk.line_of(row), state)
        # A blank line is not a row of the capture.
        rows = np.flatnonzero(~is_blank[groups] | ~np.isnan(chunk.duration_us))
        launches.add(
            kinds[groups[rows]],
            chunk.duration_us[rows],
            {name: values[rows] for name, values in chunk.counters.items()},
            partial(_place, chunk, rows),
        )
        for bad in chunk.malformed:
            included = f" (an open quote includes {bad.lines - 1} more)" if bad.lines > 1 else ""
            problem = f"{bad.fields} fields where the header has {len(header.names)} columns{included}"
            launches.report(bad.line, problem, "The row is left out; take the capture again")
            launches.counts.add(SkipReason.MALFORMED, "", bad.lines)
        on_bytes(chunk.size_bytes)
    if not launches.counts.rows:
        raise TableError(path, "a header without rows", "Take the capture again, or leave the file out")
    return launches


def _place(chunk: Chunk, rows: np.ndarray, launch: int) -> tuple[int, str]:
    row = int(rows[launch])
    return chunk.line_of(row), chunk.duration_text(row)


def read_chunks(path: Path, header: CaptureHeader) -> Iterator[Chunk]:
    """Yields the rows of a capture in order, block by block. Threads parse the next blocks meanwhile.

    Raises:
        TableError: the file cannot be read, or is not a CSV.
    """
    if _is_database(path):
        # Most of the work is done when the first launches come.
        line, size = 1, path.stat().st_size
        for table in database_tables(path, _types(header, pa.float64())):
            yield _chunk(header, line, size, table)
            line, size = line + len(table[header.duration]), 0
        return
    # The parser releases Python's global lock, so threads parse blocks while another block is grouped.
    workers = min(os.cpu_count() or 1, _WORKERS)
    malformed = 0
    with ThreadPoolExecutor(workers, thread_name_prefix="capture") as pool:
        pending: deque[Future[Chunk]] = deque()
        blocks = _blocks(path)
        try:
            while True:
                for line, block in islice(blocks, workers + 1 - len(pending)):
                    pending.append(pool.submit(_parse_block, path, header, line, block))
                if not pending:
                    return
                chunk = pending.popleft().result()
                malformed += len(chunk.malformed)
                if malformed > _MALFORMED_LIMIT:
                    raise TableError(path, f"more than {_MALFORMED_LIMIT:,} rows do not fit the header", _AGAIN)
                yield chunk
        finally:
            for future in pending:
                future.cancel()


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields blocks of whole lines, about BLOCK_BYTES each, with the number of their first line."""
    try:
        with open(path, "rb") as file:
            file.readline()
            line = 2
            while block := file.read(BLOCK_BYTES):
                block += file.readline(_LINE_BYTES)
                if len(block) > BLOCK_BYTES + _LINE_BYTES - 1:
                    raise TableError(path, f"a line of more than {_LINE_BYTES:,} bytes", _AGAIN, line=line)
                yield line, block
                line += block.count(b"\n")
    except OSError as error:
        raise TableError(path, f"cannot be read ({error.strerror})", "Check the path and its permissions") from None


def _parse_block(path: Path, header: CaptureHeader, first_line: int, block: bytes) -> Chunk:
    # A line with other bytes than UTF-8 stays if they are in cells that do not count, such as a name in GBK.
    text = block if block.isascii() else block.decode(errors="replace").encode()
    malformed: list[MalformedRow] = []

    def reject(row: pa.csv.InvalidRow) -> str:
        extra_lines = sum(bad.lines - 1 for bad in malformed)
        line = first_line + row.number - 1 + extra_lines
        malformed.append(MalformedRow(line, row.actual_columns, row.text.count("\n") + 1))
        return "skip"

    def read(number: pa.DataType) -> Mapping[str, pa.Array]:
        malformed.clear()
        types = _types(header, number)
        table = pa.csv.read_csv(
            pa.py_buffer(text),
            # One thread, so that a malformed row has a number; one block, so that the result is one chunk.
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=header.names),
            # Blank lines become empty rows, so that line numbers stay right.
            parse_options=pa.csv.ParseOptions(ignore_empty_lines=False, invalid_row_handler=reject),
            convert_options=pa.csv.ConvertOptions(column_types=types, include_columns=list(types)),
        ).combine_chunks()
        if not table.num_rows:
            return {name: pa.array([], type=kind) for name, kind in types.items()}
        return {name: table.column(name).chunk(0) for name in types}

    try:
        try:
            table = read(pa.float64())
        except pa.ArrowInvalid as error:
            if "conversion error to double" not in str(error):
                raise
            # An invalid number costs only its own cell. Slower, and rarely needed.
            table = read(_WORD)
    except pa.ArrowInvalid as error:
        raise TableError(path, f"not readable as UTF-8 CSV ({error})", _AGAIN, line=first_line) from None
    return _chunk(header, first_line, len(block), table, malformed)


def _types(header: CaptureHeader, number: pa.DataType) -> dict[str, pa.DataType]:
    """Returns the columns that are read, with their types."""
    numbers = dict.fromkeys((header.duration, *header.counters), number)
    return numbers | dict.fromkeys(header.text.values(), _WORD)


def _chunk(
    header: CaptureHeader,
    first_line: int,
    size_bytes: int,
    table: Mapping[str, pa.Array],
    malformed: Sequence[MalformedRow] = (),
) -> Chunk:
    durations = table[header.duration]
    return Chunk(
        first_line=first_line,
        size_bytes=size_bytes,
        rows=len(durations),
        text={column: table[name] for column, name in header.text.items()},
        duration_us=_numbers(durations),
        duration_words=durations if isinstance(durations, pa.DictionaryArray) else None,
        counters={name: _numbers(table[name]) for name in header.counters},
        malformed=tuple(malformed),
    )


def _numbers(column: pa.Array) -> np.ndarray:
    """Returns a column as float64, NaN where a cell is not a number."""
    is_encoded = isinstance(column, pa.DictionaryArray)
    numbers: np.ndarray = (column.indices if is_encoded else column).to_numpy(zero_copy_only=False)
    if not is_encoded:
        return numbers
    values = np.array([_number(word) for word in column.dictionary.to_pylist()], dtype=np.float64)
    return np.take(values, numbers)


def _number(word: str) -> float:
    number = parse_real(word.strip().replace(",", "") if _THOUSANDS.fullmatch(word.strip()) else word)
    return float("nan") if number is None else number


def _group(columns: list[pa.DictionaryArray], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the group of each row, by equal cells in `columns`, and the first row of each group."""
    key = np.zeros(rows, dtype=np.int64)
    size = 1
    for column in columns:
        codes = column.indices.to_numpy(zero_copy_only=False)
        count = max(len(column.dictionary), 1)
        if size * count > 2**62:
            distinct, key = np.unique(key, return_inverse=True)
            size = len(distinct)
        key = key * count + codes
        size *= count
    _, first, groups = np.unique(key, return_index=True, return_inverse=True)
    return groups, first


def _words_at(column: pa.DictionaryArray | None, rows: np.ndarray) -> list[str]:
    """Returns the cells of some rows; "" if the capture lacks the column."""
    if column is None:
        return [""] * len(rows)
    words = column.dictionary.to_pylist()
    return [words[code] for code in column.indices.to_numpy(zero_copy_only=False)[rows].tolist()]
