"""The `replay` of a collective: checks the result on every rank, and measures all ranks together.

Before each sample the ranks wait for each other (`Group.device_barrier`). On a CPU they leave a barrier some
microseconds apart, and the clock of each rank runs from there to the return of its call. The time of the slowest rank
then includes the delay of the others: read durations of small messages over Gloo together with their spread. On GPUs
and NPUs the devices begin within a microsecond or two of each other, and a sample is the time of the kernels of the
collective.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from time import monotonic

import torch

from opatlas.row.errors import ReplayError
from opatlas.run.collectives.message import Message
from opatlas.run.devices.device import Device
from opatlas.run.devices.system import available_cores
from opatlas.run.group import RANK_SPREAD, Group, ranks_of_node, slowest_us, spread_us
from opatlas.run.instruments.instrument import Instrument, MeasureSettings
from opatlas.run.job import RowOutcome
from opatlas.run.result_check import Checked
from opatlas.run.sampling import Sampling

#: The first calls set up connections.
_WARM_UP_CALLS = 5
_WARM_UP_S = 1.0


class TimedCollective:
    """Measures the collective of one message when it is called, and leaves the result in `outcome`."""

    def __init__(
        self, message: Message, device: Device, instrument: Instrument, settings: MeasureSettings, group: Group
    ) -> None:
        self.outcome: RowOutcome | None = None
        self._message = message
        self._device = device
        self._group = group
        self._sampling = Sampling(message.kernel_type, {}, device, instrument, settings, group)

    def expect_memory(self) -> None:
        """Raises OutOfMemory if the device cannot hold the message, before anything is allocated."""
        message = self._message
        # Input and output, each at most a chunk for every rank, and the buffers of the library.
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
            call: launches the collective; it may return before the device is done.
            result: the tensor of the result of this rank.
            expected: returns the elements from `start` to `stop` that the result must have.
            restore: restores the tensors that the collective overwrites.

        Raises:
            WrongResult: an element is wrong, before the first or after the last sample.
            ReplayError: a rank has no samples, or the ranks have different numbers of samples.
        """
        self._group.report_step("in its first call")
        call()
        self._device.synchronize()
        compared = self._message.check(result, expected)
        self._sampling.warm_up(call, most_calls=_WARM_UP_CALLS - 1, until=monotonic() + _WARM_UP_S)
        samples = self._sampling.take(call, restore)
        # Calls in quick succession must not disturb each other.
        self._message.check(result, expected)
        checked = Checked(compared, result.numel())
        outcome = self._sampling.outcome(samples, checked, noted=self._shared_cores())
        self.outcome = self._slowest_rank(outcome)

    def _slowest_rank(self, outcome: RowOutcome) -> RowOutcome:
        """Returns the outcome of the rank with the largest median, on every rank.

        Samples in a profile are compared when pytest reads the profiles (opatlas/run/msprof/pending.py).
        """
        if outcome.pending is not None:
            return outcome
        if outcome.measurement is None:
            # The other ranks learn that this rank has none.
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
        """Returns a remark if the ranks of a CPU are more than its cores."""
        ranks, cores = ranks_of_node(), available_cores()
        crowded = self._device.torch_device.type == "cpu" and ranks > cores
        return [f"{ranks} ranks shared {cores} cores"] if crowded else []
