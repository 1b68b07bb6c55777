"""Which of torch's operators the timed code of each kernel type calls on a GPU, as the tests found on one.

The tests in tests/cuda run a row of every kernel type and keep what they saw in gpu_calls.json, so that it can be told
where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.kernels import found_by_tests

CALLS = Path(__file__).with_suffix(".json")


def read_calls() -> dict[str, list[str]]:
    """By kernel type: operators in the order of their first call."""
    return found_by_tests.read(CALLS)


def write_calls(calls: Mapping[str, Sequence[str]]) -> None:
    """For `read_calls`."""
    found_by_tests.write(CALLS, calls)
