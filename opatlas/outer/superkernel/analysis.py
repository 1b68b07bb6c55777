"""Analyses a capture: which scopes a SuperKernel may fuse, what each may gain, and which to try first."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from opatlas.outer.superkernel.cuts import CutCount, CutReason, Cuts, find_cuts
from opatlas.outer.superkernel.gains import (
    GainModel,
    ScopeGain,
    StretchGains,
    scope_gain,
    step_duration_us,
    stretch_gains,
)
from opatlas.outer.superkernel.kernel_types import Module, StepPhase
from opatlas.outer.superkernel.scopes import (
    LayerKind,
    ModuleOf,
    ScopeKind,
    StepSource,
    find_scopes,
    find_structure,
    phase_of,
)
from opatlas.outer.superkernel.timeline import Timeline
from opatlas.row.columns import OP_STATE
from opatlas.text import pluralize

#: Phases whose steps are left out where a capture has others, and why they are refused.
_REFUSED_PHASES = {
    StepPhase.TRAINING: "training: its graphs are dynamic, and SuperKernel is for decode",
    StepPhase.PREFILL: "prefill: SuperKernel is for decode",
}


@dataclass(frozen=True)
class ScopeAnalysis:
    """What a capture tells about SuperKernels.

    Attributes:
        steps: the number of steps.
        phases: the steps of each phase.
        analysed: the steps that the scopes are of.
        step_us: the mean duration of these steps, with gaps of at most the cap.
        stretches: the upper bound for any scopes.
        cuts: what splits SuperKernels, with counts.
        collectives: supported collectives, which do not cut.
        layers: the kinds of layers, in all steps.
        module_shares: the share of each module in the time of these steps.
        scopes: the candidates, the smallest first.
        refusals: why no scope may be tried, with what to do; empty if one may.
        notes: what the capture does not tell.
    """

    timeline: Timeline
    model: GainModel
    steps: int
    step_source: StepSource
    phases: Counter[StepPhase]
    analysed: int
    step_us: float
    stretches: StretchGains
    cuts: tuple[CutCount, ...]
    collectives: int
    layers: tuple[LayerKind, ...]
    module_shares: dict[Module, float]
    scopes: tuple[ScopeGain, ...]
    refusals: tuple[str, ...]
    notes: tuple[str, ...]

    def scope(self, kind: ScopeKind) -> ScopeGain | None:
        """Returns the prediction for a kind of scope; None if the capture has no such scope."""
        return next((each for each in self.scopes if each.kind is kind), None)


def analyse(
    timeline: Timeline,
    model: GainModel | None = None,
    *,
    module_of: ModuleOf | None = None,
    phase: StepPhase | None = None,
) -> ScopeAnalysis:
    """Analyses a timeline.

    Args:
        module_of: the module of a kernel by name and type; None: by kernel types.
        phase: the phase of all steps; None: as the kernel types of each step tell.
    """
    model = model or GainModel()
    structure = find_structure(timeline)
    cuts = find_cuts(timeline, structure.steps)
    ranges = [structure.range_of(step) for step in range(structure.step_count)]
    phases = [phase or phase_of(timeline.launches[start:stop]) for start, stop in ranges]
    served = [step for step, each in enumerate(phases) if each not in _REFUSED_PHASES]
    analysed = served or list(range(structure.step_count))
    refusals = _refusals(timeline, cuts, phases)
    step_us = sum(step_duration_us(timeline, *ranges[step], model) for step in analysed) / len(analysed)
    scopes = tuple(
        scope_gain(timeline, cuts, scope, len(analysed), step_us, model, refusals[0] if refusals else "")
        for scope in find_scopes(timeline, structure, analysed, module_of)
    )
    by_module = {gain.kind.value: gain.duration_us for gain in scopes}
    main_us = sum(
        float(timeline.duration_us[start:stop][~timeline.beside_main[start:stop]].sum())
        for start, stop in (ranges[step] for step in analysed)
    ) / len(analysed)
    shares = {module: by_module[module.value] / main_us for module in Module if module.value in by_module and main_us}
    return ScopeAnalysis(
        timeline=timeline,
        model=model,
        steps=structure.step_count,
        step_source=structure.step_source,
        phases=Counter(phases),
        analysed=len(analysed),
        step_us=step_us,
        stretches=stretch_gains(timeline, cuts, model),
        cuts=cuts.counts,
        collectives=cuts.collectives,
        layers=structure.kinds,
        module_shares=shares,
        scopes=scopes,
        refusals=refusals,
        notes=_notes(timeline, structure.step_source, phases),
    )


def _refusals(timeline: Timeline, cuts: Cuts, phases: list[StepPhase]) -> tuple[str, ...]:
    found = []
    if timeline.is_excerpt:
        found.append(
            f"excerpt: rows are missing before {timeline.wait_mismatches:,} of {timeline.wait_pairs:,} kernels, whose "
            "waits do not begin where the row before ends"
        )
    told = {phase for phase in phases if phase in _REFUSED_PHASES}
    if told and all(phase in _REFUSED_PHASES for phase in phases):
        found += [_REFUSED_PHASES[phase] for phase in _REFUSED_PHASES if phase in told]
    others = [each for each in cuts.counts if each.reason is CutReason.DYNAMIC]
    states = Counter(launch.cells.get(OP_STATE, "").strip().lower() for launch in timeline.launches)
    if others and not states["static"]:
        found.append(f"dynamic: {pluralize(others[0].count, 'kernel')} with OP State dynamic, and no static one")
    if len(timeline.launches) == 1:
        found.append("one kernel: there is nothing to fuse")
    return tuple(found)


def _notes(timeline: Timeline, source: StepSource, phases: list[StepPhase]) -> tuple[str, ...]:
    found = list(timeline.problems)
    if not timeline.wait_pairs:
        found.append("the capture has no waits: whether it is an excerpt was not checked")
    elif timeline.wait_mismatches and not timeline.is_excerpt:
        waits = pluralize(timeline.wait_mismatches, "wait")
        found.append(f"{waits} of {timeline.wait_pairs:,} do not begin where the row before ends")
    if not timeline.main_stream:
        found.append("no stream is known: kernels of other streams are told by overlaps only")
    if all(not launch.cells.get(OP_STATE, "").strip() for launch in timeline.launches):
        found.append("the capture has no OP State: whether its kernels are static is not known")
    if source is StepSource.NOTHING:
        found.append("the capture has no Step Id, and no repetition tells steps: taken for one step")
    if all(phase is StepPhase.UNKNOWN for phase in phases):
        found.append("the kernel types do not tell the phase: check that these are steps of decode, or give --phase")
    mixed = [phase for phase in _REFUSED_PHASES if phase in phases]
    if mixed and not all(phase in _REFUSED_PHASES for phase in phases):
        count = sum(phase in _REFUSED_PHASES for phase in phases)
        found.append(f"left out: {pluralize(count, 'step')} of {' and '.join(map(str, mixed))}")
    return tuple(found)
