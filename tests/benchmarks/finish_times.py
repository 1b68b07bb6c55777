"""A pytest plugin that prints when each row was done, at the end of the session."""

from __future__ import annotations

import time

import pytest

_TIMES: list[float] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        _TIMES.append(time.perf_counter())


def pytest_unconfigure() -> None:
    print()
    for at in _TIMES:
        print(f"finished at {at:.6f}")
