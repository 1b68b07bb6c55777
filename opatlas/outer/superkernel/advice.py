"""Which scopes to try, in which order, and what to check: decision tree, plans and families of the guide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from opatlas.capture.single_launches import LaunchTimeline
from opatlas.formats import percent

from .scopes import CAP_US, GATE, GRAPH, SYNC_US, CutReason, ScopeAnalysis, ScopeGain, ScopeVerdict
from .structure import ModelFamily, Module, ScopeKind, known_types

#: The runs of each experiment.
LEAST_RUNS, MOST_RUNS = 3, 5
#: The label of a scope in the guide, and its body in the model's code.
_SNIPPETS = {
    ScopeKind.ATTENTION: ("attention", "attn_output = self.self_attn(hidden_states, ...)"),
    ScopeKind.MOE: ("moe", "ffn_output = self.moe(hidden_states)"),
    ScopeKind.FFN: ("ffn", "ffn_output = self.ffn(hidden_states)"),
    ScopeKind.LAYER: ("decoder_layer", "hidden_states = layer(hidden_states, ...)"),
    ScopeKind.ALL_LAYERS: ("all_layers", "for layer in self.layers: hidden_states = layer(hidden_states, ...)"),
    ScopeKind.STEP: ("step", "output = self.decode(input_ids, ...)"),
}
#: What to check after each experiment, with the command, in this order.
CHECKS = {
    "compile": (
        "no [ERROR] or fault kernel_name; a [WARNING] names a scope that was split",
        "grep -e super_kernel_scope -e te_superkernel PLOG",
    ),
    "function": (
        "prints True: the results differ by 0",
        'python -c "import numpy as n, sys; print(n.array_equal(*map(n.load, sys.argv[1:]), equal_nan=True))" OLD NEW',
    ),
    "performance": (
        f"a step is more than {percent(GATE, 0)} shorter, of steady runs, and captures have SuperKernels",
        "opatlas diagnose optimized.log --superkernel --against baseline.log",
    ),
}


@dataclass(frozen=True)
class ScopeAdvice:
    """What to try.

    Attributes:
        model: the kind of model, as the guide's decision tree has it.
        answers: the questions of the tree with their answers.
        order: the scopes to try, the smallest first; empty if none may be tried.
        snippet: lines of Python for the first.
        experiments: the plan from small to large.
        top_down: the plan from all layers, halved where there is trouble.
        families: the scopes that the guide recommends for families of models of this kind, with the source.
    """

    model: str
    answers: Sequence[str]
    order: Sequence[ScopeKind]
    snippet: Sequence[str]
    experiments: Sequence[str]
    top_down: Sequence[str]
    families: Mapping[str, ModelFamily]


def advise(analysis: ScopeAnalysis) -> ScopeAdvice:
    """Returns what the guide of CANN's recipes says of an analysed capture: decision tree, plans, families."""
    shares = analysis.module_shares
    attention, moe = shares.get(Module.ATTENTION, 0.0), shares.get(Module.MOE, 0.0)
    first: ScopeKind | None = ScopeKind.ATTENTION
    if Module.MOE in shares:
        model = "MoE model"
        first = ScopeKind.MOE if moe >= attention else ScopeKind.ATTENTION
        answers = [
            f"experts the bottleneck? {'yes' if moe >= attention else 'no'}, with {percent(moe)} of the time",
            f"attention takes {percent(attention)}: try {first} first",
            "best performance wanted? then all layers",
        ]
    elif Module.ATTENTION in shares:
        model = "standard Transformer"
        answers = [
            f"first try? attention, which takes {percent(attention)} of the time",
            "attention verified? then all layers",
        ]
    else:
        model, first = "other model", None
        answers = ["neither attention nor experts are told by kernel types: a scope of your own"]
    kinds = [first, ScopeKind.LAYER, ScopeKind.ALL_LAYERS, ScopeKind.STEP]
    found = [gain for kind in kinds if kind is not None and (gain := analysis.scope(kind)) is not None]
    tried = [gain for gain in found if gain.verdict is not ScopeVerdict.REFUSED]
    families = {
        name: each
        for name, each in known_types().families.items()
        if first is not None and each.experts in (None, Module.MOE in shares)
    }
    if not tried:
        return ScopeAdvice(model, answers, (), (), (), (), families)
    label, body = _SNIPPETS[tried[0].kind]
    options = "stream-fusion=1" if any(cut.reason is CutReason.OTHER_STREAM for cut in analysis.cuts) else ""
    snippet = (
        "# superkernel_scope of cann-recipes-infer wraps torchair.scope.super_kernel",
        f'with superkernel_scope(enable and not is_prefill, "{label}", "{options}"):',
        f"    {body}",
    )
    baseline = f"baseline: SuperKernel off, decode only, {LEAST_RUNS} to {MOST_RUNS} runs"
    begin = [*([GRAPH] if analysis.needs_graph else []), baseline]
    experiments = [
        *begin,
        *(
            f"{place}: {gain.kind}, predicted {percent(gain.step_share)} of a step, the same number of runs"
            for place, gain in zip(("smallest", "larger", "largest"), tried, strict=False)
        ),
        "after each: the checks; widen it only where all pass",
        "coefficient of variation: below 5 % excellent, to 10 % good, to 20 % more runs, above that repeat all",
    ]
    order = tuple(gain.kind for gain in tried)
    return ScopeAdvice(model, answers, order, snippet, experiments, _top_down(tried, begin), families)


def _top_down(tried: Sequence[ScopeGain], begin: Sequence[str]) -> list[str]:
    """Returns the plan that begins with the largest scope, and halves its layers where there is trouble."""
    plan = list(begin)
    by_kind = {gain.kind: gain for gain in tried}
    if (every := by_kind.get(ScopeKind.ALL_LAYERS)) and (layer := by_kind.get(ScopeKind.LAYER)):
        count = whole = round(layer.occurrences)
        while count > 1:
            layers = "self.layers" if count == whole else f"self.layers[:{count}]"
            plan.append(f"{layers}: predicted {percent(every.step_share * count / whole)} of a step")
            count = -(-count // 2)
    plan += [
        f"{gain.kind}, each: predicted {percent(gain.step_share)} of a step"
        for gain in reversed(tried)
        if gain.kind is not ScopeKind.ALL_LAYERS
    ]
    trouble = "go on to the next line only on trouble: it does not compile, takes too long, or a check fails"
    return [*plan, f"{trouble}; try the other half before a smaller one"]


def analysis_as_json(timeline: LaunchTimeline, analysis: ScopeAnalysis, advice: ScopeAdvice) -> dict[str, Any]:
    """Returns everything that an analysis found, for JSON."""
    return {
        "capture": str(timeline.path),
        "kernels": len(timeline.launches),
        "streams": dict(timeline.streams),
        "main_stream": timeline.main_stream,
        "wait_pairs": timeline.wait_pairs,
        "wait_mismatches": timeline.wait_mismatches,
        "is_excerpt": timeline.is_excerpt,
        "cap_us": CAP_US,
        "sync_us": SYNC_US,
        "gate": GATE,
        **asdict(analysis),
        "advice": {**asdict(advice), "families": {name: each.told for name, each in advice.families.items()}},
    }
