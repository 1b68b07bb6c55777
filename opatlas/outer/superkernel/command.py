"""The scopes of a capture that a SuperKernel may fuse, and captures with and without SuperKernels, as results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from opatlas.formats import microseconds, percent
from opatlas.show.result import Column, Fields, Part, Result, Table
from opatlas.show.site.pages import ReportPage

from .analysis import ScopeAdvice, ScopeAnalysis, advise, analyse, analysis_as_json
from .comparison import CheckState, SuperKernelComparison, compare_captures, steadiness
from .gains import GATE, PUBLIC_GAINS
from .kernel_types import StepPhase, read_module_map
from .timeline import read_timeline

#: The checks of the guide that a capture cannot answer.
_NOT_IN_CAPTURES = (
    "A capture does not tell whether results are equal, and whether a scope compiled as a whole: compare the results, "
    "whose difference must be 0, and look for super_kernel_scope in the plog."
)
#: The kernel types that are named beside a cut.
_TYPES_SHOWN = 3
_PUBLIC = Table(
    (Column("gain", percent), "of"), [(each.gain, each.what) for each in PUBLIC_GAINS], title="measured by others"
)


def find_scopes(capture: Path, module_map: Path | None, phase: str | None) -> Result:
    """Returns the scopes of a capture. Raises OpAtlasError."""
    module_of = None if module_map is None else read_module_map(module_map)
    analysis = analyse(read_timeline(capture), module_of=module_of, phase=None if phase is None else StepPhase(phase))
    advice = advise(analysis)
    return Result(list(_parts(analysis, advice)), analysis_as_json(analysis, advice))


def compare_scopes(old: Path, new: Path) -> Result:
    """Returns the comparison of captures without and with SuperKernels. Raises OpAtlasError."""
    comparison = compare_captures(old, new)
    status = 1 if comparison.verdict is CheckState.FAILED else 0
    return Result(list(_comparison_parts(comparison)), comparison.as_json(), status=status)


class SuperKernelPage(ReportPage):
    """The page of `opatlas report` that shows the scopes of a capture."""

    def content(self, tables: Sequence[pd.DataFrame], capture: Path | None) -> dict[str, Any] | None:
        if capture is None:
            return None
        analysis = analyse(read_timeline(capture))
        return analysis_as_json(analysis, advise(analysis))


def _parts(analysis: ScopeAnalysis, advice: ScopeAdvice) -> Iterator[Part]:
    timeline, bound, model = analysis.timeline, analysis.stretches, analysis.model
    yield Fields(
        {
            "kernels": len(timeline.launches),
            "known streams": len([stream for stream in timeline.streams if stream]),
            "steps": (analysis.steps, f"by {analysis.step_source}"),
            **{f"steps of {phase}": count for phase, count in analysis.phases.items()},
            "step(us)": microseconds(analysis.step_us),
            "rows missing before": (timeline.wait_mismatches, f"of {timeline.wait_pairs:,} kernels with waits"),
            "supported collectives": analysis.collectives,
        },
        title=str(timeline.path),
    )
    yield Fields(
        {
            "kernels": (bound.kernels, f"in {bound.stretches:,} stretches"),
            "duration(us)": microseconds(bound.duration_us),
            "gaps(us)": (microseconds(bound.gaps_us), percent(bound.raw_ceiling)),
            f"gaps up to {model.cap_us:g} us": (microseconds(bound.capped_us), percent(bound.capped_ceiling)),
            f"less {model.sync_us:g} us for each": (microseconds(bound.saved_us), percent(bound.saved_ceiling)),
        },
        title="upper bound, between collectives, AI CPU kernels, other streams and steps",
    )
    yield Table(
        ("reason", "count", "kernel types"),
        [
            (
                cut.reason,
                cut.count,
                ", ".join(
                    [f"{name} {count:,}" for name, count in list(cut.kernel_types.items())[:_TYPES_SHOWN]]
                    + ["..."] * (len(cut.kernel_types) > _TYPES_SHOWN)
                ),
            )
            for cut in analysis.cuts
        ],
        title="what splits a SuperKernel",
    )
    if analysis.layers:
        yield Table(
            ("layers in a step", "kernels of each"),
            [(kind.layers / analysis.steps, len(kind.kernel_types)) for kind in analysis.layers],
        )
    if analysis.module_shares:
        yield Table(("module", Column("share of time", percent)), list(analysis.module_shares.items()))
    yield _scopes(analysis)
    yield _PUBLIC
    yield from (f"note: {note}" for note in analysis.notes)
    yield from (f"refused: {refusal}" for refusal in analysis.refusals)
    if analysis.refusals:
        return
    yield Table((advice.model,), [(answer,) for answer in advice.answers])
    if advice.order:
        yield "\n".join(f"    {line}" for line in advice.snippet)
        yield Table(("#", "experiment"), list(enumerate(advice.experiments)))


def _scopes(analysis: ScopeAnalysis) -> Table:
    us = (Column(f"{name}(us)", microseconds) for name in ("duration", "gaps", "host", "saved"))
    shares = (Column(name, percent) for name in ("of scope", "of step"))
    return Table(
        ("scope", "each", "kernels", "fused", "SK", *us, *shares, "try", Column("why", wide=True)),
        [
            (
                *(gain.kind, gain.occurrences, gain.kernels, gain.fused_kernels, gain.super_kernels),
                *(gain.duration_us, gain.gaps_us, gain.host_us, gain.saved_us, gain.ceiling, gain.step_share),
                *(gain.verdict, gain.reason),
            )
            for gain in analysis.scopes
        ],
        title=f"scopes of a step; the gate is {percent(GATE)} of it",
    )


def _comparison_parts(comparison: SuperKernelComparison) -> Iterator[Part]:
    both = (("old", comparison.old), ("new", comparison.new))
    yield Table(
        (
            *("of", "runs", "steps", Column("mean(us)", microseconds), Column("variation", percent), "class", "SK"),
            "captures",
        ),
        [
            (
                *(word, len(times.runs), sum(map(len, times.runs)), times.mean_us, times.variation),
                *(steadiness(times.variation), times.super_kernels, times.path),
            )
            for word, times in both
        ],
    )
    yield Table(
        ("check", "state", "why"),
        [
            (check.name, check.state, None if check.state is CheckState.PASSED else check.text)
            for check in comparison.checks
        ],
    )
    yield Fields({"gain": percent(comparison.gain), "gate": percent(GATE), "verdict": str(comparison.verdict)})
    yield _PUBLIC
    yield from (f"note: {note}" for note in comparison.notes)
    yield _NOT_IN_CAPTURES
