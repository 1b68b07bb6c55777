"""Compares captures with and without SuperKernels: gain, steadiness of the steps, and whether any scope was fused."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import fmean

from opatlas.formats import percent
from opatlas.outer.superkernel.advice import LEAST_RUNS, MOST_RUNS, Steadiness
from opatlas.outer.superkernel.gains import GATE
from opatlas.outer.superkernel.kernel_types import StepPhase
from opatlas.outer.superkernel.scopes import StepSource, find_structure, phase_of
from opatlas.outer.superkernel.timeline import Timeline, captures_at, read_file
from opatlas.row.quality import standard_deviation
from opatlas.text import pluralize

_SUPER_KERNEL = "SuperKernel"
_KERNEL_NAME = "te_superkernel"
#: The checks of the guide that a capture cannot answer.
NOT_IN_CAPTURES = (
    "A capture does not tell whether results are equal, and whether a scope compiled as a whole: compare the results, "
    "whose difference must be 0, and look for super_kernel_scope in the plog."
)


class CheckState(str, Enum):
    """What a check found."""

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

    @property
    def steadiness(self) -> Steadiness:
        return Steadiness.of(self.variation)


@dataclass(frozen=True)
class SuperKernelComparison:
    """Captures without and with SuperKernels.

    Attributes:
        notes: what limits the comparison.
    """

    old: StepTimes
    new: StepTimes
    checks: tuple[ValidationCheck, ...]
    notes: tuple[str, ...]

    @property
    def gain(self) -> float:
        """The part of a step's duration that is saved."""
        return 1 - self.new.mean_us / self.old.mean_us if self.old.mean_us else 0.0

    @property
    def verdict(self) -> CheckState:
        """The worst state of a check."""
        order = list(CheckState)
        return max((check.state for check in self.checks), key=order.index)


def compare_captures(old: Path, new: Path) -> SuperKernelComparison:
    """Compares captures; each path is a capture, or a folder with one for each run. Raises OpAtlasError."""
    timelines = [[read_file(path) for path in captures_at(each)] for each in (old, new)]
    in_steps = all(
        find_structure(each).step_source is not StepSource.NOTHING
        for timelines_of in timelines
        for each in timelines_of
    )
    before, after = (
        StepTimes(path, tuple(_steps_us(each, in_steps) for each in own), sum(map(_super_kernels, own)))
        for path, own in zip((old, new), timelines, strict=True)
    )
    gain = SuperKernelComparison(before, after, (), ()).gain
    checks = (
        _gain_check(gain),
        _steadiness_check("steps of old", before),
        _steadiness_check("steps of new", after),
        _presence_check(before, after),
    )
    notes = [problem for own in timelines for each in own for problem in each.problems]
    for word, times in (("old", before), ("new", after)):
        if len(times.runs) < LEAST_RUNS:
            notes.append(f"{word}: {pluralize(len(times.runs), 'run')}; the guide asks for {LEAST_RUNS} to {MOST_RUNS}")
    if not in_steps:
        notes.append("a capture does not tell its steps: each counts as one step, so all must hold equally many")
    return SuperKernelComparison(before, after, checks, tuple(notes))


def _steps_us(timeline: Timeline, in_steps: bool) -> tuple[float, ...]:
    """Returns the time from the first start to the last end of each step of decode."""
    structure = find_structure(timeline)
    ranges = [structure.range_of(step) for step in range(structure.step_count)] if in_steps else []
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


def _gain_check(gain: float) -> ValidationCheck:
    text = f"{percent(gain, 2)} of a step; the gate is more than {percent(GATE, 0)}"
    if gain > GATE:
        return ValidationCheck("gain", CheckState.PASSED, text)
    return ValidationCheck("gain", CheckState.BELOW_GATE if gain > 0 else CheckState.FAILED, text)


def _steadiness_check(name: str, times: StepTimes) -> ValidationCheck:
    samples = len(times.samples_us)
    what = "run" if len(times.runs) > 1 else "step"
    if samples < 2:
        return ValidationCheck(
            name, CheckState.NOT_GIVEN, f"one {what} has no variation: take {LEAST_RUNS} runs or more"
        )
    text = f"mean {times.mean_us:,.2f} us, variation {percent(times.variation)} of {pluralize(samples, what)}: "
    unsteady = times.steadiness in (Steadiness.MORE_RUNS, Steadiness.BAD)
    return ValidationCheck(name, CheckState.FAILED if unsteady else CheckState.PASSED, text + str(times.steadiness))


def _presence_check(old: StepTimes, new: StepTimes) -> ValidationCheck:
    name = "SuperKernel rows"
    if old.super_kernels:
        return ValidationCheck(name, CheckState.FAILED, f"old has {old.super_kernels:,}: it is no baseline")
    if not new.super_kernels:
        return ValidationCheck(name, CheckState.FAILED, "new has none: no scope was fused")
    return ValidationCheck(name, CheckState.PASSED, f"{new.super_kernels:,} in new")
