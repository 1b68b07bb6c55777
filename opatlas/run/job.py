"""A job (one row to replay), its outcome, and the one place where what became of a job gets its status: `outcome_of`.

Whatever runs jobs raises: an error of the row (opatlas/row/errors.py), of the device, of a library, or one of those
below about its process. Imports no torch.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import traceback
import unittest
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from opatlas.row.errors import MissingPrecondition, ReplayError, Unsupported
from opatlas.row.record import Measurement
from opatlas.row.status import Status
from opatlas.run.devices.device import device_kinds
from opatlas.run.devices.fatal_errors import fatal_device_error, is_out_of_memory
from opatlas.run.group import GroupSpec
from opatlas.run.implementation import KernelSource
from opatlas.run.instruments.attribution import (
    AnotherCase,
    NoSamples,
    OwnKernel,
    PendingSamples,
    ProfiledSamples,
    own_kernel,
    whole_call,
)
from opatlas.text import cut_middle, exception_line, exception_message, printable, printable_lines

#: The longest reason: it becomes a cell of a CSV and a line on the terminal.
MOST_CHARACTERS = 1_000
#: The longest detail of a failure, such as a traceback whose message has megabytes.
MOST_CHARACTERS_OF_DETAIL = 100_000


class Subject(Protocol):
    """What a row is about besides its cells, such as a file with a task. Only its replay knows more of it."""

    @property
    def digest(self) -> str:
        """A digest of the files that it reads."""

    @property
    def is_unchanged(self) -> bool:
        """Whether these files are here, and as they were when the session began, on this host or on another."""


_next_id = itertools.count(1).__next__


@dataclass(frozen=True)
class Against:
    """The baseline with which the kernel of a row takes turns.

    Attributes:
        source: its implementation; None: torch, or the NPU's call.
        control: whether each round has the baseline twice.
    """

    source: KernelSource | None = None
    control: bool = False

    @property
    def calls(self) -> int:
        """The number of calls of a round, each of which may take the time of a row."""
        return 2 + self.control


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
        subject: what the row is about besides its cells; None mostly.
        judge: what runs a job whose kernel is judged ("module:function", `ReplaySpec.judge`); "": nobody.
        log: a file for what a judged kernel writes on stderr, and for its current step; "" without one.
        court: folder with the address of the process that makes the inputs of a judged kernel and compares its results;
            "": the process of the kernel does.
        language: the language that a judged kernel must have ("triton", "cuda"); "": any.
        together: jobs with the same text run on the same device, so that their durations compare; "": on any.
        against: the baseline to compare with; None: the kernel is measured alone.
        elsewhere: whether the job runs in another process than the others, whose memory lies elsewhere.
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
    subject: Subject | None = None
    judge: str = ""
    log: str = ""
    court: str = ""
    language: str = ""
    together: str = ""
    against: Against | None = None
    elsewhere: bool = False
    id: int = field(default_factory=_next_id, compare=False)

    def again_elsewhere(self) -> Job:
        """Returns a new job that compares the same kernel with its baseline in another process, without a control."""
        assert self.against is not None
        return replace(self, against=replace(self.against, control=False), elsewhere=True, id=_next_id())

    def without_baseline(self) -> Job:
        """Returns a new job that measures the same kernel alone."""
        assert self.against is not None
        return replace(self, against=None, timeout_s=self.timeout_s / self.against.calls, id=_next_id())

    @property
    def is_alone(self) -> bool:
        """Whether its process runs no further row, whatever the kernel makes it say: one that is judged on a task."""
        return bool(self.court) and self.subject is not None

    @property
    def phase_file(self) -> str:
        """The file that names the step of a judged kernel, next to its log."""
        return f"{self.log}.phase"


@dataclass(frozen=True)
class Judged:
    """What was found of a kernel that is judged.

    Attributes:
        cells: the cells of the row that tell it.
        passed: whether the kernel is right and was measured.
        details: numbers and texts for who judges, which nobody else reads.
    """

    cells: Mapping[str, str]
    passed: bool
    details: Mapping[str, Any]


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
        judged: what was found of the kernel, where kernels are judged; None if the row does not get so far.
        ends_process: whether the kernel may have done anything to its process, which runs no further row.
    """

    status: Status
    reason: str = ""
    detail: str = ""
    measurement: Measurement | None = None
    pending: PendingSamples | None = None
    changed: tuple[str, ...] = ()
    judged: Judged | None = None
    ends_process: bool = False
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


#: Means operators that could not be counted.
REST = "..."
#: Maximum number of operator names in a cell.
_MOST_NAMES = 4


def describe_stand_in(operators: Sequence[str], device_kernels: int | None) -> str:
    """Describes a composition of operators that is timed in place of a kernel; "" for one operator or device kernel.

    A kernel type is one kernel on Ascend. On other devices several operators of torch may replace the kernel; their
    time is not an estimate of a fused kernel's time.

    Args:
        operators: names of the called operators in their order; none if the kernel bypasses torch.
        device_kernels: number of device kernels of the call; None: unknown.
    """
    if len(operators) <= 1:
        return ""
    names = list(dict.fromkeys(operators))
    if len(names) > _MOST_NAMES:
        names[_MOST_NAMES:] = [REST]
    least = "at least " if operators[-1] == REST else ""
    text = f"composition of {least}{len(operators)} torch operators ({', '.join(names)})"
    return text if device_kernels is None else add_device_kernels(text, device_kernels)


def add_device_kernels(text: str, device_kernels: int) -> str:
    """Adds the number of device kernels to a description by `describe_stand_in`."""
    return f"{text}, {device_kernels} device kernels" if text and device_kernels != 1 else ""


#: Longest searched part of an exception's message, because searching megabytes takes seconds.
_MOST_CHARACTERS = 100_000


def error_text(error: BaseException) -> str:
    """Returns type and message of an exception and of all its causes, the oldest first.

    The members of an exception group count as its causes.
    """
    texts: list[str] = []
    seen: set[int] = set()
    # Visited from the newest to the oldest, without recursion, because groups and causes may be nested to any depth.
    links: list[BaseException | None] = [error]
    while links:
        link = links.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        text = "".join(traceback.format_exception_only(type(link), link))
        texts.append(cut_middle(text, _MOST_CHARACTERS))
        links.append(link.__cause__ or (None if link.__suppress_context__ else link.__context__))
        # By attribute, because Python 3.10 has no type ExceptionGroup.
        members = getattr(link, "exceptions", ())
        links += [each for each in members if isinstance(each, BaseException)] if isinstance(members, tuple) else []
    return "".join(reversed(texts))


#: The folder whose frames a traceback leaves out.
_ENGINE = str(Path(__file__).parent) + os.sep

#: torch's messages for an unsupported dtype; some operators raise a plain RuntimeError for it.
_NOT_IMPLEMENTED = re.compile(r"not implemented for '|bool.* not supported|not support bool", re.IGNORECASE)


class ProcessDied(ReplayError):
    """The process that ran the row ended, or its connection is of no use.

    Attributes:
        exit_code: below 0 for a signal; None if it is not known.
    """

    status = Status.CRASHED

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class RanTooLong(ReplayError):
    """The row still ran at its deadline."""

    status = Status.TIMEOUT


class GroupGone(ReplayError):
    """The group that the row needs did not start."""

    status = Status.DEVICE_ERROR


def outcome_of(error: BaseException, changed: tuple[str, ...] = ()) -> RowOutcome:
    """Returns the outcome of a job that raised an exception. KeyboardInterrupt and SystemExit are raised again.

    Args:
        changed: changes of the process's state by rows.
    """
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
    status, reason, detail = _status_of(error)
    code = error.exit_code if isinstance(error, ProcessDied) else None
    return RowOutcome(status, reason, detail, changed=changed, exit_code=code)


def _status_of(error: BaseException) -> tuple[Status, str, str]:
    """Returns status, reason and detail."""
    if isinstance(error, ReplayError):
        return error.status, exception_message(error), ""
    reason, text = exception_line(error), error_text(error)
    if is_out_of_memory(text):
        return Status.OOM, reason, ""
    detail = user_traceback(error)
    if poison := fatal_device_error(text):
        return Status.DEVICE_ERROR, f"{poison}: {reason}", detail
    if lacking := next(filter(None, (kind.error_of(text) for kind in device_kinds().values())), None):
        return lacking.status, str(lacking), detail
    if isinstance(error, NotImplementedError) or _NOT_IMPLEMENTED.search(reason):
        return Status.UNSUPPORTED, reason, detail
    return Status.FAILED, reason, detail


def user_traceback(error: BaseException) -> str:
    """Returns a traceback without the frames of the engine, except the frame that raised the exception."""
    formatted = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = formatted
    while link is not None:
        link.stack[:-1] = [frame for frame in link.stack[:-1] if not frame.filename.startswith(_ENGINE)]
        link = link.__cause__ or link.__context__
    return "".join(formatted.format())


@contextmanager
def translated_pytest_exceptions() -> Iterator[None]:
    """Translates pytest's exceptions in the body of a replay into errors of the row.

    Raises:
        MissingPrecondition: the body called `pytest.skip` or raised `unittest.SkipTest`.
        ReplayError: the body called `pytest.xfail`.
    """
    try:
        yield
    except BaseException as error:
        # If pytest is not imported, the exception is not one of pytest's.
        pytest = sys.modules.get("pytest")
        if isinstance(error, unittest.SkipTest) or (pytest and isinstance(error, pytest.skip.Exception)):
            raise MissingPrecondition(exception_message(error) or "skipped by the replay, without a reason") from error
        if pytest and isinstance(error, pytest.xfail.Exception):
            raise ReplayError(
                f"pytest.xfail({exception_message(error)!r}): a replay cannot expect to fail; call pytest.skip where "
                "the row cannot run, and raise an exception where it should"
            ) from error
        raise


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
        return outcome_of(ReplayError(reason), outcome.changed)
    if isinstance(own, AnotherCase):
        return outcome_of(Unsupported(own.reason), outcome.changed)
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
