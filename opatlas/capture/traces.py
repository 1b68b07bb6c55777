"""Turns a Chrome trace into a table with one row for each complete event.

Traces have gigabytes, so events are streamed. All columns are known only after the last event.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from gzip import GzipFile
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import ijson

from opatlas.errors import OpAtlasError
from opatlas.files import BROKEN_GZIP
from opatlas.row.quality import LONGEST_US

#: Time stamps have some twenty digits.
MOST_DIGITS = 1000
#: A call stack takes some kilobytes.
MOST_STRING_BYTES = 4 << 20
_DIGITS_TO_ZERO = bytes.maketrans(b"0123456789.eE+-", b"0" * 15)
_LONG_NUMBER = re.compile(b"0{%d,}" % MOST_DIGITS)


#: Deepest nesting of lists and objects. The parser keeps the path to each level, and paths grow with the depth.
MOST_LEVELS = 10_000
#: Blocks with fewer brackets that open more than close are not looked at for nesting.
_FEW_BRACKETS = 16
_QUOTE, _BACKSLASH = b'"\\'


class LongTokenError(Exception):
    """The next number or string is too long for the parser, or nested too deep; the message says which."""


class TokenLengthGuard:
    """A file for ijson that raises LongTokenError before the parser meets what it has no memory for.

    These are numbers and strings that are too long, and lists and objects that are nested too deep.
    """

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file = file
        #: The end of the previous block, where a number may have begun.
        self._tail = b""
        self._in_string = False
        #: Bytes of the string that has not ended.
        self._string_bytes = 0
        #: A backslash at the end of the previous block.
        self._escape = b""
        #: Levels that long runs of brackets have opened.
        self._levels = 0
        self._problem = ""

    def read(self, size: int = -1) -> bytes:
        """Reads like a file. Raises LongTokenError where a number or string is too long."""
        if self._problem:
            raise LongTokenError(self._problem)
        block = self._file.read(size)
        start = self._long_number(block)
        if start is not None:
            self._problem = f"a number of {MOST_DIGITS:,} digits or more"
            block = block[:start]
        else:
            deep = self._too_deep(block)
            if deep is not None:
                self._problem = f"values that are nested more than {MOST_LEVELS:,} levels deep"
                block = block[:deep]
            self._follow_strings(block)
            if self._string_bytes > MOST_STRING_BYTES:
                self._problem = f"a string of more than {MOST_STRING_BYTES >> 20} MB"
                block = b""
        if self._problem and not block:
            # Returning no bytes would mean the end of the file.
            raise LongTokenError(self._problem)
        self._tail = block[-MOST_DIGITS:]
        return block

    def _long_number(self, block: bytes) -> int | None:
        """Returns the position of a number that is too long; None without such a number."""
        letters = (self._tail + block).translate(_DIGITS_TO_ZERO)
        if b"0" * MOST_DIGITS not in letters:
            return None
        for found in _LONG_NUMBER.finditer(letters):
            start = max(found.start() - len(self._tail), 0)
            quotes = _without_escapes(self._escape + block[:start]).count(b'"')
            if self._in_string == bool(quotes % 2):
                return start
        return None

    def _too_deep(self, block: bytes) -> int | None:
        """Follows the nesting in a block with many brackets. Returns the position where it is too deep, else None."""
        if (
            -_FEW_BRACKETS
            < block.count(b"[") + block.count(b"{") - block.count(b"]") - block.count(b"}")
            < _FEW_BRACKETS
        ):
            return None
        in_string, is_escaped = self._in_string, bool(self._escape)
        for position, letter in enumerate(block):
            if is_escaped:
                is_escaped = False
            elif letter == _BACKSLASH:
                is_escaped = True
            elif letter == _QUOTE:
                in_string = not in_string
            elif not in_string and letter in b"[{":
                self._levels += 1
                if self._levels > MOST_LEVELS:
                    return position
            elif not in_string and letter in b"]}":
                self._levels = max(self._levels - 1, 0)
        return None

    def _follow_strings(self, block: bytes) -> None:
        text = _without_escapes(self._escape + block)
        self._escape = b"\\" if text.endswith(b"\\") else b""
        quotes = text.count(b'"')
        self._in_string ^= bool(quotes % 2)
        if not self._in_string:
            self._string_bytes = 0
        elif quotes:
            self._string_bytes = len(text) - text.rfind(b'"')
        else:
            self._string_bytes += len(block)


def _without_escapes(text: bytes) -> bytes:
    """Returns JSON without escaped backslashes and quotes, so that each remaining quote begins or ends a string."""
    return text.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in text else text


_BOM = b"\xef\xbb\xbf"
#: Longest run of blanks before the first bracket.
_LEADING_BYTES = 4096


class TruncatedTraceError(OpAtlasError):
    """A trace that ends, or cannot be read further, after some events."""


def read_events(path: Path, file: io.BufferedIOBase) -> Iterator[Any]:
    """Yields the events of a trace: of an array, or of the array `traceEvents` of an object.

    Numbers with a fraction are Decimals, because time stamps have more digits than a float.

    Args:
        path: the path for errors.
        file: the uncompressed bytes.

    Raises:
        TruncatedTraceError: after the last event that can be read.
        OpAtlasError: the file is not a trace.
    """
    prefix = {b"[": "item", b"{": "traceEvents.item"}.get(_first_byte(file))
    if prefix is None:
        raise OpAtlasError(
            f"{path}: not a Chrome trace: it begins neither with [ nor with {{. "
            f"torch_npu.profiler calls it trace_view.json"
        )
    found = 0
    try:
        for event in ijson.items(TokenLengthGuard(file), prefix):
            found += 1
            yield event
    except LongTokenError as error:
        raise TruncatedTraceError(f"{path}: has {error} after {found:,} events: these are kept") from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise TruncatedTraceError(
            f"{path}: is not UTF-8 (byte {byte:#04x}) after {found:,} events: these are kept"
        ) from None
    except ArithmeticError:
        raise TruncatedTraceError(f"{path}: has a number out of range after {found:,} events: these are kept") from None
    except ijson.JSONError as error:
        # Further lines of the message show the place as a drawing.
        what = str(error).removeprefix("b'").partition("\n")[0].strip()
        ends = "premature EOF" in what or "Incomplete" in what
        why = "ends in the middle of an event" if ends else f"is not JSON from there on ({what})"
        raise TruncatedTraceError(f"{path}: {why}, after {found:,} events: these are kept") from None
    except BROKEN_GZIP as error:
        raise TruncatedTraceError(
            f"{path}: the packed file ends early ({error}), after {found:,} events: these are kept"
        ) from None
    except OSError as error:
        raise TruncatedTraceError(
            f"{path}: cannot be read after {found:,} events ({error.strerror}): these are kept"
        ) from None
    if not found:
        raise OpAtlasError(f"{path}: not a Chrome trace: it has no events (a list, or one called traceEvents)")


def _first_byte(file: io.BufferedIOBase) -> bytes:
    """Returns the first byte that is not blank, skipping a BOM; b"" if the file has none or cannot be unpacked."""
    assert isinstance(file, (io.BufferedReader, GzipFile))
    try:
        if file.peek(len(_BOM)).startswith(_BOM):
            file.read(len(_BOM))
        return file.peek(_LEADING_BYTES).lstrip()[:1]
    except (*BROKEN_GZIP, OSError):
        return b""


OP_NAME, KERNEL_TYPE, DURATION_US, SHAPES = "op_name", "kernel_type", "dur_us", "shapes"
#: The first columns. The args follow, each in a column of its name, in order of appearance.
COLUMNS = (OP_NAME, KERNEL_TYPE, DURATION_US, SHAPES, "ts_us", "pid", "tid", "category")
#: Further args share the last column, as JSON.
MOST_COLUMNS = 500
MORE_ARGS = "more_args"
_TYPE_ARGS = ("kernel_type", "Kernel Type", "OP Type", "Op Type", "op_type", "Type")
_SHAPE_ARGS = ("Input Shapes", "Input Dims", "input_shapes", "Input shapes", "shapes")
_COMPLETE = "X"
_MALFORMED_NAMED = 10
_CONTROL = re.compile("[\r\0]")
_ON_ONE_LINE = str.maketrans({"\r": "\\r", "\n": "\\n", "\0": "\\0"})
#: JSON can hold half of a surrogate pair, and UTF-8 cannot.
_ERRORS = "backslashreplace"


@dataclass
class TraceCounts:
    """Counts of the events.

    Attributes:
        rows: complete events, each a row.
        other: events of other phases, by phase. They have no duration.
        malformed: the first invalid complete events, each as `event 7: why`.
        malformed_count: all of them.
        columns: columns of the table.
    """

    rows: int = 0
    other: Counter[str] = field(default_factory=Counter)
    malformed: list[str] = field(default_factory=list)
    malformed_count: int = 0
    columns: list[str] = field(default_factory=lambda: list(COLUMNS))


class TableWriter:
    """Writes rows as they come, and finally the header with all columns.

    Rows go to a scratch file. A row that was written before a column appeared lacks cells, which are added when the
    rows are copied below the header.
    """

    def __init__(self, scratch: IO[bytes]) -> None:
        """`scratch`: an empty file to write and read."""
        self.account = TraceCounts()
        self._scratch = scratch
        self._text = io.TextIOWrapper(scratch, encoding="utf-8", errors=_ERRORS, newline="")
        self._writer = csv.writer(self._text, lineterminator="\n")
        #: The column of each arg, by the arg's name.
        self._arg_columns: dict[str, int] = {}
        self._more: int | None = None
        #: Positions in the scratch file, with the number of columns from there on.
        self._widths = [(0, len(COLUMNS))]

    def add(self, events: Iterable[Any]) -> None:
        """Adds the complete events."""
        for number, event in enumerate(events, start=1):
            if not isinstance(event, dict):
                self._reject(number, "not a JSON object")
                continue
            phase = event.get("ph")
            if phase != _COMPLETE:
                self.account.other[str(phase)] += 1
                continue
            duration = _text(event.get("dur"))
            if not duration:
                self._reject(number, "a complete event without dur")
            elif not _is_duration(duration):
                self._reject(number, f"dur is {duration!r}, not a number of microseconds from 0 to an hour")
            else:
                try:
                    cells = self._cells(event, duration)
                except RecursionError:
                    self._reject(number, "its values are nested too deep")
                    continue
                self._writer.writerow(cells)
                self.account.rows += 1

    def _cells(self, event: Mapping[str, Any], duration: str) -> list[str]:
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        name = _text(event.get("name"))
        cells = [name, _kernel_type(name, args), duration, _shapes(args)]
        cells += [_text(event.get(key)) for key in ("ts", "pid", "tid", "cat")]
        cells += [""] * (len(self.account.columns) - len(COLUMNS))
        more = {}
        for key, value in args.items():
            column = self._arg_columns.get(key)
            if column is None and len(self.account.columns) >= MOST_COLUMNS:
                more[key] = value
                continue
            text = _text(value)
            if column is None:
                column = self._arg_columns[key] = self._new_column(_column(key))
                cells.append("")
            cells[column] = text
        if more:
            if self._more is None:
                self._more = self._new_column(MORE_ARGS)
                cells.append("")
            cells[self._more] = _text(more)
        return cells

    def _new_column(self, name: str) -> int:
        self._text.flush()
        column = len(self.account.columns)
        # Two args may differ only in characters that a header cannot have.
        while name in self.account.columns:
            name += "_"
        self.account.columns.append(name)
        start = self._scratch.tell()
        if self._widths[-1][0] == start:
            self._widths.pop()
        self._widths.append((start, column + 1))
        return column

    def _reject(self, number: int, problem: str) -> None:
        self.account.malformed_count += 1
        if len(self.account.malformed) < _MALFORMED_NAMED:
            self.account.malformed.append(f"event {number}: {problem}")

    def finish(self, target: IO[bytes]) -> None:
        """Writes header and rows."""
        self._text.flush()
        header = io.StringIO()
        csv.writer(header, lineterminator="\n").writerow(self.account.columns)
        target.write(header.getvalue().encode(errors=_ERRORS))
        self._scratch.seek(0)
        for (_, width), (end, _) in pairwise([*self._widths, (-1, 0)]):
            lacking = b"," * (len(self.account.columns) - width)
            if lacking:
                self._copy_until(end, lacking, target)
            else:
                shutil.copyfileobj(self._scratch, target)

    def _copy_until(self, end: int, lacking: bytes, target: IO[bytes]) -> None:
        """Copies rows up to a position of the scratch file, and adds empty cells."""
        quotes = 0
        while self._scratch.tell() < end:
            line = self._scratch.readline()
            quotes += line.count(b'"')
            # A line end between quotes is part of a cell.
            target.write(line if quotes % 2 else line[:-1] + lacking + b"\n")


def _is_duration(text: str) -> bool:
    try:
        return 0 <= float(text) <= LONGEST_US
    except ValueError:
        return False


def _column(name: str) -> str:
    """Returns the column of an arg, on one line, with a prefix where the event has a column of this name."""
    name = name.encode(errors=_ERRORS).decode().translate(_ON_ONE_LINE)
    return f"args.{name}" if name in COLUMNS or name == MORE_ARGS else name


def _kernel_type(name: str, args: Mapping[str, Any]) -> str:
    for key in _TYPE_ARGS:
        if key in args:
            return _text(args[key])
    # Names of NPU kernels consist of API, variant and type: aclnnMatmul_MatMulV3Common_MatMulV3.
    return name.rpartition("_")[2] if name.startswith("aclnn") and name.count("_") >= 2 else ""


def _shapes(args: Mapping[str, Any]) -> str:
    """Returns shapes as in the database: `136,7168;7168,3584`."""
    for key in _SHAPE_ARGS:
        if key in args:
            value = args[key]
            return ";".join(_slots(value)) if isinstance(value, list) else _text(value).strip('"')
    return ""


def _slots(shapes: Sequence[Any]) -> list[str]:
    """Returns the dimensions of each tensor; the tensors of a list follow one another."""
    slots = []
    for shape in shapes:
        if isinstance(shape, list) and any(isinstance(part, list) for part in shape):
            slots += _slots(shape)
        else:
            slots.append(",".join(map(_text, shape)) if isinstance(shape, list) else _text(shape))
    return slots


def _text(value: Any) -> str:
    if isinstance(value, str):
        # Some versions of csv do not quote a lone carriage return, or read a NUL.
        return value.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\\0") if _CONTROL.search(value) else value
    if value is None:
        return ""
    if isinstance(value, (int, Decimal)) and not isinstance(value, bool):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=float)
