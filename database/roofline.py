"""The least time that a device's peaks allow for a row, and which share of the peaks a duration reached.

Williams, Waterman and Patterson, "Roofline: An Insightful Visual Performance Model for Multicore Architectures",
CACM 52(4), 2009. The work of a row is what its shapes and dtypes ask for (database/work.py), not what was counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from database.errors import CellError
from database.peaks import Peak
from database.schema import INPUT_SLOTS, OUTPUT_SLOTS
from database.siblings import plain_type
from database.slots import Slot, parse_slots
from database.work import PRODUCTS, moved_bytes, operations, tensor_bytes


@dataclass(frozen=True, slots=True)
class Work:
    """What a row asks of a device.

    Attributes:
        read_bytes, moved_bytes: of its inputs, and of inputs and outputs together; each tensor counts once.
        operations: of a matrix product, 2 m n k; None for other kernels.
        dtype: of the first input, by which the peak of the arithmetic is chosen.
    """

    read_bytes: int
    moved_bytes: int
    operations: int | None
    dtype: str


@dataclass(frozen=True, slots=True)
class Achieved:
    """What a duration means.

    Attributes:
        gbps: 10^9 bytes/s moved.
        tera_ops: 10^12 operations/s; None for kernels whose operations are not counted.
        of_bandwidth, of_arithmetic: shares of the device's peaks; None where a peak is not known.
    """

    gbps: float
    tera_ops: float | None
    of_bandwidth: float | None
    of_arithmetic: float | None

    @property
    def share(self) -> float | None:
        """The larger share: that of the peak which bounds the row; None where neither is known."""
        return max((each for each in (self.of_bandwidth, self.of_arithmetic) if each is not None), default=None)

    @property
    def bound_by_arithmetic(self) -> bool:
        """Whether the arithmetic is no further from its peak than the memory."""
        return self.of_arithmetic is not None and self.of_arithmetic == self.share


def work_of(kernel_type: str, cells: Mapping[str, str]) -> Work | None:
    """Returns the work of a row; None where its type or its cells do not tell it (database/work.py)."""
    try:
        inputs, outputs = _slots(cells, INPUT_SLOTS), _slots(cells, OUTPUT_SLOTS)
    except CellError:
        return None
    moved, read = moved_bytes(kernel_type, inputs, outputs), tensor_bytes(inputs)
    if not moved or not read:
        return None
    counted = operations(kernel_type, inputs, outputs) if plain_type(kernel_type) in PRODUCTS else None
    return Work(read, moved, counted, inputs[0].dtype)


def _slots(cells: Mapping[str, str], columns: tuple[str, str, str]) -> tuple[Slot, ...]:
    shapes, dtypes, formats = (cells.get(name, "") for name in columns)
    return parse_slots(shapes, dtypes, formats, columns)


def bound_us(work: Work, peak: Peak, *, cold: bool) -> float | None:
    """Returns the least time in microseconds that a device with these peaks takes; None where no peak is known.

    Args:
        cold: the inputs are in memory. From a warm cache they may be read faster than memory can be.
    """
    bounds = []
    if cold and peak.bandwidth_gbps:
        # Outputs may stay in the cache: they need not have reached memory when the kernel ends.
        bounds.append(work.read_bytes / peak.bandwidth_gbps / 1e3)
    if work.operations and work.dtype in peak.tera_ops:
        bounds.append(work.operations / peak.tera_ops[work.dtype] / 1e6)
    return max(bounds, default=None)


def achieved(work: Work, peak: Peak, duration_us: float, *, cold: bool = True) -> Achieved:
    """Returns the rates of a duration in microseconds, above zero, and their shares of the peaks.

    Args:
        cold: as in `bound_us`; a warm row has no share of the memory's bandwidth.
    """
    gbps = work.moved_bytes / duration_us / 1e3
    tera_ops = work.operations / duration_us / 1e6 if work.operations else None
    of_dtype = peak.tera_ops.get(work.dtype)
    return Achieved(
        gbps=gbps,
        tera_ops=tera_ops,
        of_bandwidth=gbps / peak.bandwidth_gbps if peak.bandwidth_gbps and cold else None,
        of_arithmetic=tera_ops / of_dtype if tera_ops and of_dtype else None,
    )
