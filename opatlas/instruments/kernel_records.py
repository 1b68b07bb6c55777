"""The device's own records of what it ran, of which those between two marks are a call's: kernel time, and no more.

A mark is a kernel that nothing else launches and that ends at once. Samples are queued on the device one behind the
other (flush, mark, call, mark), so that it never waits for the host, and the records of many are read together. What
prepares a sample lies outside of its marks; what was launched for the row's inputs, or for its check, lies outside of
the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import NamedTuple, Protocol

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, supported_activities

from opatlas.gc_pause import gc_paused
from opatlas.instruments.instrument import InstrumentMissing, MeasureSettings, Samples
from opatlas.instruments.stop_rule import Rule
from opatlas.model.errors import ReplayError

#: Of the kernel that torch.cuda._sleep launches.
MARK = "spin_kernel"
#: Samples that are queued at a time take about so long: their time limit is only looked at between queues.
_QUEUE_S = 0.05


class KernelRecord(NamedTuple):
    """A kernel, a copy or a fill that the device ran.

    Attributes:
        order: rises with the order of the launches.
        name: of a kernel, mangled or not; what it is of others.
        duration_us: from its start to its end on the device.
    """

    order: int
    name: str
    duration_us: float


class Recorder(Protocol):
    """Tells what the device ran."""

    name: str

    def recording(self) -> AbstractContextManager[Callable[[], Iterable[KernelRecord]]]:
        """Records what is launched meanwhile; gives a function that, at the end, waits for that and gives it."""
        ...


class KernelRecords:
    """An instrument: the summed time of the kernels, copies and fills that a call launched."""

    def __init__(self, recorder: Recorder, mark: Callable[[], object], synchronize: Callable[[], None]) -> None:
        """
        Args:
            mark: launches a kernel whose name has MARK in it.
            synchronize: waits for everything that was launched.
        """
        self.name = recorder.name
        self._recorder = recorder
        self._mark = mark
        self._synchronize = synchronize

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        """As in `Instrument`.

        Raises:
            ReplayError: the records are not those of the calls that were made.
        """
        durations_us: list[float] = []
        kernels: tuple[str, ...] = ()
        with gc_paused():
            at_once = self._calls_at_once(call, before_each)
            while not rule.enough(durations_us):
                count = min(at_once, rule.batch(len(durations_us)))
                calls = between_marks(self._records(call, before_each, count), count)
                names = {tuple(record.name for record in launched) for launched in calls}
                names |= {kernels} if kernels else set()
                if len(names) > 1:
                    several = " and ".join(sorted(" + ".join(map(_short, kind)) for kind in names))
                    raise ReplayError(f"calls alike launched different kernels: {several}")
                (kernels,) = names
                durations_us += [sum(record.duration_us for record in launched) for launched in calls]
        return Samples(tuple(durations_us), device_kernels=len(kernels))

    def _records(
        self, call: Callable[[], object], before_each: Callable[[], None] | None, count: int
    ) -> Iterable[KernelRecord]:
        with self._recorder.recording() as records:
            for _ in range(count):
                if before_each:
                    before_each()
                self._mark()
                call()
                self._mark()
            return records()

    def _calls_at_once(self, call: Callable[[], object], before_each: Callable[[], None] | None) -> int:
        # What is still to be done of earlier calls counts too: a queue is rather too short than too long.
        start = perf_counter()
        if before_each:
            before_each()
        call()
        self._synchronize()
        return max(1, int(_QUEUE_S / (perf_counter() - start)))


def between_marks(records: Iterable[KernelRecord], count: int) -> list[list[KernelRecord]]:
    """What each of `count` calls launched, in order. Raises ReplayError where the records cannot be theirs."""
    calls: list[list[KernelRecord]] = []
    marks = 0
    for record in sorted(records, key=lambda record: record.order):
        if MARK in record.name:
            marks += 1
            if marks % 2:
                calls.append([])
        elif marks % 2:
            calls[-1].append(record)
    if marks != 2 * count:
        raise ReplayError(f"the device's records hold {marks} marks, and {2 * count} were launched")
    if any(not launched for launched in calls):
        raise ReplayError("the device's records hold no kernel of some of the calls")
    return calls


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:57]}..."


NAME = "kineto"


class KinetoRecorder:
    """A session of the profiler for each recording."""

    name = NAME

    @contextmanager
    def recording(self) -> Iterator[Callable[[], Iterable[KernelRecord]]]:
        session = profile(activities=[ProfilerActivity.CUDA], acc_events=True)
        session.start()
        stopped = False

        def read() -> Iterable[KernelRecord]:
            nonlocal stopped
            torch.cuda.synchronize()
            session.stop()
            stopped = True
            results = session.profiler.kineto_results if session.profiler is not None else None
            assert results is not None
            return [
                # What one stream runs starts in the order of its launches.
                KernelRecord(event.start_ns(), event.name(), event.duration_ns() / 1000)
                for event in results.events()
                if event.device_type() == DeviceType.CUDA and not event.is_user_annotation()
            ]

        try:
            yield read
        finally:
            if not stopped:
                session.stop()


def open_kineto(settings: MeasureSettings) -> KernelRecords:
    """On the GPU that this process has opened. Raises InstrumentMissing."""
    if ProfilerActivity.CUDA not in supported_activities():
        raise InstrumentMissing("this torch was built without kineto's CUDA support")
    return KernelRecords(KinetoRecorder(), lambda: torch.cuda._sleep(1), torch.cuda.synchronize)
