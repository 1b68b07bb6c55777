"""Turns a Chrome trace of any size into a table with one row for each complete event."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import IO, TYPE_CHECKING, Any, NoReturn

import msgspec

from opatlas.errors import OpAtlasError
from opatlas.files import BROKEN_GZIP
from opatlas.row.quality import LONGEST_US

if TYPE_CHECKING:
    from pathlib import Path

_BLOCK_BYTES = 1 << 18
#: Characters of an event. A call stack takes some kilobytes.
_LONGEST = 8 << 20
_BLANKS = re.compile(r"[ \t\n\r]*")


class TruncatedTraceError(OpAtlasError):
    """A trace that ends, or cannot be read further, after some events."""


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


class _JsonStream:
    """The values of a stream of JSON, one after the other.

    Numbers with a fraction are Decimals, because time stamps have more digits than a float. A value that is damaged or
    longer than _LONGEST is a ValueError, one that is nested too deep a RecursionError.

    Attributes:
        problem: why the file could not be read to its end.
    """

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file = file
        self._text_of = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._text, self._at, self._has_ended = "", 0, False
        self.problem: Exception | None = None
        self._decoder = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant)

    def peek(self) -> str:
        """Returns the next character that is not blank; "" at the end."""
        while True:
            blanks = _BLANKS.match(self._text, self._at)
            assert blanks is not None
            self._at = blanks.end()
            if self._at < len(self._text) or self._has_ended:
                return self._text[self._at : self._at + 1]
            self._read()

    def skip(self, wanted: str) -> None:
        """Goes beyond the next character."""
        if self.peek() != wanted:
            raise ValueError(f"{self.peek() or 'the end'} stands in the place of {wanted}")
        self._at += 1

    def value(self) -> Any:
        """Returns the next value."""
        self.peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
                # A number at the end of a block may go on in the next one.
                if end < len(self._text) or self._has_ended:
                    self._at = end
                    return value
            except json.JSONDecodeError:
                if self._has_ended or len(self._text) - self._at > _LONGEST:
                    raise
            self._read()

    def _read(self) -> None:
        try:
            block = self._file.read(_BLOCK_BYTES)
            self._has_ended = not block
            more = self._text_of(block, final=self._has_ended)
        except (UnicodeDecodeError, *BROKEN_GZIP, OSError) as error:
            self.problem, self._has_ended = error, True
            more = error.object[: error.start].decode() if isinstance(error, UnicodeDecodeError) else ""
        self._text, self._at = self._text[self._at :] + more, 0


def read_events(path: Path, file: io.BufferedIOBase) -> Iterator[Any]:
    """Yields the events of a trace: of an array, or of the array `traceEvents` of an object.

    Args:
        path: the path for errors.
        file: the uncompressed bytes.

    Raises:
        TruncatedTraceError: after the last event that can be read.
        OpAtlasError: the file is not a trace.
    """
    found, has_events = 0, False
    stream = _JsonStream(file)
    try:
        if stream.peek() == "{":
            stream.skip("{")
            while stream.value() != "traceEvents":
                stream.skip(":")
                stream.value()
                stream.skip(",")
            stream.skip(":")
        stream.skip("[")
        has_events = stream.peek() not in ("]", "")
        while True:
            event = stream.value()
            found += 1
            yield event
            if stream.peek() == "]":
                return
            stream.skip(",")
    except (ValueError, ArithmeticError, RecursionError) as error:
        why = stream.problem or error
        if has_events:
            raise TruncatedTraceError(
                f"{path}: cannot be read after {found:,} events ({why}): these are kept"
            ) from None
        raise OpAtlasError(
            f"{path}: not a Chrome trace, a list of events or an object with traceEvents ({why}). "
            f"torch_npu.profiler calls it trace_view.json"
        ) from None


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
#: Some versions of csv do not quote a lone carriage return, or read a NUL. UTF-8 has no half of a surrogate pair.
_NOT_PLAIN = re.compile("[\r\0\ud800-\udfff]")


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
    """Keeps rows in a scratch file as they come, because all columns are known only after the last event."""

    def __init__(self, scratch: IO[bytes]) -> None:
        """`scratch`: an empty file to write and read."""
        self.account = TraceCounts()
        self._scratch = scratch
        #: The column of each arg, by the arg's name; that of further args has None.
        self._arg_columns: dict[str | None, int] = {}

    def add(self, events: Iterable[Any]) -> None:
        """Adds the complete events."""
        for number, event in enumerate(events, start=1):
            if not isinstance(event, dict):
                self._reject(number, "not a JSON object")
            elif event.get("ph") != _COMPLETE:
                self.account.other[str(event.get("ph"))] += 1
            elif not (duration := _text(event.get("dur"))):
                self._reject(number, "a complete event without dur")
            elif not _is_duration(duration):
                self._reject(number, f"dur is {duration!r}, not a number of microseconds from 0 to an hour")
            else:
                try:
                    cells = self._cells(event, duration)
                except RecursionError:
                    self._reject(number, "its values are nested too deep")
                    continue
                self._scratch.write(msgspec.json.encode(cells) + b"\n")
                self.account.rows += 1

    def finish(self, target: IO[bytes]) -> None:
        """Writes header and rows."""
        text = io.TextIOWrapper(target, encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.account.columns)
        self._scratch.seek(0)
        for line in self._scratch:
            cells = msgspec.json.decode(line)
            writer.writerow(cells + [""] * (len(self.account.columns) - len(cells)))
        text.flush()
        text.detach()

    def _cells(self, event: Mapping[str, Any], duration: str) -> list[str]:
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        name = _text(event.get("name"))
        cells = [name, _kernel_type(name, args), duration, _shapes(args)]
        cells += [_text(event.get(key)) for key in ("ts", "pid", "tid", "cat")]
        more = {}
        for key, value in args.items():
            if key in self._arg_columns or len(self.account.columns) < MOST_COLUMNS:
                self._put(cells, key, _text(value))
            else:
                more[key] = value
        if more:
            self._put(cells, None, _text(more))
        return cells

    def _put(self, cells: list[str], key: str | None, text: str) -> None:
        """Puts the text of an arg into its column; None: that of further args."""
        column = self._arg_columns.get(key)
        if column is None:
            column = self._arg_columns[key] = len(self.account.columns)
            name = MORE_ARGS if key is None else _text(key).replace("\n", "\\n")
            name = f"args.{name}" if key is not None and name in (*COLUMNS, MORE_ARGS) else name
            # Two args may differ only in characters that a header cannot have.
            while name in self.account.columns:
                name += "_"
            self.account.columns.append(name)
        cells += [""] * (column + 1 - len(cells))
        cells[column] = text

    def _reject(self, number: int, problem: str) -> None:
        self.account.malformed_count += 1
        if len(self.account.malformed) < _MALFORMED_NAMED:
            self.account.malformed.append(f"event {number}: {problem}")


def _is_duration(text: str) -> bool:
    try:
        return 0 <= float(text) <= LONGEST_US
    except ValueError:
        return False


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
    if value is None:
        return ""
    is_plain = isinstance(value, (str, int, Decimal)) and not isinstance(value, bool)
    text = str(value) if is_plain else json.dumps(value, ensure_ascii=False, default=float)
    if not _NOT_PLAIN.search(text):
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\\0")
    return text.encode(errors="backslashreplace").decode()
