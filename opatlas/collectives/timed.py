"""The `replay` that a collective calls: checks what every rank holds, and then takes the time of all of them.

How ranks are kept in step: before each sample they line up (opatlas/engine/group.py). On a CPU that is a
barrier,
which they leave some microseconds apart; the clock of each runs from there to the return of its call. So the slowest
rank's time is from the first moment when it could begin to the last moment when it is done, and holds what the
barrier left of the others' delay: that is why small messages over Gloo are to be read with their spread. On a GPU or
an NPU the devices line up, while what follows is launched already; they begin within a microsecond or two of each
other, whatever their hosts do, and the time is that of the kernels of the collective.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from time import monotonic

import torch

from opatlas.collectives.message import Message
from opatlas.devices.cgroups import available_cores
from opatlas.devices.device import Device
from opatlas.engine.check import Checked
from opatlas.engine.group import (
    RANK_SPREAD,
    Group,
    ranks_of_node,
    slowest_us,
    spread_us,
)
from opatlas.engine.job import RowOutcome
from opatlas.engine.sampling import Sampling
from opatlas.instruments.instrument import Instrument, MeasureSettings
from opatlas.model.errors import ReplayError

#: The first call sets up connections, of which a library may make more with each of the next ones.
_WARM_UP_CALLS = 5
_WARM_UP_S = 1.0


class TimedCollective:
    """Bound to one row. Calling it measures the collective and leaves the result in `outcome`."""

    def __init__(
        self, message: Message, device: Device, instrument: Instrument, settings: MeasureSettings, group: Group
    ) -> None:
        self.outcome: RowOutcome | None = None
        self._message = message
        self._device = device
        self._group = group
        self._sampling = Sampling(message.kernel_type, {}, device, instrument, settings, group)

    def expect_memory(self) -> None:
        """Refuses a message that the device cannot hold, before anything is allocated. Raises OutOfMemory."""
        message = self._message
        # What is given and what is got, each at most a chunk for every rank, and the library's buffers.
        needed = 3 * message.size * message.count * message.dtype.itemsize
        if self._device.torch_device.type == "cpu":
            needed *= ranks_of_node()
        self._sampling.expect_memory(needed)

    def bounded_memory(self) -> AbstractContextManager[None]:
        """Returns a context without a bound: `expect_memory` knows all that a message needs."""
        return nullcontext()

    def __call__(
        self,
        call: Callable[[], object],
        result: torch.Tensor,
        expected: Callable[[int, int], torch.Tensor],
        restore: Callable[[], object] | None = None,
    ) -> None:
        """Measures `call`.

        Args:
            call: the collective; may return before it is done on the device.
            result: where it leaves what this rank gets.
            expected: gives elements `start` to `stop` of what that must be.
            restore: brings back what the collective has overwritten.

        Raises:
            WrongResult: an element is another one, before or after the samples were taken.
            ReplayError: a rank has no samples, or another number of them.
        """
        self._group.report_step("in its first call")
        call()
        self._device.synchronize()
        compared = self._message.check(result, expected)
        self._sampling.warm_up(call, most_calls=_WARM_UP_CALLS - 1, until=monotonic() + _WARM_UP_S)
        samples = self._sampling.take(call, restore)
        # Once more: calls in quick succession must not have met each other.
        self._message.check(result, expected)
        checked = Checked(compared, result.numel())
        outcome = self._sampling.outcome(samples, checked, noted=self._shared_cores())
        self.outcome = self._of_slowest(outcome)

    def _of_slowest(self, outcome: RowOutcome) -> RowOutcome:
        """The samples of the rank with the largest median, the same on every rank.

        Those that are read from profiles later are compared then (opatlas/isolation/msprof/pending.py).
        """
        if outcome.pending is not None:
            return outcome
        if outcome.measurement is None:
            # The others are told.
            with suppress(ReplayError):
                self._group.gather_samples(())
            return outcome
        of_ranks = self._group.gather_samples(outcome.measurement.samples_us)
        measurement = replace(
            outcome.measurement,
            samples_us=slowest_us(self._message.kernel_type, of_ranks)[1],
            counters={**outcome.measurement.counters, RANK_SPREAD: spread_us(of_ranks)},
        )
        return replace(outcome, measurement=measurement)

    def _shared_cores(self) -> list[str]:
        """What a reader of a CPU's durations should know."""
        ranks, cores = ranks_of_node(), available_cores()
        crowded = self._device.torch_device.type == "cpu" and ranks > cores
        return [f"{ranks} ranks shared {cores} cores"] if crowded else []
