"""Deals jobs to the devices of other machines, and keeps each of them busy; knows nothing of how they are reached.

A device runs one job, and where jobs are short another one waits there. The open jobs of a lost device are dealt again:
the first of them ran, and a job that takes three devices along is the cause. Jobs of one row (implementations that
compare) go to one device.
"""

from __future__ import annotations

import queue
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from opatlas.row.errors import DeviceGone
from opatlas.run.devices.device import DeviceDescription
from opatlas.run.job import Job, ProcessDied, RowOutcome, outcome_of
from opatlas.run.scheduler import Done, Scheduler

#: Where a job took longer, in seconds, none waits at a device while another device may become free.
_SHORT_S = 0.5
#: How often a device is asked for a sign of life, and after how long a silence it is lost, in seconds.
BEAT_S, SILENCE_S = 10.0, 60.0
#: How long a device that is open waits for its head, in seconds. Then it ends: the network between them is cut.
LONELY_S = 120.0
#: The longest silence of a device whose process starts, in seconds: a cold disk, and a cluster that is busy.
_START_S = 300.0
#: A device that is lost so often, without an outcome in between, is left out.
_LOSSES = 5
#: A job that lost its device so often is the cause.
_LOSSES_OF_JOB = 3


@dataclass(frozen=True)
class DeviceAnswer:
    """The answer of a device after it was opened or has run a job.

    Attributes:
        outcome: the outcome of the job; None where the job has not begun.
        gone: why the device runs no further job; "" if it does.
        device: its description, when it was opened.
    """

    outcome: RowOutcome | None = None
    gone: str = ""
    device: DeviceDescription | None = None


class RemoteDevice(Protocol):
    """A device of another machine. No method waits, and a future fails where the device is lost.

    Attributes:
        name: names device and machine to the user.
    """

    name: str

    def open(self) -> Future[DeviceAnswer]:
        """Opens the device; after a loss in a new process."""

    def run(self, job: Job) -> Future[DeviceAnswer]:
        """Runs a job, after those of earlier calls."""

    def beat(self) -> Future[str]:
        """Asks for a sign of life. The result is a line for the user, such as whom a row waits for; mostly ""."""

    def kill(self) -> None:
        """Ends all processes of the device."""


@dataclass(eq=False)
class _Slot:
    """A device, and its open work.

    Attributes:
        description: what it is; None before it was opened first.
        jobs: the jobs that it has, the one that runs first.
        own: jobs that no other device may run, because this device got another job of the same row.
        losses: how often it was lost since its last outcome.
        gone: why it runs no further job; "" if it does.
        opens: whether it is being opened.
        is_quick: whether its last job was short.
        heard: when it gave the last sign of life, began to open, or got work; `beat` is the sign that it was asked for.
    """

    device: RemoteDevice
    description: DeviceDescription | None = None
    jobs: list[Job] = field(default_factory=list)
    own: deque[Job] = field(default_factory=deque)
    losses: int = 0
    gone: str = ""
    opens: bool = False
    is_quick: bool = False
    heard: float = field(default_factory=time.monotonic)
    beat: Future[str] | None = None


class Dealer(Scheduler):
    """Deals jobs to devices, in one thread: whatever it calls is called by who waits for an outcome."""

    at_once = sys.maxsize

    def __init__(self, devices: Sequence[RemoteDevice], tell: Callable[[str], None]) -> None:
        """
        Args:
            devices: opened when they are needed.
            tell: shows the user a line.
        """
        self._devices, self._tell = devices, tell
        #: Jobs in the order in which they are dealt; those that were dealt and not run go first.
        self._queue: deque[Job] = deque()
        #: The device of each row with several jobs.
        self._homes: dict[str, _Slot] = {}
        self._losses_of: Counter[int] = Counter()
        #: Ids of the jobs without an outcome.
        self._open_jobs: set[int] = set()
        self._done: deque[Done] = deque()
        self._description: DeviceDescription | None = None
        #: Device, job (None: it is opened) and begin of each call whose answer counts.
        self._calls: dict[Future[DeviceAnswer], tuple[_Slot, Job | None, float]] = {}
        self._answers: queue.SimpleQueue[Future[DeviceAnswer]] = queue.SimpleQueue()
        self._slots: list[_Slot] = []
        #: Devices that may take a job.
        self._free: set[_Slot] = set()
        self._looked = time.monotonic()
        self._ended = False

    def describe(self) -> DeviceDescription:
        """Returns the device of the last outcome, else that of the first device that is open, and waits for it."""
        self._open_all()
        while self._description is None:
            self._step(BEAT_S)
        return self._description

    def begin(self) -> None:
        self._open_all()

    def prepare(self) -> None:
        self.describe()

    def submit(self, job: Job) -> None:
        self._queue.append(job)
        self._open_jobs.add(job.id)

    def completed(self, wanted: int | None = None) -> Iterator[Done]:
        try:
            if self._open_jobs:
                self._open_all()
                self._step(0.0)
            while self._done or wanted in self._open_jobs:
                while self._done:
                    yield self._done.popleft()
                if wanted in self._open_jobs:
                    self._step(BEAT_S)
        except BaseException as error:
            # The user stops at once, without a wait for missing answers.
            if not isinstance(error, GeneratorExit):
                self.cancel()
                self._open_jobs.clear()
                self._kill()
            raise

    def cancel(self) -> Sequence[Job]:
        jobs = [*self._queue, *(job for slot in self._slots for job in slot.own)]
        self._queue.clear()
        for slot in self._slots:
            slot.own.clear()
        self._open_jobs.difference_update(job.id for job in jobs)
        return jobs

    def close(self) -> None:
        """Waits for the jobs that devices have, and ends all devices; the others wait for the next opening."""
        self._ended = True
        try:
            while any(slot.jobs for slot in self._slots):
                self._step(BEAT_S)
        finally:
            self._queue.extendleft(job for slot in self._slots for job in reversed(slot.own))
            self._kill()
            self._ended = False

    def _open_all(self) -> None:
        if not self._slots:
            self._slots = list(map(_Slot, self._devices))
            for slot in self._slots:
                self._open(slot)

    def _open(self, slot: _Slot) -> None:
        slot.heard, slot.opens, slot.beat = time.monotonic(), True, None
        self._call(slot, None, slot.device.open())

    def _call(self, slot: _Slot, job: Job | None, future: Future[DeviceAnswer]) -> None:
        self._calls[future] = slot, job, time.monotonic()
        future.add_done_callback(self._answers.put)

    def _kill(self) -> None:
        """Ends all devices now."""
        for device in self._devices:
            device.kill()
        self._slots, self._homes = [], {}
        self._calls.clear()
        self._free.clear()

    def _step(self, limit_s: float) -> None:
        """Deals, waits for an answer, and takes all that are there. Raises DeviceGone where no device is left."""
        self._deal()
        try:
            answer = self._answers.get(timeout=limit_s) if limit_s else self._answers.get_nowait()
            while True:
                self._answered(answer)
                answer = self._answers.get_nowait()
        except queue.Empty:
            pass
        if time.monotonic() - self._looked >= BEAT_S:
            self._look_after()
        self._deal()
        if self._slots and all(slot.gone for slot in self._slots) and not self._ended:
            reasons = dict.fromkeys(slot.gone for slot in self._slots)
            raise DeviceGone(f"no device of the cluster is left: {'; '.join(reasons)}")

    def _answered(self, future: Future[DeviceAnswer]) -> None:
        """Takes the answer to a call, unless its device was lost meanwhile."""
        slot, job, began = self._calls.pop(future, (None, None, 0.0))
        if slot is None:
            return
        if (error := future.exception()) is not None:
            self._lose(slot, f"{type(error).__name__}: {error}".splitlines()[0])
            return
        answer = future.result()
        slot.heard = time.monotonic()
        if job is None:
            slot.opens = False
            slot.description = answer.device or slot.description
            self._description = self._description or slot.description
        else:
            slot.jobs.remove(job)
            slot.is_quick = slot.heard - began < _SHORT_S
            if answer.outcome is None:
                self._put_back(slot, [job])
            else:
                slot.losses = 0
                self._give(slot, job, answer.outcome)
        if answer.gone:
            self._leave_out(slot, answer.gone)
        elif not slot.gone:
            self._free.add(slot)

    def _give(self, slot: _Slot, job: Job, outcome: RowOutcome) -> None:
        self._open_jobs.discard(job.id)
        assert slot.description is not None
        self._description = slot.description
        self._done.append(Done(job, outcome, slot.description))

    def _put_back(self, slot: _Slot, jobs: Sequence[Job]) -> None:
        """Lets jobs that a device did not run be dealt before all others, in their order."""
        for job in reversed(jobs):
            (slot.own if self._home(job) is slot else self._queue).appendleft(job)

    def _home(self, job: Job) -> _Slot | None:
        """Returns the device that alone may run a job; None if any device may."""
        home = self._homes.get(job.together)
        return None if home is None or home.gone else home

    def _forget_calls(self, slot: _Slot) -> list[Job]:
        """Ends a device, whose answers no longer count; returns its jobs."""
        self._calls = {future: call for future, call in self._calls.items() if call[0] is not slot}
        jobs, slot.jobs, slot.opens = slot.jobs, [], False
        self._free.discard(slot)
        slot.device.kill()
        return jobs

    def _lose(self, slot: _Slot, reason: str) -> None:
        """Deals the jobs of a lost device again, and opens the device anew."""
        slot.losses += 1
        jobs = self._forget_calls(slot)
        if jobs:
            self._losses_of[jobs[0].id] += 1
            if self._losses_of[jobs[0].id] >= _LOSSES_OF_JOB:
                slot.losses = 0
                lost = f"its device was lost each time it ran, the last time {slot.device.name}: {reason}"
                self._give(slot, jobs.pop(0), outcome_of(ProcessDied(lost)))
        self._put_back(slot, jobs)
        if slot.losses >= _LOSSES:
            self._leave_out(slot, f"lost {slot.losses} times: {reason}")
        elif not self._ended:
            self._tell(f"{slot.device.name} is lost, and opened anew: {reason}")
            self._open(slot)

    def _leave_out(self, slot: _Slot, reason: str) -> None:
        """Uses a device no more in this session; its jobs go to the others."""
        slot.gone = f"{slot.device.name}: {reason}"
        # No device has them for its own any more.
        own, slot.own = [*self._forget_calls(slot), *slot.own], deque()
        self._put_back(slot, own)
        self._tell(f"left out for the rest of the session: {slot.gone}")

    def _look_after(self) -> None:
        """Asks the devices for a sign of life, and gives up those that open or work and were silent for too long."""
        now = self._looked = time.monotonic()
        for slot in self._slots:
            if not (slot.opens or slot.jobs):
                continue
            if slot.beat is None or slot.beat.done():
                if slot.beat is not None and slot.beat.exception() is None:
                    slot.heard = now
                    if text := slot.beat.result():
                        self._tell(f"{slot.device.name}: {text}")
                slot.beat = slot.device.beat()
            # A process that opens its device gives signs of life; the first one takes until it has started.
            if now - slot.heard > (_START_S if slot.opens else SILENCE_S):
                self._lose(slot, f"no sign of life for {now - slot.heard:.0f} s")

    def _deal(self) -> None:
        for waiting in (0, 1) if not self._ended else ():
            for slot in [each for each in self._free if len(each.jobs) == waiting]:
                if (job := self._next_job(slot)) is not None:
                    slot.heard = slot.heard if slot.jobs else time.monotonic()
                    slot.jobs.append(job)
                    self._call(slot, job, slot.device.run(job))
                    if waiting or not slot.is_quick:
                        self._free.discard(slot)

    def _next_job(self, slot: _Slot) -> Job | None:
        """Returns the next job for a device, and leaves jobs of rows that other devices have begun to those."""
        if slot.own:
            return slot.own.popleft()
        while self._queue:
            job = self._queue.popleft()
            home = self._home(job)
            if home is None and job.together:
                home = self._homes[job.together] = slot
            if home is None or home is slot:
                return job
            home.own.append(job)
        return None
