"""Analyses a capture: which scopes a SuperKernel may fuse, what each may gain, and which to try first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from opatlas.formats import percent
from opatlas.row.columns import OP_STATE
from opatlas.text import pluralize

from .gains import (
    GATE,
    CutCount,
    CutReason,
    GainModel,
    ScopeGain,
    ScopeVerdict,
    StretchGains,
    find_cuts,
    scope_gain,
    step_duration_us,
    stretch_gains,
)
from .kernel_types import Module, ModuleOf, StepPhase, known_types
from .structure import LayerKind, ScopeKind, StepSource, find_scopes, find_structure, phase_of
from .timeline import Timeline

#: Phases whose steps are left out where a capture has others, and why they are refused.
_REFUSED_PHASES = {
    StepPhase.TRAINING: "training: its graphs are dynamic, and SuperKernel is for decode",
    StepPhase.PREFILL: "prefill: SuperKernel is for decode",
}
#: The runs of each experiment.
LEAST_RUNS, MOST_RUNS = 3, 5
#: The body of a scope in the model's code.
_BODIES = {
    ScopeKind.ATTENTION: ("attn_output = self.self_attn(hidden_states, ...)",),
    ScopeKind.MOE: ("ffn_output = self.moe(hidden_states)",),
    ScopeKind.FFN: ("ffn_output = self.ffn(hidden_states)",),
    ScopeKind.LAYER: ("hidden_states = layer(hidden_states, ...)",),
    ScopeKind.ALL_LAYERS: ("for layer in self.layers:", "    hidden_states = layer(hidden_states, ...)"),
    ScopeKind.STEP: ("output = self.decode(input_ids, ...)",),
}
#: The names of the scopes in the guide.
_LABELS = {ScopeKind.LAYER: "decoder_layer", ScopeKind.ALL_LAYERS: "all_layers"}


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
    phases = [phase or phase_of(timeline.launches[start:stop]) for start, stop in structure.ranges]
    served = [each for each, of in zip(structure.ranges, phases, strict=True) if of not in _REFUSED_PHASES]
    analysed = served or structure.ranges
    refusals = _refusals(timeline, cuts.counts, phases)
    step_us = sum(step_duration_us(timeline, *each, model) for each in analysed) / len(analysed)
    scopes = tuple(
        scope_gain(timeline, cuts, kind, ranges, len(analysed), step_us, model, refusals[0] if refusals else "")
        for kind, ranges in find_scopes(timeline, structure, analysed, module_of).items()
    )
    by_module = {gain.kind.value: gain.duration_us for gain in scopes}
    main_us = sum(
        float(timeline.duration_us[start:stop][~timeline.beside_main[start:stop]].sum()) for start, stop in analysed
    ) / len(analysed)
    return ScopeAnalysis(
        timeline=timeline,
        model=model,
        steps=len(structure.ranges),
        step_source=structure.step_source,
        phases=Counter(phases),
        analysed=len(analysed),
        step_us=step_us,
        stretches=stretch_gains(timeline, cuts, model),
        cuts=cuts.counts,
        collectives=cuts.collectives,
        layers=structure.kinds,
        module_shares={each: by_module[each.value] / main_us for each in Module if each.value in by_module and main_us},
        scopes=scopes,
        refusals=refusals,
        notes=_notes(timeline, structure.step_source, phases),
    )


def _refusals(timeline: Timeline, cuts: Sequence[CutCount], phases: list[StepPhase]) -> tuple[str, ...]:
    found = []
    if timeline.is_excerpt:
        found.append(
            f"excerpt: rows are missing before {timeline.wait_mismatches:,} of {timeline.wait_pairs:,} kernels, whose "
            "waits do not begin where the row before ends"
        )
    if all(phase in _REFUSED_PHASES for phase in phases):
        found += [why for phase, why in _REFUSED_PHASES.items() if phase in phases]
    dynamic = next((each.count for each in cuts if each.reason is CutReason.DYNAMIC), 0)
    if dynamic and "static" not in _states(timeline):
        found.append(f"dynamic: {pluralize(dynamic, 'kernel')} with OP State dynamic, and no static one")
    if len(timeline.launches) == 1:
        found.append("one kernel: there is nothing to fuse")
    return tuple(found)


def _states(timeline: Timeline) -> set[str]:
    return {launch.cells.get(OP_STATE, "").strip().lower() for launch in timeline.launches}


def _notes(timeline: Timeline, source: StepSource, phases: list[StepPhase]) -> tuple[str, ...]:
    found = list(timeline.problems)
    if not timeline.wait_pairs:
        found.append("the capture has no waits: whether it is an excerpt was not checked")
    elif timeline.wait_mismatches and not timeline.is_excerpt:
        waits = pluralize(timeline.wait_mismatches, "wait")
        found.append(f"{waits} of {timeline.wait_pairs:,} do not begin where the row before ends")
    if not timeline.main_stream:
        found.append("no stream is known: kernels of other streams are told by overlaps only")
    if _states(timeline) == {""}:
        found.append("the capture has no OP State: whether its kernels are static is not known")
    if source is StepSource.NOTHING:
        found.append("the capture has no Step Id, and no repetition tells steps: taken for one step")
    if set(phases) == {StepPhase.UNKNOWN}:
        found.append("the kernel types do not tell the phase: check that these are steps of decode, or give --phase")
    mixed = [phase for phase in _REFUSED_PHASES if phase in phases]
    if mixed and not all(phase in _REFUSED_PHASES for phase in phases):
        count = sum(phase in _REFUSED_PHASES for phase in phases)
        found.append(f"left out: {pluralize(count, 'step')} of {' and '.join(map(str, mixed))}")
    return tuple(found)


@dataclass(frozen=True)
class ScopeAdvice:
    """What to try.

    Attributes:
        model: the kind of model, as the guide's decision tree has it.
        answers: the questions of the tree with their answers.
        order: the scopes to try, the smallest first; empty if none may be tried.
        snippet: lines of Python for the first.
        experiments: lines of the plan.
    """

    model: str
    answers: tuple[str, ...]
    order: tuple[ScopeKind, ...]
    snippet: tuple[str, ...]
    experiments: tuple[str, ...]


def advise(analysis: ScopeAnalysis) -> ScopeAdvice:
    """Returns what the decision tree of the guide of CANN's recipes says of an analysed capture."""
    shares = analysis.module_shares
    attention, moe = shares.get(Module.ATTENTION, 0.0), shares.get(Module.MOE, 0.0)
    first: ScopeKind | None = ScopeKind.ATTENTION
    answers: tuple[str, ...]
    if Module.MOE in shares:
        model = "MoE model"
        first = ScopeKind.MOE if moe >= attention else ScopeKind.ATTENTION
        answers = (
            f"experts the bottleneck? {'yes' if moe >= attention else 'no'}, with {percent(moe)} of the time",
            f"attention takes {percent(attention)}: try {first} first",
            "best performance wanted? then all layers",
        )
    elif Module.ATTENTION in shares:
        model = "standard Transformer"
        answers = (
            f"first try? attention, which takes {percent(attention)} of the time",
            "attention verified? then all layers",
        )
    else:
        model, first = "other model", None
        answers = ("neither attention nor experts are told by kernel types: a scope of your own, or --module-map FILE",)
    kinds = [first, ScopeKind.LAYER, ScopeKind.ALL_LAYERS, ScopeKind.STEP]
    found = [gain for kind in kinds if kind is not None and (gain := analysis.scope(kind)) is not None]
    tried = [gain for gain in found if gain.verdict is not ScopeVerdict.REFUSED]
    if not tried:
        return ScopeAdvice(model, answers, (), (), ())
    kind = tried[0].kind
    options = "stream-fusion=1" if any(cut.reason is CutReason.OTHER_STREAM for cut in analysis.cuts) else ""
    snippet = (
        "# superkernel_scope of cann-recipes-infer wraps torchair.scope.super_kernel",
        f'with superkernel_scope(enable and not is_prefill, "{_LABELS.get(kind, kind.value)}", "{options}"):',
        *(f"    {line}" for line in _BODIES[kind]),
    )
    experiments = (
        f"baseline: SuperKernel off, decode only, {LEAST_RUNS} to {MOST_RUNS} runs",
        *(
            f"{place}: {gain.kind}, predicted {percent(gain.step_share)} of a step, the same number of runs"
            for place, gain in zip(("smallest", "larger", "largest"), tried, strict=False)
        ),
        "after each: it compiles, the results differ by 0, the SuperKernels are in a capture; widen it only then",
        "coefficient of variation: below 5 % excellent, to 10 % good, to 20 % more runs, above that repeat all",
        "compare each: opatlas diagnose NEW --superkernel --against OLD",
    )
    return ScopeAdvice(model, answers, tuple(gain.kind for gain in tried), snippet, experiments)


def analysis_as_json(analysis: ScopeAnalysis, advice: ScopeAdvice) -> dict[str, Any]:
    """Returns everything that an analysis found, for JSON."""
    timeline = analysis.timeline
    return {
        "capture": str(timeline.path),
        "kernels": len(timeline.launches),
        "streams": dict(timeline.streams),
        "main_stream": timeline.main_stream,
        "wait_pairs": timeline.wait_pairs,
        "wait_mismatches": timeline.wait_mismatches,
        "is_excerpt": timeline.is_excerpt,
        "steps": analysis.steps,
        "steps_by": analysis.step_source,
        "phases": dict(analysis.phases),
        "analysed_steps": analysis.analysed,
        "step_us": analysis.step_us,
        **asdict(analysis.model),
        "gate": GATE,
        "upper_bound": asdict(analysis.stretches),
        "cuts": [asdict(cut) for cut in analysis.cuts],
        "supported_collectives": analysis.collectives,
        "supported_collectives_source": known_types().collectives.source,
        "layers": [asdict(kind) for kind in analysis.layers],
        "module_shares": analysis.module_shares,
        "scopes": [asdict(gain) for gain in analysis.scopes],
        "refusals": analysis.refusals,
        "notes": analysis.notes,
        "advice": asdict(advice),
    }
