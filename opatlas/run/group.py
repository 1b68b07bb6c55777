"""A group of ranks as one rank sees it, and the instrument that keeps the ranks synchronized.

opatlas/run/groups starts the processes; `rank_main.py` there makes the Group of a rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING

from opatlas.row.communication import row_kind
from opatlas.row.errors import ReplayError

if TYPE_CHECKING:
    import torch

    from opatlas.run.instruments.instrument import Instrument, Rule, Samples

#: Counter of a measurement: difference between the largest and the smallest median of the ranks.
RANK_SPREAD = "Rank Spread(us)"
#: Elements (float32, 16 MiB) of the all_reduce of a device barrier. Over NVLink it takes some 80 us, in which a host
#: launches two or three collectives. With 8 MiB on two H200, all_to_all of 1 KiB began 17 us apart.
BARRIER_ELEMENTS = 4 << 20
#: After several all_reduce even the slowest host is ahead of its device.
_BARRIER_CALLS = 4


def _ignore_step(step: int, text: str) -> None:
    pass


@dataclass
class Group:
    """The group that a replay runs in, as one rank sees it.

    Attributes:
        rank: the number of this rank, from 0.
        size: number of ranks.
    """

    rank: int
    size: int
    _find_name: Callable[[], str] = str
    _report: Callable[[int, str], None] = _ignore_step
    _step: int = 0
    #: Tensor on the device for device barriers; None where the device is the host.
    _barrier_tensor: torch.Tensor | None = None

    @cached_property
    def name(self) -> str:
        """Returns the name by which a kernel that communicates finds the group; "" for a rank without other ranks.

        All ranks must ask for the name together: the first time may create a communicator.
        """
        return self._find_name()

    def first_rank_decides(self, value: bool) -> bool:
        """Returns the value of rank 0 on every rank, so that all ranks make equally many calls."""
        if self.size == 1:
            return value
        import torch
        from torch import distributed

        decision = torch.tensor([value])
        distributed.broadcast(decision, src=0)
        return bool(decision)

    def barrier(self) -> None:
        """Waits on the host until every rank has called this method."""
        if self.size > 1:
            import torch
            from torch import distributed

            # A tensor on the host: nothing is launched on a device.
            distributed.all_reduce(torch.zeros(1))

    def device_barrier(self) -> None:
        """Makes the ranks begin their next call at the same time.

        On a CPU this is a barrier of the hosts: the ranks leave it some microseconds apart. On other devices no host
        waits: each launches a few all_reduce, long enough for every host to launch the next call. The devices end the
        last all_reduce together, and continue without their hosts.
        """
        if self._barrier_tensor is None:
            self.barrier()
        else:
            from torch import distributed

            for _ in range(_BARRIER_CALLS):
                distributed.all_reduce(self._barrier_tensor)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Returns the values of every rank, in order of the ranks; all ranks must give equally many values."""
        if self.size == 1:
            return [list(values)]
        import torch
        from torch import distributed

        own = torch.tensor(values, dtype=torch.float64)
        gathered = [torch.empty_like(own) for _ in range(self.size)]
        distributed.all_gather(gathered, own)
        return [part.tolist() for part in gathered]

    def gather_samples(self, own_us: Sequence[float]) -> list[list[float]]:
        """Returns every rank's samples of one call, in microseconds.

        Args:
            own_us: samples of this rank; empty if the rank has none, so that the other ranks notice.

        Raises:
            ReplayError: on every rank, if a rank has no samples or the ranks have different numbers of samples.
        """
        counts = [int(count) for (count,) in self.gather([float(len(own_us))])]
        if len(set(counts)) > 1 or not own_us:
            raise ReplayError(f"the ranks have different numbers of samples of the same call: {counts}")
        return self.gather(own_us)

    def report_step(self, text: str) -> None:
        """Reports the current step of this rank, so that pytest can name a rank that hangs."""
        self._step += 1
        self._report(self._step, text)


#: The group of a process that has no other ranks.
ALONE = Group(0, 1)


class SynchronizedInstrument:
    """An Instrument whose samples begin together on all ranks; all ranks take equally many samples."""

    def __init__(self, instrument: Instrument, group: Group) -> None:
        self.name = instrument.name
        self._instrument = instrument
        self._group = group

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        """Takes samples as `Instrument.sample` does; the rule of rank 0 decides for all ranks."""

        def synchronize() -> None:
            if before_each is not None:
                before_each()
            self._group.report_step("in a timed call")
            self._group.device_barrier()

        self._group.report_step("between calls")
        # Without `before_each` each rank would choose its own number of calls for a sample.
        return self._instrument.sample(call, synchronize, SharedRule(rule, self._group))


class SharedRule:
    """The stop rule of rank 0, for all ranks."""

    def __init__(self, rule: Rule, group: Group) -> None:
        self._rule = rule
        self._group = group

    def enough(self, samples_us: Sequence[float]) -> bool:
        return self._group.first_rank_decides(self._rule.enough(samples_us))

    def enough_count(self, count: int) -> bool:
        return self._group.first_rank_decides(self._rule.enough_count(count))

    def batch(self, count: int) -> int:
        """Returns 1: the number of samples that an instrument can queue differs between ranks."""
        return 1

    def again(self) -> None:
        """Does nothing: samples of a single rank are not taken again."""


def ranks_of_node() -> int:
    """Returns the number of ranks on this node, by torchrun's variable; 1 for a process without a group."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def spread_us(rank_samples_us: Sequence[Sequence[float]]) -> float:
    """Returns the largest minus the smallest median of the ranks, in microseconds, with the decimals of a CSV."""
    medians = [median(samples) for samples in rank_samples_us]
    return round(max(medians) - min(medians), 4)


def slowest_us(kernel_type: str, rank_samples_us: Sequence[Sequence[float]]) -> tuple[int, tuple[float, ...]]:
    """Returns the rank with the largest median, and the samples of the group, in microseconds.

    A collective begins on all ranks at once: the samples of the slowest rank are the samples of the group. In other
    kernels different ranks may be slow in different samples: each sample of the group is the longest of the ranks.

    Args:
        kernel_type: kernel type of the row.
        rank_samples_us: the samples of each rank, equally many for all ranks.
    """
    slowest = max(range(len(rank_samples_us)), key=lambda rank: median(rank_samples_us[rank]))
    if row_kind(kernel_type).starts_together:
        return slowest, tuple(rank_samples_us[slowest])
    return slowest, tuple(map(max, zip(*rank_samples_us, strict=True)))
