"""The progress line of a long stage: `ingest  45/165 MB  27 %  85 MB/s  2 s left`."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TextIO, TypeVar

from opatlas.text import COLUMNS, percent_text, shorten

#: Seconds between two versions of the line on a terminal.
_REWRITE_EVERY_S = 0.2
#: Seconds between two lines where lines stay (a log, CI).
_PLAIN_LINE_EVERY_S = 15.0
#: A unit that runs longer is named on a terminal, once a second.
_NAMED_AFTER_S, _NAMED_EVERY_S = 3.0, 1.0
#: A name is not shown in fewer columns.
_LEAST_NAME = 8


class Progress:
    """A line that is rewritten on a terminal; elsewhere a further line every few seconds.

    Use it as a context manager, or call `clear` at the end. Several threads may show the line.

    Attributes:
        total: the number of units; 0 if it is not known.
        done: the number of finished units.
        on_terminal: whether the line is rewritten.
    """

    def __init__(
        self,
        total: float,
        unit: str,
        *,
        label: str = "",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            total: the number of units; 0 if it is not known.
            unit: the name of the units, in the plural ("rows", "MB").
            label: the name of the stage, at the start of the line.
            stream: where to write; stderr by default.
            clock: returns seconds from any start.
        """
        self.total = total
        self.done = 0.0
        self.unit = unit
        self.label = label
        self._stream = sys.stderr if stream is None else stream
        self.on_terminal = self._stream.isatty()
        self._clock = clock
        self._started = self._last_advance = self._last_shown = clock()
        self._note = self._shown = ""
        self._lock = threading.Lock()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.clear()

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Counts `amount` units as done. `note` is the end of the line, such as "3 failed"."""
        self.done += amount
        self._note = note
        self._last_advance = now = self._clock()
        if now - self._last_shown >= (_REWRITE_EVERY_S if self.on_terminal else _PLAIN_LINE_EVERY_S):
            self._last_shown = now
            self._show(self.line(note))

    def show(self, name: str, how_long: str) -> None:
        """Shows the line with the name of the running unit, and how long that unit has run."""
        self._show(self.line(self._note, name, how_long))

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Names the unit that runs, and tells how long it has run, if that is more than a few seconds."""
        ended, started = threading.Event(), self._clock()

        def tell() -> None:
            wait_s = _NAMED_AFTER_S if self.on_terminal else _PLAIN_LINE_EVERY_S
            while not ended.wait(wait_s):
                self.show(name, format_seconds(self._clock() - started))
                wait_s = _NAMED_EVERY_S if self.on_terminal else _PLAIN_LINE_EVERY_S

        thread = threading.Thread(target=tell, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def line(self, note: str = "", name: str = "", how_long: str = "") -> str:
        """Returns the line. The rate is that of the last advance, so that a running unit does not lower it."""
        elapsed_s = self._last_advance - self._started
        rate = self.done / elapsed_s if elapsed_s > 0 else 0.0
        parts = [f"{self.done:.0f}/{self.total:.0f} {self.unit}" if self.total else f"{self.done:.0f} {self.unit}"]
        if self.label:
            parts.insert(0, self.label)
        if self.total:
            parts.append(percent_text(min(self.done / self.total, 1), 0))
        if rate:
            parts.append(speed(rate, self.unit))
            if self.total:
                parts.append(f"{format_seconds(max(self.total - self.done, 0) / rate)} left")
        if note:
            parts.append(note)
        # One column stays free: a full line would wrap, and could not be rewritten.
        columns = self._columns() - 1
        line = "  ".join(parts)
        if (room := columns - len(f"{line}   {how_long}")) >= _LEAST_NAME and name:
            line = f"{line}  {shorten(name, room)} {how_long}"
        return line[:columns]

    def clear(self) -> None:
        """Removes the line from the terminal, so that other text can be printed. The next advance shows it again."""
        with self._lock:
            if self._shown and self.on_terminal:
                self._stream.write("\r" + " " * len(self._shown) + "\r")
                self._stream.flush()
                self._shown = ""

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or COLUMNS
        except (OSError, ValueError):
            # No terminal, or a terminal that does not report its width.
            return COLUMNS

    def _show(self, line: str) -> None:
        with self._lock:
            if self.on_terminal:
                self._stream.write("\r" + line.ljust(len(self._shown)))
            else:
                self._stream.write(line + "\n")
            self._stream.flush()
            self._shown = line


def progress_over(names: Sequence[str], unit: str, *, label: str) -> Iterator[str]:
    """Yields names of units, shows how many are done, and names a unit that takes long."""
    with Progress(len(names), unit, label=label) as progress:
        for name in names:
            with progress.running(name):
                yield name
            progress.advance()


@contextmanager
def hint_after(hint: str, seconds: float = 2.0) -> Iterator[None]:
    """Prints a hint to stderr if the block takes longer, so that nobody takes it for a hang.

    Args:
        hint: what takes so long, such as "MatMulV2: fitting its model".
    """
    timer = threading.Timer(seconds, lambda: print(hint, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def speed(per_s: float, unit: str) -> str:
    """Returns `5.46 rows/s` or `240 rows/s`, and `51 s a row` for a rate below 1. `unit` is in the plural."""
    if per_s >= 1:
        return f"{per_s:.3g} {unit}/s" if per_s < 100 else f"{per_s:.0f} {unit}/s"
    each_s = 1 / per_s
    one = f"{each_s:.3g} s" if each_s < 60 else format_seconds(each_s)
    return f"{one} a {unit.removesuffix('s')}" if unit.endswith("s") else f"{one} for 1 {unit}"


def format_seconds(seconds: float) -> str:
    """Returns `42 s`, `3 min 05 s` or `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


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
