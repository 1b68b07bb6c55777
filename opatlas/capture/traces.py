"""Turns a Chrome trace of any size into a table with one row for each complete event."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import IO, TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import msgspec

from opatlas.errors import TableError
from opatlas.files import BROKEN_GZIP
from opatlas.row.quality import LONGEST_US

if TYPE_CHECKING:
    from pathlib import Path

_BLOCK_BYTES = 1 << 20
#: Bytes of an event. A call stack takes some kilobytes.
_LONGEST = 8 << 20
_BLANKS = b" \t\n\r"
#: A text up to its end, or up to that of the block; or a bracket outside of texts.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[][{}]', re.DOTALL)
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
#: What parsers raise.
_DAMAGED = (ValueError, ArithmeticError, RecursionError)
Event = TypeVar("Event")


class TruncatedTraceError(TableError):
    """A trace that ends, or cannot be read further, after some events."""


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


class EventStream(Generic[Event]):
    """The events of a trace in batches: of an array, or of the array `traceEvents` of an object.

    Attributes:
        header: the members of the object before `traceEvents`, as JSON.
    """

    def __init__(self, path: Path, file: io.BufferedIOBase, decoder: msgspec.json.Decoder[list[Event]]) -> None:
        """Reads up to the first event.

        Args:
            path: the path for errors.
            file: the uncompressed bytes.

        Raises:
            TableError: the file is not a trace.
        """
        self.header = b"{}"
        self._path, self._file, self._decoder = path, file, decoder
        self._text, self._has_ended = b"", False
        self._problem: Exception | None = None
        self._found = 0
        self._read()
        self._text = self._text.removeprefix(codecs.BOM_UTF8).lstrip(_BLANKS)
        if not self._text.startswith((b"{", b"[")):
            raise self._no_trace("it begins with neither [ nor {")
        if self._text.startswith(b"["):
            self._text = self._text[1:].lstrip(_BLANKS)
        else:
            self._skip_header()
        while not self._text and not self._has_ended:
            self._read()
        if self._text[:1] in (b"", b"]"):
            raise self._no_trace("it ends before the first event")

    def __iter__(self) -> Iterator[list[Event]]:
        """Yields the batches.

        Raises:
            TruncatedTraceError: after the last event that can be read.
        """
        while True:
            was_ended = self._has_ended
            try:
                batch, end, is_last = self._whole_events()
            except _DAMAGED:
                yield from self._events_before_damage()
                return
            self._found += len(batch)
            yield batch
            if is_last:
                return
            self._text = self._text[end:]
            self._read()
            if self._found:
                self._text = self._text.lstrip(_BLANKS).removeprefix(b",").lstrip(_BLANKS)
            if len(self._text) > _LONGEST + _BLOCK_BYTES or was_ended:
                yield from self._events_before_damage()
                return

    def _whole_events(self) -> tuple[list[Event], int, bool]:
        """Returns the whole events of the text, where they end, and whether these are the last of the trace."""
        text = self._text
        end = text.rfind(b"},") + 1
        # Between two events, as profilers write them; nested objects that look the same do not decode.
        if end and not self._has_ended and text[end + 1 : end + 64].lstrip(_BLANKS)[:1] == b"{":
            with suppress(*_DAMAGED):
                return self._decoder.decode(b"[%b]" % text[:end]), end, False
        depth = end = 0
        for token in _TOKEN.finditer(text):
            first = text[token.start() : token.start() + 1]
            depth += (first in b"[{") - (first in b"]}")
            if depth < 0:
                # Numbers and texts are events too, though useless ones.
                return self._decoder.decode(b"[%b]" % text[: token.start()]), token.start(), True
            if depth == 0 and first in b"]}":
                end = token.end()
        return self._decoder.decode(b"[%b]" % text[:end]), end, False

    def _skip_header(self) -> None:
        at = 0
        while True:
            found = _EVENTS.search(self._text, at)
            if found is None:
                if self._has_ended or len(self._text) > _LONGEST:
                    raise self._no_trace("no traceEvents")
                self._read()
                continue
            header = self._text[: found.start()].rstrip(_BLANKS).removesuffix(b",") + b"}"
            try:
                msgspec.json.decode(header)
            except _DAMAGED:
                at = found.end()
                continue
            self.header, self._text = header, self._text[found.end() :].lstrip(_BLANKS)
            return

    def _events_before_damage(self) -> Iterator[list[Event]]:
        """Yields the events of the text one by one. Raises TruncatedTraceError where it is damaged."""
        # In Latin-1 each byte is a character.
        text, at = self._text.decode("latin-1"), 0
        try:
            while True:
                end = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant).raw_decode(text, at)[1]
                batch = self._decoder.decode(b"[%b]" % self._text[at:end])
                self._found += 1
                yield batch
                at = len(text) - len(text[end:].lstrip(" \t\n\r"))
                if text[at : at + 1] != ",":
                    raise ValueError(f"{text[at : at + 1] or 'the end'} stands in the place of ,")
                at = len(text) - len(text[at + 1 :].lstrip(" \t\n\r"))
        except _DAMAGED as error:
            why = self._problem or error
            problem = f"cannot be read after {self._found:,} events ({why})"
            raise TruncatedTraceError(self._path, problem, "These are kept") from None

    def _read(self) -> None:
        parts, size = [self._text], 0
        try:
            # A damaged gzip file gives what is before the damage.
            while size < _BLOCK_BYTES and (part := self._file.read1(_BLOCK_BYTES)):
                parts.append(part)
                size += len(part)
        except (*BROKEN_GZIP, OSError) as error:
            self._problem = error
        self._has_ended = not size
        self._text = b"".join(parts)

    def _no_trace(self, why: str) -> TableError:
        problem = f"not a Chrome trace, a list of events or an object with traceEvents ({self._problem or why})"
        return TableError(self._path, problem, "torch_npu.profiler calls it trace_view.json")


def read_events(path: Path, file: io.BufferedIOBase) -> Iterator[Any]:
    """Yields the events of a trace one by one. Numbers with a fraction are Decimals, because time stamps have more
    digits than a float. Raises as `EventStream`."""
    for batch in EventStream(path, file, msgspec.json.Decoder(list[Any], float_hook=Decimal)):
        yield from batch


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
