"""What splits a SuperKernel: kernels that cannot be in one, and the boundaries of steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from opatlas.capture.launches import is_collective
from opatlas.capture.single_launches import Launch
from opatlas.outer.superkernel.kernel_types import is_supported_collective, unfusable_rule
from opatlas.outer.superkernel.timeline import Timeline
from opatlas.row.columns import ACCELERATOR_CORE, OP_STATE
from opatlas.row.slots import EMPTY_WORDS

_AI_CPU = "AI_CPU"
_AI_CORES = frozenset({"AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "MIX_AIV"})
_DYNAMIC = "dynamic"


class CutReason(str, Enum):
    """Why a kernel is in no SuperKernel, or why a SuperKernel ends."""

    OTHER_STREAM = "on another stream"
    AI_CPU = "runs on the AI CPU"
    NO_AI_CORE = "runs on no AI core"
    COLLECTIVE = "collective outside of the four supported"
    UNFUSABLE = "type that cannot be fused"
    DYNAMIC = "OP State dynamic"
    STEP = "boundary of steps"

    def __str__(self) -> str:
        return self.value


#: Reasons that no other graph and no other operator would remove.
_HARD = frozenset({CutReason.OTHER_STREAM, CutReason.AI_CPU, CutReason.NO_AI_CORE, CutReason.COLLECTIVE})


@dataclass(frozen=True)
class CutCount:
    """How often a reason cuts.

    Attributes:
        count: kernels, or boundaries. A kernel counts for each of its reasons.
        kernel_types: the kernels by type, the most frequent first; empty for boundaries.
        sources: who says that these types cannot be fused; empty for reasons that the capture itself states.
    """

    reason: CutReason
    count: int
    kernel_types: tuple[tuple[str, int], ...]
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Cuts:
    """The cuts of a timeline, as arrays with an element for each launch.

    Attributes:
        fusable: whether a SuperKernel may hold the launch.
        hard: whether the launch is one that neither a static graph nor another operator would make fusable. Supported
            collectives count as hard: between them lies the time that a device waits for others.
        beside: whether the launch is on another stream.
        waits: whether the launch waited for one of another stream, which splits a SuperKernel before it.
        steps: the number of the launch's step.
        counts: each reason that occurs, in the order of `CutReason`.
        collectives: supported collectives, which do not cut.
    """

    fusable: np.ndarray
    hard: np.ndarray
    beside: np.ndarray
    waits: np.ndarray
    steps: np.ndarray
    counts: tuple[CutCount, ...]
    collectives: int

    def pieces(self, start: int, stop: int) -> list[np.ndarray]:
        """Returns the fusable launches from `start` to before `stop`, divided: each part may become a SuperKernel."""
        return self._divided(self.fusable, start, stop)

    def stretches(self) -> list[np.ndarray]:
        """Returns the launches between hard cuts, an upper bound for any choice of scopes."""
        return self._divided(~self.hard, 0, len(self.hard))

    def _divided(self, inside: np.ndarray, start: int, stop: int) -> list[np.ndarray]:
        # Launches beside the main stream are in no part, and do not end one either.
        main = start + np.flatnonzero(~self.beside[start:stop])
        ends = np.flatnonzero(
            ~inside[main[1:]]
            | ~inside[main[:-1]]
            | self.waits[main[1:]]
            | (self.steps[main[1:]] != self.steps[main[:-1]])
        )
        return [part for part in np.split(main, ends + 1) if len(part) and inside[part[0]]]


def _waits_for_others(timeline: Timeline) -> np.ndarray:
    """Returns whether each launch begins after a gap in which a launch of another stream ends."""
    beside, start, end = timeline.beside_main, timeline.start_ns, timeline.end_ns
    main = np.flatnonzero(~beside)
    ends = end[beside]
    # The first launch of the main stream that begins after each end, and the end of the launch before it.
    after = np.searchsorted(start[main], ends, "left")
    inner = (after > 0) & (after < len(main))
    after, ends = after[inner], ends[inner]
    waits = np.zeros(len(start), dtype=bool)
    waits[main[after[ends > end[main[after - 1]]]]] = True
    return waits


def reasons_of(launch: Launch, *, beside_main: bool) -> tuple[CutReason, ...]:
    """Returns why a launch is in no SuperKernel; nothing if it may be in one."""
    reasons = [CutReason.OTHER_STREAM] if beside_main else []
    core = launch.cells.get(ACCELERATOR_CORE, "").upper()
    if is_collective(launch.kernel_type, launch.cells):
        if not is_supported_collective(launch.kernel_type):
            reasons.append(CutReason.COLLECTIVE)
        return tuple(reasons)
    if core == _AI_CPU:
        reasons.append(CutReason.AI_CPU)
    elif core not in _AI_CORES and core not in EMPTY_WORDS:
        reasons.append(CutReason.NO_AI_CORE)
    if unfusable_rule(launch.kernel_type) is not None:
        reasons.append(CutReason.UNFUSABLE)
    if launch.cells.get(OP_STATE, "").strip().lower() == _DYNAMIC:
        reasons.append(CutReason.DYNAMIC)
    return tuple(reasons)


def find_cuts(timeline: Timeline, steps: Sequence[int]) -> Cuts:
    """Returns the cuts of a timeline; `steps` has the number of each launch's step."""
    launches = timeline.launches
    reasons = [
        reasons_of(launch, beside_main=bool(beside))
        for launch, beside in zip(launches, timeline.beside_main, strict=True)
    ]
    collective = np.array([is_collective(launch.kernel_type, launch.cells) for launch in launches], dtype=bool)
    by_reason: dict[CutReason, Counter[str]] = {reason: Counter() for reason in CutReason}
    for launch, own in zip(launches, reasons, strict=True):
        for reason in own:
            by_reason[reason][launch.kernel_type] += 1
    counts = []
    for reason, kernel_types in by_reason.items():
        rules = [unfusable_rule(kernel_type) for kernel_type in kernel_types] if reason is CutReason.UNFUSABLE else []
        count = steps[-1] if reason is CutReason.STEP else kernel_types.total()
        if count:
            sources = tuple(dict.fromkeys(rule.source for rule in rules if rule is not None))
            counts.append(CutCount(reason, count, tuple(kernel_types.most_common()), sources))
    fusable = np.array([not own for own in reasons], dtype=bool)
    return Cuts(
        fusable=fusable,
        hard=np.array([not _HARD.isdisjoint(own) for own in reasons], dtype=bool) | collective,
        beside=timeline.beside_main,
        waits=_waits_for_others(timeline),
        steps=np.asarray(steps),
        counts=tuple(counts),
        collectives=int((collective & fusable).sum()),
    )
