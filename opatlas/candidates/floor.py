"""Refuses durations that no kernel can have: not above zero, or shorter than a device needs to read the inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from opatlas.candidates.judgement import ErrorClass
from opatlas.candidates.rejection import CandidateRejected
from opatlas.model.roofline import Peak

#: Shortest duration of a kernel on an accelerator, in microseconds.
_SHORTEST_US = 0.5
#: Share of the time at the peak bandwidth of the data sheet: clocks of memory vary by some percent.
_SLACK = 0.95


def expect_possible(
    durations_us: Sequence[float],
    *,
    read_bytes: int,
    peak: Peak,
    is_accelerator: bool,
    is_cold: bool = True,
    baseline_us: float | None = None,
) -> None:
    """Raises CandidateRejected if durations are impossible.

    Args:
        durations_us: durations of the calls, in microseconds.
        read_bytes: bytes of the inputs.
        peak: the peaks of the device.
        is_accelerator: whether a launch takes time on the device.
        is_cold: whether the inputs are in memory; a warm cache may be faster.
        baseline_us: duration of the task's own model. Where it is below the floor too, the task does not read its
            inputs as a whole, and the floor says nothing.
    """
    wrong = [duration for duration in durations_us if not (math.isfinite(duration) and duration > 0)]
    if wrong or not durations_us:
        raise _impossible(f"{wrong[0]} us" if wrong else "no duration", "a call takes some time")
    duration = median(durations_us)
    if is_accelerator and duration < _SHORTEST_US:
        raise _impossible(f"{duration:.3g} us", f"no kernel takes less than {_SHORTEST_US} us")
    if not (is_cold and peak.bandwidth_gbps):
        return
    floor = _SLACK * read_bytes / peak.bandwidth_gbps / 1e3
    if duration < floor and (baseline_us is None or baseline_us >= floor):
        raise _impossible(
            f"{duration:.4g} us", f"the device needs {floor:.4g} us to read {read_bytes} bytes of inputs at its peak"
        )


def _impossible(found: str, why: str) -> CandidateRejected:
    return CandidateRejected(ErrorClass.HACK, "impossible-time", f"the candidate was measured with {found}: {why}")
