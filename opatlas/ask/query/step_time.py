"""The time of a step that a graph launches: its calls, and what the graph, their place and the power cap add.

`python -m tests.benchmarks.bench_steps` fits the constants on measured steps, and shows how far those that were held
out are off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import hypot
from typing import TYPE_CHECKING

from opatlas.row.communication import BY_KERNEL_TYPE
from opatlas.row.quality import Source
from opatlas.row.roofline import device_peak

if TYPE_CHECKING:
    from opatlas.ask.query.model_cost import ModelCost


@dataclass(frozen=True)
class StepConstants:
    """What steps of a device add to their calls.

    Attributes:
        gap_us: before each call in a graph.
        place_us: of a call in a graph, whose input was just written, over a cold one that is launched alone.
        message_us: of a collective in a graph.
        busy: the share of the device's peak in operations from which a step runs at the power cap.
        capped: the share by which its calls are longer then.
        error: nine of ten steps that were held out are within this share of their prediction.
        experts_error: the same of steps with mixtures of experts, whose load is not known.
    """

    gap_us: float
    place_us: float
    message_us: float
    busy: float
    capped: float
    error: float
    experts_error: float


#: By the name of a device, in the order of the fields.
CONSTANTS: Mapping[str, StepConstants] = {"NVIDIA_H200": StepConstants(0.388, 0.27, 3.69, 0.4, 0.128, 0.012, 0.189)}


@dataclass(frozen=True)
class StepTime:
    """The time of a step in microseconds, by what it is for, with the 90 % interval of the sum."""

    kernels_us: float
    gaps_us: float
    place_us: float
    messages_us: float
    power_cap_us: float
    interval_us: tuple[float, float] = (0.0, 0.0)

    @property
    def us(self) -> float:
        """The whole step."""
        return self.kernels_us + self.gaps_us + self.place_us + self.messages_us + self.power_cap_us


def step_time(cost: ModelCost, constants: StepConstants | None = None) -> StepTime | None:
    """Returns the time of a step; None on a device without measured steps, or if nothing of the step is known.

    Parts without a duration are not in it, as they are in no sum.

    Args:
        constants: default: those of the device that answered.
    """
    device = next(iter(cost.us_by("device")), "")
    constants = constants or CONSTANTS.get(device)
    if constants is None or not cost.us:
        return None
    known = [part for part in cost.parts if part.us is not None]
    own = [part for part in known if part.kernel_type not in BY_KERNEL_TYPE]
    calls, messages = sum(part.calls for part in own), sum(part.calls for part in known if part not in own)
    # A capture of a step has its calls in their place, at the clock of the step.
    alone = [part for part in own if part.source != Source.CAPTURED.value]
    own_us = sum(part.us or 0.0 for part in own)
    peak = device_peak(device).tera_ops.get(cost.dtype)
    done = sum((part.tera_ops or 0.0) * (part.us or 0.0) for part in own)
    is_capped = peak is not None and done > constants.busy * peak * own_us
    found = StepTime(
        cost.us,
        constants.gap_us * (calls + messages),
        constants.place_us * sum(part.calls for part in alone),
        constants.message_us * messages,
        constants.capped * sum(part.us or 0.0 for part in alone) if is_capped else 0.0,
    )
    low, high = cost.interval_us
    has_experts = any(part.kernel_type == "GroupedMatmul" for part in known)
    error = (constants.experts_error if has_experts else constants.error) * found.us
    scale = found.us / cost.us
    interval = found.us - hypot((cost.us - low) * scale, error), found.us + hypot((high - cost.us) * scale, error)
    return replace(found, interval_us=interval)
