"""Compares captures with and without SuperKernels: does it compile, are the results the same, what does it gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import fmean

import numpy as np

from opatlas.errors import OpAtlasError
from opatlas.model.quality import standard_deviation
from opatlas.superkernel.advice import LEAST_RUNS, MOST_RUNS, Steadiness
from opatlas.superkernel.gains import GATE
from opatlas.superkernel.kernel_types import StepPhase
from opatlas.superkernel.scopes import StepSource, find_structure, phase_of
from opatlas.superkernel.timeline import Timeline, captures_at, read_file
from opatlas.text import pluralize

_SUPER_KERNEL = "SuperKernel"
_KERNEL_NAME = "te_superkernel"
_SCOPE_WORD = "super_kernel_scope"
_FAULT_WORD = "fault kernel_name"
_LINE_BYTES = 1 << 20


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


def compare_captures(
    old: Path, new: Path, *, results: Sequence[Path] = (), log: Path | None = None
) -> SuperKernelComparison:
    """Compares captures; each path is a capture, or a folder with one for each run.

    Args:
        results: the results without and with SuperKernels, as .npy or .npz files; empty if not given.
        log: the plog of the session with SuperKernels; None if not given.

    Raises:
        OpAtlasError: a file cannot be read.
    """
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
        _compile_check(log),
        _results_check(results),
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


def _compile_check(log: Path | None) -> ValidationCheck:
    name = "it compiles"
    if log is None:
        return ValidationCheck(name, CheckState.NOT_GIVEN, "no capture tells: --log PLOG, of strict-scope-check=bypass")
    warnings = 0
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(iter(lambda: file.readline(_LINE_BYTES), ""), 1):
                is_fault = _FAULT_WORD in line and _KERNEL_NAME in line
                if is_fault or ("[ERROR]" in line and _SCOPE_WORD in line):
                    return ValidationCheck(name, CheckState.FAILED, f"{log}:{number}: {line.strip()[:120]}")
                warnings += "[WARNING]" in line and _SCOPE_WORD in line
    except OSError as error:
        raise OpAtlasError(f"{log}: cannot be read ({error.strerror}): check the path of --log") from None
    told = f"; {pluralize(warnings, 'warning')} of {_SCOPE_WORD}: scopes that were split" if warnings else ""
    return ValidationCheck(name, CheckState.PASSED, f"no error of {_SCOPE_WORD} in the log{told}")


def _results_check(results: Sequence[Path]) -> ValidationCheck:
    name = "results are equal"
    if not results:
        return ValidationCheck(name, CheckState.NOT_GIVEN, "no capture tells: --results OLD.npy NEW.npy")
    old, new = map(_arrays, results)
    if set(old) != set(new):
        return ValidationCheck(name, CheckState.FAILED, f"arrays {sorted(old)} and {sorted(new)}")
    largest = 0.0
    for key in old:
        one, other = old[key], new[key]
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            told = f"{key}: {one.dtype} {one.shape} and {other.dtype} {other.shape}"
            return ValidationCheck(name, CheckState.FAILED, told.lstrip(": "))
        if one.dtype.kind not in "biuf":
            return ValidationCheck(name, CheckState.FAILED, f"{key}: {one.dtype} holds no numbers".lstrip(": "))
        both = one.astype(np.float64), other.astype(np.float64)
        if not np.array_equal(*both, equal_nan=True):
            with np.errstate(invalid="ignore"):
                differences = np.abs(both[0] - both[1])
            # A NaN or an infinity on one side only differs by any measure.
            largest = max(largest, float(np.where(np.isnan(differences), np.inf, differences).max()))
    if largest:
        return ValidationCheck(name, CheckState.FAILED, f"largest difference {largest:g}, must be 0")
    return ValidationCheck(name, CheckState.PASSED, "difference 0")


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        loaded = np.load(path, allow_pickle=False)
        return dict(loaded) if isinstance(loaded, np.lib.npyio.NpzFile) else {"": loaded}
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror or error}): check --results") from None
    except Exception as error:
        # numpy raises ValueError, EOFError, zipfile's and tokenize's errors for files of others.
        remedy = "write it with numpy.save(FILE, result.float().cpu().numpy())"
        raise OpAtlasError(f"{path}: no .npy or .npz file ({error}): {remedy}") from None


def _gain_check(gain: float) -> ValidationCheck:
    text = f"{gain:.2%} of a step; the gate is more than {GATE:.0%}"
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
    text = f"mean {times.mean_us:,.2f} us, variation {times.variation:.1%} of {pluralize(samples, what)}: "
    unsteady = times.steadiness in (Steadiness.MORE_RUNS, Steadiness.BAD)
    return ValidationCheck(name, CheckState.FAILED if unsteady else CheckState.PASSED, text + str(times.steadiness))


def _presence_check(old: StepTimes, new: StepTimes) -> ValidationCheck:
    name = "SuperKernel rows"
    if old.super_kernels:
        return ValidationCheck(name, CheckState.FAILED, f"old has {old.super_kernels:,}: it is no baseline")
    if not new.super_kernels:
        return ValidationCheck(name, CheckState.FAILED, "new has none: no scope was fused")
    return ValidationCheck(name, CheckState.PASSED, f"{new.super_kernels:,} in new")
