"""Leaves nothing of a row in any cache of the CPU that its threads may use. No torch is imported here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.devices.cgroups import ROOT
from bench.devices.cpu_caches import cache_domains, flush_bytes, least_flush_bytes
from bench.devices.evict import evictor

if TYPE_CHECKING:
    import torch

#: Where the system does not tell the size of the last-level cache; larger than most.
_ASSUMED_BYTES = 64 << 20
#: A read of so much takes some ten milliseconds on two cores. Where caches need more, the row's tensors are evicted
#: line by line, and the read is for what else the row used: workspaces, code, page tables.
DEAR_BYTES = 128 << 20


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
    by_line = whole > max(DEAR_BYTES, least) and evictor() is not None
    read = max(DEAR_BYTES, least) if by_line else whole
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
