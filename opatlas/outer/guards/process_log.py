"""The log of a candidate: the output of its process on stderr, in a file that is left if the process ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Bytes at the end of a log that are shown, and read for the class of an error.
_LONGEST = 4_000


@contextmanager
def logged(log: str) -> Iterator[None]:
    """Writes stderr of this process into a file too: the process may end before it can report them."""
    if not log:
        yield
        return
    sys.stderr.flush()
    original = os.dup(2)
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(original, 2)
        os.write(original, Path(log).read_bytes()[-_LONGEST:])
        os.close(original)


def tail(log: str) -> str:
    """Returns the end of the file; "" if there is none."""
    if not log or not Path(log).exists():
        return ""
    return Path(log).read_bytes()[-_LONGEST:].decode("utf-8", errors="replace")
