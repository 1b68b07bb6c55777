"""torch_npu's own profiler around the samples of one row: needs no msprof, and costs seconds a row."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import torch

from opatlas.capture.profiles import read_launches
from opatlas.devices.torch_npu import npu_of_torch
from opatlas.engine.job import MeasureSettings
from opatlas.engine.stop_rule import Rule
from opatlas.errors import TableError
from opatlas.files import TemporaryFolder
from opatlas.instruments.attribution import (
    NoSamples,
    ProfiledRow,
    ProfiledSamples,
    attribute,
)
from opatlas.instruments.instrument import TORCH_NPU_PROFILER, Samples
from opatlas.instruments.marked_launches import MarkedLaunches


class TorchNpuProfiler:
    """A profiling session for each row, whose kernel_details.csv tells the durations and counters."""

    name = TORCH_NPU_PROFILER

    def __init__(self, metrics: str) -> None:
        """`metrics` is the group of counters, as in `--aic-metrics`."""
        self._metrics = metrics

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        with TemporaryFolder("profile") as folder:
            return sampled(folder, self._metrics, call, before_each, rule)


def sampled(
    folder: Path, metrics: str, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule
) -> Samples:
    """Takes samples of a call in one session of the profiler, whose files stay below `folder`."""
    marked = MarkedLaunches(TORCH_NPU_PROFILER, torch.device("npu"), npu_of_torch().synchronize)
    # No schedule: kernels get lost where the profiler goes from warm-up to recording.
    with profiling(str(folder), metrics):
        marked.lead_in()
        samples = marked.sample(call, before_each, rule)
    return replace(samples, profiled=_found(folder, samples))


def profiling(folder: str, metrics: str) -> AbstractContextManager[object]:
    """A session of torch_npu's profiler that leaves `kernel_details.csv` somewhere below `folder`."""
    import torch_npu

    profiler = torch_npu.profiler
    session: AbstractContextManager[object] = profiler.profile(
        activities=[profiler.ProfilerActivity.NPU],
        on_trace_ready=profiler.tensorboard_trace_handler(folder),
        experimental_config=profiler._ExperimentalConfig(
            # Level 0 records neither shapes nor counters.
            profiler_level=profiler.ProfilerLevel.Level1,
            aic_metrics=getattr(profiler.AiCMetrics, metrics),
        ),
    )
    return session


def _found(folder: Path, samples: Samples) -> ProfiledSamples | NoSamples:
    assert samples.launched is not None
    files = sorted(folder.rglob("kernel_details.csv"))
    if len(files) != 1:
        return NoSamples(f"torch_npu.profiler wrote {len(files)} files kernel_details.csv: its messages say why")
    try:
        read = read_launches(files[0])
    except TableError as error:
        return NoSamples(str(error))
    # The only row of the profile: marks tell its samples, whatever its kernels are called.
    (found,) = attribute(read.launches, [ProfiledRow("", {}, samples.launched)])
    return found


def of(settings: MeasureSettings) -> TorchNpuProfiler:
    return TorchNpuProfiler(settings.aic_metrics)
