"""What was found of a candidate: its level, the class of its error, and the outcome of its row. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median
from typing import Annotated

import msgspec

from opatlas.formats import duration
from opatlas.row.columns import ERROR_CLASS, KERNEL_SHARE, LEVEL, MAX_ERROR, WITHIN_1E3
from opatlas.row.errors import NoKernelLaunched, ReplayError
from opatlas.row.record import Measurement
from opatlas.row.status import Status
from opatlas.run.instruments.instrument import WallClock
from opatlas.run.job import MOST_CHARACTERS, Judged, RowOutcome, outcome_of
from opatlas.run.process.messages import ProcessMessage
from opatlas.text import Word, cut_middle, without_build_command

#: Microseconds in a file. Ratios of them are finite.
_Microseconds = Annotated[float, msgspec.Meta(ge=1e-6, le=1e15)]


#: What notes say of a candidate that only calls torch, or leaves most of the time to it.
TORCH_WORKS = "torch does the work"


class Level(Word):
    """The levels of a judgement, in their order. A candidate passes a level only after those before it."""

    ANSWER = "L0"  # the answer of a model holds code, or modifications that apply
    STATIC = "L1"  # the rules on the source, which is not run
    COMPILE = "L2"  # import, construction and the first call return
    CORRECT = "L3"  # the results are right for every set of inputs, and no guard objects
    MEASURED = "L4"  # it has a duration


class ErrorClass(Word):
    """Why a candidate does not pass. docs/candidates.md has the rule of each; the first rule that fits decides."""

    ANSWER = "answer"
    SYNTAX = "syntax"
    IMPORT = "import"
    RULE = "rule"
    HACK = "hack"
    INIT_ARGS = "init-args"
    COMPILE = "compile"
    RUNTIME = "runtime"
    OOM = "oom"
    TIMEOUT = "timeout"
    CRASH = "crash"
    INTERFACE = "interface"
    MISMATCH = "mismatch"
    UNSTABLE = "unstable"
    PASS = "pass"


@dataclass(frozen=True)
class Judgement:
    """The judgement of one candidate for one task.

    Attributes:
        error_class: PASS, or why it does not pass.
        sub_class: a part of the class ("ub-overflow", "nan", the name of a rule or guard); "" if it has none.
        level: the highest level that was passed; None if L0 was not.
        text: the error; "" for PASS.
        within_1e3: whether all elements differ from the reference by less than 1e-3; None if no result was compared.
        max_error: the largest difference, as a share of its tolerance; None if no result was compared.
        duration_us: duration of the candidate in microseconds; None if it was not measured.
        baseline_us: duration of the task's own model in microseconds; None if it is not known.
        kernel_share: share of the duration in kernels that the candidate defines, 0 to 1; None if it is not known.
        notes: what a guard noticed without failing the candidate ("torch does the work").
    """

    error_class: ErrorClass
    sub_class: str = ""
    level: Level | None = None
    text: str = ""
    within_1e3: bool | None = None
    max_error: float | None = None
    duration_us: _Microseconds | None = None
    baseline_us: _Microseconds | None = None
    kernel_share: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The class, with its sub-class if it has one: `mismatch/nan`."""
        return f"{self.error_class}/{self.sub_class}" if self.sub_class else str(self.error_class)

    @property
    def cells(self) -> dict[str, str]:
        """The cells of a row: the columns `JUDGED` (opatlas/row/columns.py), and the largest error."""
        return {
            MAX_ERROR: "" if self.max_error is None else f"{self.max_error:.3g}",
            LEVEL: str(self.level or ""),
            ERROR_CLASS: self.name,
            WITHIN_1E3: "" if self.within_1e3 is None else "yes" if self.within_1e3 else "no",
            KERNEL_SHARE: "" if self.kernel_share is None else f"{self.kernel_share:.3f}",
        }

    @classmethod
    def of(cls, outcome: RowOutcome) -> Judgement | None:
        """Returns the judgement that an outcome carries; None if it has none."""
        return None if outcome.judged is None else msgspec.convert(outcome.judged.details, cls)

    @property
    def judged(self) -> Judged:
        """The judgement as an outcome carries it."""
        return Judged(self.cells, self.passed, msgspec.to_builtins(self))

    def outcome(self, status: Status = Status.FAILED, text: str = "", detail: str = "") -> RowOutcome:
        """Returns the outcome of a row whose candidate does not pass; `text` stands for that of the judgement."""
        return RowOutcome(status, f"{self.name}: {text or self.text}", detail, judged=self.judged)

    @property
    def passed(self) -> bool:
        """Whether the candidate is right and was measured."""
        return self.error_class is ErrorClass.PASS

    @property
    def speed_up(self) -> float | None:
        """The baseline's duration over the candidate's; None if one is not known."""
        return self.baseline_us / self.duration_us if self.baseline_us and self.duration_us else None


#: The class of a candidate whose row ended so before it was judged.
CLASS_OF_STATUS = {
    Status.FAILED: ErrorClass.RUNTIME,
    Status.DEVICE_ERROR: ErrorClass.RUNTIME,
    Status.CRASHED: ErrorClass.CRASH,
    Status.TIMEOUT: ErrorClass.TIMEOUT,
    Status.OOM: ErrorClass.OOM,
}


class CandidateRejected(ReplayError):
    """A candidate does not pass.

    Attributes:
        error_class: why.
        sub_class: the guard or the part of the class ("stale-result", "nan").
    """

    def __init__(self, error_class: ErrorClass, sub_class: str, text: str) -> None:
        super().__init__(text)
        self.error_class = error_class
        self.sub_class = sub_class


class ReferenceFailed(ReplayError):
    """The reference cannot be run, whatever the candidate."""


#: The limit of the second verdict: the largest difference of any element.
LIMIT = 1e-3
#: The shortest bracket, less that of the calls of nothing, is at most this many times the claim, a number of
#: microseconds, and as many calls of nothing more: flushes of caches take longer while other processes use memory and
#: cores. Found on the honest candidates of tests/outer/test_honest.py, with ten other processes on two cores.
MULTIPLE, CONSTANT_US, MORE_EMPTY = 1.5, 3_000.0, 2.0
#: Fewer samples may all have been disturbed by other processes. As many cannot all be equal, since clocks step
#: by some nanoseconds.
_MANY, _CONSTANT_OF_FEW_US = 10, 50_000.0


class CourtVerdict(ProcessMessage, frozen=True):
    """What a court found of the results of a candidate.

    Attributes:
        error_class, sub_class, text: of the judgement; "pass" for right results.
        max_error, difference: the largest error as a share of its tolerance, and the largest difference; None where no
            result was compared.
        elements: number of elements of the results of a call.
        calls: number of calls whose results were compared.
        notes, assumptions: phrases.
        failure: why there is no reference; "" mostly.
        brackets_us: for each timed call the microseconds from its inputs, which nobody knew, to its results.
        waits_us: the part of each in which the candidate only waited for a processor.
        claims_us: the duration of each that the candidate's process said directly after it; None: it did not know.
        empty_us: the shortest bracket of the calls of nothing, without such waits.
    """

    error_class: str = ""
    sub_class: str = ""
    text: str = ""
    max_error: float | None = None
    difference: float | None = None
    elements: int = 0
    calls: int = 0
    notes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    failure: str = ""
    brackets_us: tuple[float, ...] = ()
    waits_us: tuple[float, ...] = ()
    claims_us: tuple[float | None, ...] = ()
    empty_us: float = 0.0


def sentenced(outcome: RowOutcome, verdict: CourtVerdict | None, *, is_baseline: bool = False) -> RowOutcome:
    """Returns the outcome of a row; a candidate passes by the verdict alone, and never without an error.

    Args:
        outcome: what the process of the candidate says.
        verdict: what the court found; None without one.
        is_baseline: whether the reference itself was measured, so that nobody is judged.
    """
    said = Judgement.of(outcome)
    if said is None:
        return outcome
    if verdict is not None and verdict.failure and verdict.calls == 0 and said.passed:
        return outcome_of(ReplayError(verdict.failure), outcome.changed)
    if verdict is not None and verdict.difference is not None:
        said = replace(said, within_1e3=verdict.difference < LIMIT, max_error=verdict.max_error)
    notes = (*said.notes, *(verdict.notes if verdict is not None else ()))
    measurement = outcome.measurement
    # A process that failed says why its calls ended. That the results before were faked, or why there was no kernel to
    # time, is said by the court.
    found_wrong = "" if verdict is None or verdict.error_class == ErrorClass.PASS else verdict.error_class
    is_of_court = said.passed or said.sub_class == NoKernelLaunched.__name__
    if verdict is not None and found_wrong and (is_of_court or found_wrong == ErrorClass.HACK):
        found = ErrorClass(verdict.error_class), verdict.sub_class, verdict.text
    elif not said.passed:
        return replace(outcome, judged=said.judged)
    elif verdict is None or verdict.max_error is None:
        found = ErrorClass.CRASH, "no-verdict", "no result of the candidate was compared"
    elif not is_baseline and measurement is not None and (why := contradiction(measurement, verdict)):
        found = ErrorClass.HACK, "impossible-time", why
    else:
        return _passed(outcome, replace(said, notes=notes), verdict)
    error_class, sub_class, text = found
    refused = replace(
        said,
        error_class=error_class,
        sub_class=sub_class,
        text=text,
        level=Level.COMPILE,
        duration_us=None,
        kernel_share=None,
        notes=notes,
    )
    failed = failed_outcome(refused, is_baseline=is_baseline)
    return replace(failed, changed=outcome.changed, ends_process=outcome.ends_process)


def failed_outcome(
    judgement: Judgement, status: Status = Status.FAILED, detail: str = "", *, is_baseline: bool = False
) -> RowOutcome:
    """Returns the outcome of a judgement that does not pass; of a baseline nobody is judged: the task is at fault."""
    text = without_build_command(judgement.text)
    if is_baseline:
        return RowOutcome(status, f"the reference itself fails: {judgement.name}: {text}", detail)
    if judgement.notes:
        # They explain the verdict: a long text must not push them out of the cell.
        text = "; ".join((cut_middle(text, MOST_CHARACTERS // 2), *judgement.notes))
    return judgement.outcome(status, text, detail)


def _passed(outcome: RowOutcome, judgement: Judgement, verdict: CourtVerdict) -> RowOutcome:
    reason = "; ".join(filter(None, (outcome.reason, *verdict.notes)))
    measurement = outcome.measurement
    if measurement is not None:
        measurement = replace(
            measurement,
            checked_elements=verdict.elements,
            total_elements=verdict.elements,
            execution=replace(measurement.execution, max_error=verdict.max_error),
            assumptions=(*measurement.assumptions, *verdict.assumptions),
        )
        # Of a profile that is read later the samples are not known yet.
        judgement = replace(judgement, duration_us=median(measurement.samples_us) if measurement.samples_us else None)
    return replace(outcome, reason=reason, judged=judgement.judged, measurement=measurement)


def contradiction(measurement: Measurement, verdict: CourtVerdict) -> str:
    """Returns why the second clock contradicts durations; "" if it does not.

    The shortest bracket counts: what other processes do makes brackets longer, and a candidate cannot make one shorter
    than its work on inputs that it did not know.
    """
    durations_us = measurement.samples_us
    if wrong := [each for each in durations_us if not (math.isfinite(each) and each > 0)]:
        return f"a sample of {wrong[0]} us"
    # Its durations alone hold all that the caller waits for, so that a second clock can contradict them.
    if measurement.instrument != WallClock.name or not durations_us:
        return ""
    brackets = verdict.brackets_us[-len(durations_us) :]
    if len(brackets) < len(durations_us):
        return f"{len(durations_us)} durations of {len(brackets)} calls"
    claims = verdict.claims_us[-len(durations_us) :]
    for claimed, said in zip(durations_us, claims, strict=True):
        if said is not None and said != claimed:
            return f"a sample of {duration(said)} became one of {duration(claimed)} while later calls ran"
    if len(durations_us) >= _MANY and len(set(durations_us)) == 1:
        return f"all {len(durations_us)} samples are {duration(durations_us[0])}, beyond the step of any clock"
    for claimed, bracket in zip(durations_us, brackets, strict=True):
        if claimed > bracket:
            return f"a sample of {duration(claimed)} within {duration(bracket)} of the second clock"
    waits = verdict.waits_us[-len(durations_us) :]
    ran_us = min(bracket - wait for bracket, wait in zip(brackets, waits, strict=True))
    claim, took = median(durations_us), ran_us - verdict.empty_us
    constant = CONSTANT_US if len(durations_us) >= _MANY else _CONSTANT_OF_FEW_US
    if took > MULTIPLE * claim + constant + MORE_EMPTY * verdict.empty_us:
        return f"calls of {duration(claim)} took {duration(took)} and more by the second clock"
    return ""
