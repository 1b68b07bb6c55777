"""Communication: the collectives, what a message of each is, and the bandwidths of a duration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from opatlas.model.schema import (
    DTYPE,
    MESSAGE_BYTES,
    NUM_DEVICES,
    TOPOLOGY_TIER,
)
from opatlas.model.slots import dtype_name, known_dtype
from opatlas.text import whole

_PREFIX = "hcom_"


@dataclass(frozen=True)
class Collective:
    """One of the collectives, of n devices and messages of m bytes.

    Attributes:
        name: torch.distributed's.
        kernel_type: HCCL's, which names the CSV on every device.
        message: what message_bytes counts.
        in_parts: whether the message has a part for each device.
        bus_share: of m, what the busiest link carries at least: bus bandwidth is that over the duration, and
            compares with the link's own. The definition of nccl-tests (doc/PERFORMANCE.md), whose size is the
            n chunks of all devices together for all_gather and reduce_scatter, where m is one chunk.
    """

    name: str
    kernel_type: str
    message: str
    in_parts: bool
    bus_share: Callable[[int], float]

    def message_bytes(self, wanted_bytes: int, num_devices: int, element_bytes: int) -> int:
        """The smallest message that holds so many bytes in whole elements, as many for each device."""
        unit = element_bytes * (num_devices if self.in_parts else 1)
        return -(-wanted_bytes // unit) * unit

    def bus_bandwidth_gbps(self, message_bytes: int, num_devices: int, duration_us: float) -> float:
        """In 10^9 bytes/s."""
        return self.bus_share(num_devices) * bandwidth_gbps(message_bytes, duration_us)


ALL_REDUCE = Collective(
    "all_reduce", "hcom_allReduce_", "the tensor of each device", in_parts=False, bus_share=lambda n: 2 * (n - 1) / n
)
ALL_GATHER = Collective(
    "all_gather", "hcom_allGather_", "the chunk that each device gives", in_parts=False, bus_share=lambda n: n - 1
)
REDUCE_SCATTER = Collective(
    "reduce_scatter",
    "hcom_reduceScatter_",
    "the chunk that each device keeps",
    in_parts=False,
    bus_share=lambda n: n - 1,
)
ALL_TO_ALL = Collective(
    "all_to_all", "hcom_alltoallv_", "all that one device sends", in_parts=True, bus_share=lambda n: (n - 1) / n
)
BROADCAST = Collective(
    "broadcast", "hcom_broadcast_", "the tensor of the first device", in_parts=False, bus_share=lambda n: 1
)
COLLECTIVES = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST)
BY_NAME: Mapping[str, Collective] = {collective.name: collective for collective in COLLECTIVES}
BY_KERNEL_TYPE: Mapping[str, Collective] = {collective.kernel_type: collective for collective in COLLECTIVES}

#: What links the devices of a group at most: the grid's dimension in which they differ, counted from the outermost.
TIERS: Mapping[int, str] = {0: "inter_pod", 1: "intra_pod", 2: "die_level"}


def is_communication(kernel_type: str) -> bool:
    """Whether the rows of a kernel type are messages, and not tensor shapes."""
    return kernel_type.startswith(_PREFIX)


def bandwidth_gbps(message_bytes: int, duration_us: float) -> float:
    """Algorithm bandwidth, in 10^9 bytes/s."""
    return message_bytes / duration_us / 1e3


def message_signature(row: Mapping[str, str]) -> str:
    """`1048576|16|BF16|1`. Never raises: rows that mean nothing must be reported.

    Other tools call dtypes otherwise: msmodeling's DT_FP16 is DT_FLOAT16.
    """
    numbers = [_whole(row.get(name, "")) for name in (MESSAGE_BYTES, NUM_DEVICES, TOPOLOGY_TIER)]
    word = row.get(DTYPE, "").strip().strip("\"'").upper()
    dtype = known_dtype(word)
    return "|".join((*numbers[:2], dtype_name(word) if dtype is None else dtype.name, numbers[2]))


def _whole(cell: str) -> str:
    """`1024.0`, as pandas writes a column with gaps, is 1024."""
    text = cell.strip().strip("\"'")
    number, _, fraction = text.partition(".")
    return number if whole(number) is not None and not fraction.strip("0") else text
