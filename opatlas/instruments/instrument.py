"""How durations are taken: the settings, the samples, and the instruments that each kind of device offers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from opatlas.errors import OpAtlasError
from opatlas.instruments.attribution import NoSamples, PendingSamples, ProfiledSamples
from opatlas.instruments.stop_rule import Rule


@dataclass(frozen=True)
class MeasureSettings:
    """How rows are measured.

    Attributes:
        repeat_count: number of samples; None lets the stop rule decide.
        cache: "cold" (last-level cache flushed before each sample) or "warm".
        time_limit_s: wall time after which the stop rule ends the sampling of a row.
        threads: CPU threads that torch may use; None: one for each core the process may use.
        instrument: what takes the durations, by its name in `opatlas.instruments.OFFERED`; None: the best
            that the device offers.
        max_noise: relative standard deviation above which a row is measured again, and fails if it stays; None: any.
        aic_metrics: the group of hardware counters that Ascend's profilers record.
    """

    repeat_count: int | None = None
    cache: str = "cold"
    time_limit_s: float = 5.0
    threads: int | None = None
    instrument: str | None = None
    aic_metrics: str = "PipeUtilization"
    max_noise: float | None = None


#: Measures in sessions of many rows (bench/msprof).
MSPROF = "msprof"
TORCH_NPU_PROFILER = "torch-npu-profiler"
#: By kind of device: what needs no profiler.
EVENTS: Mapping[str, str] = {"cuda": "cuda-events", "npu": "npu-events"}
#: By kind of device, the best one first: what it is called, and "module:function" of what makes it from
#: the settings.
INSTRUMENTS: Mapping[str, Mapping[str, str]] = {
    "cpu": {"wall-clock": "opatlas.instruments.timers:open_wall_clock"},
    "cuda": {
        "cupti": "opatlas.instruments.cupti:open_cupti",
        "kineto": "opatlas.instruments.kernel_records:open_kineto",
        "cuda-events": "opatlas.instruments.timers:open_cuda_events",
    },
    "npu": {
        MSPROF: "opatlas.instruments.npu_profilers:open_msprof",
        TORCH_NPU_PROFILER: "opatlas.instruments.npu_profilers:open_torch_npu_profiler",
        "npu-events": "opatlas.instruments.timers:open_npu_events",
    },
}


@dataclass(frozen=True)
class Samples:
    """Durations of one call, in microseconds, in the order taken.

    Attributes:
        device_kernels: device kernels that one call launched; None where the instrument cannot tell.
        calls_per_sample: calls that one sample averages over.
        launched: of an instrument that reads a profile: what to look for there.
        profiled: what it found there; None where the profile is read later, by somebody else.
        notes: what a reader of the durations should know.
        throttled: why the device ran below its clock while they were taken; "" if it did not.
    """

    durations_us: tuple[float, ...]
    device_kernels: int | None = None
    calls_per_sample: int = 1
    launched: PendingSamples | None = None
    profiled: ProfiledSamples | NoSamples | None = None
    notes: tuple[str, ...] = ()
    throttled: str = ""


class InstrumentMissing(OpAtlasError):
    """What an instrument needs is not on this machine; the message says what to do."""


class Instrument(Protocol):
    """Takes samples of a call. It does not know which kernel, or which row."""

    name: str

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        """Runs `call` until `rule` says enough.

        Args:
            call: launches the kernel; may return before it has ended on the device.
            before_each: run before every sample, outside of it (flushes the cache, restores what
                the kernel changes); may return before that has ended on the device. None: samples may
                average over several calls in a row.
            rule: fresh, for this row alone.
        """
        ...


def choose_instrument(kind: str, name: str | None) -> str:
    """The instrument to take on devices of a kind of `OFFERED`: the one asked for, by default the best.

    Raises:
        OpAtlasError: these devices do not offer it.
    """
    offered = INSTRUMENTS[kind]
    if name is not None and name not in offered:
        raise OpAtlasError(f"--instrument {name}: devices of kind {kind} offer {', '.join(offered)}")
    return name or next(iter(offered))


def choose_group_instrument(kind: str, name: str | None) -> str:
    """The same on devices of a group: where nobody asks for msprof, and it is not on PATH, events take its place.

    torch_npu's profiler does not: CANN's cannot be started and stopped for each message in processes that communicate.

    Raises:
        OpAtlasError: these devices do not offer it.
    """
    chosen = choose_instrument(kind, name)
    return EVENTS[kind] if chosen == MSPROF and name is None and shutil.which(MSPROF) is None else chosen


def open_instrument(kind: str, settings: MeasureSettings) -> Instrument:
    """The instrument that the settings name, on the device that this process has opened. May import torch.

    Where they name none, it is the best one whose needs are here.

    Raises:
        OpAtlasError: see `choose`.
        InstrumentMissing: what it needs is not here.
    """
    names = list(INSTRUMENTS[kind]) if settings.instrument is None else [choose_instrument(kind, settings.instrument)]
    missing: list[str] = []
    for name in names:
        module, _, maker = INSTRUMENTS[kind][name].partition(":")
        try:
            instrument: Instrument = getattr(import_module(module), maker)(settings)
        except InstrumentMissing as error:
            missing.append(f"{name}: {error}")
        else:
            return instrument
    raise InstrumentMissing("; ".join(missing))
