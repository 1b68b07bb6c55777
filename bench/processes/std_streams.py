"""What a process has printed while it ran a row, which belongs to that row's report."""

from __future__ import annotations

import contextlib
import sys


def write_out() -> None:
    """Captured output must be in its file before the report is made.

    If the disk of that file is full, or a kernel has closed the stream or put something else in its place, what was
    printed is lost, and what was measured is not.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
