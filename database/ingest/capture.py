"""A profiler capture as a stream: kernel_details*.csv of torch_npu, op_summary*.csv of msprof.

The file is read in blocks, so that memory does not grow with it.
"""

from __future__ import annotations

import math
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from database.errors import TableError
from database.ingest.capture_header import Header
from database.numbers import real

#: Small enough that a block's tables stay in the processor's cache: 8 MiB blocks are a fifth slower.
#: No profiler breaks a line inside a cell, so a block may end at any line's end.
BLOCK_BYTES = 2 << 20
#: More threads than this parse faster than one groups.
_WORKERS = 4
#: A longer line is no line of a capture.
_LINE_BYTES = 64 << 20

#: `1,234.56` and `1,234,567` are one number; `1,234` may have a decimal comma.
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+\.[0-9]+|[0-9]{1,3}(?:,[0-9]{3}){2,}")
#: A file with more of them has the header of another one: its rows are not to be trusted.
_MALFORMED_LIMIT = 10_000
_AGAIN = "Take the capture again"


@dataclass(frozen=True)
class MalformedRow:
    """A row that cannot be read.

    Attributes:
        line: where it begins.
        fields: how many it has, where these are not as many as the header's; None if it is not UTF-8.
        lines: more than 1 if an open quote swallowed others.
    """

    line: int
    fields: int | None
    lines: int = 1


@dataclass(frozen=True)
class Chunk:
    """Rows that were read together.

    Attributes:
        first_line: line of the file where they begin, the header being line 1.
        size_bytes: what they take in the file.
        rows: how many well-formed ones there are; a blank line counts as one, with empty cells.
        text: dictionary-encoded cells of `Type` and the base columns that the file has.
        duration_us: durations in microseconds; NaN where the cell is no number.
        duration_words: the cells that the durations were read from; None where all of them are numbers, or empty.
        counters: values of each counter; NaN where the cell is no number.
        malformed: the rows among them that could not be read.
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
        """The text of the duration of a well-formed row, counted from 0; "" for an empty cell or N/A."""
        if self.duration_words is not None:
            return str(self.duration_words[row].as_py()).strip()
        value = float(self.duration_us[row])
        return "" if math.isnan(value) else f"{value:g}"

    def line_of(self, row: int) -> int:
        """The line of a well-formed row, counted from 0."""
        line = self.first_line + row
        for bad in self.malformed:
            if bad.line > line:
                break
            line += bad.lines
        return line


class NotNumeric(Exception):
    """A column of numbers holds a word: read the file again with `numbers_as_text`."""


class Capture:
    """A capture being read."""

    def __init__(self, path: Path, header: Header, *, numbers_as_text: bool = False) -> None:
        """
        Args:
            numbers_as_text: read durations and counters word by word, so that one which is no
                number costs its own cell only. Slower, and hardly ever needed.
        """
        self.path = path
        self.header = header
        word = pa.dictionary(pa.int32(), pa.string())
        number = word if numbers_as_text else pa.float64()
        self._types = dict.fromkeys(header.text.values(), word)
        self._types |= dict.fromkeys((header.duration, *header.counters), number)

    def chunks(self) -> Iterator[Chunk]:
        """The rows, block by block, in their order; the next blocks are parsed meanwhile.

        Raises:
            NotNumeric: see `numbers_as_text`.
            TableError: the file is not UTF-8 CSV.
        """
        # The parser works without Python's global lock: a thread parses a block while others are grouped.
        workers = min(os.cpu_count() or 1, _WORKERS)
        malformed = 0
        with ThreadPoolExecutor(workers, thread_name_prefix="capture") as pool:
            pending: deque[Future[Chunk]] = deque()
            blocks = self._blocks()
            try:
                while True:
                    for line, block in islice(blocks, workers + 1 - len(pending)):
                        pending.append(pool.submit(self._parsed, line, block))
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
        """Whole lines of about BLOCK_BYTES, each block with the number of its first line."""
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

    def _parsed(self, first_line: int, block: bytes) -> Chunk:
        malformed: list[MalformedRow] = []
        text, no_text = _without_lines_of_other_bytes(block)

        def reject(row: pa.csv.InvalidRow) -> str:
            swallowed = sum(bad.lines - 1 for bad in malformed)
            line = first_line + row.number - 1 + swallowed
            malformed.append(MalformedRow(line, row.actual_columns, row.text.count("\n") + 1))
            return "skip"

        table = self._table(first_line, text, reject)
        header = self.header
        columns = {
            name: table.column(name).chunk(0) if table.num_rows else pa.array([], type=type_)
            for name, type_ in self._types.items()
        }
        durations = columns[header.duration]
        return Chunk(
            first_line=first_line,
            size_bytes=len(block),
            rows=table.num_rows,
            text={column: columns[name] for column, name in header.text.items()},
            duration_us=_numbers(durations),
            duration_words=durations if isinstance(durations, pa.DictionaryArray) else None,
            counters={name: _numbers(columns[name]) for name in header.counters},
            malformed=_in_order(malformed, [first_line + number for number in no_text]),
        )

    def _table(self, first_line: int, text: bytes, reject: Callable[[pa.csv.InvalidRow], str]) -> pa.Table:
        if not text:
            return pa.table({name: pa.array([], type=type_) for name, type_ in self._types.items()})
        try:
            return pa.csv.read_csv(
                pa.py_buffer(text),
                # One thread, so that a malformed row knows its number; one block, so that there is one chunk.
                read_options=pa.csv.ReadOptions(
                    use_threads=False, block_size=len(text) + 1, column_names=self.header.names
                ),
                # Blank lines become empty rows, which keeps the count of lines right.
                parse_options=pa.csv.ParseOptions(ignore_empty_lines=False, invalid_row_handler=reject),
                convert_options=pa.csv.ConvertOptions(column_types=self._types, include_columns=list(self._types)),
            ).combine_chunks()
        except pa.ArrowInvalid as error:
            if "conversion error to double" in str(error):
                raise NotNumeric from None
            raise TableError(self.path, f"not readable as UTF-8 CSV ({error})", _AGAIN, line=first_line) from None


def _without_lines_of_other_bytes(block: bytes) -> tuple[bytes, list[int]]:
    """A block without the lines that are not UTF-8, and their numbers, counted from 0."""
    if block.isascii():
        return block, []
    kept, left_out = [], []
    try:
        block.decode()
    except UnicodeDecodeError:
        for number, line in enumerate(block.split(b"\n")):
            try:
                line.decode()
                kept.append(line)
            except UnicodeDecodeError:
                left_out.append(number)
        return b"\n".join(kept), left_out
    return block, []


def _in_order(malformed: Sequence[MalformedRow], no_text: Sequence[int]) -> tuple[MalformedRow, ...]:
    """All malformed rows by their line.

    Args:
        malformed: as they were found among the lines that are UTF-8.
        no_text: the lines that are not, in order.
    """
    found = []
    for bad in malformed:
        line = bad.line
        for other in no_text:
            line += other <= line
        found.append(replace(bad, line=line))
    return tuple(sorted([*found, *(MalformedRow(line, None) for line in no_text)], key=lambda bad: bad.line))


def _numbers(column: pa.Array) -> np.ndarray:
    """A column as float64, NaN where there is no number."""
    if not isinstance(column, pa.DictionaryArray):
        return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    values = np.array([_number(word) for word in column.dictionary.to_pylist()], dtype=np.float64)
    return values[column.indices.to_numpy(zero_copy_only=False)]  # type: ignore[no-any-return]


def _number(word: str) -> float:
    number = real(word.strip().replace(",", "") if _THOUSANDS.fullmatch(word.strip()) else word)
    return float("nan") if number is None else number
