"""Long work: its progress on stderr, by rich (a bar on a terminal), and a pause of the garbage collector."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def progress(label: str, total: float | None) -> Iterator[Callable[[float], None]]:
    """Shows a bar while the block runs.

    Args:
        label: the name of the work, such as "ingest, MB".
        total: the number of units; None if it is not known.

    Yields:
        a function that counts units as done.
    """
    if not sys.stderr.isatty():
        yield lambda amount: None
        return
    # rich takes 50 ms to import.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda amount: bar.advance(task, amount)


def track(items: Sequence[T], label: str) -> Iterator[T]:
    """Yields the items, and shows how many are done."""
    with progress(label, len(items)) as advance:
        for item in items:
            yield item
            advance(1)


@contextmanager
def note_after(note: str, seconds: float = 2.0) -> Iterator[None]:
    """Prints a note to stderr if the block takes longer, so that nobody takes it for a hang.

    Args:
        note: what takes so long, such as "MatMulV2: fitting its model".
    """
    timer = threading.Timer(seconds, lambda: print(note, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Keeps the cyclic garbage collector from starting by itself.

    A collection in a sample would lengthen it. While many objects without cycles are made, collections examine all of
    them again and again, which takes as long as the work itself.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
