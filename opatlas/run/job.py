"""Defines a job (one row to replay) and its outcome. Imports no torch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from opatlas.row.record import Measurement
from opatlas.row.status import Status
from opatlas.run.group_spec import GroupSpec
from opatlas.run.implementations.implementation import KernelSource
from opatlas.run.instruments.attribution import PendingSamples
from opatlas.text import cut_middle, printable, printable_lines

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
        subject: what the row is about besides its cells; None mostly.
        judge: what runs a job whose kernel is judged ("module:function", `ReplaySpec.judge`); "": nobody.
        log: a file for what a judged kernel writes on stderr, and for its current step; "" without one.
        language: the language that a judged kernel must have ("triton", "cuda"); "": any.
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
    subject: Subject | None = None
    judge: str = ""
    log: str = ""
    language: str = ""
    together: str = ""
    id: int = field(default_factory=itertools.count(1).__next__, compare=False)

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
