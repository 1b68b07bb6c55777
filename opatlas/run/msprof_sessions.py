"""Runs rows of an NPU, or of a group of NPUs, in profiling sessions of msprof: its command lines, and its scheduler."""

from __future__ import annotations

import contextlib
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

from opatlas.grouping import grouped
from opatlas.row.errors import DeviceGone
from opatlas.run.devices.device import DeviceDescription
from opatlas.run.group import GroupSpec
from opatlas.run.instruments.attribution import ProfiledRow
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, RowOutcome
from opatlas.run.msprof_output import PARSE_TIMEOUT_S, complete_outcomes, folder_of_rank, msprof_executable
from opatlas.run.process.child import Launcher
from opatlas.run.process.messages import RANK_PLACEHOLDER
from opatlas.run.scheduler import Done, Queue, Scheduler

#: Groups of hardware counters for msprof's `--aic-metrics`; a run records one group.
METRICS = (
    "PipeUtilization",
    "ArithmeticUtilization",
    "Memory",
    "MemoryL0",
    "MemoryUB",
    "ResourceConflictRatio",
    "L2Cache",
    "MemoryAccess",
)
#: The most rows of a profiling session. A profile of so many rows is parsed in seconds; the start of the next process
#: takes some twenty.
SESSION_ROWS = 200
#: Characters that msprof refuses in the value of --output, and the maximum length of the value.
_REFUSED = frozenset("'\"\\%><|&$;`")
_LONGEST = 1024
#: Length of paths below a folder for profiles: run, worker, number, and msprof's PROF_{number}_{time}_{hash}.
_BELOW = 128


def accepts_profiles(folder: Path) -> bool:
    """Returns whether msprof can write below a folder. msprof refuses long paths and some characters."""
    text = str(folder.absolute())
    return not _REFUSED & set(text) and len(text) + _BELOW <= _LONGEST


def msprof_command(words: Sequence[str], output: Path, metrics: str) -> list[str]:
    """Returns the command that runs `words` under msprof.

    Args:
        words: the profiled command.
        output: folder for the profile.
        metrics: one of `METRICS`.

    Raises:
        DeviceGone: msprof is missing, or refuses the path of `output`.
    """
    if not accepts_profiles(output.parent):
        raise DeviceGone(
            f"msprof refuses {output}: the path may have at most {_LONGEST} characters, and none of "
            f"{' '.join(sorted(_REFUSED))}; set TMPDIR to another folder"
        )
    return [
        msprof_executable(),
        f"--output={output}",
        "--ai-core=on",
        "--aic-mode=task-based",
        f"--aic-metrics={metrics}",
        # Levels l0 and off record neither shapes nor counters.
        "--task-time=l1",
        "--type=text",
        # For msprof the application is the first word that does not begin with --.
        *words,
    ]


class MsprofSession:
    """A profiling session: starts processes under msprof, runs jobs, and reads msprof's output.

    If a row kills the process or group, the session starts a new process or group under a new msprof in a new folder.

    Attributes:
        process: the scheduler of the processes. msprof writes its output when the process is closed.
    """

    patience_s = PARSE_TIMEOUT_S
    _numbers = count(1)

    def __init__(
        self, process_of: Callable[[Launcher], Scheduler], settings: MeasureSettings, folder: Path, ranks: int = 0
    ) -> None:
        """
        Args:
            process_of: creates the scheduler whose processes run under the given launcher.
            settings: how rows are measured.
            folder: folder for msprof's output.
            ranks: number of a group's ranks on this node; 0: a single process.
        """
        self._settings = settings
        self._folder = folder
        self._ranks = ranks
        self.process = process_of(self)
        self._outputs: list[Path] = []
        #: Jobs that ran and whose samples are pending, by the output of their process.
        self._launched: dict[Path, list[tuple[Job, RowOutcome]]] = defaultdict(list)

    def command(self, words: Sequence[str]) -> list[str]:
        """Returns the command that runs `words` under msprof. Raises DeviceGone if msprof is missing."""
        output = self._folder / f"{next(self._numbers):04d}"
        own = folder_of_rank(output, RANK_PLACEHOLDER) if self._ranks else output
        command = msprof_command(words, own, self._settings.aic_metrics)
        output.mkdir(parents=True)
        for rank in range(self._ranks):
            folder_of_rank(output, rank).mkdir()
        self._outputs.append(output)
        return command

    def launch(self, job: Job) -> RowOutcome:
        """Runs a job, whose samples may be pending. Raises DeviceGone."""
        outcome = self.process.run(job)
        if outcome.pending:
            self._launched[self._outputs[-1]].append((job, outcome))
        return outcome

    def read(self) -> tuple[list[tuple[Job, RowOutcome]], list[Job]]:
        """Reads msprof's output of the ended process.

        Returns:
            The outcomes of the jobs whose samples were pending, and the jobs that have no samples in a summary.
        """
        found: list[tuple[Job, RowOutcome]] = []
        missing: list[Job] = []
        for output, launched in self._launched.items():
            rows = [
                ProfiledRow(job.kernel_type, job.cells, outcome.pending) for job, outcome in launched if outcome.pending
            ]
            completed = complete_outcomes(output, rows, [outcome for _, outcome in launched])
            for (job, _), read in zip(launched, completed, strict=True):
                found.append((job, read.outcome))
                if read.is_missing:
                    missing.append(job)
        if not missing:
            self._remove_outputs()
        return found, missing

    def close(self) -> None:
        """Ends a session that ran no job."""
        self.process.close()
        self._remove_outputs()

    def _remove_outputs(self) -> None:
        for output in self._outputs:
            shutil.rmtree(output, ignore_errors=True)
        for folder in (self._folder, *self._folder.parents[:2]):
            # Fails if another session or worker still uses the folder.
            with contextlib.suppress(OSError):
                folder.rmdir()


#: Rows with missing samples run once more, in sessions smaller than the first session by this factor.
_SMALLER = 4


class MsprofBatches(Queue):
    """Runs the jobs that wait in one profiling session: msprof writes its measurements when its processes have ended.

    Each correct row is done twice: when it ran, and when its samples are read.
    """

    at_once = SESSION_ROWS

    def __init__(
        self,
        process_of: Callable[[Launcher], Scheduler],
        settings: MeasureSettings,
        folder: Path,
        group: GroupSpec | None = None,
    ) -> None:
        """
        Args:
            process_of, settings, folder: as in `MsprofSession`.
            group: the group, whose ranks on this node run each under an msprof of its own; None: rows of one device.
        """
        super().__init__()
        ranks = group.local_ranks if group is not None else 0
        self._new_session = lambda: MsprofSession(process_of, settings, folder, ranks)
        # Other nodes do not know which samples are missing here, and all nodes must run the same rows.
        self._tries_again = group is None or group.nnodes == 1
        #: A session that was started to describe the device, and has run no job.
        self._session: MsprofSession | None = None
        self._description: DeviceDescription | None = None

    def describe(self) -> DeviceDescription:
        if self._description is None:
            self._session = self._session or self._new_session()
            self._description = self._session.process.describe()
        return self._description

    def begin(self) -> None:
        self._session = self._session or self._new_session()
        self._session.process.begin()

    def prepare(self) -> None:
        # Opens the first session only; each later batch starts its own.
        self.describe()

    def completed(self, wanted: int | None = None) -> Iterator[Done]:
        while self._waiting and wanted is not None:
            session, self._session = self._session or self._new_session(), None
            launched = 0
            try:
                while self._waiting:
                    job = self._waiting.popleft()
                    try:
                        outcome = session.launch(job)
                    except DeviceGone:
                        if not launched:
                            self.cancel()
                            raise
                        # The next session reports the missing device.
                        self._waiting.appendleft(job)
                        break
                    launched += 1
                    self._description = self._description or session.process.describe()
                    yield Done(job, outcome, self.describe())
                    if outcome.pending is None and job.id == wanted:
                        wanted = None
            finally:
                session.process.close()
            found, missing = session.read()
            again = self._try_again(missing, launched) if self._tries_again else {}
            for job, outcome in found:
                yield Done(job, again.get(job.id, outcome), self.describe())
                if job.id == wanted:
                    wanted = None

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _try_again(self, missing: Sequence[Job], rows: int) -> dict[int, RowOutcome]:
        """Runs jobs whose samples are missing once more, in smaller sessions, and returns the new outcomes."""
        again: dict[int, RowOutcome] = {}
        for jobs in _smaller(missing, rows):
            session = self._new_session()
            try:
                again |= {job.id: session.launch(job) for job in jobs}
            except DeviceGone:
                # The next row reports the missing device.
                return again
            finally:
                session.process.close()
            again |= {job.id: outcome for job, outcome in session.read()[0]}
        return again


def _smaller(missing: Sequence[Job], rows: int) -> Iterator[Sequence[Job]]:
    """Yields the jobs of smaller sessions, each of one kernel type, because a kernel may damage a profile.

    Args:
        missing: jobs whose samples are missing.
        rows: number of rows of the session in which they are missing.
    """
    most = max(1, rows // _SMALLER)
    for jobs in grouped((job.kernel_type, job) for job in missing).values():
        for start in range(0, len(jobs), most):
            yield jobs[start : start + most]
