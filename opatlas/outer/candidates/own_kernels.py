"""Finds out which share of a candidate's time its own kernels take, by the names that its source defines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from opatlas.formats import percent
from opatlas.outer.candidates.source import CandidateSource

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
