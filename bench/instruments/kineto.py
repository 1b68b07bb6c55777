"""torch.profiler's records (kineto), where there is no cupti-python: the same numbers, at milliseconds a row more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, supported_activities

from bench.instruments import InstrumentMissing
from bench.instruments.kernel_records import KernelRecord, KernelRecords
from bench.job import MeasureSettings

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


def of(settings: MeasureSettings) -> KernelRecords:
    """On the GPU that this process has opened. Raises InstrumentMissing."""
    if ProfilerActivity.CUDA not in supported_activities():
        raise InstrumentMissing("this torch was built without kineto's CUDA support")
    return KernelRecords(KinetoRecorder(), lambda: torch.cuda._sleep(1), torch.cuda.synchronize)
