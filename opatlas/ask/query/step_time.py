"""The time of a step: its calls, and what their launch, their place and the power cap add.

`python -m tests.benchmarks.bench_steps` fits the constants on measured steps, and shows how far those that were held
out are off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import hypot
from typing import TYPE_CHECKING

from opatlas.row.columns import ATTENTION_TYPES
from opatlas.row.communication import ALL_REDUCE, BY_KERNEL_TYPE
from opatlas.row.quality import Source
from opatlas.row.roofline import device_peak

if TYPE_CHECKING:
    from opatlas.ask.query.model_cost import ModelCost, PartCost

#: Words in the names of kernel types of products whose activation an earlier call has just written.
_PRODUCTS = ("MatMul", "BatchMatmul")
#: The most devices whose all_reduces engines have a kernel of their own for: those of a host.
_OF_HOST = 8


@dataclass(frozen=True)
class StepConstants:
    """What steps of a device add to their calls.

    Attributes:
        gap_us: before each kernel in a graph.
        launch_us: of the host for each kernel, where no graph launches it.
        place_us: of a norm or a product whose input was just written, over a cold one that is launched alone.
        product, attention: the shares by which these are longer in their place.
        query_us: before attention over a cache in another dtype, whose kernel reads queries one after the other: of the
            kernel that copies them out of the columns of a product, and the gap before it.
        message_us: of a collective in a graph.
        reduce_us, exchange_us, reduce_gbps: of the kernel that engines have for an all_reduce: one exchange takes
            reduce_us, a second one exchange_us more for each other device, and what a device receives travels at
            reduce_gbps. With one exchange it receives the tensors of all others, with two the least that it can.
        busy: the share of the device's peak in operations from which a step runs at the power cap.
        capped: the time above that share, at the peak, times this is what it takes longer.
        error: nine of ten steps that were held out are within this share of their prediction, joined with the interval
            of their calls.
        launch_error: the same of steps that wait for the host.
    """

    gap_us: float
    launch_us: float
    place_us: float
    product: float
    attention: float
    query_us: float
    message_us: float
    reduce_us: float
    exchange_us: float
    reduce_gbps: float
    busy: float
    capped: float
    error: float
    launch_error: float

    def later_us(self, part: PartCost) -> float:
        """Returns how much longer a call is in its place than alone."""
        name, us = part.kernel_type, part.us_per_call or 0.0
        if name in ATTENTION_TYPES:
            query, cache = part.signature.split("|")[1].split(";")[:2]
            return self.attention * us + self.query_us * (query != cache)
        if any(word in name for word in _PRODUCTS):
            return self.place_us + self.product * us
        return self.place_us if "Norm" in name else 0.0

    def message_later_us(self, part: PartCost) -> float:
        """Returns how much longer a collective is in a step than its row; below 0 where engines have a faster one."""
        if part.kernel_type != ALL_REDUCE.kernel_type or not self.reduce_gbps:
            return self.message_us
        size, devices = map(int, part.signature.split("|")[:2])
        us, others = size / self.reduce_gbps / 1e3, devices - 1
        own = self.reduce_us + min(others * us, ALL_REDUCE.bus_share(devices) * us + self.exchange_us * others)
        later_us = own - self.gap_us - (part.us_per_call or 0.0)
        return min(later_us, self.message_us) if devices <= _OF_HOST else self.message_us


#: By the name of a device, in the order of the fields.
CONSTANTS: Mapping[str, StepConstants] = {
    "NVIDIA_H200": StepConstants(
        0.348, 32.8, 0.179, 0.0221, 0.0263, 2.58, 3.3, 6.03, 0.488, 294.5, 0.233, 0.267, 0.022, 0.396
    )
}


@dataclass(frozen=True)
class StepTime:
    """The time of a step in microseconds, by what it is for, with the 90 % interval of the sum.

    `host_us` is how long the device waits for the host, where no graph launches the step. `messages_us` is below 0
    where the all_reduces of engines are faster than those of the rows.
    """

    kernels_us: float
    gaps_us: float
    place_us: float
    messages_us: float
    power_cap_us: float
    host_us: float = 0.0
    interval_us: tuple[float, float] = (0.0, 0.0)

    @property
    def us(self) -> float:
        """The whole step."""
        parts = (self.gaps_us, self.place_us, self.messages_us, self.power_cap_us, self.host_us)
        return self.kernels_us + sum(parts)


def step_time(
    cost: ModelCost, constants: StepConstants | None = None, *, copies_queries: bool = True
) -> StepTime | None:
    """Returns the time of a step; None on a device without measured steps, or if nothing of the step is known.

    Parts without a duration are not in it, as they are in no sum.

    Args:
        constants: default: those of the device that answered.
        copies_queries: whether a kernel of its own copies queries that attention reads one after the other.
    """
    device = next(iter(cost.us_by("device")), "")
    constants = constants or CONSTANTS.get(device)
    if constants is None or not cost.us:
        return None
    constants = constants if copies_queries else replace(constants, query_us=0.0)
    known = [part for part in cost.parts if part.us is not None]
    own = [part for part in known if part.kernel_type not in BY_KERNEL_TYPE]
    messages = [part for part in known if part not in own]
    by_engine = cost.step.collectives == "engine"
    kernels = sum(part.calls * part.kernels for part in own) + sum(part.calls for part in messages)
    # A capture of a step has its calls in their place, at the clock of the step.
    alone = [part for part in own if part.source != Source.CAPTURED.value]
    peak = device_peak(device).tera_ops.get(cost.dtype)
    at_peak_us = sum((part.tera_ops or 0.0) * (part.us or 0.0) for part in alone) / peak if peak else 0.0
    found = StepTime(
        cost.us,
        constants.gap_us * kernels,
        sum(constants.later_us(part) * part.calls for part in alone),
        sum(
            (constants.message_later_us(part) if by_engine else constants.message_us) * part.calls for part in messages
        ),
        constants.capped * max(at_peak_us - constants.busy * sum(part.us or 0.0 for part in (*alone, *messages)), 0.0),
    )
    if cost.step.is_eager:
        found = replace(found, host_us=max(constants.launch_us * kernels - found.us, 0.0))
    low, high = cost.interval_us
    error = constants.launch_error if found.host_us else constants.error
    below, above = (hypot(us / cost.us, error) for us in (cost.us - low, high - cost.us))
    return replace(found, interval_us=(found.us * (1 - below), found.us * (1 + above)))
