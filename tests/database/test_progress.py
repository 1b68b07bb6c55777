"""The progress line of long stages."""

import fcntl
import io
import pty
import struct
import termios
import time

import pytest

from opatlas.progress import Progress, format_seconds, hint_after, speed


class Clock:
    """Seconds that the test lets pass."""

    now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock():
    return Clock()


def test_rate_and_time_left(clock):
    progress = Progress(200, "rows", label="replay", stream=io.StringIO(), clock=clock)
    clock.now = 10.0
    progress.advance(50)
    assert progress.line("1 failed").split("  ") == [
        "replay",
        "50/200 rows",
        "25 %",
        "5 rows/s",
        "30 s left",
        "1 failed",
    ]


@pytest.mark.parametrize(
    ("per_s", "unit", "words"),
    [
        (239.7, "rows", "240 rows/s"),
        (5.461, "rows", "5.46 rows/s"),
        (1.0, "rows", "1 rows/s"),
        (0.8, "plots", "1.25 s a plot"),
        (0.0198, "messages", "50.5 s a message"),
        (0.002, "rows", "8 min 20 s a row"),
        (0.5, "MB", "2 s for 1 MB"),
    ],
)
def test_what_is_slow_is_told_in_seconds(per_s: float, unit: str, words: str) -> None:
    assert speed(per_s, unit) == words


def test_the_unit_in_hand_is_named_and_lowers_no_rate(clock):
    stream = Terminal()
    progress = Progress(200, "rows", stream=stream, clock=clock)
    clock.now = 10.0
    progress.advance(50, "1 failed")
    clock.now = 22.0
    shown = progress.line("1 failed", "MatMulV2 1,1024;4096,1024", "(12 s)")
    *parts, unit = shown.split("  ")
    assert parts == ["50/200 rows", "25 %", "5 rows/s", "30 s left", "1 failed"]
    assert unit == "MatMulV2 1,1024;4096.. (12 s)"
    assert len(shown) <= 79
    progress.show("Add 1,1024", "(12 s)")
    assert stream.getvalue().split("  ")[-2:] == ["1 failed", "Add 1,1024 (12 s)"]


def test_a_name_without_room_is_left_out(clock):
    progress = Progress(200, "rows", label="x" * 50, stream=io.StringIO(), clock=clock)
    assert "Add" not in progress.line("", "Add 1,1024", "(12 s)")


def test_an_unknown_total_has_no_end(clock):
    progress = Progress(0, "rows", stream=io.StringIO(), clock=clock)
    clock.now = 2.0
    progress.advance(10)
    assert progress.line() == "10 rows  5 rows/s"


def test_a_terminal_line_is_rewritten_and_removed(clock):
    stream = Terminal()
    with Progress(3, "rows", stream=stream, clock=clock) as progress:
        for _ in range(3):
            clock.now += 1
            progress.advance()
    assert stream.getvalue().count("\r") == 5
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith(" \r")


def test_a_log_gets_a_plain_line_now_and_then(clock):
    stream = io.StringIO()
    with Progress(60, "rows", stream=stream, clock=clock) as progress:
        for _ in range(60):
            clock.now += 1
            progress.advance()
    assert [line.split("  ")[0] for line in stream.getvalue().splitlines()] == [
        "15/60 rows",
        "30/60 rows",
        "45/60 rows",
        "60/60 rows",
    ]


def test_a_short_stage_writes_nothing(clock):
    stream = io.StringIO()
    with Progress(3, "rows", stream=stream, clock=clock) as progress:
        progress.advance(3)
    assert stream.getvalue() == ""


def test_a_line_fits_a_narrow_terminal(clock):
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    with open(primary, "rb"), open(secondary, "w") as stream:
        assert len(Progress(1e12, "rows", label="x" * 100, stream=stream, clock=clock).line()) == 39


def test_a_line_fits_the_terminal(clock):
    assert len(Progress(1e12, "rows", label="x" * 100, stream=io.StringIO(), clock=clock).line()) == 79


@pytest.mark.parametrize(("seconds", "text"), [(42.4, "42 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")])
def test_durations(seconds, text):
    assert format_seconds(seconds) == text


def test_a_block_that_takes_long_has_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    with hint_after("fitting", seconds=60):
        pass
    assert not capsys.readouterr().err
    deadline = time.monotonic() + 60
    shown = ""
    with hint_after("fitting", seconds=0):
        while not shown and time.monotonic() < deadline:
            time.sleep(0.01)
            shown = capsys.readouterr().err
    assert shown == "fitting\n"
