"""How long a collective takes at least, roughly: latency and bandwidth of a link, and the best of the usual algorithms.

The formulas of the message of m bytes on n devices, whose link has a latency and a bandwidth:

- all_reduce: a ring, 2 (n - 1) latency + 2 (n - 1) / n m / bandwidth, or a tree, 2 log2(n) latency + 2 m / bandwidth;
- all_gather and reduce_scatter, with m for each device: a ring, (n - 1) steps, or recursive doubling or Bruck,
  log2(n) steps, and (n - 1) m / bandwidth;
- all_to_all: pairwise, (n - 1) steps, or Bruck, log2(n) steps, and m / bandwidth;
- broadcast: a tree, log2(n) times latency and m / bandwidth, or a scatter and an all_gather, log2(n) + (n - 1) latency
  + 2 (n - 1) / n m / bandwidth.

(Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, 2005.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log2

from database.communication import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE_SCATTER, Collective

#: Of a link's stated bandwidth, what a collective reaches.
EFFICIENCY = 0.7


@dataclass(frozen=True)
class Link:
    """Attributes: bandwidth_gbps: as stated, in 10^9 bytes/s; latency_us: of one message."""

    bandwidth_gbps: float
    latency_us: float
    efficiency: float = EFFICIENCY

    def transfer_us(self, moved_bytes: float) -> float:
        """Time of so many bytes, without the latency."""
        return moved_bytes / (self.bandwidth_gbps * self.efficiency * 1e3)


#: Of an Atlas 800 A3, by tier.
A3: Mapping[int, Link] = {0: Link(196.0, 5.5), 1: Link(196.0, 0.5), 2: Link(224.0, 0.2)}


def duration_us(collective: Collective, message_bytes: float, num_devices: int, link: Link) -> float:
    """Of one call. Raises ValueError for fewer than two devices."""
    if num_devices < 2:
        raise ValueError(f"{num_devices} devices communicate with nobody")
    return _DURATIONS[collective.name](message_bytes, num_devices, link)


def _all_reduce(message_bytes: float, n: int, link: Link) -> float:
    ring = 2 * (n - 1) * link.latency_us + link.transfer_us(2 * (n - 1) / n * message_bytes)
    tree = 2 * log2(n) * link.latency_us + link.transfer_us(2 * message_bytes)
    return min(ring, tree)


def _all_gather(message_bytes: float, n: int, link: Link) -> float:
    return min(n - 1, log2(n)) * link.latency_us + link.transfer_us((n - 1) * message_bytes)


def _all_to_all(message_bytes: float, n: int, link: Link) -> float:
    return min(n - 1, log2(n)) * link.latency_us + link.transfer_us(message_bytes)


def _broadcast(message_bytes: float, n: int, link: Link) -> float:
    tree = log2(n) * (link.latency_us + link.transfer_us(message_bytes))
    scattered = (log2(n) + n - 1) * link.latency_us + link.transfer_us(2 * (n - 1) / n * message_bytes)
    return min(tree, scattered)


_DURATIONS: Mapping[str, Callable[[float, int, Link], float]] = {
    ALL_REDUCE.name: _all_reduce,
    ALL_GATHER.name: _all_gather,
    REDUCE_SCATTER.name: _all_gather,
    ALL_TO_ALL.name: _all_to_all,
    BROADCAST.name: _broadcast,
}
