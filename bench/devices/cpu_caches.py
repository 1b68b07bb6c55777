"""The last-level caches of the cores that this process may use, as Linux tells them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.devices.cgroups import ROOT
from database.numbers import whole

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
