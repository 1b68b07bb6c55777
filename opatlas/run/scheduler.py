"""Defines the scheduler, which runs jobs and gives their outcomes: in turn here, and others made of those.

in this process   `InProcess` below (--in-process)
device processes  opatlas/run/process/device_process.py, also those of a group
under msprof      opatlas/run/msprof_sessions.py
on a cluster      opatlas/outer/cluster/dealer.py (Ray)
no device at all  `Profiles` below (--prof-path)
"""

from __future__ import annotations

import contextlib
import os
import pkgutil
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from opatlas.capture.profile_samples import ProfileMatcher
from opatlas.data.csv_files import write_text
from opatlas.errors import OpAtlasError
from opatlas.row.errors import DeviceGone, MissingPrecondition
from opatlas.row.location import UNNAMED_NPU
from opatlas.row.status import Status
from opatlas.row.versions import native_kind
from opatlas.run.devices.device import DeviceDescription, DeviceSpec, device_environment
from opatlas.run.devices.device_lock import LONGEST_WAIT_S, DeviceWaits
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, RowOutcome, outcome_of
from opatlas.text import exception_line

if TYPE_CHECKING:
    from opatlas.run.group_pool import GroupPool

_T = TypeVar("_T")


class Done(NamedTuple):
    """A job that has run.

    Attributes:
        outcome: its outcome. While `pending` is set its samples are still to come, with another Done.
        device: the device that it ran on.
    """

    job: Job
    outcome: RowOutcome
    device: DeviceDescription


class Scheduler(Protocol):
    """Runs jobs, each once, and begins them in the order in which they were submitted.

    Attributes:
        at_once: how many jobs are best submitted together: 1 where a job runs when its outcome is asked for.
    """

    at_once: int = 1

    @abstractmethod
    def describe(self) -> DeviceDescription:
        """Returns the device of the last job; opens one if necessary. Raises DeviceGone if that fails."""

    def begin(self) -> None:
        """Begins to start the process of the device, and does not wait for it."""
        return

    def prepare(self) -> None:
        """Opens the device if necessary, so that no job's deadline includes it. Raises DeviceGone if that fails."""
        return

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Takes a job, and does not wait."""

    @abstractmethod
    def completed(self, wanted: int | None = None) -> Iterator[Done]:
        """Yields outcomes as they arrive, until that of the job with the id `wanted`; None: those that are there.

        Raises:
            DeviceGone: no device can run the jobs that are left, which are forgotten.
        """

    @abstractmethod
    def cancel(self) -> Sequence[Job]:
        """Forgets the jobs that have not begun, and returns them. May be called while `completed` yields."""

    def release(self) -> None:
        """Lets the process of the device end, where no job runs, and does not wait for its end."""
        return

    def close(self) -> None:
        """Ends after the running jobs, and releases the device."""
        return

    def run(self, job: Job) -> RowOutcome:
        """Submits a job, and returns its outcome. Raises DeviceGone."""
        self.submit(job)
        return [done.outcome for done in self.completed(job.id) if done.job.id == job.id][-1]


class Queue(Scheduler):
    """Keeps the jobs that wait."""

    def __init__(self) -> None:
        self._waiting: deque[Job] = deque()

    def submit(self, job: Job) -> None:
        self._waiting.append(job)

    def cancel(self) -> Sequence[Job]:
        jobs, self._waiting = self._waiting, deque()
        return list(jobs)


class InTurn(Queue):
    """Runs one job after the other, when its outcome is asked for."""

    def completed(self, wanted: int | None = None) -> Iterator[Done]:
        while self._waiting and wanted is not None:
            job = self._waiting.popleft()
            try:
                outcome = self._judged(job) if job.judge else self._outcome(job)
            except DeviceGone:
                self.cancel()
                raise
            yield Done(job, outcome, self.describe())
            if job.id == wanted:
                return

    def _judged(self, job: Job) -> RowOutcome:
        judge: Callable[[Callable[[Job], RowOutcome], Job, str], RowOutcome] = pkgutil.resolve_name(job.judge)
        return judge(self._outcome, job, job.language)

    def _outcome(self, job: Job) -> RowOutcome:
        try:
            return self._run(job)
        except DeviceGone:
            raise
        except OpAtlasError as error:
            return outcome_of(error)

    @abstractmethod
    def _run(self, job: Job) -> RowOutcome:
        """Runs a job to its end or deadline. Raises ReplayError, and DeviceGone if no device can run it."""


class InProcess(InTurn):
    """Runs jobs in this process, for debuggers and profilers. Most exceptions of a replay are raised unchanged."""

    def __init__(self, spec: DeviceSpec, settings: MeasureSettings, waits: DeviceWaits) -> None:
        """Opens the device. Imports torch. Raises DeviceGone if the device cannot be opened."""
        super().__init__()
        self._waits = waits
        os.environ.update(device_environment(spec))
        try:
            from opatlas.run.runner import Runner

            self._runner = Runner(spec, settings)
        except OpAtlasError as error:
            raise DeviceGone(str(error)) from None
        except Exception as error:
            # torch is missing, or its runtime refuses the device.
            raise DeviceGone(f"{spec} cannot be opened: {exception_line(error)}") from error

    def describe(self) -> DeviceDescription:
        return self._runner.describe()

    def _outcome(self, job: Job) -> RowOutcome:
        try:
            return self._run(job)
        except DeviceGone:
            raise
        except Exception as error:
            outcome = outcome_of(error)
            if outcome.status in (Status.UNSUPPORTED, Status.SKIPPED):
                # The device caused the error, so a debugger does not help. A refused row may be an error of the replay.
                return outcome
            raise

    def _run(self, job: Job) -> RowOutcome:
        if job.group is not None:
            raise MissingPrecondition(f"needs a {job.group}, but --in-process is one process: omit the option")
        with self._waits, self._runner.device.locked(self._waits.begin, self._waits.end, LONGEST_WAIT_S):
            return self._runner.run_raising(job)


class Profiles(InTurn):
    """Looks jobs up in profiles that exist, without a device, a process or torch."""

    def __init__(self, samples: ProfileMatcher, device: str) -> None:
        """`device` is the name of the profiled device; "" if it is not known."""
        super().__init__()
        self._samples = samples
        profile = samples.profile
        facts: dict[str, str | int | float] = {
            "profile": profile.root.name,
            "summaries": len(profile.files),
            "launches": profile.account.ingested,
        }
        self._description = DeviceDescription(device or UNNAMED_NPU, facts, kind=native_kind().name)

    def describe(self) -> DeviceDescription:
        """Returns facts about the profile."""
        return self._description

    def _run(self, job: Job) -> RowOutcome:
        found = self._samples.of_row(job.kernel_type, job.cells)
        if isinstance(found, str):
            raise MissingPrecondition(found)
        return RowOutcome(Status.MEASURED, found.remark, measurement=found.measurement)


class Relay(Queue):
    """Hands each job to a scheduler that suits it; one of them is open at a time."""

    def __init__(self) -> None:
        super().__init__()
        #: Jobs that the current scheduler has, by id.
        self._given: dict[int, Job] = {}
        self._current: Scheduler | None = None

    def completed(self, wanted: int | None = None) -> Iterator[Done]:
        while self._given or (self._waiting and wanted is not None):
            if not self._given:
                first = self._waiting[0]
                try:
                    self._choose(first)
                except DeviceGone:
                    self.cancel()
                    raise
                except OpAtlasError as error:
                    yield self._refused(error)
                    if first.id == wanted:
                        return
                    continue
            is_done = wanted is None
            try:
                # To its end: a batch has rows behind the wanted one.
                for done in self._hand_on(wanted):
                    is_done |= done.job.id == wanted and done.outcome.pending is None
                    yield self._changed(done)
            except DeviceGone as error:
                self._waiting.extendleft(reversed(self._given.values()))
                self._given.clear()
                self._close_current()
                if self._gives_up(error):
                    refused = self._refused(error)
                    is_done |= refused.job.id == wanted
                    yield refused
            except GeneratorExit:
                raise
            except BaseException:
                # The wait was interrupted, and the scheduler has forgotten its jobs.
                self._given.clear()
                raise
            if is_done:
                return

    def _hand_on(self, wanted: int | None) -> Iterator[Done]:
        """Gives the current scheduler the next jobs that it may run, and yields what it yields."""
        current = self._current
        assert current is not None
        while self._waiting and self._suits(self._waiting[0]):
            job = self._waiting.popleft()
            self._given[job.id] = job
            current.submit(job)
        until = wanted if wanted is None or wanted in self._given else next(reversed(self._given), None)
        for done in current.completed(until):
            if done.outcome.pending is None:
                self._given.pop(done.job.id, None)
            yield done

    def _refused(self, error: OpAtlasError) -> Done:
        """Takes the first job that waits, which nothing can run."""
        return Done(self._waiting.popleft(), outcome_of(error), self.describe())

    def cancel(self) -> Sequence[Job]:
        given = self._current.cancel() if self._current is not None else ()
        for job in given:
            self._given.pop(job.id, None)
        return [*given, *super().cancel()]

    def release(self) -> None:
        if self._current is not None:
            self._current.release()

    def close(self) -> None:
        self._close_current()

    def _close_current(self) -> None:
        if self._current is not None:
            self._current.close()
            self._current = None

    @abstractmethod
    def _choose(self, job: Job) -> None:
        """Makes `_current` suit a job, while it has no other. Raises ReplayError where none can; DeviceGone."""

    def _suits(self, job: Job) -> bool:
        """Returns whether the current scheduler may run a job."""
        return True

    def _changed(self, done: Done) -> Done:
        """Returns a job that has run, as the caller gets it."""
        return done

    def _gives_up(self, error: DeviceGone) -> bool:
        """Takes note that the current scheduler has ended; returns whether its first job has no other. May raise it."""
        self.cancel()
        raise error


class ExcludedDevices:
    """The devices that a session no longer uses, with reasons. Its processes share them in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reasons: dict[int, str] = {}

    def add(self, spec: DeviceSpec, reason: str) -> None:
        """Excludes a device from now on."""
        self._reasons[spec.index] = reason
        # If the disk is full, the other processes detect the failure of the device themselves.
        with contextlib.suppress(OpAtlasError):
            write_text(self._file(spec.index), reason)

    def reason(self, spec: DeviceSpec) -> str | None:
        """Returns why a device is excluded; None for a device that is not excluded."""
        if spec.index not in self._reasons and self._file(spec.index).exists():
            self._reasons[spec.index] = self._file(spec.index).read_text(encoding="utf-8")
        return self._reasons.get(spec.index)

    def _file(self, index: int) -> Path:
        return self._folder / f"left-out-{index}"


class OnDevices(Relay):
    """Uses its first device, and after its failure the next one."""

    def __init__(
        self,
        specs: Sequence[DeviceSpec],
        scheduler_of: Callable[[DeviceSpec], Scheduler],
        excluded: ExcludedDevices,
        at_once: int = 1,
    ) -> None:
        """
        Args:
            specs: the devices; the first one is preferred.
            scheduler_of: makes the scheduler of a device, which opens the device on first use.
            excluded: the excluded devices, shared by all processes of the session.
        """
        super().__init__()
        self.at_once = at_once
        self._specs = specs
        self._scheduler_of = scheduler_of
        self._excluded = excluded
        self._spec = specs[0]

    def describe(self) -> DeviceDescription:
        return self._on_a_device(lambda scheduler: scheduler.describe())

    def begin(self) -> None:
        # That no device is left is reported when one is needed.
        with contextlib.suppress(DeviceGone):
            self._opened().begin()

    def prepare(self) -> None:
        self._on_a_device(lambda scheduler: scheduler.prepare())

    def _on_a_device(self, use: Callable[[Scheduler], _T]) -> _T:
        """Applies `use` to the scheduler of a working device. Raises DeviceGone if no device is left."""
        while True:
            try:
                return use(self._opened())
            except DeviceGone as error:
                if self._current is None:
                    raise
                self._close_current()
                self._gives_up(error)

    def _opened(self) -> Scheduler:
        if self._current is None:
            spec = next((spec for spec in self._specs if self._excluded.reason(spec) is None), None)
            if spec is None:
                reasons = dict.fromkeys(self._excluded.reason(spec) or "" for spec in self._specs)
                raise DeviceGone(("no device is left: " if len(self._specs) > 1 else "") + "; ".join(reasons))
            self._spec, self._current = spec, self._scheduler_of(spec)
        return self._current

    def _choose(self, job: Job) -> None:
        self._opened()

    def _gives_up(self, error: DeviceGone) -> bool:
        # The job has not run: another device may.
        self._excluded.add(self._spec, str(error))
        return False


class SingleOrGroup(Relay):
    """Runs jobs of one device and jobs of groups, and closes one scheduler before it opens the other."""

    def __init__(self, single: Scheduler, groups: GroupPool) -> None:
        super().__init__()
        self.at_once = single.at_once
        self._single = single
        self._groups = groups
        self._current: Scheduler = single

    def describe(self) -> DeviceDescription:
        return self._current.describe()

    def begin(self) -> None:
        self._current.begin()

    def prepare(self) -> None:
        self._current.prepare()

    def _choose(self, job: Job) -> None:
        if job.group is not None and (reason := self._groups.shortage(job.group)):
            raise MissingPrecondition(reason)
        chosen = self._single if job.group is None else self._groups
        if chosen is not self._current:
            self._current.close()
            self._current = chosen

    def _suits(self, job: Job) -> bool:
        return (job.group is None) == (self._current is self._single)

    def _close_current(self) -> None:
        self._current.close()
