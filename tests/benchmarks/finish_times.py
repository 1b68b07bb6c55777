"""A pytest plugin that prints when each row was done, at the end of the session."""

from __future__ import annotations

import time

_TIMES: list[float] = []


def pytest_runtest_logreport(report):
    if report.when == "call":
        _TIMES.append(time.perf_counter())


def pytest_unconfigure():
    print()
    for at in _TIMES:
        print(f"finished at {at:.6f}")
