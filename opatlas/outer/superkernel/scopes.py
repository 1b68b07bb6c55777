"""What splits a SuperKernel, what each scope of a capture gains, and which scopes to try in which order."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from opatlas.capture.launches import is_collective
from opatlas.capture.single_launches import Launch, LaunchTimeline
from opatlas.formats import percent
from opatlas.row.columns import ACCELERATOR_CORE, INPUT_SHAPES, OP_STATE
from opatlas.row.slots import EMPTY_WORDS
from opatlas.text import Word, pluralize

from . import structure as model

#: The part of a step that a SuperKernel must save to be kept, by the guide of CANN's recipes.
GATE = 0.10
#: The longest gap that a SuperKernel can save, and the cost of the synchronization of all cores between two kernels of
#: it, in microseconds. A longer gap waits for the host, and a graph removes it.
CAP_US, SYNC_US = 5.0, 0.5
_AI_CORES = frozenset({"AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "MIX_AIV"})
#: Phases whose steps are left out where a capture has others, and why they are refused.
_REFUSED_PHASES = {
    model.StepPhase.TRAINING: "training: its graphs are dynamic, and SuperKernel is for decode",
    model.StepPhase.PREFILL: "prefill: SuperKernel is for decode",
}
#: What makes a graph static.
GRAPH = (
    "run decode as a static graph of GE first: torch.compile(self.decode, dynamic=False, fullgraph=True, "
    "backend=torchair.get_npu_backend())"
)


class CutReason(Word):
    """Why a kernel is in no SuperKernel, or why a SuperKernel ends."""

    OTHER_STREAM = "on another stream"
    AI_CPU = "runs on the AI CPU"
    NO_AI_CORE = "runs on no AI core"
    COLLECTIVE = "collective outside of the four supported"
    UNFUSABLE = "type that cannot be fused"
    DYNAMIC = "OP State dynamic"
    SHAPES = "shapes that change between steps"
    BRANCH = "not in every step"
    STEP = "boundary of steps"


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


class Cuts:
    """The cuts of a timeline.

    Attributes:
        fusable: whether a SuperKernel may hold each launch.
        counts: each reason that occurs, in the order of `CutReason`.
        collectives: supported collectives, which do not cut.
    """

    def __init__(
        self, timeline: LaunchTimeline, steps: Sequence[int], changes: Sequence[CutReason | None] | None
    ) -> None:
        """
        Args:
            steps: the number of each launch's step.
            changes: what of each launch is not the same in each step, which counts in place of OP State; None: OP State
                counts.
        """
        self._timeline, self._steps = timeline, np.asarray(steps)
        launches, beside = timeline.launches, timeline.beside_main
        collective = np.array([is_collective(launch.kernel_type, launch.cells) for launch in launches], dtype=bool)
        reasons: list[list[CutReason]] = []
        by_reason: dict[CutReason, Counter[str]] = {reason: Counter() for reason in CutReason}
        for place, launch in enumerate(launches):
            own = [CutReason.OTHER_STREAM] if beside[place] else []
            dynamic = CutReason.DYNAMIC if _state(launch) == "dynamic" else None
            of_graph = dynamic if changes is None else changes[place]
            own += _reasons(launch, bool(collective[place]), of_graph)
            for reason in own:
                by_reason[reason][launch.kernel_type] += 1
            reasons.append(own)
        self.counts: list[CutCount] = []
        for reason, types in by_reason.items():
            if count := steps[-1] if reason is CutReason.STEP else types.total():
                sources = dict.fromkeys(map(model.unfusable_source, types if reason is CutReason.UNFUSABLE else ()))
                self.counts.append(CutCount(reason, count, dict(types.most_common()), tuple(sources)))
        self.fusable = np.array([not own for own in reasons], dtype=bool)
        self.collectives = int((collective & self.fusable).sum())
        self._waits = _waits_for_others(timeline)

    def divided(self, start: int, stop: int) -> list[np.ndarray]:
        """Returns the fusable launches from `start` to before `stop`, divided at cuts: two or more each."""
        # Launches beside the main stream are in no part, and do not end one either.
        main = start + np.flatnonzero(~self._timeline.beside_main[start:stop])
        before, after = main[:-1], main[1:]
        fused = self.fusable[after] & self.fusable[before] & (self._steps[after] == self._steps[before])
        cut = ~fused | self._waits[after]
        return [part for part in np.split(main, np.flatnonzero(cut) + 1) if len(part) > 1]


def _reasons(launch: Launch, collective: bool, of_graph: CutReason | None) -> list[CutReason]:
    """Returns why a launch of the main stream is in no SuperKernel; nothing if it may be in one.

    Args:
        of_graph: why a static graph cannot hold it; None if one can.
    """
    if collective:
        is_supported = model.matches(launch.kernel_type, model.known_types().collectives.patterns)
        return [] if is_supported else [CutReason.COLLECTIVE]
    core = launch.cells.get(ACCELERATOR_CORE, "").upper()
    found = []
    if core == "AI_CPU":
        found.append(CutReason.AI_CPU)
    elif core not in _AI_CORES and core not in EMPTY_WORDS:
        found.append(CutReason.NO_AI_CORE)
    if model.unfusable_source(launch.kernel_type):
        found.append(CutReason.UNFUSABLE)
    return found if of_graph is None else [*found, of_graph]


def _state(launch: Launch) -> str:
    return launch.cells.get(OP_STATE, "").strip().lower()


def _changes(timeline: LaunchTimeline, steps: Sequence[tuple[int, int]]) -> list[CutReason | None]:
    """Returns what of each launch of some steps differs in another step: that it is there, or its shapes.

    Steps are aligned with the longest one by their kernel types.
    """
    types = [launch.kernel_type for launch in timeline.launches]
    first, last = max(steps, key=lambda each: each[1] - each[0])
    places: dict[int, int] = {}
    shapes: list[list[str]] = [[] for _ in range(first, last)]
    for start, stop in steps:
        longest, own = types[first:last], types[start:stop]
        # Most steps are equal, and a comparison of long ones takes seconds.
        blocks = (
            SequenceMatcher(None, longest, own, False).get_matching_blocks() if own != longest else [(0, 0, len(own))]
        )
        for place, at, size in blocks:
            for offset in range(size):
                index = start + at + offset
                places[index] = place + offset
                shapes[place + offset].append(timeline.launches[index].cells.get(INPUT_SHAPES, ""))
    found: list[CutReason | None] = [None] * len(types)
    for index in itertools.chain.from_iterable(range(*step) for step in steps):
        own_shapes = shapes[places[index]] if index in places else []
        if len(own_shapes) < len(steps):
            found[index] = CutReason.BRANCH
        elif len(set(own_shapes)) > 1:
            found[index] = CutReason.SHAPES
    return found


def _waits_for_others(timeline: LaunchTimeline) -> np.ndarray:
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


def _gaps_us(timeline: LaunchTimeline, pieces: Iterable[np.ndarray]) -> np.ndarray:
    """Returns the time between each launch of a piece and the next one; 0 where both overlap."""
    gaps = [(timeline.start_ns[each[1:]] - timeline.end_ns[each[:-1]]) / 1000 for each in pieces]
    return np.maximum(np.concatenate([np.zeros(0), *gaps]), 0)


def _saved_us(gaps: np.ndarray) -> tuple[float, float]:
    """Returns gaps, each at most the cap, and what a SuperKernel saves of them."""
    capped = float(np.minimum(gaps, CAP_US).sum())
    return capped, capped - SYNC_US * len(gaps)


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


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
        host_us: what of the gaps is above the cap.
        saved_us: `capped_us` less the synchronizations.
        ceiling: `saved_us` as a share of the scope's duration with all its gaps, each at most the cap.
        step_share: `saved_us` as a share of the step's duration with all its gaps, each at most the cap.
        verdict, reason: what to do, and why.
    """

    kind: model.ScopeKind
    occurrences: float
    kernels: float
    fused_kernels: float
    super_kernels: float
    duration_us: float
    gaps_us: float
    capped_us: float
    host_us: float
    saved_us: float
    ceiling: float
    step_share: float
    verdict: ScopeVerdict
    reason: str


@dataclass(frozen=True)
class ScopeAnalysis:
    """What a capture tells about SuperKernels.

    Attributes:
        steps: the number of steps.
        phases: the steps of each phase.
        analysed_steps: the steps that the scopes are of.
        step_us: the mean duration of these steps, with gaps of at most the cap.
        needs_graph: whether the capture is of a run without a static graph: no kernel has the OP State static.
        cuts: what splits SuperKernels, with counts.
        supported_collectives: those that do not cut.
        layers: the kinds of layers, in all steps.
        module_shares: the share of each module in the time of these steps.
        scopes: the candidates, the smallest first.
        refusals: why no scope may be tried, with what to do; empty if one may.
        notes: what the capture does not tell.
    """

    steps: int
    steps_by: model.StepSource
    phases: Mapping[model.StepPhase, int]
    analysed_steps: int
    step_us: float
    needs_graph: bool
    cuts: Sequence[CutCount]
    supported_collectives: int
    layers: Sequence[model.LayerKind]
    module_shares: Mapping[model.Module, float]
    scopes: Sequence[ScopeGain]
    refusals: Sequence[str]
    notes: Sequence[str]

    def scope(self, kind: model.ScopeKind) -> ScopeGain | None:
        """Returns the prediction for a kind of scope; None if the capture has no such scope."""
        return next((each for each in self.scopes if each.kind is kind), None)


def analyse(timeline: LaunchTimeline) -> ScopeAnalysis:
    """Analyses a timeline."""
    structure = model.find_structure(timeline)
    phases = [model.phase_of(timeline.kernels[start:stop]) for start, stop in structure.ranges]
    served = [each for each, of in zip(structure.ranges, phases, strict=True) if of not in _REFUSED_PHASES]
    analysed = served or structure.ranges
    states = set(map(_state, timeline.launches))
    needs_graph = "dynamic" in states and "static" not in states
    cuts = Cuts(timeline, structure.steps, _changes(timeline, analysed) if needs_graph else None)
    refusals = _refusals(timeline, phases)
    step_us = sum(_step_us(timeline, *each) for each in analysed) / len(analysed)
    scopes = [
        _gain(timeline, cuts, kind, ranges, len(analysed), step_us, refusals[0] if refusals else "")
        for kind, ranges in model.find_scopes(timeline, structure, analysed).items()
    ]
    by_module = {gain.kind.value: gain.duration_us for gain in scopes}
    main_us = sum(
        float(timeline.duration_us[start:stop][~timeline.beside_main[start:stop]].sum()) for start, stop in analysed
    ) / len(analysed)
    return ScopeAnalysis(
        steps=len(structure.ranges),
        steps_by=structure.step_source,
        phases=dict(Counter(phases)),
        analysed_steps=len(analysed),
        step_us=step_us,
        needs_graph=needs_graph,
        cuts=cuts.counts,
        supported_collectives=cuts.collectives,
        layers=structure.kinds,
        module_shares={
            each: by_module[each.value] / main_us for each in model.Module if each.value in by_module and main_us
        },
        scopes=scopes,
        refusals=refusals,
        notes=list(_notes(timeline, structure.step_source, phases, needs_graph, len(analysed))),
    )


def _step_us(timeline: LaunchTimeline, start: int, stop: int) -> float:
    """Returns the duration of launches with the idle time between them, each at most the cap."""
    idle = np.minimum(timeline.idle_us[start + 1 : stop], CAP_US)
    return float(timeline.busy_us[start:stop].sum() + idle.sum())


def _gain(
    timeline: LaunchTimeline,
    cuts: Cuts,
    kind: model.ScopeKind,
    ranges: Sequence[tuple[int, int]],
    steps: int,
    step_us: float,
    refusal: str,
) -> ScopeGain:
    """Returns the prediction for a scope.

    Args:
        ranges: the launches of each occurrence.
        steps: the number of steps that these are from.
        step_us: the mean duration of these steps, by `_step_us`.
        refusal: why no scope of the capture may be tried; "" if one may.
    """
    pieces = [piece for each in ranges for piece in cuts.divided(*each)]
    all_gaps = _gaps_us(timeline, pieces)
    gaps, (capped, saved) = float(all_gaps.sum()), _saved_us(all_gaps)
    main = [start + np.flatnonzero(~timeline.beside_main[start:stop]) for start, stop in ranges]
    idle, _ = _saved_us(_gaps_us(timeline, main))
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
        host_us=(gaps - capped) / steps,
        saved_us=saved / steps,
        ceiling=_share(saved, duration + idle),
        step_share=share,
        verdict=ScopeVerdict.REFUSED if refusal else verdict,
        reason=refusal or f"{percent(share)} of a step; the gate is {percent(GATE, 0)}",
    )


def _refusals(timeline: LaunchTimeline, phases: Sequence[model.StepPhase]) -> list[str]:
    found = []
    if timeline.is_excerpt:
        found.append(
            f"excerpt: rows are missing before {timeline.wait_mismatches:,} of {timeline.wait_pairs:,} kernels, whose "
            "waits do not begin where the row before ends"
        )
    if all(phase in _REFUSED_PHASES for phase in phases):
        found += [why for phase, why in _REFUSED_PHASES.items() if phase in phases]
    if len(timeline.launches) == 1:
        found.append("one kernel: there is nothing to fuse")
    return found


def _notes(
    timeline: LaunchTimeline,
    source: model.StepSource,
    phases: Sequence[model.StepPhase],
    needs_graph: bool,
    analysed: int,
) -> Iterator[str]:
    yield from timeline.problems
    if needs_graph:
        yield (
            "all kernels have the OP State dynamic, as in eager runs and ACL graphs: those whose shapes are the same "
            f"in each step count as static{' (there is one step)' if analysed == 1 else ''}. {GRAPH}"
        )
    if not timeline.wait_pairs:
        yield "the capture has no waits: whether it is an excerpt was not checked"
    elif timeline.wait_mismatches and not timeline.is_excerpt:
        waits = pluralize(timeline.wait_mismatches, "wait")
        yield f"{waits} of {timeline.wait_pairs:,} do not begin where the row before ends"
    if not timeline.main_stream:
        yield "no stream is known: kernels of other streams are told by overlaps only"
    if not any(map(_state, timeline.launches)):
        yield "the capture has no OP State: whether its kernels are static is not known"
    if source is model.StepSource.NOTHING:
        yield "the capture has no Step Id, and no repetition tells steps: taken for one step"
    if set(phases) == {model.StepPhase.UNKNOWN}:
        yield "the kernel types do not tell the phase: check that these are steps of decode"
    left_out = [phase for phase in phases if phase in _REFUSED_PHASES]
    if left_out and len(left_out) < len(phases):
        yield f"left out: {pluralize(len(left_out), 'step')} of {' and '.join(map(str, dict.fromkeys(left_out)))}"
