"""How far a long stage has come: `ingest  45/165 MB  27 %  85 MB/s  2 s left`."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from opatlas.text import shorten

#: A terminal line is rewritten this often: fast enough to look alive, slow enough to cost nothing.
_REWRITE_EVERY_S = 0.2
#: Where lines stay (a log, CI), one is written this often.
_PLAIN_LINE_EVERY_S = 15.0
#: Of a terminal that does not tell, and of a log.
_COLUMNS = 80
#: Fewer columns of a name tell nothing.
_LEAST_NAME = 8


class Progress:
    """One line that is rewritten on a terminal, a plain line now and then elsewhere.

    Use it as a context manager, or call `close`. Output ends with the stage: on a terminal the line
    is removed, so that what follows starts on a clean one. Several threads may show the line.

    Attributes:
        total: how many units there are; 0 if that is not known.
        done: how many of them are done.
        left_out_s: seconds that count in no rate.
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
            total: how many units there are; 0 if that is not known.
            unit: what is counted, in the plural ("rows", "MB").
            label: what is being done, at the start of the line.
            stream: where to write; stderr unless given.
            clock: seconds, from any start.
        """
        self.total = total
        self.done = 0.0
        self.unit = unit
        self.label = label
        self._stream = sys.stderr if stream is None else stream
        self.on_terminal = self._stream.isatty()
        self.left_out_s = 0.0
        self._clock = clock
        self._started = self._last_advance = self._last_shown = clock()
        self._note = self._shown = ""
        self._lock = threading.Lock()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Counts `amount` units as done. `note` ends the line ("3 failed")."""
        self.done += amount
        self._note = note
        self._last_advance = now = self._clock()
        if now - self._last_shown >= (_REWRITE_EVERY_S if self.on_terminal else _PLAIN_LINE_EVERY_S):
            self._last_shown = now
            self._show(self.line(note))

    def show(self, name: str, how_long: str) -> None:
        """Shows the line again, with the unit in hand: its name, and how long it has been in hand."""
        self._show(self.line(self._note, name, how_long))

    def line(self, note: str = "", name: str = "", how_long: str = "") -> str:
        """The line as it would be shown now. The rate is that of the last advance: a unit in hand does not lower it."""
        elapsed_s = self._last_advance - self._started - self.left_out_s
        rate = self.done / elapsed_s if elapsed_s > 0 else 0.0
        parts = [f"{self.done:.0f}/{self.total:.0f} {self.unit}" if self.total else f"{self.done:.0f} {self.unit}"]
        if self.label:
            parts.insert(0, self.label)
        if self.total:
            parts.append(f"{min(self.done / self.total, 1):.0%}")
        if rate:
            parts.append(speed(rate, self.unit))
            if self.total:
                parts.append(f"{format_seconds(max(self.total - self.done, 0) / rate)} left")
        if note:
            parts.append(note)
        # One column less than there are: a full line would wrap, and a wrapped one cannot be rewritten.
        columns = self._columns() - 1
        line = "  ".join(parts)
        if (room := columns - len(f"{line}   {how_long}")) >= _LEAST_NAME and name:
            line = f"{line}  {shorten(name, room)} {how_long}"
        return line[:columns]

    def clear(self) -> None:
        """Removes the line from the terminal, for something else to be printed; the next advance brings it back."""
        with self._lock:
            if self._shown and self.on_terminal:
                self._stream.write("\r" + " " * len(self._shown) + "\r")
                self._stream.flush()
                self._shown = ""

    def close(self) -> None:
        """Ends the progress; more calls do nothing."""
        self.clear()

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _COLUMNS
        except (OSError, ValueError):
            # No terminal, or none that tells.
            return _COLUMNS

    def _show(self, line: str) -> None:
        with self._lock:
            if self.on_terminal:
                self._stream.write("\r" + line.ljust(len(self._shown)))
            else:
                self._stream.write(line + "\n")
            self._stream.flush()
            self._shown = line


def speed(per_s: float, unit: str) -> str:
    """`5.46 rows/s`, `240 rows/s`; where fewer than one pass in a second, `51 s a row`. `unit` is in the plural."""
    if per_s >= 1:
        return f"{per_s:.3g} {unit}/s" if per_s < 100 else f"{per_s:.0f} {unit}/s"
    each_s = 1 / per_s
    one = f"{each_s:.3g} s" if each_s < 60 else format_seconds(each_s)
    return f"{one} a {unit.removesuffix('s')}" if unit.endswith("s") else f"{one} for 1 {unit}"


def format_seconds(seconds: float) -> str:
    """`42 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
