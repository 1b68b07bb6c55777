"""Implements instruments whose durations come from a profile of an NPU: msprof and torch_npu.profiler."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from time import sleep

import torch

from opatlas.errors import TableError
from opatlas.files import TemporaryFolder
from opatlas.run.instruments.attribution import (
    BEGIN_MARK,
    END_MARK,
    NoSamples,
    PendingSamples,
    ProfiledRow,
    ProfiledSamples,
    attribute,
    row_mark,
)
from opatlas.run.instruments.instrument import MSPROF, TORCH_NPU_PROFILER, MeasureSettings, Rule, Samples

#: Number of kernels before the first mark, and the wait after them. torch_npu's profiler may lose the first launches
#: of its window (Ascend/pytorch issue 167: one or two calls of ten).
LEAD_IN_KERNELS = 16
_LEAD_IN_S = 0.05
#: Shape of the tensor that these kernels negate. No mark has this shape.
LEAD_IN = (7,)


class MarkedLaunches:
    """Launches calls between marks (attribution.py). A profile of this process contains the durations."""

    def __init__(self, name: str, device: torch.device, synchronize: Callable[[], None]) -> None:
        """
        Args:
            name: name of the profiler.
            device: device of the marks.
            synchronize: waits until all launched work has ended.
        """
        self.name = name
        self._device = device
        self._synchronize = synchronize
        self._rows = 0
        self._begin, self._end = self._mark(BEGIN_MARK), self._mark(END_MARK)

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        """Takes samples as `Instrument.sample` does, without durations, which a profile contains.

        Raises:
            ValueError: the process has already sampled `opatlas.run.instruments.attribution.MOST_ROWS` rows.
        """
        number = self._rows
        mark = self._mark(row_mark(number))
        self._rows += 1
        mark()
        taken = 0
        while not rule.enough_count(taken):
            if before_each:
                before_each()
            self._begin()
            call()
            self._end()
            # Waits, because queued launches would exceed the time limit.
            self._synchronize()
            taken += 1
        return Samples((), pending=PendingSamples(number, taken))

    def launch_padding(self) -> None:
        """Launches kernels that belong to no row, and waits, because a profiler may lose its first launches."""
        launch = self._mark(LEAD_IN)
        for _ in range(LEAD_IN_KERNELS):
            launch()
        self._synchronize()
        sleep(_LEAD_IN_S)

    def _mark(self, shape: tuple[int, ...]) -> Callable[[], object]:
        source = torch.zeros(shape, device=self._device)
        target = torch.zeros_like(source)
        return lambda: torch.neg(source, out=target)


def open_msprof(kind: str, settings: MeasureSettings) -> MarkedLaunches:
    """Opens the instrument of a process that runs under msprof."""
    return marked_launches(MSPROF, kind)


def marked_launches(profiler: str, kind: str) -> MarkedLaunches:
    """Returns an instrument that launches marks on the NPU of this process, for the profiler `profiler`."""
    return MarkedLaunches(profiler, torch.device(kind), torch.get_device_module(kind).synchronize)


class TorchNpuProfiler:
    """Profiles each row in a session of torch_npu.profiler, and reads its kernel_details.csv. A row takes seconds."""

    name = TORCH_NPU_PROFILER

    def __init__(self, kind: str, metrics: str) -> None:
        """`metrics` is the group of hardware counters, as in msprof's `--aic-metrics`."""
        self._kind, self._metrics = kind, metrics

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        marked = marked_launches(TORCH_NPU_PROFILER, self._kind)
        with TemporaryFolder("profile") as folder:
            # Without a schedule, because kernels are lost between the profiler's warm-up and its recording.
            with profiling(str(folder), self._metrics):
                marked.launch_padding()
                samples = marked.sample(call, before_each, rule)
            return replace(samples, profiled=_read_samples(folder, samples))


def profiling(folder: str, metrics: str) -> AbstractContextManager[object]:
    """Returns a session of torch_npu's profiler, which writes `kernel_details.csv` below `folder`."""
    import torch_npu

    profiler = torch_npu.profiler
    session: AbstractContextManager[object] = profiler.profile(
        activities=[profiler.ProfilerActivity.NPU],
        on_trace_ready=profiler.tensorboard_trace_handler(folder),
        experimental_config=profiler._ExperimentalConfig(
            # Level 0 has neither shapes nor counters.
            profiler_level=profiler.ProfilerLevel.Level1,
            aic_metrics=getattr(profiler.AiCMetrics, metrics),
        ),
    )
    return session


def _read_samples(folder: Path, samples: Samples) -> ProfiledSamples | NoSamples:
    # Imported here, because other device processes do not import pandas.
    from opatlas.capture.single_launches import read_launches

    assert samples.pending is not None
    files = sorted(folder.rglob("kernel_details.csv"))
    if len(files) != 1:
        return NoSamples(f"torch_npu.profiler wrote {len(files)} files kernel_details.csv: see its messages")
    try:
        read = read_launches(files[0])
    except TableError as error:
        return NoSamples(str(error))
    # The marks identify the samples of a single row; kernel type and cells are not used.
    (found,) = attribute(read.launches, [ProfiledRow("", {}, samples.pending)])
    return found


def open_torch_npu_profiler(kind: str, settings: MeasureSettings) -> TorchNpuProfiler:
    """Opens the instrument."""
    return TorchNpuProfiler(kind, settings.aic_metrics)
