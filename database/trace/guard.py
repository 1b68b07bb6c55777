"""Bytes of a trace on their way to the JSON parser, without what the parser cannot bear.

A number of more than 4,300 digits ends the process in ijson's C code (Python converts no longer one), and a string
takes the parser time that grows with the square of its length.
"""

from __future__ import annotations

import re
from typing import IO

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
