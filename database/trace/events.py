"""The events of a Chrome trace, one after the other: gigabytes pass through, and none of them stays."""

from __future__ import annotations

import io
from collections.abc import Iterator
from gzip import GzipFile
from pathlib import Path
from typing import IO, Any

import ijson

from database.errors import OpAtlasError
from database.streaming import BROKEN_GZIP
from database.trace.guard import Guard, UnbearableError

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
