"""Leaves nothing of a row in any cache of the CPU that its threads may use. No torch is imported here."""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from opatlas.devices.cgroups import ROOT
from opatlas.text import whole

if TYPE_CHECKING:
    import torch

#: A cache of the first level is never the last one: where no other is told, the system does not tell.
_LEAST_LEVEL = 2
#: One pass over a cache's size leaves part of what was there where the policy is not quite least-recently-used.
_PASSES = 2


@dataclass(frozen=True)
class CacheDomain:
    """A last-level cache.

    Attributes:
        cores: those of the process that share it.
        size_bytes: its size.
        private_bytes: the size of the largest cache that a core has for itself, below it.
    """

    cores: frozenset[int]
    size_bytes: int
    private_bytes: int


def cache_domains(cores: Iterable[int], root: Path = ROOT) -> list[CacheDomain]:
    """Returns the last-level caches of some cores, the largest first; [] where the system does not tell."""
    domains: dict[tuple[str, int, int], set[int]] = {}
    for core in cores:
        sizes: dict[int, tuple[int, str]] = {}
        for folder in (root / f"sys/devices/system/cpu/cpu{core}/cache").glob("index*"):
            level, size = whole(_text(folder / "level")), _bytes(_text(folder / "size"))
            if level is not None and size is not None and _text(folder / "type") != "Instruction":
                sizes[level] = size, _text(folder / "shared_cpu_list")
        if max(sizes, default=0) >= _LEAST_LEVEL:
            size, shared = sizes.pop(max(sizes))
            private = max((below for below, _ in sizes.values()), default=0)
            domains.setdefault((shared or str(core), size, private), set()).add(core)
    found = [CacheDomain(frozenset(of), size, private) for (_, size, private), of in domains.items()]
    return sorted(found, key=lambda domain: -domain.size_bytes)


def flush_bytes(domains: Iterable[CacheDomain], threads: int) -> int:
    """Returns how much these threads have to read, each an equal share, to evict every cache that they may use.

    Twice a cache's size is read by the threads that share it. They are taken to spread over all domains: with more
    domains than threads each thread reads for a domain of its own.
    """
    domains = list(domains)
    share = 0
    for domain in domains:
        beside = max(min(len(domain.cores), threads // len(domains)), 1)
        share = max(share, _PASSES * -(-domain.size_bytes // beside))
    return share * threads


def least_flush_bytes(domains: Iterable[CacheDomain], threads: int) -> int:
    """Returns how much these threads have to read to evict the caches that each core has for itself."""
    return _PASSES * threads * max((domain.private_bytes for domain in domains), default=0)


def _bytes(text: str) -> int | None:
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:])
    size = whole(text[:-1])
    return size * unit if unit and size is not None else None


def _text(path: Path) -> str:
    """The text of a file; "" where the system has no such file."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


#: Steps by which lines are dropped; those of x86 are so long.
_LINE_BYTES = 64
#: void evict(char *start, char *end), in the calling convention of Linux.
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
    """Returns what evicts `size` bytes from an address on; None where the machine or its system has no way."""
    if platform.machine() != "x86_64" or platform.system() != "Linux" or not _has_instruction():
        return None
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:  # a system that lets no process write code
        return None
    page.write(_CODE)
    code = ctypes.c_char.from_buffer(page)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(ctypes.addressof(code))
    # It keeps the page, which would be given back otherwise.
    function.code = code  # type: ignore[attr-defined]

    def evict(address: int, size: int) -> None:
        if size > 0:
            function(address - address % _LINE_BYTES, address + size)

    return evict


def _has_instruction() -> bool:
    try:
        return "clflushopt" in Path("/proc/cpuinfo").read_text().split("\n\n")[0].split()
    except OSError:
        return False


#: Where the system does not tell the size of the last-level cache; larger than most.
_ASSUMED_BYTES = 64 << 20
#: A read of so much takes some ten milliseconds on two cores. Where caches need more, the row's tensors are evicted
#: line by line, and the read is for what else the row used: workspaces, code, page tables.
EXPENSIVE_READ_BYTES = 128 << 20


@dataclass(frozen=True)
class FlushPlan:
    """How caches are flushed.

    Attributes:
        cache_bytes: size of the largest last-level cache; None where the system does not tell.
        caches: how many last-level caches the process may use.
        whole_bytes: a read of so much evicts all of them.
        read_bytes: what is read before a sample whose tensors are known.
        by_line: whether these tensors are evicted line by line besides.
    """

    cache_bytes: int | None
    caches: int
    whole_bytes: int
    read_bytes: int
    by_line: bool


def plan_flush(cores: Iterable[int], threads: int, root: Path = ROOT) -> FlushPlan:
    """Returns how the caches of some cores are flushed by so many threads."""
    domains = cache_domains(cores, root)
    if not domains:
        return FlushPlan(None, 1, 2 * _ASSUMED_BYTES, 2 * _ASSUMED_BYTES, by_line=False)
    least = least_flush_bytes(domains, threads)
    whole = max(flush_bytes(domains, threads), least)
    by_line = whole > max(EXPENSIVE_READ_BYTES, least) and evictor() is not None
    read = max(EXPENSIVE_READ_BYTES, least) if by_line else whole
    return FlushPlan(domains[0].size_bytes, len(domains), whole, read, by_line)


class CpuFlush:
    """Carries a plan out, with all of torch's threads."""

    def __init__(self, plan: FlushPlan) -> None:
        self._plan = plan
        self._buffer: torch.Tensor | None = None

    def __call__(self, touched: Sequence[torch.Tensor] | None) -> None:
        """Flushes; `touched` are the tensors that the row reads and writes, None where nobody knows them."""
        plan, evict = self._plan, evictor() if self._plan.by_line else None
        places = _places(touched) if evict is not None and touched is not None else None
        # More takes longer to evict line by line than all caches take to be read over.
        if evict is None or places is None or sum(places.values()) > plan.whole_bytes:
            self._read(plan.whole_bytes)
            return
        self._read(plan.read_bytes)
        for address, size in places.items():
            evict(address, size)

    def _read(self, size: int) -> None:
        # Read, not written: dirty lines would be written back during the sample that follows.
        if self._buffer is None or self._buffer.nbytes < size:
            import torch

            self._buffer = torch.ones(size // 4)
        self._buffer[: size // 4].sum()


def _places(tensors: Sequence[torch.Tensor]) -> dict[int, int] | None:
    """Sizes of the tensors' memory by its address; None where one has none, such as a sparse one."""
    try:
        storages = [tensor.untyped_storage() for tensor in tensors]
        places = {storage.data_ptr(): storage.nbytes() for storage in storages}
    except RuntimeError:
        return None
    return None if places.get(0) else places
