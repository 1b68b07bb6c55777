"""Which scope to try first, the lines of Python for it, and the experiment: the guide of CANN's recipes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from opatlas.formats import percent
from opatlas.outer.superkernel.analysis import ScopeAnalysis
from opatlas.outer.superkernel.cuts import CutReason
from opatlas.outer.superkernel.gains import ScopeVerdict
from opatlas.outer.superkernel.kernel_types import Module
from opatlas.outer.superkernel.scopes import ScopeKind

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


class Steadiness(str, Enum):
    """The classes of coefficients of variation that the guide has."""

    EXCELLENT = "excellent"
    GOOD = "good"
    MORE_RUNS = "more runs needed"
    BAD = "too unsteady"

    def __str__(self) -> str:
        return self.value

    @classmethod
    def of(cls, variation: float) -> Steadiness:
        """Returns the class of a coefficient of variation (0.05 is 5 %)."""
        if variation < 0.05:
            return cls.EXCELLENT
        if variation < 0.10:
            return cls.GOOD
        return cls.MORE_RUNS if variation <= 0.20 else cls.BAD


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
    """Returns what the guide's decision tree says of an analysed capture."""
    shares = analysis.module_shares
    attention, moe = shares.get(Module.ATTENTION, 0.0), shares.get(Module.MOE, 0.0)
    first: ScopeKind | None
    if Module.MOE in shares:
        model = "MoE model"
        first = ScopeKind.MOE if moe >= attention else ScopeKind.ATTENTION
        answers = [
            f"experts the bottleneck? {'yes' if moe >= attention else 'no'}, with {percent(moe)} of the time",
            f"attention takes {percent(attention)}: try {first} first",
            "best performance wanted? then all layers",
        ]
    elif Module.ATTENTION in shares:
        model, first = "standard Transformer", ScopeKind.ATTENTION
        answers = [
            f"first try? attention, which takes {percent(attention)} of the time",
            "attention verified? then all layers",
        ]
    else:
        model, first = "other model", None
        answers = ["neither attention nor experts are told by kernel types: a scope of your own, or --module-map FILE"]
    kinds = [first, ScopeKind.LAYER, ScopeKind.ALL_LAYERS, ScopeKind.STEP]
    found = [gain for kind in kinds if kind is not None and (gain := analysis.scope(kind)) is not None]
    order = tuple(gain.kind for gain in found if gain.verdict is not ScopeVerdict.REFUSED)
    if not order:
        return ScopeAdvice(model, tuple(answers), (), (), ())
    streams = any(cut.reason is CutReason.OTHER_STREAM for cut in analysis.cuts)
    return ScopeAdvice(
        model,
        tuple(answers),
        order,
        _snippet(order[0], "stream-fusion=1" if streams else ""),
        _experiments(analysis, order),
    )


def _snippet(kind: ScopeKind, options: str) -> tuple[str, ...]:
    label = _LABELS.get(kind, kind.value)
    return (
        "# superkernel_scope of cann-recipes-infer wraps torchair.scope.super_kernel",
        f'with superkernel_scope(enable and not is_prefill, "{label}", "{options}"):',
        *(f"    {line}" for line in _BODIES[kind]),
    )


def _experiments(analysis: ScopeAnalysis, order: Sequence[ScopeKind]) -> tuple[str, ...]:
    lines = [f"baseline: SuperKernel off, decode only, {LEAST_RUNS} to {MOST_RUNS} runs"]
    for place, kind in zip(("smallest", "larger", "largest"), order, strict=False):
        gain = analysis.scope(kind)
        assert gain is not None
        lines.append(f"{place}: {kind}, predicted {percent(gain.step_share)} of a step, the same number of runs")
    return (
        *lines,
        "after each: it compiles, the results differ by 0, the SuperKernels are in a capture; widen it only then",
        "coefficient of variation: below 5 % excellent, to 10 % good, to 20 % more runs, above that repeat all",
        "compare each: opatlas diagnose NEW --superkernel --against OLD",
    )
