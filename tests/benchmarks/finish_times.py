"""A pytest plugin that prints when each row was done, at the end of the session."""

from __future__ import annotations

import re
import time

import pytest

PLUGIN = ("-p", "tests.benchmarks.finish_times")
_TIMES: list[float] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        _TIMES.append(time.perf_counter())


def pytest_unconfigure() -> None:
    print()
    for at in _TIMES:
        print(f"finished at {at:.6f}")


def times_of(output: str) -> list[float]:
    """Returns the times that a session with this plugin printed. Raises RuntimeError if there are fewer than two."""
    times = list(map(float, re.findall(r"^finished at ([\d.]+)$", output, flags=re.MULTILINE)))
    if len(times) < 2:
        raise RuntimeError(output)
    return times
