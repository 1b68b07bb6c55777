"""Flushes the caches of the CPU that the threads of a row may use. Imports torch on first use only."""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from opatlas.run.devices.cgroups import ROOT
from opatlas.run.devices.system import read_text
from opatlas.text import parse_whole

if TYPE_CHECKING:
    import torch

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


def cache_domains(cores: Iterable[int], root: Path = ROOT) -> list[CacheDomain]:
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


def flush_bytes(domains: Iterable[CacheDomain], threads: int) -> int:
    """Returns how many bytes `threads` threads must read, in equal shares, to evict all caches that they may use.

    The threads that share a cache read `_PASSES` times its size. Threads are assumed to spread over all domains; with
    more domains than threads each thread evicts one domain.
    """
    domains = list(domains)
    share = 0
    for domain in domains:
        sharers = max(min(len(domain.cores), threads // len(domains)), 1)
        share = max(share, _PASSES * -(-domain.size_bytes // sharers))
    return share * threads


def least_flush_bytes(domains: Iterable[CacheDomain], threads: int) -> int:
    """Returns how many bytes `threads` threads must read to evict the private caches of their cores."""
    return _PASSES * threads * max((domain.private_bytes for domain in domains), default=0)


def _bytes(text: str) -> int | None:
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:])
    size = parse_whole(text[:-1])
    return size * unit if unit and size is not None else None


def _word(path: Path) -> str:
    return read_text(path).strip()


#: Length of a cache line on x86.
_LINE_BYTES = 64
#: Machine code of void evict(char *start, char *end), in the calling convention of Linux.
_CODE = bytes.fromhex(
    "660fae3f"  # next: clflushopt [rdi]
    "4883c740"  # add rdi, 64
    "4839f7"  # cmp rdi, rsi
    "72f3"  # jb next
    "0faef0"  # mfence
    "c3"  # ret
)


@cache
def evictor() -> Callable[[int, int], None] | None:
    """Returns a function that evicts `size` bytes at an address from all caches; None without an instruction for it."""
    if platform.machine() != "x86_64" or platform.system() != "Linux" or not _has_instruction():
        return None
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:  # the system forbids writable code
        return None
    page.write(_CODE)
    code = ctypes.c_char.from_buffer(page)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(ctypes.addressof(code))
    # Keeps the page alive.
    function.code = code  # type: ignore[attr-defined]

    def evict(address: int, size: int) -> None:
        if size > 0:
            function(address - address % _LINE_BYTES, address + size)

    return evict


def _has_instruction() -> bool:
    return "clflushopt" in read_text(Path("/proc/cpuinfo")).split("\n\n")[0].split()


#: Assumed size of the last-level cache if the system does not say; larger than most.
_ASSUMED_BYTES = 64 << 20
#: Reading this many bytes takes some ten milliseconds on two cores. If the caches need more, the row's tensors are
#: evicted line by line, and the read evicts all other data of the row: workspaces, code, page tables.
EXPENSIVE_READ_BYTES = 128 << 20


@dataclass(frozen=True)
class FlushPlan:
    """How the caches are flushed.

    Attributes:
        cache_bytes: size of the largest last-level cache; None if the system does not report caches.
        caches: number of last-level caches that the process may use.
        whole_bytes: bytes to read to evict all caches.
        read_bytes: bytes to read before a sample whose tensors are known.
        by_line: whether the known tensors are evicted line by line as well.
    """

    cache_bytes: int | None
    caches: int
    whole_bytes: int
    read_bytes: int
    by_line: bool


def plan_flush(cores: Iterable[int], threads: int, root: Path = ROOT) -> FlushPlan:
    """Returns how `threads` threads flush the caches of some cores."""
    domains = cache_domains(cores, root)
    if not domains:
        return FlushPlan(None, 1, 2 * _ASSUMED_BYTES, 2 * _ASSUMED_BYTES, by_line=False)
    least = least_flush_bytes(domains, threads)
    whole = max(flush_bytes(domains, threads), least)
    by_line = whole > max(EXPENSIVE_READ_BYTES, least) and evictor() is not None
    read = max(EXPENSIVE_READ_BYTES, least) if by_line else whole
    return FlushPlan(domains[0].size_bytes, len(domains), whole, read, by_line)


class CpuFlush:
    """Flushes the caches as planned, with all threads of torch."""

    def __init__(self, plan: FlushPlan) -> None:
        self._plan = plan
        self._buffer: torch.Tensor | None = None

    def __call__(self, touched: Sequence[torch.Tensor] | None) -> None:
        """Flushes the caches.

        Args:
            touched: all tensors that the row reads and writes; None if they are not known.
        """
        plan, evict = self._plan, evictor() if self._plan.by_line else None
        sizes = _sizes_by_address(touched) if evict is not None and touched is not None else None
        # The eviction of larger tensors line by line takes longer than one read that evicts everything.
        if evict is None or sizes is None or sum(sizes.values()) > plan.whole_bytes:
            self._read(plan.whole_bytes)
            return
        self._read(plan.read_bytes)
        for address, size in sizes.items():
            evict(address, size)

    def _read(self, size: int) -> None:
        # The buffer is read, because written lines would be written back during the next sample.
        if self._buffer is None or self._buffer.nbytes < size:
            import torch

            self._buffer = torch.ones(size // 4)
        self._buffer[: size // 4].sum()


def _sizes_by_address(tensors: Sequence[torch.Tensor]) -> dict[int, int] | None:
    """Returns the sizes of the tensors' memory by address; None if a tensor, such as a sparse tensor, has no memory."""
    try:
        storages = [tensor.untyped_storage() for tensor in tensors]
        sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
    except RuntimeError:
        return None
    return None if sizes.get(0) else sizes
