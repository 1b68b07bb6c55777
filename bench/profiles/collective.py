"""Which launches between the marks of a collective are the collective: a profile may hold it twice.

Beside HCCL's own row (type `hcom_allReduce_`) profiles of CANN 8.3 and later list the kernel that carries the
collective: one on the vector cores, whose name holds `AivKernel`, or one on the AI CPU, whose type ends in
`AicpuKernel`. Both rows span the same time, so only HCCL's row counts. Where a profile has no such row, the kernel that
carries the collective stands for it, and the measurement says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from database.communication import is_communication
from database.launches import Launch

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
