"""`opatlas diagnose --superkernel`: the scopes of a capture, and captures with and without SuperKernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from opatlas.formats import microseconds, percent
from opatlas.row.quality import standard_deviation
from opatlas.show.result import Column, Fields, Part, Result, Table
from opatlas.show.site.pages import ReportPage
from opatlas.text import Word, pluralize

from .analysis import LEAST_RUNS, MOST_RUNS, ScopeAdvice, ScopeAnalysis, advise, analyse, analysis_as_json
from .gains import GATE
from .kernel_types import StepPhase, read_module_map
from .structure import StepSource, find_structure, phase_of
from .timeline import Timeline, captures_at, read_file, read_timeline

_SUPER_KERNEL = "SuperKernel"
_KERNEL_NAME = "te_superkernel"


class CheckState(Word):
    """What a check found, from the best to the worst."""

    PASSED = "passed"
    BELOW_GATE = "gain below gate"
    NOT_GIVEN = "not given"
    FAILED = "failed"


@dataclass(frozen=True)
class ValidationCheck:
    """One of the guide's checks."""

    name: str
    state: CheckState
    text: str


def steadiness(variation: float) -> str:
    """Returns the class that the guide has for a coefficient of variation (0.05 is 5 %)."""
    if variation < 0.05:
        return "excellent"
    if variation < 0.10:
        return "good"
    return "more runs needed" if variation <= 0.20 else "too unsteady"


@dataclass(frozen=True)
class StepTimes:
    """The durations of steps in the captures at a path.

    Attributes:
        runs: the steps' durations of each capture, in microseconds.
        samples_us: the mean of each run; the steps of a single run.
        variation: the coefficient of variation of the samples; 0 for one sample.
        super_kernels: the launches of SuperKernels.
    """

    path: str
    runs: tuple[tuple[float, ...], ...]
    samples_us: tuple[float, ...]
    mean_us: float
    variation: float
    super_kernels: int


def _step_times(path: Path, timelines: Sequence[Timeline], in_steps: bool) -> StepTimes:
    runs = tuple(_steps_us(each, in_steps) for each in timelines)
    samples = tuple(map(fmean, runs)) if len(runs) > 1 else runs[0]
    mean_us = fmean(samples)
    variation = standard_deviation(samples, mean_us) / mean_us if mean_us else 0.0
    return StepTimes(str(path), runs, samples, mean_us, variation, sum(map(_super_kernels, timelines)))


def _steps_us(timeline: Timeline, in_steps: bool) -> tuple[float, ...]:
    """Returns the time from the first start to the last end of each step of decode."""
    ranges = find_structure(timeline).ranges if in_steps else []
    others = (StepPhase.PREFILL, StepPhase.TRAINING)
    decode = [each for each in ranges if phase_of(timeline.launches[slice(*each)]) not in others]
    return tuple(
        float(timeline.end_ns[start:stop].max() - timeline.start_ns[start]) / 1000
        for start, stop in decode or ranges or [(0, len(timeline.launches))]
    )


def _super_kernels(timeline: Timeline) -> int:
    return sum(
        launch.kernel_type == _SUPER_KERNEL or launch.name.startswith(_KERNEL_NAME) for launch in timeline.launches
    )


def _checks(old: StepTimes, new: StepTimes, gain: float) -> Sequence[ValidationCheck]:
    state = CheckState.PASSED if gain > GATE else CheckState.BELOW_GATE if gain > 0 else CheckState.FAILED
    checks = [ValidationCheck("gain", state, f"{percent(gain, 2)} of a step; the gate is more than {percent(GATE, 0)}")]
    for name, times in (("steps of old", old), ("steps of new", new)):
        what, samples = "run" if len(times.runs) > 1 else "step", len(times.samples_us)
        if samples < 2:
            text, state = f"one {what} has no variation: take {LEAST_RUNS} runs or more", CheckState.NOT_GIVEN
        else:
            found = steadiness(times.variation)
            variation = f"variation {percent(times.variation)} of {pluralize(samples, what)}: {found}"
            text = f"mean {times.mean_us:,.2f} us, {variation}"
            state = CheckState.PASSED if found in ("excellent", "good") else CheckState.FAILED
        checks.append(ValidationCheck(name, state, text))
    state, text = CheckState.FAILED, "new has none: no scope was fused"
    if old.super_kernels:
        text = f"old has {old.super_kernels:,}: it is no baseline"
    elif new.super_kernels:
        state, text = CheckState.PASSED, f"{new.super_kernels:,} in new"
    return [*checks, ValidationCheck("SuperKernel rows", state, text)]


#: The checks of the guide that a capture cannot answer.
_NOT_IN_CAPTURES = (
    "A capture does not tell whether results are equal, and whether a scope compiled as a whole: compare the results, "
    "whose difference must be 0, and look for super_kernel_scope in the plog."
)
#: The kernel types that are named beside a cut.
_TYPES_SHOWN = 3


def find_scopes(capture: Path, module_map: Path | None, phase: str | None) -> Result:
    """Returns the scopes of a capture. Raises OpAtlasError."""
    module_of = None if module_map is None else read_module_map(module_map)
    analysis = analyse(read_timeline(capture), module_of=module_of, phase=None if phase is None else StepPhase(phase))
    advice = advise(analysis)
    return Result(list(_parts(analysis, advice)), analysis_as_json(analysis, advice))


def compare_scopes(old: Path, new: Path) -> Result:
    """Compares captures without and with SuperKernels; each path is a capture, or a folder with one for each run.

    Raises:
        OpAtlasError: there is no capture, or it cannot be read.
    """
    timelines = {path: [read_file(each) for each in captures_at(path)] for path in (old, new)}
    every = [timeline for own in timelines.values() for timeline in own]
    in_steps = all(find_structure(each).step_source is not StepSource.NOTHING for each in every)
    times = {word: _step_times(path, timelines[path], in_steps) for word, path in (("old", old), ("new", new))}
    before, after = times["old"], times["new"]
    gain = 1 - after.mean_us / before.mean_us if before.mean_us else 0.0
    notes = [problem for each in every for problem in each.problems]
    for word, of in times.items():
        if len(of.runs) < LEAST_RUNS:
            notes.append(f"{word}: {pluralize(len(of.runs), 'run')}; the guide asks for {LEAST_RUNS} to {MOST_RUNS}")
    if not in_steps:
        notes.append("a capture does not tell its steps: each counts as one step, so all must hold equally many")
    checks = _checks(before, after, gain)
    verdict = max((check.state for check in checks), key=list(CheckState).index)
    content = {
        **{word: {**asdict(of), "class": steadiness(of.variation)} for word, of in times.items()},
        "gain": gain,
        "gate": GATE,
        "checks": [asdict(check) for check in checks],
        "notes": notes,
        "verdict": verdict,
    }
    columns = (
        *("of", "runs", "steps", Column("mean(us)", microseconds), Column("variation", percent), "class", "SK"),
        "captures",
    )
    rows = [
        (
            *(word, len(of.runs), sum(map(len, of.runs)), of.mean_us, of.variation, steadiness(of.variation)),
            *(of.super_kernels, of.path),
        )
        for word, of in times.items()
    ]
    why = [(each.name, each.state, None if each.state is CheckState.PASSED else each.text) for each in checks]
    parts: list[Part] = [
        Table(columns, rows),
        Table(("check", "state", "why"), why),
        Fields({"gain": percent(gain), "gate": percent(GATE), "verdict": str(verdict)}),
        *(f"note: {note}" for note in notes),
        _NOT_IN_CAPTURES,
    ]
    return Result(parts, content, status=1 if verdict is CheckState.FAILED else 0)


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
