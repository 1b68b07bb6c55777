"""A group of ranks as the body of a replay sees it, and what keeps its ranks in step."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any

from opatlas.devices.device import KINDS
from opatlas.model.communication import is_communication
from opatlas.model.errors import ReplayError

if TYPE_CHECKING:
    import torch

    from opatlas.instruments.instrument import Instrument, Samples
    from opatlas.instruments.stop_rule import Rule

#: Of a measurement's counters: how far the medians of the ranks lie apart.
RANK_SPREAD = "Rank Spread(us)"
#: Of float32, 16 MiB: over NVLink some 80 us, in which a host launches two or three collectives. After several the
#: host that is last is ahead of its device. (Two H200: after one of 8 MiB, all_to_all of 1 KiB began 17 us apart.)
_LINE_ELEMENTS = 4 << 20
_LINE_CALLS = 4


def _nothing(step: int, what: str) -> None:
    pass


@dataclass
class Group:
    """One rank's view of its group.

    Attributes:
        rank, size: this rank's number, from 0, and how many there are.
    """

    rank: int
    size: int
    _name_of: Callable[[], str] = str
    _report: Callable[[int, str], None] = _nothing
    _step: int = 0
    #: On the devices; None where these are the host.
    _line: torch.Tensor | None = None

    @cached_property
    def name(self) -> str:
        """By which a kernel that communicates finds the group; "" where there is one rank, not launched.

        All ranks ask for it together: the first time may create a communicator.
        """
        return self._name_of()

    def agree(self, value: bool) -> bool:
        """What rank 0 says. Ranks that decide alike make equally many calls."""
        if self.size == 1:
            return value
        import torch
        from torch import distributed

        decision = torch.tensor([value])
        distributed.broadcast(decision, src=0)
        return bool(decision)

    def together(self) -> None:
        """Waits, on the host, until every rank is here."""
        if self.size > 1:
            import torch
            from torch import distributed

            # Of a tensor on the host, so that nothing is launched on a device.
            distributed.all_reduce(torch.zeros(1))

    def line_up(self) -> None:
        """Lets the ranks begin what they do next at the same time.

        On a CPU that is a barrier: a rank goes on when all are here, and the ranks leave it some microseconds
        apart. On other devices the host does not wait: some all_reduce are launched, which take long enough for
        every host to launch what follows. The devices end the last one together, and go on without their hosts.
        """
        if self._line is None:
            self.together()
        else:
            from torch import distributed

            for _ in range(_LINE_CALLS):
                distributed.all_reduce(self._line)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The values of every rank, in order; each must give equally many."""
        if self.size == 1:
            return [list(values)]
        import torch
        from torch import distributed

        own = torch.tensor(values, dtype=torch.float64)
        everybody = [torch.empty_like(own) for _ in range(self.size)]
        distributed.all_gather(everybody, own)
        return [part.tolist() for part in everybody]

    def samples(self, own_us: Sequence[float]) -> list[list[float]]:
        """Every rank's samples of one call, in microseconds; a rank that has none gives none, and raises.

        Raises:
            ReplayError: on every rank, where the ranks have other numbers of them.
        """
        counts = [int(count) for (count,) in self.gather([float(len(own_us))])]
        if len(set(counts)) > 1 or not own_us:
            raise ReplayError(f"the ranks have {', '.join(map(str, counts))} samples of one and the same call")
        return self.gather(own_us)

    def reached(self, what: str) -> None:
        """Tells how far this rank has come, so that the one that hangs can be named."""
        self._step += 1
        self._report(self._step, what)


#: Of a process that is in no group.
ALONE = Group(0, 1)


class SynchronizedInstrument:
    """An Instrument that lets ranks begin each sample together, and take equally many."""

    def __init__(self, instrument: Instrument, group: Group) -> None:
        self.name = instrument.name
        self._instrument = instrument
        self._group = group

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        """As in `Instrument`; rank 0's rule decides for all."""

        def together() -> None:
            if before_each is not None:
                before_each()
            self._group.reached("in a timed call")
            self._group.line_up()

        self._group.reached("between calls")
        # Never without `before_each`, which would let each rank find out by itself how many calls a sample takes.
        return self._instrument.sample(call, together, SharedRule(rule, self._group))


class SharedRule:
    """Rank 0's stop rule, for all."""

    def __init__(self, rule: Rule, group: Group) -> None:
        self._rule = rule
        self._group = group

    def enough(self, samples_us: Sequence[float]) -> bool:
        return self._group.agree(self._rule.enough(samples_us))

    def enough_count(self, count: int) -> bool:
        return self._group.agree(self._rule.enough_count(count))

    def batch(self, count: int) -> int:
        """One at a time: how many an instrument could queue is another number on each rank."""
        return 1

    def any_rank(self, happened: bool) -> bool:
        return any(happened for (happened,) in self._group.gather([float(happened)]))

    def again(self) -> None:
        """Samples of one rank alone are not taken again."""


def ranks_of_node() -> int:
    """How many ranks share this machine, as torchrun tells each of them; 1 for a process that is in no group."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def slowest_us(kernel_type: str, of_ranks: Sequence[Sequence[float]]) -> tuple[int, tuple[float, ...]]:
    """The rank with the largest median of its samples, and the samples of the group, in microseconds.

    A collective begins on all ranks at once, and its samples are those of the slowest rank. In other kernels ranks may
    be slow in turns: each sample is the longest of the ranks'.

    Args:
        kernel_type: of the row.
        of_ranks: samples of each rank, equally many.
    """
    slowest = max(range(len(of_ranks)), key=lambda rank: median(of_ranks[rank]))
    if is_communication(kernel_type):
        return slowest, tuple(of_ranks[slowest])
    return slowest, tuple(map(max, zip(*of_ranks, strict=True)))


def spread_us(samples_us: Sequence[Sequence[float]]) -> float:
    """How far the medians of the ranks lie apart, in microseconds; as exact as CSVs hold durations."""
    medians = [median(samples) for samples in samples_us]
    return round(max(medians) - min(medians), 4)


def join(rank: int, size: int, device: torch.device, report: Callable[[int, str], None]) -> Group:
    """Joins the group that the launcher's variables describe, with the device that this process has opened.

    Raises:
        RuntimeError and others, as torch.distributed does: the group did not come together.
    """
    import datetime

    import torch
    from torch import distributed

    # What each of them carries; that of the host is what ranks agree by.
    backends = {type_: KINDS[type_].backend for type_ in ("cpu", device.type) if type_ in KINDS}
    distributed.init_process_group(
        ",".join(f"{type_}:{backend}" for type_, backend in backends.items()),
        # Rows have deadlines of their own, which name the rank that is late.
        timeout=datetime.timedelta(days=1),
    )
    world = distributed.group.WORLD
    assert world is not None

    def name_of() -> str:
        if device.type != "npu":
            return str(world.group_name)
        # Kernels that communicate need a communicator that nobody else uses, torch's collectives included
        # (op-plugin's pages of npu_moe_distribute_dispatch); vllm-ascend has one for them, too.
        own: Any = distributed.new_group(backend=KINDS["npu"].backend)
        # The name that HCCL gives its communicator; torch has none for it.
        return str(own._get_backend(torch.device("npu")).get_hccl_comm_name(rank))

    line = None if device.type == "cpu" else torch.zeros(_LINE_ELEMENTS, device=device)
    group = Group(rank, size, name_of, report, _line=line)
    group.together()
    group.line_up()
    if line is not None:
        # Waits for it: the devices have met, too.
        line[0].item()
    return group
