"""Judges durations of a candidate: finds impossible ones, and samples that drift."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

from opatlas.formats import duration
from opatlas.outer.candidates.judgement import CandidateRejected, ErrorClass
from opatlas.row.roofline import Peak

#: Shortest duration of a kernel on an accelerator, in microseconds.
_SHORTEST_US = 0.5
#: Share of the time at the peak bandwidth of the data sheet: clocks of memory vary by some percent.
_SLACK = 0.95
#: Samples at the ends of a row that are compared, and the ratio of their medians that is told.
_LEAST_SAMPLES, _DRIFT = 20, 1.25


def expect_possible(
    durations_us: Sequence[float],
    *,
    read_bytes: int,
    peak: Peak,
    is_accelerator: bool,
    is_cold: bool = True,
    baseline_us: Callable[[], float | None] = lambda: None,
) -> None:
    """Raises CandidateRejected if durations are impossible.

    Args:
        durations_us: durations of the calls, in microseconds.
        read_bytes: bytes of the inputs.
        peak: the peaks of the device.
        is_accelerator: whether a launch takes time on the device.
        is_cold: whether the inputs are in memory; a warm cache may be faster.
        baseline_us: measures the task's own model, for a duration below the floor; None if it has no duration. Where
            the model is below the floor too, the task does not need all of its inputs.
    """
    wrong = [duration for duration in durations_us if not (math.isfinite(duration) and duration > 0)]
    if wrong or not durations_us:
        raise _impossible(f"{wrong[0]} us" if wrong else "no duration", "a call takes some time")
    taken_us = median(durations_us)
    if is_accelerator and taken_us < _SHORTEST_US:
        raise _impossible(duration(taken_us), f"no kernel takes less than {_SHORTEST_US} us")
    if not (is_cold and peak.bandwidth_gbps):
        return
    floor = _SLACK * read_bytes / peak.bandwidth_gbps / 1e3
    if taken_us < floor and ((own := baseline_us()) is None or own >= floor):
        raise _impossible(
            duration(taken_us),
            f"the device needs {duration(floor)} to read {read_bytes} bytes of inputs at its peak",
        )


def drift_notes(durations_us: Sequence[float]) -> tuple[str, ...]:
    """Returns what is told of a candidate whose last samples take longer or shorter than its first ones.

    A candidate with a state, such as lines that it pins in a cache, may be fast only for some calls.

    Args:
        durations_us: durations of the calls in the order of time, in microseconds.
    """
    if len(durations_us) < _LEAST_SAMPLES:
        return ()
    part = len(durations_us) // 3
    first, last = median(durations_us[:part]), median(durations_us[-part:])
    if 1 / _DRIFT < last / first < _DRIFT:
        return ()
    return (f"the last samples take {last / first:.2f} times as long as the first",)


def _impossible(found: str, why: str) -> CandidateRejected:
    return CandidateRejected(ErrorClass.HACK, "impossible-time", f"the candidate was measured with {found}: {why}")
