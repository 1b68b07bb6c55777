"""Streams a profiler's capture: kernel_details*.csv of torch_npu.profiler, op_summary*.csv of msprof.

All versions of the header are read: `Block Dim` or `Block Num`, with or without `Device_id` and `OP State`, any group
of metrics, names in any case.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from opatlas.data.header import read_header
from opatlas.errors import TableError
from opatlas.row.columns import ACCELERATOR_CORE, BASE, INPUT_SHAPES, OP_STATE, PIPE_UTILIZATION, REQUIRED
from opatlas.text import parse_real

TYPE, DURATION, CONTEXT_ID = "Type", "Duration(us)", "Context ID"
NAME, START, WAIT, STEP, STREAM, DEVICE = (
    *("Name", "Start Time(us)", "Wait Time(us)", "Step Id", "Stream ID", "Device_id"),
)

#: The names of kernel_details' columns in msprof's op_summary, or in other versions.
_SYNONYMS = {
    TYPE: "OP Type",
    DURATION: "Task Duration(us)",
    ACCELERATOR_CORE: "Task Type",
    OP_STATE: "Op State",
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
        *(*BASE, STEP, STREAM, DEVICE, CONTEXT_ID, "Model ID", "Model Name", "Infer ID", "Task ID", "HF32 Eligible"),
    }
)


def _key(name: str) -> str:
    return "".join(name.split()).lower()


_UNITS = re.compile(r"\((ns|us|ms|s)\)\Z")


def _is_descriptive(name: str) -> bool:
    """Returns whether a column describes a launch, with any unit or none: CANN 6 writes `Task Start Time`."""
    return _UNITS.sub("", _key(name)) in _DESCRIPTIVE_KEYS


#: Columns by their names in lower case without blanks: tools that rewrite captures may change the spelling.
_BY_KEY = {_key(name): name for name in (*_DESCRIPTIVE, *PIPE_UTILIZATION)}
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
    # A capture may be given as a link.
    header = read_header(path.resolve())
    if header.lines > 1:
        raise TableError(
            path, "a column's name spans lines", "Leave the file out: no profiler writes such a header", line=1
        )
    names = _known_names([name.strip() for name in header.names])
    text = {column: found for column in (TYPE, *BASE) if (found := column_of(names, column))}
    duration = column_of(names, DURATION)
    lacking = [name for name, found in ((TYPE, text.get(TYPE)), (DURATION, duration)) if not found]
    if lacking:
        more = ", ..." if len(names) > _COLUMNS_SHOWN else ""
        problem = f"no column {' or '.join(map(repr, lacking))}; the columns are: {', '.join(names[:_COLUMNS_SHOWN])}"
        remedy = "Leave the file out: it is no kernel_details or op_summary file, with durations in microseconds"
        raise TableError(path, problem + more, remedy, line=1)
    if INPUT_SHAPES not in text:
        raise TableError(path, "taken at profiler level 0, which records no shapes", LEVEL_0_REMEDY, line=1)
    missing = [column for column in REQUIRED if column not in text]
    if missing:
        raise TableError(path, f"no column {', '.join(map(repr, missing))}", LEVEL_0_REMEDY, line=1)
    # The profiler writes the counters last, for every group of metrics.
    tail = names[names.index(CONTEXT_ID) + 1 :] if CONTEXT_ID in names else names
    counters = tuple(name for name in tail if name and not _is_descriptive(name))
    return CaptureHeader(tuple(names), text, duration, counters)


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
#: What stands for bytes that are not UTF-8.
_UNREADABLE = "\N{REPLACEMENT CHARACTER}"
_AGAIN = "Take the capture again"
_WORD = pa.dictionary(pa.int32(), pa.string())


class _NotNumericError(Exception):
    """A column of numbers has a cell with text."""


@dataclass(frozen=True)
class MalformedRow:
    """A row that cannot be read.

    Attributes:
        line: the line where the row begins.
        fields: the number of fields, if it differs from the header's; None if the row is not UTF-8.
        lines: the lines of the row; more than 1 if an open quote includes further lines.
    """

    line: int
    fields: int | None
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


class Capture:
    """Reads the rows of a capture."""

    def __init__(self, path: Path, header: CaptureHeader) -> None:
        self.path = path
        self.header = header
        self._columns = [*header.text.values(), header.duration, *header.counters]

    def chunks(self) -> Iterator[Chunk]:
        """Yields the rows in order, block by block. Threads parse the next blocks meanwhile.

        Raises:
            TableError: the file is not a CSV in UTF-8.
        """
        # The parser releases Python's global lock, so threads parse blocks while another block is grouped.
        workers = min(os.cpu_count() or 1, _WORKERS)
        malformed = 0
        with ThreadPoolExecutor(workers, thread_name_prefix="capture") as pool:
            pending: deque[Future[Chunk]] = deque()
            blocks = self._blocks()
            try:
                while True:
                    for line, block in islice(blocks, workers + 1 - len(pending)):
                        pending.append(pool.submit(self._parse_block, line, block))
                    if not pending:
                        return
                    chunk = pending.popleft().result()
                    malformed += len(chunk.malformed)
                    if malformed > _MALFORMED_LIMIT:
                        raise TableError(
                            self.path, f"more than {_MALFORMED_LIMIT:,} rows do not fit the header", _AGAIN
                        )
                    yield chunk
            finally:
                for future in pending:
                    future.cancel()

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yields blocks of whole lines, about BLOCK_BYTES each, with the number of their first line."""
        try:
            with open(self.path, "rb") as file:
                file.readline()
                line = 2
                start = b""
                while data := file.read(BLOCK_BYTES):
                    end = data.rfind(b"\n") + 1
                    if not end:
                        start += data
                        if len(start) > _LINE_BYTES:
                            raise TableError(self.path, f"a line of more than {_LINE_BYTES:,} bytes", _AGAIN, line=line)
                        continue
                    block = start + data[:end]
                    yield line, block
                    line += block.count(b"\n")
                    start = data[end:]
                if start:
                    yield line, start
        except OSError as error:
            raise TableError(
                self.path, f"cannot be read ({error.strerror})", "Check the path and its permissions"
            ) from None

    def _parse_block(self, first_line: int, block: bytes) -> Chunk:
        text, no_text = self._readable_lines(block)
        try:
            table, malformed = self._table(first_line, text, pa.float64())
        except _NotNumericError:
            # An invalid number costs only its own cell. Slower, and rarely needed.
            table, malformed = self._table(first_line, text, _WORD)
        header = self.header
        durations = table[header.duration]
        return Chunk(
            first_line=first_line,
            size_bytes=len(block),
            rows=len(durations),
            text={column: table[name] for column, name in header.text.items()},
            duration_us=_numbers(durations),
            duration_words=durations if isinstance(durations, pa.DictionaryArray) else None,
            counters={name: _numbers(table[name]) for name in header.counters},
            malformed=_in_order(malformed, [first_line + number for number in no_text]),
        )

    def _readable_lines(self, block: bytes) -> tuple[bytes, list[int]]:
        """Returns a block as UTF-8, and the numbers of the lines that are left out for it, counted from 0.

        A line with other bytes stays if these are in cells that are not used, such as the name of a launch in GBK.
        """
        if block.isascii():
            return block, []
        try:
            block.decode()
            return block, []
        except UnicodeDecodeError:
            kept, left_out = [], []
        used = [self.header.names.index(name) for name in self._columns]
        for number, line in enumerate(block.split(b"\n")):
            try:
                line.decode()
            except UnicodeDecodeError:
                text = line.decode(errors="replace")
                try:
                    cells = next(csv.reader([text]))
                except csv.Error:
                    # A carriage return in the line, or a quote that nothing ends.
                    cells = []
                if len(cells) != len(self.header.names) or any(_UNREADABLE in cells[index] for index in used):
                    left_out.append(number)
                    continue
                line = text.encode()
            kept.append(line)
        return b"\n".join(kept), left_out

    def _table(
        self, first_line: int, text: bytes, number: pa.DataType
    ) -> tuple[dict[str, pa.Array], list[MalformedRow]]:
        """Returns the columns of a block, and the rows that do not fit the header. Raises TableError."""
        malformed: list[MalformedRow] = []

        def reject(row: pa.csv.InvalidRow) -> str:
            extra_lines = sum(bad.lines - 1 for bad in malformed)
            line = first_line + row.number - 1 + extra_lines
            malformed.append(MalformedRow(line, row.actual_columns, row.text.count("\n") + 1))
            return "skip"

        types = dict.fromkeys(self._columns, number) | dict.fromkeys(self.header.text.values(), _WORD)
        try:
            table = pa.csv.read_csv(
                pa.py_buffer(text or b"\n"),
                # One thread, so that a malformed row has a number; one block, so that the result is one chunk.
                read_options=pa.csv.ReadOptions(
                    use_threads=False, block_size=len(text) + 1, column_names=self.header.names
                ),
                # Blank lines become empty rows, so that line numbers stay right.
                parse_options=pa.csv.ParseOptions(ignore_empty_lines=False, invalid_row_handler=reject),
                convert_options=pa.csv.ConvertOptions(column_types=types, include_columns=list(types)),
            ).combine_chunks()
        except pa.ArrowInvalid as error:
            if "conversion error to double" in str(error):
                raise _NotNumericError from None
            raise TableError(self.path, f"not readable as UTF-8 CSV ({error})", _AGAIN, line=first_line) from None
        if not text or not table.num_rows:
            return {name: pa.array([], type=kind) for name, kind in types.items()}, malformed
        return {name: table.column(name).chunk(0) for name in types}, malformed


def _in_order(malformed: Sequence[MalformedRow], no_text: Sequence[int]) -> tuple[MalformedRow, ...]:
    """Returns all malformed rows, ordered by line.

    Args:
        malformed: the rows found among the lines that are UTF-8.
        no_text: the lines that are not UTF-8, in order.
    """
    found = []
    for bad in malformed:
        line = bad.line
        for other in no_text:
            line += other <= line
        found.append(replace(bad, line=line))
    return tuple(sorted([*found, *(MalformedRow(line, None) for line in no_text)], key=lambda bad: bad.line))


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
