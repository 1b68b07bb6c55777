"""Defines instruments, which measure durations: settings, samples, the Instrument protocol, and the table of names."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from opatlas.errors import OpAtlasError
from opatlas.run.devices.device import kind_named
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


class InstrumentMissing(OpAtlasError):
    """An instrument cannot work on this machine; the message contains the remedy."""


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


def preferred_instrument(kind: str, name: str | None) -> str:
    """Returns the name of the requested instrument for devices of a kind; by default the best instrument of the kind.

    `open_instrument` falls back to another instrument if the best one does not work on this machine.

    Raises:
        OpAtlasError: devices of this kind do not have the instrument.
    """
    offered = kind_named(kind).instruments
    if name is not None and name not in offered:
        raise OpAtlasError(f"--instrument {name}: devices of kind {kind} offer {', '.join(offered)}")
    return name or next(iter(offered))


def preferred_group_instrument(kind: str, name: str | None) -> str:
    """Returns the name of the instrument for a group of devices: the requested or else the best instrument.

    Without msprof on PATH the default is events instead of torch_npu's profiler, because CANN's profiler cannot be
    started and stopped for each message in processes that communicate.

    Raises:
        OpAtlasError: devices of this kind do not have the instrument.
    """
    chosen = preferred_instrument(kind, name)
    without_profiler = kind_named(kind).events
    return (
        without_profiler if without_profiler and chosen == MSPROF and not name and not shutil.which(MSPROF) else chosen
    )


def open_instrument(kind: str, settings: MeasureSettings) -> Instrument:
    """Opens the instrument of the settings, by default the best working instrument, for the device of this process.

    Imports torch.

    Raises:
        OpAtlasError: devices of this kind do not have the instrument.
        InstrumentMissing: the instrument does not work on this machine.
    """
    offered = kind_named(kind).instruments
    missing: list[str] = []
    for name in offered if settings.instrument is None else [preferred_instrument(kind, settings.instrument)]:
        module, _, maker = offered[name].partition(":")
        try:
            instrument: Instrument = getattr(import_module(module), maker)(kind, settings)
        except InstrumentMissing as error:
            missing.append(f"{name}: {error}")
        else:
            return instrument
    raise InstrumentMissing("; ".join(missing))
