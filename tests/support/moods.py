"""The toy kernel `Moody`: the first dimension of a row is its mood. A number without a mood adds two vectors.

Sessions of tests have a copy of this file next to their toy replays.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: Seconds after which a row that waits for a test fails.
_PATIENCE_S = 600.0


class Mood(IntEnum):
    """The acts of a row before it is measured, if it still can be."""

    SEGFAULT = 11
    EXIT = 12
    SLEEP = 13
    SLEEP_WITH_GIL = 14
    RAISE = 15
    REFUSE = 16
    UNSUPPORTED = 17
    NO_REPLAY = 18
    WRONG_RESULT = 19
    MEMORY_ERROR = 20
    NEEDS_VARIABLE = 21
    SLOW = 22
    ABORT = 23
    HOARD = 24
    TORCH_OOM = 25
    LONG_ERROR = 26
    SKIP = 27
    BETTER_NEXT_TIME = 28
    TALK_AND_RAISE = 29
    POISON = 30
    BREAK_OWN_DEVICE = 31
    BREAK_DEVICE_1 = 32
    BREAK_ALL_DEVICES = 33
    POISON_AGAIN = 34
    POISON_LAST = 35
    WAIT_FOR_GO = 40
    WAIT_FOR_GO_TOO = 41
    WAIT_FOR_ANOTHER_DEVICE = 42
    CHANGE_THREADS = 50
    BREAK_TORCH = 51
    LEAVE_AN_ERROR = 52
    TALK = 129


def behave(row: Any) -> bool:
    """Acts on the mood of a row. Returns whether the row is to be measured then."""
    number = row.shape(0)[0]
    (HERE / f"body-{number}").write_text(str(os.getpid()))
    action = _ACTIONS.get(number)
    return action is None or action(row) is not False


def _raise(error: type[Exception], text: str) -> Callable[[Any], None]:
    def action(row: Any) -> None:
        raise error(text)

    return action


def _raise_long_error(row: Any) -> None:
    raise RuntimeError("\udcff\x1b[2J" + "x" * (20 << 20))


def _wait_until(condition: Callable[[], bool], complaint: str) -> None:
    until = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < until, complaint
        time.sleep(0.02)


def _refuse(row: Any) -> None:
    raise row.refuse("Input Shapes", "a bad mood", "cheer it up")


def _hoard(row: Any) -> None:
    Path(os.environ["MEMORY_GROUP"], "cgroup.procs").write_text(str(os.getpid()))
    hoard = []
    while True:
        hoard.append(bytearray(10 << 20))


def _torch_oom(row: Any) -> None:
    torch = sys.modules["torch"]
    torch.empty(1 << 60, dtype=torch.uint8)


def _wait_for_go(row: Any) -> None:
    """Waits until the test has done its part meanwhile."""
    print("waiting")
    _wait_until((HERE / "go").exists, "nobody said go")


def _wait_for_another_device(row: Any) -> None:
    """Until a row has begun on another device."""
    own = {str(os.getpid()), ""}
    _wait_until(lambda: not {path.read_text() for path in HERE.glob("body-*")} <= own, "no other device took a row")


def _skip(row: Any) -> None:
    import pytest

    pytest.skip("not in the mood")


def _better_next_time(row: Any) -> None:
    if not (HERE / "mended").exists():
        (HERE / "mended").touch()
        raise ValueError("better next time")


def _talk(row: Any) -> None:
    print("begin" + "x" * (1 << 20) + "end")


def _talk_and_raise(row: Any) -> None:
    _talk(row)
    raise ValueError("talked too much")


def _change_threads(row: Any) -> None:
    torch = sys.modules["torch"]
    torch.set_num_threads(torch.get_num_threads() + 1)


def _break_torch(row: Any) -> None:
    vars(sys.modules["torch"])["allclose"] = None
    raise ValueError("has broken torch")


def _leave_an_error(row: Any) -> None:
    import simulated

    simulated.leave_error()


def _poison(*broken: str) -> Callable[[Any], None]:
    """Breaks devices for good ("own": the row's own device), and poisons the context of the row's process."""

    def action(row: Any) -> None:
        import simulated

        for device in broken:
            simulated.break_for_good(simulated.own_id() if device == "own" else device)
        simulated.poison()

    return action


def _break_device_1(row: Any) -> None:
    import simulated

    if simulated.own_id() == "1":
        _poison("1")(row)


def _needs_variable(row: Any) -> None:
    if os.environ.get("MOOD") != "good":
        raise ValueError("needs MOOD=good")


_ACTIONS: dict[int, Callable[[Any], object]] = {
    Mood.SEGFAULT: lambda row: ctypes.string_at(0),
    Mood.EXIT: lambda row: os._exit(3),
    Mood.SLEEP: lambda row: time.sleep(1000),
    Mood.SLEEP_WITH_GIL: lambda row: ctypes.PyDLL(None).sleep(1000),
    Mood.RAISE: _raise(ValueError, "bad mood"),
    Mood.REFUSE: _refuse,
    Mood.UNSUPPORTED: _raise(NotImplementedError, "no such mood"),
    Mood.NO_REPLAY: lambda row: False,
    Mood.MEMORY_ERROR: _raise(MemoryError, "too moody"),
    Mood.NEEDS_VARIABLE: _needs_variable,
    Mood.SLOW: lambda row: time.sleep(3),
    Mood.ABORT: lambda row: os.abort(),
    Mood.HOARD: _hoard,
    Mood.TORCH_OOM: _torch_oom,
    Mood.LONG_ERROR: _raise_long_error,
    Mood.SKIP: _skip,
    Mood.BETTER_NEXT_TIME: _better_next_time,
    Mood.TALK_AND_RAISE: _talk_and_raise,
    Mood.POISON: _poison(),
    Mood.BREAK_OWN_DEVICE: _poison("own"),
    Mood.BREAK_DEVICE_1: _break_device_1,
    Mood.BREAK_ALL_DEVICES: _poison("0", "1"),
    Mood.POISON_AGAIN: _poison(),
    Mood.POISON_LAST: _poison(),
    Mood.WAIT_FOR_GO: _wait_for_go,
    Mood.WAIT_FOR_GO_TOO: _wait_for_go,
    Mood.WAIT_FOR_ANOTHER_DEVICE: _wait_for_another_device,
    Mood.CHANGE_THREADS: _change_threads,
    Mood.BREAK_TORCH: _break_torch,
    Mood.LEAVE_AN_ERROR: _leave_an_error,
    Mood.TALK: _talk,
}
