"""Defines a job (one row to replay) and its outcome, which the samples of a profile complete. Imports no torch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from opatlas.outer.candidates.judgement import ErrorClass, Judgement
from opatlas.outer.tasks.task import Task
from opatlas.row.columns import SAMPLE
from opatlas.row.record import Measurement
from opatlas.row.status import Status
from opatlas.run.group_spec import GroupSpec
from opatlas.run.implementations.contract import KernelSource
from opatlas.run.instruments.attribution import (
    AnotherCase,
    NoSamples,
    OwnKernel,
    PendingSamples,
    ProfiledSamples,
    own_kernel,
    whole_call,
)
from opatlas.run.stand_in import add_device_kernels
from opatlas.text import cut_middle, printable, printable_lines

#: The longest reason: it becomes a cell of a CSV and a line on the terminal.
MOST_CHARACTERS = 1_000
#: The longest detail of a failure, such as a traceback whose message has megabytes.
MOST_CHARACTERS_OF_DETAIL = 100_000


@dataclass(frozen=True)
class Job:
    """One row to replay.

    Attributes:
        module, module_path, function: the replay function; the module is imported by name, or else from the path.
        kernel_type, cells: the row.
        timeout_s: longest time from the job's start to its outcome, in seconds.
        group: the group of devices that the row needs; None: one device.
        instrument: name of the instrument that measured the stored duration and must measure the new duration; "": any.
        source: the implementation of the kernel that is timed; None: torch, or the NPU's call.
        database: folder of the database that the result belongs to; "": that of the session's first implementation.
        task: the task of the row; None for a row of no task.
        log: a file for the output of a candidate on stderr, and for its current step; "" without one.
        language: the language whose kernels a candidate must have ("triton", "cuda"); "": any.
        together: jobs with the same text run on the same device, so that their durations compare; "": on any.
        id: number of the job among all jobs of the process that created the job; each answer contains the number.
    """

    module: str
    module_path: str
    function: str
    kernel_type: str
    cells: Mapping[str, str]
    timeout_s: float
    group: GroupSpec | None = None
    instrument: str = ""
    source: KernelSource | None = None
    database: str = ""
    task: Task | None = None
    log: str = ""
    language: str = ""
    together: str = ""
    id: int = field(default_factory=itertools.count(1).__next__, compare=False)

    @property
    def phase_file(self) -> str:
        """The file that names the step of a candidate, next to its log."""
        return f"{self.log}.phase"

    @property
    def is_of_candidate(self) -> bool:
        """Whether a kernel in a user's file is judged: for a task, or for an operator of a suite."""
        is_judged = self.task is not None or SAMPLE in self.cells
        return is_judged and self.source is not None and not self.source.module

    def ends_process(self, outcome: RowOutcome) -> bool:
        """Returns whether the process of the job runs no further one.

        A candidate for a task may do anything to its process. The thousands of cases of a suite share a process until
        a guard objects.
        """
        is_hack = outcome.judgement is not None and outcome.judgement.error_class is ErrorClass.HACK
        return bool(outcome.changed) or (self.is_of_candidate and (self.task is not None or is_hack))


@dataclass(frozen=True)
class RowOutcome:
    """The outcome of a job.

    Attributes:
        status, reason: fields of the record; the reason becomes one printable line.
        detail: a traceback for the user, printable; "" if the reason is enough.
        measurement: set if and only if the status is measured.
        pending: identifies the measurement's samples in a profile; None as soon as the measurement has samples.
        changed: changes of the process's state by rows ("changed torch threads 2 -> 1"); this process runs no
            further row.
        exit_code: the exit code of a process that died, below 0 for a signal; None otherwise.
        judgement: the judgement of the candidate of a task or an operator; None if the row does not get so far.
    """

    status: Status
    reason: str = ""
    detail: str = ""
    measurement: Measurement | None = None
    pending: PendingSamples | None = None
    changed: tuple[str, ...] = ()
    judgement: Judgement | None = None
    exit_code: int | None = None

    @property
    def explanation(self) -> str:
        """Returns the reason and the changes, for the row's Status Reason."""
        return _reason_text("; ".join(filter(None, (self.reason, *self.changed))))

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", _reason_text(self.reason))
        object.__setattr__(self, "detail", _detail_text(self.detail))


def _reason_text(text: str) -> str:
    """Returns one printable line of at most MOST_CHARACTERS; a longer text ends with an ellipsis."""
    # Cut before escaping: megabytes of text take seconds to escape.
    text = printable(" ".join(text[: MOST_CHARACTERS + 1].splitlines()))
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def _detail_text(text: str) -> str:
    """Returns printable lines of at most MOST_CHARACTERS_OF_DETAIL characters; a longer text loses its middle."""
    text = cut_middle(text, MOST_CHARACTERS_OF_DETAIL)
    return cut_middle(printable_lines(text), MOST_CHARACTERS_OF_DETAIL)


def add_profiled_samples(
    outcome: RowOutcome, kernel_type: str, cells: Mapping[str, str], found: ProfiledSamples | NoSamples
) -> RowOutcome:
    """Completes an outcome with the samples in a profile.

    Args:
        outcome: the outcome with pending samples.
        kernel_type, cells: the row.
        found: the row's samples in the profile.
    """
    assert outcome.measurement is not None
    execution = outcome.measurement.execution
    own: OwnKernel | AnotherCase | NoSamples
    if isinstance(found, NoSamples):
        own = found
    else:
        own = whole_call(found) if execution.is_library else own_kernel(kernel_type, cells, found)
    if isinstance(own, NoSamples):
        reason = f"launched and right, but not measured: {own.reason}"
        return RowOutcome(Status.FAILED, reason, changed=outcome.changed)
    if isinstance(own, AnotherCase):
        return RowOutcome(Status.UNSUPPORTED, own.reason, changed=outcome.changed)
    measurement = replace(
        outcome.measurement,
        samples_us=own.durations_us,
        device_kernels=own.device_kernels,
        helper_kernels=own.helper_kernels,
        stand_in=add_device_kernels(outcome.measurement.stand_in, own.device_kernels),
        ran_as=own.ran_as,
        execution=replace(execution, kernel_names=own.kernel_names),
        counters=own.counters,
        assumptions=(*outcome.measurement.assumptions, *own.assumptions),
    )
    return replace(outcome, measurement=measurement, pending=None)
