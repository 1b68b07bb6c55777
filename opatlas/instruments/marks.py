"""Marks: how samples are found again in a profile of many rows.

A profile is a list of kernels in the order in which the device ran them: those that were asked for,
and those of set-up, warm-up, cache flush and check. Around each sample the process that measures
launches a negation of a tensor whose shape no model has; in the profile its shape tells that a row,
or a sample, begins or ends there. Marks are on the device's own clock and in the same file as the
kernels, whichever profiler wrote it and whatever its options; range markers of the host (mstx) are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opatlas.capture.profiles import Launch
from opatlas.model.communication import is_communication
from opatlas.text import whole

#: The profiler's type of a mark.
KERNEL_TYPE = "Neg"
#: A mark moves 44 to 52 KB: nothing to a cache of megabytes that a flush has emptied.
BEGIN = (11, 1009)
END = (13, 1009)
_ROW = 103
_BASE = 32
#: Rows that marks can tell apart in one profile.
MOST_ROWS = _BASE * _BASE


def row_mark(number: int) -> tuple[int, int, int]:
    """The mark before all that is done for row `number` of a profile, from 0 to MOST_ROWS - 1."""
    if not 0 <= number < MOST_ROWS:
        raise ValueError(f"a profile has rows 0 to {MOST_ROWS - 1}, not {number}")
    return _ROW, 1 + number // _BASE, 1 + number % _BASE


def row_of_mark(dimensions: str) -> int | None:
    """The row that a mark stands for; None where the dimensions are those of something else."""
    sizes = dimensions.split(",")
    if len(sizes) != 3 or sizes[0] != str(_ROW):
        return None
    # 0 stands for no number, too: a mark has sizes from 1 on.
    high, low = ((whole(size) or 0) - 1 for size in sizes[1:])
    return high * _BASE + low if 0 <= high < _BASE and 0 <= low < _BASE else None


def dimensions_of(shape: tuple[int, ...]) -> str:
    """A shape as profilers write it."""
    return ",".join(map(str, shape))


_CARRIERS = ("AIVKERNEL", "AICPUKERNEL")


def counted_once(kernel_type: str, calls: Sequence[Sequence[Launch]]) -> tuple[Sequence[Sequence[Launch]], str]:
    """Returns the launches of each call that count, and what had to be assumed.

    Calls of other kernel types than collectives, and calls that hold no launch of a collective, come back as they are.

    Args:
        kernel_type: of the row.
        calls: what ran between the marks of each sample.
    """
    if not is_communication(kernel_type):
        return calls, ""
    own = [[launch for launch in call if _is_collective(launch)] for call in calls]
    if any(own):
        # A call without one stays empty: its duration is not known.
        return own, ""
    carriers = [[launch for launch in call if _carries(launch)] for call in calls]
    if not any(carriers):
        return calls, ""
    names = sorted({launch.kernel_type for call in carriers for launch in call})
    assumption = (
        f"the profile has no {kernel_type} launch: the duration is that of {', '.join(names)}, which carries it"
    )
    return [[replace(launch, kernel_type=kernel_type) for launch in call] for call in carriers], assumption


def _is_collective(launch: Launch) -> bool:
    return is_communication(launch.kernel_type) and not _carries(launch)


def _carries(launch: Launch) -> bool:
    text = f"{launch.kernel_type} {launch.name}".upper()
    return any(carrier in text for carrier in _CARRIERS)
