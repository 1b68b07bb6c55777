"""Reads the events of a Chrome trace of any size, in batches."""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from opatlas.errors import TableError
from opatlas.files import BROKEN_GZIP

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
