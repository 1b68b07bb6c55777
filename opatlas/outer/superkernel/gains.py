"""What splits a SuperKernel, and what a scope gains: the gaps that it fuses, less a synchronization at each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from opatlas.capture.launches import is_collective
from opatlas.capture.single_launches import Launch
from opatlas.formats import percent
from opatlas.row.columns import ACCELERATOR_CORE, OP_STATE
from opatlas.row.slots import EMPTY_WORDS
from opatlas.text import Word

from .kernel_types import known_types, matches, unfusable_source
from .structure import ScopeKind
from .timeline import Timeline

#: The part of a step that a SuperKernel must save to be kept, by the guide of CANN's recipes.
GATE = 0.10
_AI_CORES = frozenset({"AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "MIX_AIV"})


class CutReason(Word):
    """Why a kernel is in no SuperKernel, or why a SuperKernel ends."""

    OTHER_STREAM = "on another stream"
    AI_CPU = "runs on the AI CPU"
    NO_AI_CORE = "runs on no AI core"
    COLLECTIVE = "collective outside of the four supported"
    UNFUSABLE = "type that cannot be fused"
    DYNAMIC = "OP State dynamic"
    STEP = "boundary of steps"


#: Reasons that no other graph and no other operator would remove.
_HARD = frozenset({CutReason.OTHER_STREAM, CutReason.AI_CPU, CutReason.NO_AI_CORE, CutReason.COLLECTIVE})


class ScopeVerdict(Word):
    """What to do about a scope."""

    REFUSED = "refused"
    BELOW_GATE = "gain below gate"
    WORTH_TRYING = "worth trying"


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
    kernel_types: dict[str, int]
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

    def divided(self, inside: np.ndarray, start: int, stop: int) -> list[np.ndarray]:
        """Returns the launches that are `inside`, from `start` to before `stop`, divided at cuts: two or more each."""
        # Launches beside the main stream are in no part, and do not end one either.
        main = start + np.flatnonzero(~self.beside[start:stop])
        before, after = main[:-1], main[1:]
        cut = ~inside[after] | ~inside[before] | self.waits[after] | (self.steps[after] != self.steps[before])
        return [part for part in np.split(main, np.flatnonzero(cut) + 1) if len(part) > 1]


def find_cuts(timeline: Timeline, steps: Sequence[int]) -> Cuts:
    """Returns the cuts of a timeline; `steps` has the number of each launch's step."""
    launches = timeline.launches
    collective = np.array([is_collective(launch.kernel_type, launch.cells) for launch in launches], dtype=bool)
    of_launches = zip(launches, collective.tolist(), timeline.beside_main.tolist(), strict=True)
    reasons = [_reasons(launch, *each) for launch, *each in of_launches]
    by_reason: dict[CutReason, Counter[str]] = {reason: Counter() for reason in CutReason}
    for launch, own in zip(launches, reasons, strict=True):
        for reason in own:
            by_reason[reason][launch.kernel_type] += 1
    counts = []
    for reason, types in by_reason.items():
        count = steps[-1] if reason is CutReason.STEP else types.total()
        if count:
            sources = dict.fromkeys(map(unfusable_source, types if reason is CutReason.UNFUSABLE else ()))
            counts.append(CutCount(reason, count, dict(types.most_common()), tuple(sources)))
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


def _reasons(launch: Launch, collective: bool, beside_main: bool) -> list[CutReason]:
    """Returns why a launch is in no SuperKernel; nothing if it may be in one."""
    reasons = [CutReason.OTHER_STREAM] if beside_main else []
    if collective:
        if not matches(launch.kernel_type, known_types().collectives.patterns):
            reasons.append(CutReason.COLLECTIVE)
        return reasons
    core = launch.cells.get(ACCELERATOR_CORE, "").upper()
    if core == "AI_CPU":
        reasons.append(CutReason.AI_CPU)
    elif core not in _AI_CORES and core not in EMPTY_WORDS:
        reasons.append(CutReason.NO_AI_CORE)
    if unfusable_source(launch.kernel_type):
        reasons.append(CutReason.UNFUSABLE)
    if launch.cells.get(OP_STATE, "").strip().lower() == "dynamic":
        reasons.append(CutReason.DYNAMIC)
    return reasons


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


@dataclass(frozen=True)
class GainModel:
    """The two constants of the prediction.

    Attributes:
        cap_us: the longest gap that a SuperKernel can save. A longer gap waits for the host, and a graph removes it.
        sync_us: the cost of the synchronization of all cores between two kernels of a SuperKernel.
    """

    cap_us: float = 5.0
    sync_us: float = 0.5

    def saved(self, timeline: Timeline, pieces: Iterable[np.ndarray]) -> tuple[float, float, float]:
        """Returns the gaps within pieces, the same capped, and what fusing each piece saves, in microseconds."""
        gaps = np.concatenate([np.zeros(0), *(_gaps_us(timeline, piece) for piece in pieces)])
        capped = float(np.minimum(gaps, self.cap_us).sum())
        return float(gaps.sum()), capped, capped - self.sync_us * len(gaps)


@dataclass(frozen=True)
class ScopeGain:
    """The prediction for a scope; times and counts are means over the steps.

    Attributes:
        occurrences: how often the scope occurs in a step.
        kernels: kernels in the scope.
        fused_kernels: the kernels that lie in a SuperKernel of two kernels or more.
        super_kernels: SuperKernels that the scope becomes.
        duration_us: durations of the kernels, without those on other streams.
        gaps_us: gaps between kernels of the same SuperKernel.
        capped_us: the same, each at most the cap.
        saved_us: `capped_us` less the synchronizations.
        ceiling: `saved_us` as a share of the scope's duration with all its gaps, each at most the cap.
        step_share: `saved_us` as a share of the step's duration with all its gaps, each at most the cap.
        verdict, reason: what to do, and why.
        host_us: what of the gaps is above the cap.
    """

    kind: ScopeKind
    occurrences: float
    kernels: float
    fused_kernels: float
    super_kernels: float
    duration_us: float
    gaps_us: float
    capped_us: float
    saved_us: float
    ceiling: float
    step_share: float
    verdict: ScopeVerdict
    reason: str
    host_us: float


@dataclass(frozen=True)
class StretchGains:
    """The upper bound for any scopes: all kernels between collectives, AI CPU kernels, other streams and steps.

    Attributes:
        stretches: ranges of two kernels or more.
        raw_ceiling: `gaps_us` as a share of durations and gaps.
        capped_ceiling: the same with gaps of at most the cap.
        saved_ceiling: the same less the synchronizations.
    """

    stretches: int
    kernels: int
    duration_us: float
    gaps_us: float
    capped_us: float
    saved_us: float
    raw_ceiling: float
    capped_ceiling: float
    saved_ceiling: float


def stretch_gains(timeline: Timeline, cuts: Cuts, model: GainModel) -> StretchGains:
    """Returns the upper bound for any scopes of a timeline."""
    stretches = cuts.divided(~cuts.hard, 0, len(cuts.hard))
    gaps, capped, saved = model.saved(timeline, stretches)
    us = sum(float(timeline.duration_us[stretch].sum()) for stretch in stretches)
    ceilings = _share(gaps, us + gaps), _share(capped, us + capped), _share(saved, us + capped)
    return StretchGains(len(stretches), sum(map(len, stretches)), us, gaps, capped, saved, *ceilings)


def step_duration_us(timeline: Timeline, start: int, stop: int, model: GainModel) -> float:
    """Returns the duration of launches with the idle time between them, each at most the cap."""
    idle = np.minimum(timeline.idle_us[start + 1 : stop], model.cap_us)
    return float(timeline.busy_us[start:stop].sum() + idle.sum())


def scope_gain(
    timeline: Timeline,
    cuts: Cuts,
    kind: ScopeKind,
    ranges: Sequence[tuple[int, int]],
    steps: int,
    step_us: float,
    model: GainModel,
    refusal: str,
) -> ScopeGain:
    """Returns the prediction for a scope.

    Args:
        ranges: the launches of each occurrence.
        steps: the number of steps that these are from.
        step_us: the mean duration of these steps, by `step_duration_us`.
        refusal: why no scope of the capture may be tried; "" if one may.
    """
    pieces = [piece for each in ranges for piece in cuts.divided(cuts.fusable, *each)]
    gaps, capped, saved = model.saved(timeline, pieces)
    main = [start + np.flatnonzero(~timeline.beside_main[start:stop]) for start, stop in ranges]
    _, idle, _ = model.saved(timeline, main)
    duration = sum(float(timeline.duration_us[each].sum()) for each in main)
    share = _share(saved / steps, step_us)
    if not refusal and saved <= 0:
        costs = "the synchronizations cost more than the gaps"
        refusal = costs if pieces else "no two neighbouring kernels can be fused"
    verdict = ScopeVerdict.BELOW_GATE if share < GATE else ScopeVerdict.WORTH_TRYING
    return ScopeGain(
        kind=kind,
        occurrences=len(ranges) / steps,
        kernels=sum(stop - start for start, stop in ranges) / steps,
        fused_kernels=sum(map(len, pieces)) / steps,
        super_kernels=len(pieces) / steps,
        duration_us=duration / steps,
        gaps_us=gaps / steps,
        capped_us=capped / steps,
        saved_us=saved / steps,
        ceiling=_share(saved, duration + idle),
        step_share=share,
        verdict=ScopeVerdict.REFUSED if refusal else verdict,
        reason=refusal or f"{percent(share)} of a step; the gate is {percent(GATE, 0)}",
        host_us=(gaps - capped) / steps,
    )


def _gaps_us(timeline: Timeline, launches: np.ndarray) -> np.ndarray:
    """Returns the time between each launch and the next of these; 0 where both overlap."""
    gaps: np.ndarray = np.maximum(timeline.start_ns[launches[1:]] - timeline.end_ns[launches[:-1]], 0) / 1000
    return gaps


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
