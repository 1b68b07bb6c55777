"""What every scheduler promises: order, deadline, crash, cancel, Ctrl-C, a lost device, one outcome for each job."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import odd_device
import pytest

from opatlas.outer.cluster.dealer import Dealer, DeviceAnswer
from opatlas.row.errors import DeviceGone
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription, DeviceSpec
from opatlas.run.devices.device_lock import DeviceWaits
from opatlas.run.group import GroupSpec
from opatlas.run.group_pool import GroupNodes, GroupPool
from opatlas.run.instruments.attribution import PendingSamples
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, ProcessDied, RanTooLong, RowOutcome
from opatlas.run.msprof_sessions import MsprofBatches, MsprofSession
from opatlas.run.process.device_process import DeviceProcess
from opatlas.run.process.messages import decode, encode
from opatlas.run.scheduler import Done, ExcludedDevices, InProcess, InTurn, OnDevices, Scheduler, SingleOrGroup

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are watched as Linux allows")
#: Sizes of rows, which say what a row does; a row of any other size is measured, and has its size as its only sample.
CRASHES, HANGS, WAITS = 102.0, 103.0, 104.0
GONE = "the driver is not there"


def jobs(*sizes: float, group: GroupSpec | None = None) -> list[Job]:
    made = Job("toy_replays", "toy_replays.py", "toy", "Toy", {}, 300, group)
    return [Job(**{**vars(made), "cells": {"Input Shapes": str(size)}, "id": next(IDS)}) for size in sizes]


IDS = iter(range(10**6, 10**9))


class Toy(InTurn):
    """Does at once what the size of a row says, in place of a device."""

    def __init__(self, is_gone: bool) -> None:
        super().__init__()
        self._is_gone = is_gone

    def describe(self) -> DeviceDescription:
        return DeviceDescription("toy", {})

    def _run(self, job: Job) -> RowOutcome:
        return self.run_raising(job)

    def run_raising(self, job: Job) -> RowOutcome:
        if self._is_gone:
            raise DeviceGone(GONE)
        size = float(job.cells["Input Shapes"])
        if size == CRASHES:
            raise ProcessDied("died", -11)
        if size == HANGS:
            raise RanTooLong("still running")
        if size == WAITS:
            threading.Event().wait(3)
        return odd_device.outcome_of(job)

    def locked(self, *_: object) -> AbstractContextManager[object]:
        return nullcontext()


class InThisProcess(InProcess):
    """The scheduler of --in-process with a toy for its device."""

    def __init__(self, toy: Toy) -> None:
        InTurn.__init__(self)
        self._waits = DeviceWaits(print)
        self._runner: Any = toy
        self._runner.device = toy


class ToySession(MsprofSession):
    """A profiling session of a toy, whose samples are there when it has ended."""

    def __init__(self, toy: Toy) -> None:
        super().__init__(lambda launcher: toy, MeasureSettings(), Path())

    def launch(self, job: Job) -> RowOutcome:
        outcome = self.process.run(job)
        if outcome.measurement is None:
            return outcome
        self._launched[Path()].append((job, outcome))
        return replace(outcome, pending=PendingSamples(1, 1))

    def read(self) -> tuple[list[tuple[Job, RowOutcome]], list[Job]]:
        return self._launched.pop(Path(), []), []


class ToyBatches(MsprofBatches):
    """Rows in profiling sessions of a toy."""

    def __init__(self, toy: Toy) -> None:
        super().__init__(lambda launcher: toy, MeasureSettings(), Path())
        self._new_session = lambda: ToySession(toy)


class ThreadDevice:
    """A device of a cluster that is a thread with a toy; its answers come as bytes, as those of an actor do."""

    def __init__(self, toy: Toy) -> None:
        self.name = "thread"
        self._toy = toy
        self._thread = ThreadPoolExecutor(1)

    def open(self) -> Future[DeviceAnswer]:
        return self._thread.submit(lambda: DeviceAnswer(device=self._toy.describe()))

    def run(self, job: Job) -> Future[DeviceAnswer]:
        return self._thread.submit(self._run, job)

    def _run(self, job: Job) -> DeviceAnswer:
        try:
            answer = DeviceAnswer(self._toy.run(job))
        except DeviceGone as gone:
            answer = DeviceAnswer(gone=str(gone))
        found: DeviceAnswer = decode(encode(answer), DeviceAnswer)
        return found

    def beat(self) -> Future[str]:
        answer: Future[str] = Future()
        answer.set_result("")
        return answer

    def kill(self) -> None:
        """The thread has nothing to end."""


class OddLauncher:
    """Starts odd_device.py in the place of a device process."""

    patience_s = 1.0

    def __init__(self, is_gone: bool) -> None:
        self._is_gone = is_gone

    def command(self, words: Sequence[str]) -> list[str]:
        if self._is_gone:
            raise DeviceGone(GONE)
        fd = words[words.index("opatlas.run.process.device_main") + 1]
        return [sys.executable, odd_device.__file__, fd, "does_what_its_size_says"]


def _device_processes(is_gone: bool, folder: Path) -> Scheduler:
    launcher, excluded = OddLauncher(is_gone), ExcludedDevices(folder)
    return OnDevices([DeviceSpec("odd")], lambda spec: DeviceProcess(spec, MeasureSettings(), launcher), excluded)


def _groups(is_gone: bool, folder: Path) -> GroupPool:
    nodes = GroupNodes([DeviceSpec("odd")])
    return GroupPool(nodes, MeasureSettings(), ExcludedDevices(folder), lambda *_: Toy(is_gone))


def _cluster(is_gone: bool, folder: Path) -> SingleOrGroup:
    return SingleOrGroup(Dealer([ThreadDevice(Toy(is_gone))], print), _groups(is_gone, folder))


#: Makes each scheduler, with a device or with one that is gone.
SCHEDULERS: dict[str, Callable[[bool, Path], Scheduler]] = {
    "in this process": lambda is_gone, _: InThisProcess(Toy(is_gone)),
    "device processes": _device_processes,
    "groups": _groups,
    "msprof": lambda is_gone, _: ToyBatches(Toy(is_gone)),
    "cluster": _cluster,
}


@pytest.fixture(params=SCHEDULERS)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PYTHONPATH", str(Path(odd_device.__file__).parent))
    monkeypatch.setattr("opatlas.run.process.device_process.PAUSES_S", (0.0, 0.0))
    return str(request.param)


@pytest.fixture
def scheduler(name: str, tmp_path: Path) -> Iterator[Scheduler]:
    made = SCHEDULERS[name](False, tmp_path)
    yield made
    made.close()


@pytest.fixture
def group(name: str) -> GroupSpec | None:
    return GroupSpec(1) if name == "groups" else None


def finished(completed: Iterator[Done]) -> list[Done]:
    """Those whose samples are not pending."""
    return [done for done in completed if done.outcome.pending is None]


def sample(outcome: RowOutcome) -> float | None:
    return outcome.measurement.samples_us[0] if outcome.measurement is not None else None


def test_jobs_run_in_their_order_and_each_has_one_outcome_its_own(scheduler: Scheduler, group: GroupSpec) -> None:
    scheduler.begin()
    submitted = jobs(1, 2, 3, 4, group=group)
    for job in submitted:
        scheduler.submit(job)
    done = finished(scheduler.completed(submitted[-1].id))
    assert [each.job.id for each in done] == [job.id for job in submitted]
    assert [sample(each.outcome) for each in done] == [1, 2, 3, 4]
    assert {each.device.name for each in done} <= {"toy", "odd"}
    assert finished(scheduler.completed()) == []


@pytest.mark.parametrize(("size", "status"), [(CRASHES, Status.CRASHED), (HANGS, Status.TIMEOUT)])
def test_a_crash_and_a_hang_cost_their_job(
    scheduler: Scheduler, name: str, group: GroupSpec, size: float, status: Status
) -> None:
    submitted = jobs(1, size, 3, group=group)
    if (name, size) == ("device processes", HANGS):
        submitted[1] = replace(submitted[1], timeout_s=0.5)
    if name == "in this process":
        # There is no process to lose; errors reach a debugger.
        with pytest.raises((ProcessDied, RanTooLong)):
            scheduler.run(submitted[1])
        return
    for job in submitted:
        scheduler.submit(job)
    # Of a profile measured rows are known later than others.
    done = sorted(finished(scheduler.completed(submitted[-1].id)), key=lambda each: each.job.id)
    assert [each.outcome.status for each in done] == [Status.MEASURED, status, Status.MEASURED]
    assert [sample(each.outcome) for each in done] == [1, None, 3]


def test_jobs_that_are_cancelled_have_not_begun_and_may_be_submitted_again(
    scheduler: Scheduler, group: GroupSpec
) -> None:
    submitted = jobs(1, 2, 3, 4, 5, 6, group=group)
    for job in submitted:
        scheduler.submit(job)
    left: list[Job] = []
    done = []
    for each in scheduler.completed(submitted[0].id):
        left += scheduler.cancel()
        done.append(each)
    scheduler.close()
    done += scheduler.completed()
    first = [each.job.id for each in done if each.outcome.pending is None]
    assert sorted(first + [job.id for job in left]) == [job.id for job in submitted]
    for job in left:
        scheduler.submit(job)
    again = finished(scheduler.completed(left[-1].id))
    assert [sample(each.outcome) for each in again] == [float(job.cells["Input Shapes"]) for job in left]


def test_an_interrupted_wait_is_not_answered_to_the_next_job(scheduler: Scheduler, group: GroupSpec) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    late, after = jobs(WAITS, 3, group=group)
    scheduler.prepare()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt):
            scheduler.run(late)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert sample(scheduler.run(after)) == 3


def test_without_a_device_no_outcome_is_invented(name: str, group: GroupSpec, tmp_path: Path) -> None:
    scheduler = SCHEDULERS[name](True, tmp_path)
    (job,) = jobs(1, group=group)
    if name == "groups":
        # Another group may start.
        outcome = scheduler.run(job)
        assert (outcome.status, outcome.reason) == (Status.DEVICE_ERROR, GONE)
        return
    with pytest.raises(DeviceGone, match=GONE):
        scheduler.run(job)
    assert list(scheduler.completed()) == []
    scheduler.close()
