"""Judges durations of a candidate: impossible ones, and the share of its own kernels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from opatlas.formats import duration, percent
from opatlas.outer.judging.judgement import CandidateRejected, ErrorClass
from opatlas.outer.judging.source import CandidateSource
from opatlas.row.roofline import Peak

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


def _impossible(found: str, why: str) -> CandidateRejected:
    return CandidateRejected(ErrorClass.HACK, "impossible-time", f"the candidate was measured with {found}: {why}")


#: Below or at this share torch does the work.
LEAST_SHARE = 0.5
#: The name of a kernel of CUDA or HIP. Its return type may have qualifiers before and behind.
_KERNEL = re.compile(
    r"__global__\s+(?:(?:static|inline|__forceinline__|extern|\"C\"|__launch_bounds__\s*\([^)]*\))\s+)*"
    r"void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\("
)


def own_kernel_names(source: CandidateSource, helpers: Iterable[str] = ()) -> frozenset[str]:
    """Returns the names of the kernels that a candidate defines, in Triton, in strings, and in its helper files.

    Args:
        source: the candidate.
        helpers: texts of its other files (.cu, .cpp).
    """
    texts = (*(text for _, text in source.native_kernels), *helpers)
    return frozenset(source.triton_kernels) | {name for text in texts for name in _KERNEL.findall(text)}


def own_share(names: Sequence[str], durations_us: Sequence[float], own: Iterable[str]) -> float | None:
    """Returns the share of the time in own kernels, 0 to 1; None if the instrument has no names.

    Args:
        names: the kernels of one call, as the instrument names them ("at::native::softmax_warp_forward").
        durations_us: the duration of each.
        own: names of the kernels that the candidate defines.
    """
    total = sum(durations_us)
    if not names or len(names) != len(durations_us) or total <= 0:
        return None
    # Some versions of Triton append the specialization of the arguments: `add_kernel_0d1d2d`.
    pattern = re.compile(rf"(?:{'|'.join(sorted(map(re.escape, own)))})(?:_\d\w*)?") if own else None
    return (
        sum(
            duration
            for name, duration in zip(names, durations_us, strict=True)
            if pattern is not None and pattern.fullmatch(name.rpartition("::")[2])
        )
        / total
    )


def share_notes(share: float | None) -> tuple[str, ...]:
    """Returns what is told of a share: that torch does the work."""
    if share is None or share > LEAST_SHARE:
        return ()
    return (f"torch does the work: {percent(share, 0)} of the time is in kernels that the candidate defines",)
