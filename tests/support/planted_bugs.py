"""Targets of tests.fuzz that break for some inputs: a fuzzer must find them, whatever they do to its process."""

from __future__ import annotations

import faulthandler
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.fuzz.target import Target, expect

#: Inputs with this break their target.
MARK = b"\x01\x02"


def _seeds() -> Iterator[bytes]:
    yield b"all is well, whatever comes"


def _target(limit_s: float = 30.0) -> Callable[[Callable[[], object]], Target]:
    def made(break_it: Callable[[], object]) -> Target:
        def check(data: bytes, folder: Path) -> None:
            (folder / "left behind").mkdir()
            if MARK in data:
                break_it()

        return Target(break_it.__name__, "does not hold", _seeds, check, (MARK,), limit_s)

    return made


@_target()
def raises() -> None:
    raise RecursionError("too deep")


@_target()
def does_not_hold() -> None:
    expect(False, "a row is lost")


@_target()
def crashes() -> None:
    faulthandler._sigsegv()  # type: ignore[attr-defined]


@_target(limit_s=1.0)
def hangs() -> None:
    while True:
        pass


@_target()
def fills_memory() -> None:
    bytearray(1 << 40)


@_target()
def holds() -> None:
    return
