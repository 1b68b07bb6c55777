"""Deals jobs to the devices of other machines, and keeps each of them busy; knows nothing of how they are reached.

A device takes a few jobs at once, and answers after half a second, or after one job that takes longer. While it runs
them, the next ones already wait there. The open jobs of a lost device are dealt again, one at a time: a job that
takes three devices along is the cause. Jobs of one row (implementations that compare) go to one device.
"""

from __future__ import annotations

import math
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

#: A device answers after this time, in seconds, and then gets as many jobs as fill it.
BATCH_S = 0.5
#: The most jobs of a batch.
_MOST_JOBS = 64
#: Batches that a device has at once: one runs, one waits.
_DEPTH = 2
#: How often a device is asked for a sign of life, and after how long a silence it is lost, in seconds.
BEAT_S, SILENCE_S = 10.0, 60.0
#: How long a device that is open waits for its head, in seconds. Then it ends: the network between them is cut.
LONELY_S = 120.0
#: The same for a device whose process starts, in seconds: a cold disk, and a cluster that is busy.
_START_S = 300.0
#: A device that is lost so often, without an outcome in between, is left out.
_LOSSES = 5
#: A job that was dealt alone, and lost its device so often, is the cause.
_ALONE_LOSSES = 2


@dataclass(frozen=True)
class DeviceAnswer:
    """The answer of a device after it was opened or has run jobs.

    Attributes:
        outcomes: the outcomes of the jobs that ran, by the job's id; the other jobs have not begun.
        seconds: how long these jobs took.
        gone: why the device runs no further job; "" if it does.
        device: its description, when it was opened.
    """

    outcomes: Sequence[tuple[int, RowOutcome]] = ()
    seconds: float = 0.0
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

    def run(self, jobs: Sequence[Job]) -> Future[DeviceAnswer]:
        """Runs jobs in their order, after those of earlier calls."""

    def beat(self) -> Future[str]:
        """Asks for a sign of life. The result is a line for the user, such as whom a row waits for; mostly ""."""

    def stop(self) -> None:
        """Lets all calls return after the running job."""

    def kill(self) -> None:
        """Ends all processes of the device."""


class Pulse:
    """The signs of life of a process of another machine.

    Attributes:
        since: when it was called, or gave the last one.
        lives: whether it has given one.
    """

    def __init__(self, beat: Callable[[], Future[str]], tell: Callable[[str], None]) -> None:
        """`beat` asks for a sign; `tell` shows the user the line that comes with one."""
        self.since = time.monotonic()
        self.lives = False
        self._beat = beat
        self._tell = tell
        self._asked: Future[str] | None = None

    def silence_s(self) -> float:
        """Takes a sign of life, if there is one, and asks for the next; returns how long there was none."""
        now, asked = time.monotonic(), self._asked
        if asked is None or asked.done():
            if asked is not None and asked.exception() is None:
                self.since, self.lives = now, True
                if text := asked.result():
                    self._tell(text)
            self._asked = self._beat()
        return now - self.since


@dataclass(eq=False)
class _Slot:
    """A device, and its open work.

    Attributes:
        epoch: how often the device was lost; answers of an earlier epoch do not count.
        calls: the jobs of each call without an answer, the oldest call first.
        own: jobs that no other device may run, because this device got another job of the same row.
        opens: whether the device is being opened.
        pulse: its signs of life since it last began to open or to work.
    """

    device: RemoteDevice
    pulse: Pulse
    epoch: int = 0
    description: DeviceDescription | None = None
    calls: list[list[Job]] = field(default_factory=list)
    own: deque[Job] = field(default_factory=deque)
    losses: int = 0
    gone: str = ""
    opens: bool = False


class Dealer(Scheduler):
    """Deals jobs to devices, in one thread: whatever it calls is called by who waits for an outcome."""

    at_once = sys.maxsize

    def __init__(self, devices: Sequence[RemoteDevice], tell: Callable[[str], None]) -> None:
        """
        Args:
            devices: opened when they are needed.
            tell: shows the user a line.
        """
        self._devices = devices
        self._tell = tell
        #: Jobs in the order in which they are dealt; those that were dealt and not run go first.
        self._queue: deque[Job] = deque()
        #: The device of each row with several jobs.
        self._homes: dict[str, _Slot] = {}
        self._alone: set[int] = set()
        self._alone_losses: Counter[int] = Counter()
        #: Ids of the jobs without an outcome.
        self._open_jobs: set[int] = set()
        self._done: deque[Done] = deque()
        self._description: DeviceDescription | None = None
        self._mean_s = 0.0
        self._ended = False
        self._events: queue.SimpleQueue[tuple[_Slot, int, list[Job] | None, Future[DeviceAnswer]]] = queue.SimpleQueue()
        self._looked = time.monotonic()
        self._slots: list[_Slot] = []
        self._idle: set[_Slot] = set()

    def describe(self) -> DeviceDescription:
        """Returns the device of the last outcome, else that of the first device that is open, and waits for it."""
        self._open_all()
        while self._description is None:
            self._description = next((slot.description for slot in self._slots if slot.description is not None), None)
            if self._description is None:
                self._step(BEAT_S)
        return self._description

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
        """Waits for the running jobs, and ends all devices; jobs that have not begun wait for the next opening."""
        self._ended = True
        for slot in self._slots:
            if slot.calls:
                slot.device.stop()
        try:
            while any(slot.calls for slot in self._slots):
                self._step(BEAT_S)
        finally:
            self._queue.extendleft(job for slot in self._slots for job in reversed(slot.own))
            self._kill()
            self._ended = False

    def _open_all(self) -> None:
        if not self._slots:
            self._slots = [_Slot(device, self._pulse(device)) for device in self._devices]
            for slot in self._slots:
                self._open(slot)

    def _kill(self) -> None:
        """Ends all devices now."""
        for slot in self._slots:
            slot.epoch += 1
        for device in self._devices:
            device.kill()
        self._slots, self._idle, self._homes = [], set(), {}

    def _step(self, limit_s: float) -> None:
        """Deals, waits for an event, and takes all that have happened. Raises DeviceGone where no device is left."""
        self._deal()
        try:
            event = self._events.get(timeout=limit_s) if limit_s else self._events.get_nowait()
            while True:
                self._answered(*event)
                event = self._events.get_nowait()
        except queue.Empty:
            pass
        if time.monotonic() - self._looked >= BEAT_S:
            self._look_after()
        self._deal()
        if self._slots and all(slot.gone for slot in self._slots) and not self._ended:
            reasons = dict.fromkeys(slot.gone for slot in self._slots)
            raise DeviceGone(f"no device of the cluster is left: {'; '.join(reasons)}")

    def _open(self, slot: _Slot) -> None:
        slot.pulse, slot.opens = self._pulse(slot.device), True
        self._expect(slot, None, slot.device.open())

    def _pulse(self, device: RemoteDevice) -> Pulse:
        return Pulse(device.beat, lambda text: self._tell(f"{device.name}: {text}"))

    def _expect(self, slot: _Slot, jobs: list[Job] | None, future: Future[DeviceAnswer]) -> None:
        epoch = slot.epoch
        future.add_done_callback(lambda done: self._events.put((slot, epoch, jobs, done)))

    def _answered(self, slot: _Slot, epoch: int, jobs: list[Job] | None, future: Future[DeviceAnswer]) -> None:
        """Takes the answer to a call; `jobs` is None for the opening of the device."""
        if epoch != slot.epoch:
            return
        if (error := future.exception()) is not None:
            self._lose(slot, f"{type(error).__name__}: {error}".splitlines()[0])
            return
        answer = future.result()
        slot.pulse.since = time.monotonic()
        if jobs is None:
            slot.opens = False
            slot.description = answer.device or slot.description
        else:
            slot.calls.remove(jobs)
            self._take_outcomes(slot, jobs, answer)
        if answer.gone:
            self._leave_out(slot, answer.gone)
        elif not slot.gone:
            self._idle.add(slot)

    def _take_outcomes(self, slot: _Slot, jobs: list[Job], answer: DeviceAnswer) -> None:
        outcomes = dict(answer.outcomes)
        if outcomes:
            slot.losses = 0
            each_s = answer.seconds / len(outcomes)
            self._mean_s = each_s if not self._mean_s else 0.9 * self._mean_s + 0.1 * each_s
        for job in jobs:
            if job.id in outcomes:
                self._give(slot, job, outcomes[job.id])
        self._put_back(slot, [job for job in jobs if job.id not in outcomes])

    def _put_back(self, slot: _Slot, jobs: Sequence[Job]) -> None:
        """Lets jobs that a device did not run be dealt before all others, in their order."""
        for job in reversed(jobs):
            (slot.own if self._home(job) is slot else self._queue).appendleft(job)

    def _home(self, job: Job) -> _Slot | None:
        """Returns the device that alone may run a job; None if any device may."""
        home = self._homes.get(job.together)
        return None if home is None or home.gone else home

    def _give(self, slot: _Slot, job: Job, outcome: RowOutcome) -> None:
        self._open_jobs.discard(job.id)
        self._alone.discard(job.id)
        assert slot.description is not None
        self._description = slot.description
        self._done.append(Done(job, outcome, slot.description))

    def _lose(self, slot: _Slot, reason: str) -> None:
        """Deals the jobs of a lost device again, and opens the device anew."""
        calls, slot.calls = slot.calls, []
        slot.epoch += 1
        slot.losses += 1
        self._idle.discard(slot)
        slot.device.kill()
        back = []
        for number, jobs in enumerate(calls):
            for job in jobs:
                self._alone_losses[job.id] += number == 0 and job.id in self._alone
                if self._alone_losses[job.id] >= _ALONE_LOSSES:
                    slot.losses = 0
                    lost = f"its device was lost each time it ran, the last time {slot.device.name}: {reason}"
                    self._give(slot, job, outcome_of(ProcessDied(lost)))
                else:
                    self._alone.add(job.id)
                    back.append(job)
        self._put_back(slot, back)
        if slot.losses >= _LOSSES:
            self._leave_out(slot, f"lost {slot.losses} times: {reason}")
        elif not self._ended:
            self._tell(f"{slot.device.name} is lost, and opened anew: {reason}")
            self._open(slot)

    def _leave_out(self, slot: _Slot, reason: str) -> None:
        """Uses a device no more in this session; its jobs go to the others."""
        calls, slot.calls = slot.calls, []
        slot.epoch += 1
        slot.gone = f"{slot.device.name}: {reason}"
        self._idle.discard(slot)
        # No device has them for its own any more.
        own, slot.own = [job for jobs in (*calls, slot.own) for job in jobs], deque()
        self._put_back(slot, own)
        slot.device.kill()
        self._tell(f"left out for the rest of the session: {slot.gone}")

    def _look_after(self) -> None:
        """Asks the devices for a sign of life, and gives up those that work and were silent for too long."""
        self._looked = time.monotonic()
        for slot in self._slots:
            # A device that was lost at the end is not opened anew.
            if slot.gone or (self._ended and not slot.calls):
                continue
            silent_s = slot.pulse.silence_s()
            # A process that opens its device gives signs of life; the first one takes until it has started.
            if (slot.opens or slot.calls) and silent_s > (_START_S if slot.opens else SILENCE_S):
                self._lose(slot, f"no sign of life for {silent_s:.0f} s")

    def _deal(self) -> None:
        if self._ended:
            return
        # Where jobs are long, none waits at a device while another device may become free.
        depths = _DEPTH if 0 < self._mean_s < BATCH_S else 1
        for depth in range(depths):
            for slot in [each for each in self._idle if len(each.calls) == depth]:
                jobs = self._next_jobs(slot)
                if not jobs:
                    continue
                if not slot.calls:
                    slot.pulse.since = time.monotonic()
                slot.calls.append(jobs)
                self._expect(slot, jobs, slot.device.run(jobs))
                if len(slot.calls) == _DEPTH:
                    self._idle.discard(slot)

    def _next_jobs(self, slot: _Slot) -> list[Job]:
        """Returns the next batch for a device; [] where it gets none now."""
        if any(job.id in self._alone for jobs in slot.calls for job in jobs):
            return []
        ready = sum(not each.gone for each in self._slots)
        share = math.ceil(max(len(self._queue), 1) / (_DEPTH * ready))
        most = min(_MOST_JOBS, max(share, len(slot.own)))
        size = max(1, min(most, int(BATCH_S / self._mean_s) if self._mean_s else 1))
        batch: list[Job] = []
        while len(batch) < size:
            job = self._next_job(slot)
            if job is None:
                break
            if job.id in self._alone:
                if batch or slot.calls:
                    self._put_back(slot, [job])
                else:
                    batch.append(job)
                break
            batch.append(job)
        return batch

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
