"""Compares captures with and without SuperKernels: gain, steadiness of the steps, and whether any scope was fused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from statistics import fmean
from typing import Any

from opatlas.formats import percent
from opatlas.row.quality import standard_deviation
from opatlas.text import pluralize

from .analysis import LEAST_RUNS, MOST_RUNS
from .gains import GATE, PUBLIC_GAINS
from .kernel_types import StepPhase
from .structure import StepSource, find_structure, phase_of
from .timeline import Timeline, captures_at, read_file

_SUPER_KERNEL = "SuperKernel"
_KERNEL_NAME = "te_superkernel"


class CheckState(str, Enum):
    """What a check found, from the best to the worst."""

    PASSED = "passed"
    BELOW_GATE = "gain below gate"
    NOT_GIVEN = "not given"
    FAILED = "failed"

    def __str__(self) -> str:
        return self.value


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
        super_kernels: the launches of SuperKernels.
    """

    path: Path
    runs: tuple[tuple[float, ...], ...]
    super_kernels: int

    @property
    def samples_us(self) -> tuple[float, ...]:
        """The mean of each run; the steps of a single run."""
        return tuple(map(fmean, self.runs)) if len(self.runs) > 1 else self.runs[0]

    @property
    def mean_us(self) -> float:
        return fmean(self.samples_us)

    @property
    def variation(self) -> float:
        """The coefficient of variation of the samples; 0 for one sample."""
        return standard_deviation(self.samples_us, self.mean_us) / self.mean_us if self.mean_us else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "runs": self.runs,
            "mean_us": self.mean_us,
            "variation": self.variation,
            "class": steadiness(self.variation),
            "super_kernels": self.super_kernels,
        }


@dataclass(frozen=True)
class SuperKernelComparison:
    """Captures without and with SuperKernels.

    Attributes:
        gain: the part of a step's duration that is saved.
        notes: what limits the comparison.
    """

    old: StepTimes
    new: StepTimes
    gain: float
    checks: tuple[ValidationCheck, ...]
    notes: tuple[str, ...]

    @property
    def verdict(self) -> CheckState:
        """The worst state of a check."""
        return max((check.state for check in self.checks), key=list(CheckState).index)

    def as_json(self) -> dict[str, Any]:
        return {
            "old": self.old.as_json(),
            "new": self.new.as_json(),
            "gain": self.gain,
            "gate": GATE,
            "checks": [asdict(check) for check in self.checks],
            "measured_by_others": [asdict(each) for each in PUBLIC_GAINS],
            "notes": self.notes,
            "verdict": self.verdict,
        }


def compare_captures(old: Path, new: Path) -> SuperKernelComparison:
    """Compares captures; each path is a capture, or a folder with one for each run. Raises OpAtlasError."""
    timelines = [[read_file(path) for path in captures_at(each)] for each in (old, new)]
    every = [timeline for own in timelines for timeline in own]
    in_steps = all(find_structure(each).step_source is not StepSource.NOTHING for each in every)
    before, after = (
        StepTimes(path, tuple(_steps_us(each, in_steps) for each in own), sum(map(_super_kernels, own)))
        for path, own in zip((old, new), timelines, strict=True)
    )
    gain = 1 - after.mean_us / before.mean_us if before.mean_us else 0.0
    notes = [problem for each in every for problem in each.problems]
    for word, times in (("old", before), ("new", after)):
        if len(times.runs) < LEAST_RUNS:
            notes.append(f"{word}: {pluralize(len(times.runs), 'run')}; the guide asks for {LEAST_RUNS} to {MOST_RUNS}")
    if not in_steps:
        notes.append("a capture does not tell its steps: each counts as one step, so all must hold equally many")
    return SuperKernelComparison(before, after, gain, tuple(_checks(before, after, gain)), tuple(notes))


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
