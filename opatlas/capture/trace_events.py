"""The events of a Chrome trace, one after the other: gigabytes pass through, and none of them stays."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from gzip import GzipFile
from pathlib import Path
from typing import IO, Any

import ijson

from opatlas.errors import OpAtlasError
from opatlas.files import BROKEN_GZIP

#: Time stamps have some twenty digits.
MOST_DIGITS = 1000
#: A call stack takes some kilobytes.
MOST_STRING_BYTES = 4 << 20
_OF_NUMBERS = bytes.maketrans(b"0123456789.eE+-", b"0" * 15)
_LONG_NUMBER = re.compile(b"0{%d,}" % MOST_DIGITS)


class UnbearableError(Exception):
    """What comes next is too long for the parser; the message says what it is."""


class Guard:
    """A file for ijson to read: gives what may be parsed, then raises UnbearableError."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        #: The end of what was read: a number may go on.
        self._tail = b""
        self._in_string = False
        #: Of the string that has not ended.
        self._string_bytes = 0
        #: A backslash whose letter comes with the next bytes.
        self._escape = b""
        self._problem = ""

    def read(self, size: int = -1) -> bytes:
        """As a file does. Raises UnbearableError where a number or string is too long."""
        if self._problem:
            raise UnbearableError(self._problem)
        block = self._file.read(size)
        start = self._long_number(block)
        if start is not None:
            self._problem = f"a number of {MOST_DIGITS:,} digits or more"
            block = block[:start]
        else:
            self._follow_strings(block)
            if self._string_bytes > MOST_STRING_BYTES:
                self._problem = f"a string of more than {MOST_STRING_BYTES >> 20} MB"
                block = b""
        if self._problem and not block:
            # No bytes would be the end of the file.
            raise UnbearableError(self._problem)
        self._tail = block[-MOST_DIGITS:]
        return block

    def _long_number(self, block: bytes) -> int | None:
        """Where a number that is too long begins; None if there is none."""
        letters = (self._tail + block).translate(_OF_NUMBERS)
        if b"0" * MOST_DIGITS not in letters:
            return None
        for found in _LONG_NUMBER.finditer(letters):
            start = max(found.start() - len(self._tail), 0)
            quotes = _without_escapes(self._escape + block[:start]).count(b'"')
            if self._in_string == bool(quotes % 2):
                return start
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
    """JSON without escaped backslashes and quotes: each quote that is left begins or ends a string."""
    return text.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in text else text


_BOM = b"\xef\xbb\xbf"
#: More blanks than this before the first bracket are no trace.
_LEADING_BYTES = 4096


class TraceCut(OpAtlasError):
    """A trace that ends, or cannot be read any further, after some of its events."""


def events(path: Path, file: IO[bytes]) -> Iterator[Any]:
    """The events of a trace: of an array, or of the array `traceEvents` of an object.

    Numbers with a fraction are Decimals, so that they can be written as they stand there: time stamps
    have more digits than a float.

    Args:
        path: for errors.
        file: its bytes, unpacked.

    Raises:
        TraceCut: after the last event that can be read.
        OpAtlasError: not a trace.
    """
    prefix = {b"[": "item", b"{": "traceEvents.item"}.get(_first_byte(file))
    if prefix is None:
        raise OpAtlasError(
            f"{path}: not a Chrome trace: it begins neither with [ nor with {{. "
            f"torch_npu.profiler calls it trace_view.json"
        )
    found = 0
    try:
        for event in ijson.items(Guard(file), prefix):
            found += 1
            yield event
    except UnbearableError as error:
        raise TraceCut(f"{path}: has {error} behind {found:,} events: these are kept") from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise TraceCut(f"{path}: is not UTF-8 (byte {byte:#04x}) behind {found:,} events: these are kept") from None
    except ArithmeticError:
        raise TraceCut(f"{path}: has a number out of range behind {found:,} events: these are kept") from None
    except ijson.JSONError as error:
        # The parser draws a picture of the place in further lines.
        what = str(error).removeprefix("b'").partition("\n")[0].strip()
        ends = "premature EOF" in what or "Incomplete" in what
        why = "ends in the middle of an event" if ends else f"is not JSON from there on ({what})"
        raise TraceCut(f"{path}: {why}, after {found:,} events: these are kept") from None
    except BROKEN_GZIP as error:
        raise TraceCut(
            f"{path}: the packed file ends early ({error}), after {found:,} events: these are kept"
        ) from None
    except OSError as error:
        raise TraceCut(f"{path}: cannot be read after {found:,} events ({error.strerror}): these are kept") from None
    if not found:
        raise OpAtlasError(f"{path}: not a Chrome trace: it has no events (a list, or one called traceEvents)")


def _first_byte(file: IO[bytes]) -> bytes:
    """The first byte that is no blank; b"" where there is none, or the file cannot be unpacked. Skips a BOM."""
    assert isinstance(file, (io.BufferedReader, GzipFile))
    try:
        if file.peek(len(_BOM)).startswith(_BOM):
            file.read(len(_BOM))
        return file.peek(_LEADING_BYTES).lstrip()[:1]
    except (*BROKEN_GZIP, OSError):
        return b""
