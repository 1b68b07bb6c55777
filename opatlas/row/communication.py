"""The two kinds of rows: calls of kernels, and messages of collectives, with their sizes and bandwidths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from opatlas.row import columns as col
from opatlas.row.slots import dtype_name, known_dtype
from opatlas.text import parse_whole

_PREFIX = "hcom_"


@dataclass(frozen=True)
class Collective:
    """A collective of n devices with messages of m bytes.

    Attributes:
        name: the name in torch.distributed.
        kernel_type: the name in HCCL, which is the name of the CSV on every device.
        message: the message whose bytes message_bytes counts.
        bus_share: maps n to the least share of m that the busiest link carries. The bus bandwidth is this share of m
            divided by the duration, and is comparable with the bandwidth of the link. Source: doc/PERFORMANCE.md of
            nccl-tests, where the size for all_gather and reduce_scatter is n chunks; here m is one chunk.
        in_parts: whether the message has a part for each device.
    """

    name: str
    kernel_type: str
    message: str
    bus_share: Callable[[int], float]
    in_parts: bool = False

    def message_bytes(self, wanted_bytes: int, num_devices: int, element_bytes: int) -> int:
        """Returns the smallest message of at least `wanted_bytes` in whole elements, equally many for each device."""
        unit = element_bytes * (num_devices if self.in_parts else 1)
        return -(-wanted_bytes // unit) * unit

    def bus_bandwidth_gbps(self, message_bytes: int, num_devices: int, duration_us: float) -> float:
        """Returns the bus bandwidth in 10^9 bytes/s."""
        return self.bus_share(num_devices) * bandwidth_gbps(message_bytes, duration_us)


COLLECTIVES = (
    Collective("all_reduce", "hcom_allReduce_", "the tensor of each device", lambda n: 2 * (n - 1) / n),
    Collective("all_gather", "hcom_allGather_", "the chunk that each device gives", lambda n: n - 1),
    Collective("reduce_scatter", "hcom_reduceScatter_", "the chunk that each device keeps", lambda n: n - 1),
    Collective("all_to_all", "hcom_alltoallv_", "all that one device sends", lambda n: (n - 1) / n, in_parts=True),
    Collective("broadcast", "hcom_broadcast_", "the tensor of the first device", lambda n: 1),
)
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST = COLLECTIVES
BY_NAME: Mapping[str, Collective] = {collective.name: collective for collective in COLLECTIVES}
BY_KERNEL_TYPE: Mapping[str, Collective] = {collective.kernel_type: collective for collective in COLLECTIVES}

#: Names of the outermost dimension of the device grid in which the devices of a group differ.
TIERS: Mapping[int, str] = {0: "inter_pod", 1: "intra_pod", 2: "die_level"}


def is_communication(kernel_type: str) -> bool:
    """Returns whether the rows of a kernel type are messages instead of tensor shapes."""
    return kernel_type.startswith(_PREFIX)


def bandwidth_gbps(message_bytes: int, duration_us: float) -> float:
    """Returns the algorithm bandwidth in 10^9 bytes/s."""
    return message_bytes / duration_us / 1e3


def message_signature(row: Mapping[str, str]) -> str:
    """Returns the signature of a message: `1048576|16|BF16|1`.

    Accepts any cells, so that malformed rows can be reported. Synonyms of dtypes are equal: msmodeling's DT_FP16 is
    DT_FLOAT16.
    """
    numbers = [_whole_number(row.get(name, "")) for name in (col.MESSAGE_BYTES, col.NUM_DEVICES, col.TOPOLOGY_TIER)]
    word = row.get(col.DTYPE, "").strip().strip("\"'").upper()
    dtype = known_dtype(word)
    return "|".join((*numbers[:2], dtype_name(word) if dtype is None else dtype.name, numbers[2]))


def _whole_number(cell: str) -> str:
    """Returns a whole number without its decimals: pandas writes a column with gaps as `1024.0`."""
    text = cell.strip().strip("\"'")
    number, _, fraction = text.partition(".")
    return number if parse_whole(number) is not None and not fraction.strip("0") else text


@dataclass(frozen=True)
class RowKind:
    """A kind of rows. All rows of a table have one kind.

    Attributes:
        is_message: whether the rows are messages. The stored duration of a message is the median of its samples, that
            of a kernel their mean without outliers. All ranks of a group begin a message at once, so that the slowest
            rank is the same in all samples.
        identity_columns: the columns of a new table.
        required_columns: a file without these columns is not a table of this kind.
        duration_columns: columns that may hold the duration of a row; replays write the first one.
    """

    is_message: bool
    identity_columns: tuple[str, ...]
    required_columns: tuple[str, ...]
    duration_columns: tuple[str, ...]

    def duration_us(self, samples_us: Sequence[float]) -> float:
        """Returns the stored duration of a row in microseconds."""
        # It imports numpy, which those who name collectives do without.
        from opatlas.row.quality import typical_mean

        return median(samples_us) if self.is_message else typical_mean(samples_us)

    def is_measured(self, column: str) -> bool:
        """Returns whether replays write a column: durations, how they were measured, status."""
        return column in col.STATUS_GROUP or self.is_replayed(column)

    def is_replayed(self, column: str) -> bool:
        """Returns whether a column is about the duration of a replay: statistics, how it was measured, its run."""
        if column in (col.DURATION, col.BANDWIDTH, col.BUS_BANDWIDTH):
            return self.is_message
        # Other tools write the average of a message.
        is_captured_average = column == col.AVERAGE and self.is_message
        return col.is_microbench_column(column) and not is_captured_average


#: Rows of kernels: the call of a kernel on tensors of some shapes and dtypes.
CALL = RowKind(
    is_message=False,
    identity_columns=col.BASE,
    required_columns=col.REQUIRED,
    duration_columns=(col.AVERAGE, col.PROFILING_AVERAGE),
)
#: Rows of collectives: a message between the devices of a group.
MESSAGE_ROW = RowKind(
    is_message=True,
    identity_columns=col.MESSAGE,
    required_columns=(col.MESSAGE_BYTES, col.NUM_DEVICES),
    duration_columns=(col.DURATION, col.AVERAGE, col.PROFILING_AVERAGE),
)


def row_kind(kernel_type: str) -> RowKind:
    """Returns the kind of the rows of a kernel type."""
    return MESSAGE_ROW if is_communication(kernel_type) else CALL
