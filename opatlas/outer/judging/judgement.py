"""What was found of a candidate: the highest level that it passed, and the class of its error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from opatlas.row.columns import ERROR_CLASS, KERNEL_SHARE, LEVEL, MAX_ERROR, WITHIN_1E3
from opatlas.row.errors import ReplayError
from opatlas.row.status import Status
from opatlas.run.job import Judged, RowOutcome
from opatlas.text import Word

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
