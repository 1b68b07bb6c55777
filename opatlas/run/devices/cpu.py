"""Implements the CPU as a device."""

from __future__ import annotations

import gc
import os
import re
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch

from opatlas.row.location import cpu_device_name
from opatlas.run.devices.cgroups import available_cores, available_memory, cpu_quota, memory_limit, usable_cores
from opatlas.run.devices.cpu_flush import CpuFlush, plan_flush
from opatlas.run.devices.device import Device, DeviceDescription, DeviceSpec, probe
from opatlas.run.devices.device_lock import LockHolder, device_lock
from opatlas.run.devices.system import read_text
from opatlas.run.instruments.instrument import Instrument, MeasureSettings, open_instrument


class CpuDevice:
    """All CPU threads of this process as one device. Rows of concurrent sessions run one at a time."""

    def __init__(self, spec: DeviceSpec, settings: MeasureSettings) -> None:
        self._threads = settings.threads or available_cores()
        torch.set_num_threads(self._threads)
        # Starts the threads now, because under `bounded_memory` the memory may not suffice for their stacks.
        torch.ones(1 << 17)
        self.torch_device = torch.device("cpu")
        self._flush_plan = plan_flush(usable_cores(), self._threads)
        self._flush = CpuFlush(self._flush_plan)
        self._settings = settings
        # Rows that are measured at the same time slow each other down.
        self._lock = device_lock("cpu")

    def describe(self) -> DeviceDescription:
        plan = self._flush_plan
        caches = {
            "last_level_cache_bytes": plan.cache_bytes,
            "last_level_caches": plan.caches,
            "flush_read_bytes": plan.read_bytes,
            "flush_by_line": "yes" if plan.by_line else "no",
        }
        limits = {"cpu_quota_cores": cpu_quota(), "memory_limit_bytes": memory_limit()}
        return DeviceDescription(
            name=cpu_device_name(),
            facts={
                "torch": str(torch.__version__),
                "threads": self._threads,
                **{name: fact for name, fact in caches.items() if fact is not None},
                "memory_bytes": _memory_bytes(),
                **{name: limit for name, limit in limits.items() if limit is not None},
                "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
            },
        )

    def instrument(self) -> Instrument:
        return open_instrument("cpu", self._settings)

    def kernel(self, impl: Callable[..., Any], npu: str | None) -> Callable[..., Any]:
        return impl

    def available_bytes(self) -> int:
        return host_available_bytes()

    def release_memory(self) -> None:
        gc.collect()

    def probe(self) -> None:
        probe(self.torch_device)

    def synchronize(self) -> None:
        """Does nothing: calls on a CPU return when they have ended."""

    def flush_cache(self, touched: Sequence[torch.Tensor] | None = None) -> None:
        self._flush(touched)

    def locked(
        self, when_waiting: Callable[[LockHolder], None], when_taken: Callable[[], None], limit_s: float | None = None
    ) -> AbstractContextManager[object]:
        return self._lock.held(when_waiting, when_taken, limit_s)


def host_available_bytes() -> int:
    """Returns the bytes that can be allocated without swapping, within the limits of the process's control groups."""
    left = available_memory()
    return _system_bytes() if left is None else min(_system_bytes(), left)


@contextmanager
def bounded_memory(device: Device) -> Iterator[None]:
    """Limits this process to the available memory of a CPU, so that an allocation fails before the system kills.

    A kernel or its formula may need far more memory than the row's tensors, for instance for the scores of a long
    attention. Does nothing for devices with memory of their own, and on systems other than Linux.
    """
    if device.torch_device.type != "cpu":
        yield
        return
    used = re.search(r"^VmData:\s*(\d+) kB", read_text(Path("/proc/self/status")), flags=re.MULTILINE)
    if used is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    own = int(used[1]) * 1024 + device.available_bytes()
    limits = [own, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _system_bytes() -> int:
    """Returns the available memory of the system in bytes; all memory if the system does not report this number."""
    available = re.search(r"^MemAvailable:\s*(\d+) kB", read_text(Path("/proc/meminfo")), flags=re.MULTILINE)
    return int(available[1]) * 1024 if available else _memory_bytes()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
