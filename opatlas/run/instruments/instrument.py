"""Defines instruments, which measure durations: settings, samples, the Instrument protocol, and the table of names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from opatlas.run.instruments.attribution import NoSamples, PendingSamples, ProfiledSamples
from opatlas.run.instruments.stop_rule import Rule


@dataclass(frozen=True)
class MeasureSettings:
    """The settings of a measurement.

    Attributes:
        repeat_count: number of samples; None: the stop rule decides.
        cache: "cold" (caches are flushed before each sample) or "warm".
        time_limit_s: wall time after which the stop rule ends the sampling of a row.
        threads: number of CPU threads of torch; None: one for each core that the process may use.
        instrument: name of the instrument in `DeviceKind.instruments`; None: the best one that works on the device.
        aic_metrics: group of hardware counters that Ascend's profilers record.
    """

    repeat_count: int | None = None
    cache: str = "cold"
    time_limit_s: float = 5.0
    threads: int | None = None
    instrument: str | None = None
    aic_metrics: str = "PipeUtilization"


#: Measures many rows in one profiling session (opatlas/run/msprof/).
MSPROF = "msprof"
TORCH_NPU_PROFILER = "torch-npu-profiler"
#: The instruments that record a group of hardware counters.
PROFILERS = (MSPROF, TORCH_NPU_PROFILER)


@dataclass(frozen=True)
class Samples:
    """The samples of a call.

    Attributes:
        durations_us: durations in microseconds, in order of time; () if a profile has them.
        device_kernels: number of device kernels of one call; None if the instrument does not count them.
        kernel_names: readable names of the device kernels of one call, in the order of their launches; () if unknown.
        kernels_us: mean duration of each of these kernels in microseconds; () if unknown.
        spans_us: time from the start of the first to the end of the last device kernel of each call, in microseconds,
            in order of time; () if unknown.
        calls_per_sample: number of calls that one sample averages.
        pending: where a profile has the samples; None if the instrument needs no profile.
        profiled: the samples in the profile; None if the profile is read later by another process.
        notes: remarks for readers of the durations.
        throttled: why the device lowered its clocks during the samples; "" for normal clocks.
    """

    durations_us: tuple[float, ...]
    device_kernels: int | None = None
    kernel_names: tuple[str, ...] = ()
    kernels_us: tuple[float, ...] = ()
    spans_us: tuple[float, ...] = ()
    calls_per_sample: int = 1
    pending: PendingSamples | None = None
    profiled: ProfiledSamples | NoSamples | None = None
    notes: tuple[str, ...] = ()
    throttled: str = ""


class Instrument(Protocol):
    """Measures the duration of any call.

    Attributes:
        name: name of the instrument in `DeviceKind.instruments`.
    """

    name: str

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        """Takes samples of `call` until `rule` ends the sampling.

        Args:
            call: launches the kernel; may return before the kernel has ended on the device.
            before_each: prepares each sample (flushes caches, restores inputs), is not measured, and may return before
                its work has ended on the device. None: a sample may average several consecutive calls.
            rule: a new rule for this row.
        """
        ...
