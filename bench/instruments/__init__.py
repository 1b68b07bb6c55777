"""How a duration is taken, behind one Protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bench.stop_rule import StopRule


@dataclass(frozen=True)
class Samples:
    """Durations of one call, in microseconds, in the order taken.

    Attributes:
        device_kernels: device kernels that one call launched; None where the instrument cannot tell.
        calls_per_sample: calls that one sample averages over.
    """

    durations_us: tuple[float, ...]
    device_kernels: int | None = None
    calls_per_sample: int = 1


class Instrument(Protocol):
    """Takes samples of a call. It does not know which kernel, or which row."""

    name: str

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: StopRule) -> Samples:
        """Runs `call` until `rule` says enough.

        Args:
            call: launches the kernel; may return before it has ended on the device.
            before_each: run before every sample, outside of it (flushes the cache, restores what
                the kernel changes). None: samples may average over several calls in a row.
            rule: fresh, for this row alone.
        """
        ...
