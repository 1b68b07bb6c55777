"""The dealer of a cluster, with devices that are threads: whatever they do, each job gets one outcome, or a message."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from opatlas.outer.cluster import dealer
from opatlas.outer.cluster.dealer import Dealer, DeviceAnswer
from opatlas.row.errors import DeviceGone
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription
from opatlas.run.job import Job, RowOutcome


class Lost(Exception):
    """The process of a device has died."""


class Gone(Exception):
    """A device has failed for good."""


class ThreadDevice:
    """A RemoteDevice that is a thread and runs a function for a job."""

    def __init__(self, name: str, behave: Callable[[Job], None] = lambda job: None) -> None:
        self.name = name
        self.opened = 0
        self.killed = 0
        self.ran: list[int] = []
        #: The jobs that it had at once.
        self.most = 0
        self.silent = False
        self._behave = behave
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1)

    def open(self) -> Future[DeviceAnswer]:
        self.opened += 1
        self._waiting = 0
        return self._thread.submit(lambda: DeviceAnswer(device=DeviceDescription("Thread", {"host": self.name})))

    def run(self, job: Job) -> Future[DeviceAnswer]:
        self._waiting += 1
        self.most = max(self.most, self._waiting)
        return self._thread.submit(self._run, job)

    def _run(self, job: Job) -> DeviceAnswer:
        try:
            self._behave(job)
        except Gone as gone:
            return DeviceAnswer(gone=str(gone))
        self.ran.append(job.id)
        self._waiting -= 1
        return DeviceAnswer(RowOutcome(Status.FAILED, f"{self.name} {job.kernel_type}"))

    def beat(self) -> Future[str]:
        answer: Future[str] = Future()
        if not self.silent:
            answer.set_result("")
        return answer

    def kill(self) -> None:
        self.killed += 1


def job(number: int, together: str = "") -> Job:
    return Job("module", "module.py", "test", f"Toy{number}", {}, timeout_s=1.0, together=together)


class Session:
    """A dealer with its outcomes and messages."""

    def __init__(
        self, devices: Sequence[ThreadDevice], count: int, row_of: Callable[[int], str] = lambda _: ""
    ) -> None:
        self.jobs = [job(number, row_of(number)) for number in range(count)]
        self.outcomes: dict[int, RowOutcome] = {}
        self.hosts_of: dict[str, set[str]] = {}
        self.messages: list[str] = []
        self.dealer = Dealer(devices, self.messages.append)
        for each in self.jobs:
            self.dealer.submit(each)

    @property
    def hosts(self) -> set[str]:
        return set().union(*self.hosts_of.values())

    def take(self, wanted: int | None = None) -> None:
        for done in self.dealer.completed(wanted):
            assert done.job.id not in self.outcomes, "a second outcome"
            self.outcomes[done.job.id] = done.outcome
            self.hosts_of.setdefault(done.job.together, set()).add(str(done.device.facts["host"]))

    def run_all(self) -> None:
        for each in self.jobs:
            self.take(each.id)
        self.dealer.close()


def test_all_devices_work_each_job_runs_once_and_a_short_one_waits_at_its_device() -> None:
    devices = [ThreadDevice(name, lambda each: time.sleep(0.001)) for name in "abc"]
    session = Session(devices, 300)
    session.run_all()
    ran = [number for device in devices for number in device.ran]
    assert sorted(ran) == sorted(session.outcomes) == [each.id for each in session.jobs]
    assert session.hosts == {"a", "b", "c"}
    assert max(device.most for device in devices) == 2
    assert all(device.killed for device in devices)


def test_where_jobs_take_long_none_waits_at_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealer, "_SHORT_S", 0.0)
    device = ThreadDevice("slow")
    session = Session([device], 4)
    session.run_all()
    assert device.most == 1
    assert len(session.outcomes) == 4


def test_a_lost_device_is_opened_anew_and_its_jobs_run_once() -> None:
    left = [1]

    def dies_once(each: Job) -> None:
        if left[0] and each.kernel_type == "Toy20":
            left[0] -= 1
            raise Lost("killed")

    device = ThreadDevice("a", dies_once)
    session = Session([device], 100)
    session.run_all()
    assert {outcome.status for outcome in session.outcomes.values()} == {Status.FAILED}
    assert len(session.outcomes) == 100
    assert device.opened == 2
    assert len(session.messages) == 1


def test_a_job_that_takes_its_device_along_each_time_has_crashed_and_costs_no_other_job() -> None:
    def killer(each: Job) -> None:
        if each.kernel_type in ("Toy7", "Toy8"):
            raise Lost("killed")

    session = Session([ThreadDevice("a", killer), ThreadDevice("b", killer)], 40)
    session.run_all()
    crashed = [each.kernel_type for each in session.jobs if session.outcomes[each.id].status is Status.CRASHED]
    assert crashed == ["Toy7", "Toy8"]
    assert len(session.outcomes) == 40


def test_a_device_that_has_failed_is_left_out_and_another_takes_its_jobs() -> None:
    def fails(each: Job) -> None:
        raise Gone("poisoned")

    broken, well = ThreadDevice("broken", fails), ThreadDevice("well")
    session = Session([broken, well], 50)
    session.run_all()
    assert len(session.outcomes) == 50
    assert session.hosts == {"well"}
    assert broken.opened == 1


def test_without_any_device_the_session_learns_of_it_and_nothing_is_invented() -> None:
    def fails(each: Job) -> None:
        raise Gone("poisoned")

    session = Session([ThreadDevice("a", fails), ThreadDevice("b", fails)], 5)
    with pytest.raises(DeviceGone, match="a: poisoned"):
        session.run_all()
    assert session.outcomes == {}


def test_a_silent_device_is_lost_and_its_late_answer_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealer, "BEAT_S", 0.01)
    monkeypatch.setattr(dealer, "SILENCE_S", 0.05)
    go, reached = threading.Event(), threading.Event()

    def hangs(each: Job) -> None:
        reached.set()
        go.wait(10)

    silent, well = ThreadDevice("silent", hangs), ThreadDevice("well", lambda each: reached.wait(10) and None)
    silent.silent = True
    session = Session([silent, well], 20)
    while not silent.killed:
        session.take()
    go.set()
    session.run_all()
    assert len(session.outcomes) == 20
    assert "well" in session.hosts


def row_of_three(number: int) -> str:
    """The row of a job: each row has three implementations, and Toy0, Toy7 and Toy14 are those of one row."""
    return f"row {number % 7}"


def test_the_implementations_of_a_row_run_on_one_device_in_any_order() -> None:
    all_begin = threading.Barrier(3)

    def first_waits(each: Job) -> None:
        if each.kernel_type in ("Toy0", "Toy1", "Toy2"):
            all_begin.wait(60)

    devices = [ThreadDevice(name, first_waits) for name in "abc"]
    session = Session(devices, 21, row_of_three)
    session.run_all()
    assert sorted(session.outcomes) == [each.id for each in session.jobs]
    assert all(len(hosts) == 1 for hosts in session.hosts_of.values())
    assert len(session.hosts) == 3


def test_the_implementations_of_a_row_stay_on_a_device_that_was_lost_and_opened_anew() -> None:
    deadly = {"Toy8", "Toy12", "Toy18"}

    def dies_once(each: Job) -> None:
        if each.kernel_type in deadly:
            deadly.remove(each.kernel_type)
            raise Lost("killed")

    devices = [ThreadDevice(name, dies_once) for name in "ab"]
    session = Session(devices, 21, row_of_three)
    session.run_all()
    assert {outcome.status for outcome in session.outcomes.values()} == {Status.FAILED}
    assert len(session.outcomes) == 21
    assert all(len(hosts) == 1 for hosts in session.hosts_of.values())


def test_a_row_that_a_plugin_runs_again_goes_to_the_device_of_its_other_implementations() -> None:
    session = Session([ThreadDevice(name) for name in "abc"], 21, row_of_three)
    for each in session.jobs:
        session.take(each.id)
    for number in range(7):
        again = job(number, row_of_three(number))
        session.dealer.submit(again)
        session.take(again.id)
    session.dealer.close()
    assert len(session.outcomes) == 28
    assert all(len(hosts) == 1 for hosts in session.hosts_of.values())
