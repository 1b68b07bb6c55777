"""The live line of a session: which row runs, and for how long."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
import time
from collections.abc import Callable

import pytest
from moods import Mood
from sessions import Finished, Sessions, row

COLUMNS = 100


class OnTerminal:
    """A session whose output is a terminal."""

    def __init__(self, sessions: Sessions, *options: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        self._running = sessions.start(*options, terminal=theirs, SIMULATED_DEVICES="1")
        os.close(theirs)
        self.shown = ""

    def read_until(self, condition: Callable[[str], object]) -> None:
        """Reads until a condition is true of what was shown; fails where the session ends before."""
        until = time.monotonic() + 300
        while not condition(self.shown):
            assert time.monotonic() < until, self.shown
            assert self._read(), self.shown

    def read_to_the_end(self) -> int:
        """Gives the exit code."""
        while self._read():
            pass
        return self._running.process.wait(300)

    def _read(self) -> bool:
        try:
            data = os.read(self._ours, 4096)
        except OSError:
            # Linux says so when the other end was closed.
            return False
        self.shown += data.decode()
        return bool(data)


@pytest.mark.parametrize("options", [(), pytest.param(("-n", "1", "test_toys.py"), marks=pytest.mark.slow)])
def test_a_row_that_runs_for_long_is_named_on_one_line(sessions: Sessions, options: tuple[str, ...]) -> None:
    sessions.write("Moody", [row(1), row(Mood.WAIT_FOR_GO), row(2)])
    terminal = OnTerminal(sessions, *options)
    # Twice: the line is rewritten while the row runs.
    terminal.read_until(lambda shown: len(set(re.findall(r"Moody 40;40 \((\d+) s\)", shown))) >= 2)
    sessions.go()
    assert terminal.read_to_the_end() == 0
    lines = [line for line in re.split(r"[\r\n]+", terminal.shown) if "Moody 40;40" in line]
    assert all(line.startswith("1/3 rows") and len(line) < COLUMNS for line in lines)
    lines = terminal.shown.splitlines()
    assert Finished(0, "\n".join(lines)).ledger() == {"measured": 3}
    # The line that xdist rewrites holds nothing else.
    assert not [line for line in lines if "worker" in line and "to replay" in line]
    assert [line for line in lines if line.startswith("opatlas: 3 rows")]


def test_a_row_that_waits_for_the_device_says_so_on_the_line(sessions: Sessions) -> None:
    sessions.write("Moody", [row(1)])
    with open(sessions.folder / "lock-0", "w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        terminal = OnTerminal(sessions)
        terminal.read_until(
            lambda shown: re.search(r"0/1 rows  0 %  Moody 1;1 \(waiting \d+ s for the device\)", shown)
        )
    assert terminal.read_to_the_end() == 0


#: A log names a row soon.
SOON = """
from opatlas.plugins import progress

progress.NAMED_IN_LOG_AFTER_S = 0.0
"""


def test_a_log_names_a_row_that_runs_for_long_once(sessions: Sessions) -> None:
    (sessions.folder / "soon.py").write_text(SOON)
    sessions.write("Moody", [row(1), row(Mood.WAIT_FOR_GO)])
    running = sessions.start("-p", "soon", SIMULATED_DEVICES="1")
    running.wait_until(lambda: "Moody 40;40 (" in running.output.read_text())
    # Time for a second line.
    time.sleep(2.5)
    sessions.go()
    done = running.wait()
    assert done.ledger() == {"measured": 2}
    assert done.output.count("Moody 40;40 (") == 1


def test_a_terminal_shows_failures_in_red_and_a_log_plainly(sessions: Sessions) -> None:
    sessions.write("Moody", [row(Mood.RAISE)])
    ledger = "1 row collected = 1 failed"
    terminal = OnTerminal(sessions)
    assert terminal.read_to_the_end() == 1
    assert f"\x1b[31m{ledger}\x1b[0m" in terminal.shown
    assert "next:" not in terminal.shown
    assert f"\n{ledger}\n" in sessions.run_in_process("--runxfail")


def test_a_terminal_says_what_comes_next_and_a_log_does_not(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    terminal = OnTerminal(sessions)
    assert terminal.read_to_the_end() == 0
    assert "opatlas report database" in terminal.shown
    assert "next:" not in sessions.run_in_process("--mixed")


def test_the_header_has_pytest_benchmark_only_where_it_is_asked_for_something(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    assert "warmup_iterations" not in sessions.run_in_process()
    assert "warmup_iterations" in sessions.run_in_process("--benchmark-json=benchmark.json")
