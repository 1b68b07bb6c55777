"""The CPU: all threads of a process as one device, and the flush of its caches."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from opatlas.errors import OpAtlasError
from opatlas.row.location import cpu_device_name
from opatlas.run.devices import system
from opatlas.run.devices.device import Device, DeviceDescription, DeviceKind, DeviceSpec
from opatlas.text import parse_whole

if TYPE_CHECKING:
    import torch

    from opatlas.run.instruments.instrument import MeasureSettings


class Cpu(DeviceKind):
    """The kind of device that every machine has."""

    name = "cpu"
    opener = "opatlas.run.devices.cpu:CpuDevice"
    backend = "gloo"
    ranks_share = True
    instruments: ClassVar[Mapping[str, str]] = {"wall-clock": "opatlas.run.instruments.instrument:open_wall_clock"}
    resource = "CPU"
    dispatch_key = "CPU"
    has_float64 = True
    has_bytes = True

    def is_present(self) -> bool:
        return True

    def find(self, name: str | None) -> list[DeviceSpec]:
        if name not in (None, cpu_device_name()):
            raise OpAtlasError(
                f"--device {name}: this machine does not have this device; give npu, cuda or cpu, or the name of a "
                f"folder in database/data (for this CPU {cpu_device_name()}), or leave --device out"
            )
        return [DeviceSpec(self.name, name=cpu_device_name())]


KIND = Cpu()


class CpuDevice(Device):
    """All CPU threads of this process as one device. Rows of concurrent sessions run one at a time."""

    def __init__(self, spec: DeviceSpec, settings: MeasureSettings) -> None:
        import torch

        from opatlas.run.devices.device_lock import device_lock

        self.spec, self.settings = spec, settings
        self._threads = settings.threads or system.available_cores()
        torch.set_num_threads(self._threads)
        # Starts the threads now, because under `bounded_memory` the memory may not suffice for their stacks.
        torch.ones(1 << 17)
        self.torch_device = torch.device("cpu")
        self._plan = plan_flush(system.usable_cores(), self._threads)
        self._buffer: torch.Tensor | None = None
        # Rows that are measured at the same time slow each other down.
        self.lock = device_lock("cpu")

    def describe(self) -> DeviceDescription:
        import torch

        plan = self._plan
        facts: dict[str, str | int | float | None] = {
            "torch": str(torch.__version__),
            "threads": self._threads,
            "last_level_cache_bytes": plan.cache_bytes,
            "last_level_caches": plan.caches,
            "flush_read_bytes": plan.read_bytes,
            "memory_bytes": _memory_bytes(),
            "cpu_quota_cores": system.cpu_quota(),
            "memory_limit_bytes": system.memory_limit(),
            "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        }
        return DeviceDescription(cpu_device_name(), {name: fact for name, fact in facts.items() if fact is not None})

    def available_bytes(self) -> int:
        return host_available_bytes()

    def flush_cache(self) -> None:
        """Reads a buffer with all threads of torch: written lines would be written back during the next sample."""
        if self._buffer is None:
            import torch

            self._buffer = torch.ones(self._plan.read_bytes // 4)
        self._buffer.sum()

    @contextmanager
    def bounded_memory(self) -> Iterator[None]:
        """Limits this process to the available memory, so that an allocation fails before the system kills.

        A kernel or its formula may need far more memory than the row's tensors, for instance for the scores of a long
        attention. Does nothing on systems other than Linux.
        """
        used = re.search(r"^VmData:\s*(\d+) kB", system.read_text(Path("/proc/self/status")), flags=re.MULTILINE)
        if used is None:
            yield
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        own = int(used[1]) * 1024 + self.available_bytes()
        limits = [own, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def host_available_bytes() -> int:
    """Returns the bytes that can be allocated without swapping, within the limits of the process's control groups."""
    available = re.search(r"^MemAvailable:\s*(\d+) kB", system.read_text(Path("/proc/meminfo")), flags=re.MULTILINE)
    of_system, left = int(available[1]) * 1024 if available else _memory_bytes(), system.available_memory()
    return of_system if left is None else min(of_system, left)


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


#: Minimum level of the last-level cache. A system that lists only first-level caches reports no last-level cache.
_LEAST_LEVEL = 2
#: A buffer of this many times the cache's size is read: with a policy other than least-recently-used one pass over the
#: size leaves old lines in the cache.
_PASSES = 2


@dataclass(frozen=True)
class CacheDomain:
    """A last-level cache.

    Attributes:
        cores: the cores of this process that share the cache.
        size_bytes: size of the cache.
        private_bytes: size of the largest cache below the last level, which belongs to a single core.
    """

    cores: frozenset[int]
    size_bytes: int
    private_bytes: int


def cache_domains(cores: Iterable[int], root: Path = system.ROOT) -> list[CacheDomain]:
    """Returns the last-level caches of some cores, the largest first; [] if the system does not report caches."""
    domains: dict[tuple[str, int, int], set[int]] = {}
    for core in cores:
        sizes: dict[int, tuple[int, str]] = {}
        for folder in (root / f"sys/devices/system/cpu/cpu{core}/cache").glob("index*"):
            level, size = parse_whole(_word(folder / "level")), _bytes(_word(folder / "size"))
            if level is not None and size is not None and _word(folder / "type") != "Instruction":
                sizes[level] = size, _word(folder / "shared_cpu_list")
        if max(sizes, default=0) >= _LEAST_LEVEL:
            size, shared = sizes.pop(max(sizes))
            private = max((below for below, _ in sizes.values()), default=0)
            domains.setdefault((shared or str(core), size, private), set()).add(core)
    found = [CacheDomain(frozenset(of), size, private) for (_, size, private), of in domains.items()]
    return sorted(found, key=lambda domain: -domain.size_bytes)


def flush_bytes(domains: Sequence[CacheDomain], threads: int) -> int:
    """Returns how many bytes `threads` threads must read, in equal shares, to evict all caches that they may use.

    The threads that share a cache read `_PASSES` times its size, and each as much of the private ones. Threads are
    assumed to spread over all domains; with more domains than threads each thread evicts one domain.
    """
    share = 0
    for domain in domains:
        sharers = max(min(len(domain.cores), threads // len(domains)), 1)
        share = max(share, -(-domain.size_bytes // sharers), domain.private_bytes)
    return _PASSES * share * threads


def _bytes(text: str) -> int | None:
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:])
    size = parse_whole(text[:-1])
    return size * unit if unit and size is not None else None


def _word(path: Path) -> str:
    return system.read_text(path).strip()


#: Assumed size of the last-level cache if the system does not say; larger than most.
_ASSUMED_BYTES = 64 << 20


@dataclass(frozen=True)
class FlushPlan:
    """How the caches are flushed: by a read of a buffer.

    Attributes:
        cache_bytes: size of the largest last-level cache; None if the system does not report caches.
        caches: number of last-level caches that the process may use.
        read_bytes: bytes to read to evict all caches.
    """

    cache_bytes: int | None
    caches: int
    read_bytes: int


def plan_flush(cores: Iterable[int], threads: int, root: Path = system.ROOT) -> FlushPlan:
    """Returns how `threads` threads flush the caches of some cores."""
    domains = cache_domains(cores, root)
    if not domains:
        return FlushPlan(None, 1, _PASSES * _ASSUMED_BYTES)
    return FlushPlan(domains[0].size_bytes, len(domains), flush_bytes(domains, threads))
