"""Runs rows of an NPU, or of a group of NPUs, in profiling sessions of msprof."""

from __future__ import annotations

import contextlib
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from opatlas.row.errors import DeviceGone
from opatlas.run.devices.device import DeviceDescription, DeviceSpec
from opatlas.run.devices.device_lock import DeviceWaits
from opatlas.run.group_spec import GroupSpec
from opatlas.run.groups.messages import RANK_PLACEHOLDER
from opatlas.run.groups.process import GroupProcess
from opatlas.run.instruments.attribution import ProfiledRow
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, RowOutcome
from opatlas.run.msprof.command import PARSE_TIMEOUT_S, msprof_command
from opatlas.run.msprof.pending import (
    clear_pending,
    complete_outcomes,
    expect_pending,
    folder_of_rank,
    record_pending,
)
from opatlas.run.process.device_process import DeviceProcess, Launcher
from opatlas.run.process.executor import Executor, run_job


@dataclass(frozen=True)
class SessionResult:
    """The outcomes of a session's jobs.

    Attributes:
        outcomes: outcomes of the jobs that ran, in their order, by the job's id.
        missing: jobs that ran, but have no samples in a summary.
    """

    outcomes: dict[int, RowOutcome]
    missing: list[Job]


class MsprofSession:
    """A profiling session: starts processes under msprof, runs jobs, and reads msprof's output.

    If a row kills the process or group, the session starts a new process or group under a new msprof in a new folder.
    """

    patience_s = PARSE_TIMEOUT_S
    _numbers = count(1)

    def __init__(
        self,
        process_of: Callable[[Launcher], Executor],
        settings: MeasureSettings,
        folder: Path,
        *,
        ranks: int = 0,
        keep_outputs: bool = False,
    ) -> None:
        """
        Args:
            process_of: creates the executor whose processes run under the given launcher.
            settings: how rows are measured.
            folder: folder for msprof's output.
            ranks: number of a group's ranks on this node; 0: a single process.
            keep_outputs: whether msprof's output is kept.
        """
        self._keep_outputs = keep_outputs
        self._settings = settings
        self._folder = folder
        self._ranks = ranks
        self._process = process_of(self)
        self._outputs: list[Path] = []

    def command(self, words: Sequence[str]) -> list[str]:
        """Returns the command that runs `words` under msprof. Raises DeviceGone if msprof is missing."""
        output = self._folder / f"{next(self._numbers):04d}"
        own = folder_of_rank(output, RANK_PLACEHOLDER) if self._ranks else output
        command = msprof_command(words, own, self._settings.aic_metrics)
        output.mkdir(parents=True)
        expect_pending(output)
        for rank in range(self._ranks):
            folder_of_rank(output, rank).mkdir()
        self._outputs.append(output)
        return command

    def describe(self) -> DeviceDescription:
        return self._process.describe()

    def run(self, jobs: Sequence[Job], enough: Callable[[RowOutcome], bool]) -> SessionResult:
        """Runs jobs, ends the process, and reads msprof's output.

        Args:
            jobs: the jobs.
            enough: called with each outcome; returns whether to stop.

        Raises:
            DeviceGone: no job could be run.
        """
        outcomes: dict[int, RowOutcome] = {}
        launched: dict[Path, list[Job]] = defaultdict(list)
        try:
            for job in jobs:
                outcome = run_job(self._process, job)
                if outcome.pending:
                    launched[self._outputs[-1]].append(job)
                    # On a full disk only this session can read the row, and no later session.
                    with contextlib.suppress(OSError):
                        record_pending(self._outputs[-1], job, outcome)
                outcomes[job.id] = outcome
                if enough(outcome):
                    break
        except DeviceGone:
            if not outcomes:
                raise
        finally:
            self._process.close()
        missing: list[Job] = []
        for output, its_jobs in launched.items():
            pending = [outcomes[job.id] for job in its_jobs]
            rows = [_profiled_row(job, outcome) for job, outcome in zip(its_jobs, pending, strict=True)]
            for job, read in zip(its_jobs, complete_outcomes(output, rows, pending), strict=True):
                outcomes[job.id] = read.outcome
                if read.is_missing:
                    missing.append(job)
        for output in self._outputs:
            clear_pending(output)
        self._remove_outputs(keep=bool(missing) or self._keep_outputs)
        return SessionResult(outcomes, missing)

    def close(self) -> None:
        """Ends a session that ran no job."""
        self._process.close()
        self._remove_outputs(keep=False)

    def _remove_outputs(self, keep: bool) -> None:
        if keep:
            return
        for output in self._outputs:
            shutil.rmtree(output, ignore_errors=True)
        for folder in (self._folder, *self._folder.parents[:2]):
            # Fails if another session or worker still uses the folder.
            with contextlib.suppress(OSError):
                folder.rmdir()


def _profiled_row(job: Job, outcome: RowOutcome) -> ProfiledRow:
    assert outcome.pending is not None
    return ProfiledRow(job.kernel_type, job.cells, outcome.pending)


#: Rows with missing samples run once more, in sessions smaller than the first session by this factor.
_SMALLER = 4


def msprof_on_device(
    spec: DeviceSpec, settings: MeasureSettings, folder: Path, waits: DeviceWaits | None = None
) -> MsprofExecutor:
    """Returns an executor for rows of one device under msprof.

    Args:
        spec: the device.
        settings: how rows are measured.
        folder: folder for msprof's output.
        waits: measures the waits for the device; None: the waits are only shown to the user.
    """
    return MsprofExecutor(
        lambda: MsprofSession(lambda launcher: DeviceProcess(spec, settings, launcher, waits), settings, folder)
    )


def msprof_on_group(
    spec: GroupSpec,
    devices: Sequence[DeviceSpec],
    settings: MeasureSettings,
    folder: Path,
    waits: DeviceWaits | None = None,
) -> MsprofExecutor:
    """Returns an executor for rows of a group; each rank on this node runs under its own msprof.

    Args:
        spec: the group.
        devices: devices of this node, one for each rank.
        settings, folder, waits: as in `msprof_on_device`.
    """

    def session() -> MsprofSession:
        return MsprofSession(
            lambda launcher: GroupProcess(spec, devices, settings, waits, launcher),
            settings,
            folder,
            ranks=spec.local_ranks,
        )

    # Other nodes do not know which samples are missing here, and all nodes must run the same rows.
    return MsprofExecutor(session, tries_again=spec.nnodes == 1)


class MsprofExecutor:
    """A BatchExecutor, because msprof writes its measurements when its processes have ended."""

    def __init__(self, session_of: Callable[[], MsprofSession], *, tries_again: bool = True) -> None:
        """
        Args:
            session_of: creates a session, whose processes are started on first use.
            tries_again: whether rows with missing samples run once more.
        """
        self._new_session = session_of
        self._tries_again = tries_again
        #: A session that was started to describe the device, and has run no job.
        self._session: MsprofSession | None = None
        self._description: DeviceDescription | None = None

    def describe(self) -> DeviceDescription:
        if self._description is None:
            self._session = self._new_session()
            self._description = self._session.describe()
        return self._description

    def prepare(self) -> None:
        # Opens the first session only; each later batch starts its own.
        self.describe()

    def run(self, job: Job) -> RowOutcome:
        return self.run_all([job], lambda outcome: True)[job.id]

    def run_all(self, jobs: Sequence[Job], enough: Callable[[RowOutcome], bool]) -> dict[int, RowOutcome]:
        session, self._session = self._session or self._new_session(), None

        def described(outcome: RowOutcome) -> bool:
            self._description = self._description or session.describe()
            return enough(outcome)

        result = session.run(jobs, described)
        outcomes = result.outcomes
        for smaller in _smaller(result.missing if self._tries_again else [], len(jobs)):
            try:
                again = self._new_session().run(smaller, lambda outcome: False)
            except DeviceGone:
                # The next row reports the missing device.
                break
            outcomes |= again.outcomes
        return outcomes

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _smaller(missing: Sequence[Job], rows: int) -> Iterator[Sequence[Job]]:
    """Yields the jobs of smaller sessions, each of one kernel type, because a kernel may damage a profile.

    Args:
        missing: jobs whose samples are missing.
        rows: number of rows of the session in which they are missing.
    """
    most = max(1, rows // _SMALLER)
    by_type: dict[str, list[Job]] = defaultdict(list)
    for job in missing:
        by_type[job.kernel_type].append(job)
    for jobs in by_type.values():
        for start in range(0, len(jobs), most):
            yield jobs[start : start + most]
