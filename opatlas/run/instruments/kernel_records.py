"""Measures kernel time alone, from the device's records of all kernels between two marks.

A mark is a short kernel that nothing else launches. Samples are queued on the device (flush, mark, call, mark), so that
the device never waits for the host, and the records of many samples are read together. The preparation of a sample lies
outside its marks. Launches for the row's inputs and check lie outside the recording.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from statistics import fmean
from time import perf_counter
from typing import NamedTuple, Protocol

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, supported_activities

from opatlas.progress import gc_paused
from opatlas.row.errors import NoKernelLaunched, ReplayError
from opatlas.run.devices.device import InstrumentMissing
from opatlas.run.instruments.instrument import MeasureSettings, Rule, Samples
from opatlas.run.sampling import Turns, Varying
from opatlas.text import kernel_name

#: Part of the name of the kernel that torch.cuda._sleep launches.
MARK = "spin_kernel"
_LENGTH = re.compile(r"\d+")
#: Innermost template arguments.
_BRACKETS = re.compile(r"<[^<>]*>")
#: Times of kernels wrap after a day: since 1970 their microseconds would be rounded to quarters.
WRAP_NS = 10**14
#: Approximate duration of a queue of samples. Time limits are checked only between queues.
_QUEUE_S = 0.05


class KernelRecord(NamedTuple):
    """A kernel, copy or fill that the device ran.

    Attributes:
        order: increases with the order of launches.
        name: name of a kernel, mangled or not; for other records the kind.
        start_us: time of the start on the device's clock, in microseconds.
        duration_us: time from start to end on the device, in microseconds.
    """

    order: int
    name: str
    start_us: float
    duration_us: float


class Recorder(Protocol):
    """Records the kernels, copies and fills of the device.

    Attributes:
        name: name of the instrument.
    """

    name: str

    def recording(self) -> AbstractContextManager[Callable[[], Iterable[KernelRecord]]]:
        """Returns a context that records launches; its value is a function that waits and returns the records."""
        ...


class KernelRecords:
    """Measures the total time of the kernels, copies and fills of a call."""

    def __init__(self, recorder: Recorder, mark: Callable[[], object], synchronize: Callable[[], None]) -> None:
        """
        Args:
            recorder: records the launches of the device.
            mark: launches a kernel whose name contains MARK.
            synchronize: waits until all launched work has ended.
        """
        self.name = recorder.name
        self._recorder = recorder
        self.mark = mark
        self._synchronize = synchronize

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        """Takes samples as `Instrument.sample` does.

        Raises:
            NoKernelLaunched: a call has no record.
            ReplayError: the records do not match the calls, or equal calls launched different kernels.
        """
        durations_us: list[float] = []
        spans_us: list[float] = []
        #: The kernels of a call, and the durations of each, by turn: only `Turns` have several.
        kernels: dict[int, tuple[str, ...]] = {}
        of_first: list[list[float]] = []
        with gc_paused():
            at_once = self._calls_at_once(call, before_each)
            while not rule.enough(durations_us):
                count = min(at_once, rule.batch(len(durations_us)))
                calls = between_marks(self._records(call, before_each, count), count)
                turns = call.made[-count:] if isinstance(call, Turns) else [0] * count
                for turn, launched in zip(turns, calls, strict=True):
                    names = tuple(record.name for record in launched)
                    is_as_before = kernels.setdefault(turn, names) == names
                    if not is_as_before and not isinstance(call, Varying):
                        several = " and ".join(sorted(" + ".join(map(_short, kind)) for kind in (kernels[turn], names)))
                        raise ReplayError(f"equal calls launched different kernels: {several}")
                    if turn == 0 and is_as_before:
                        of_first.append([record.duration_us for record in launched])
                durations_us += [sum(record.duration_us for record in launched) for launched in calls]
                spans_us += map(_span_us, calls)
        return Samples(
            tuple(durations_us),
            len(kernels[0]),
            kernel_names=tuple(map(readable_name, kernels[0])),
            kernels_us=tuple(map(fmean, zip(*of_first, strict=True))),
            spans_us=tuple(spans_us),
        )

    def _records(
        self, call: Callable[[], object], before_each: Callable[[], None] | None, count: int
    ) -> Iterable[KernelRecord]:
        with self._recorder.recording() as records:
            for _ in range(count):
                if before_each:
                    before_each()
                self.mark()
                call()
                self.mark()
            return records()

    def launches(self, call: Callable[[], object], count: int) -> list[KernelRecord]:
        """Returns what some calls run, in the order of their starts: the kernels of a graph are one launch."""
        with self._recorder.recording() as records:
            for _ in range(count):
                call()
            return sorted(records(), key=lambda record: record.start_us)

    def _calls_at_once(self, call: Callable[[], object], before_each: Callable[[], None] | None) -> int:
        # Includes unfinished work of earlier calls, so that the queue may become too short but not too long.
        start = perf_counter()
        if before_each:
            before_each()
        call()
        self._synchronize()
        return max(1, int(_QUEUE_S / (perf_counter() - start)))


def between_marks(records: Iterable[KernelRecord], count: int) -> list[list[KernelRecord]]:
    """Returns the records of each of `count` calls, in order.

    Raises:
        NoKernelLaunched: a call has no record.
        ReplayError: the records do not match the calls.
    """
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
        raise NoKernelLaunched("the device's records hold no kernel of some of the calls")
    return calls


def _span_us(launched: Sequence[KernelRecord]) -> float:
    """Returns the time from the start of the first to the end of the last kernel of a call."""
    ends = (record.start_us + record.duration_us for record in launched)
    return max(ends) - min(record.start_us for record in launched)


@cache
def readable_name(name: str) -> str:
    """Returns the name of a kernel without return type, template arguments and parameters: `at::native::gemm`."""
    plain = torch._C._demangle(name)
    if plain.startswith("_ZN"):
        # The C++ library gives up on names of templates of templates.
        return _qualified_name(plain) or name
    return kernel_name(plain)


def _qualified_name(mangled: str) -> str:
    """Returns the namespaces and the function at the start of a mangled name, which has the length before each word."""
    words, at = [], len("_ZN")
    while length := _LENGTH.match(mangled, at):
        words.append(mangled[length.end() : length.end() + int(length[0])])
        at = length.end() + int(length[0])
    return "::".join(words)


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:57]}..."


NAME = "kineto"


class KinetoRecorder:
    """Records with torch's profiler, in a session for each recording."""

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
                # On one stream kernels start in the order of their launches.
                KernelRecord(
                    event.start_ns(), event.name(), event.start_ns() % WRAP_NS / 1000, event.duration_ns() / 1000
                )
                for event in results.events()
                if event.device_type() == DeviceType.CUDA and not event.is_user_annotation()
            ]

        try:
            yield read
        finally:
            if not stopped:
                session.stop()


def open_kineto(kind: str, settings: MeasureSettings) -> KernelRecords:
    """Opens the instrument on the GPU of this process. Raises InstrumentMissing."""
    if ProfilerActivity.CUDA not in supported_activities():
        raise InstrumentMissing("this torch was built without kineto's CUDA support")
    return KernelRecords(KinetoRecorder(), lambda: torch.cuda._sleep(1), torch.cuda.synchronize)
