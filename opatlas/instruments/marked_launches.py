"""Launches a kernel between marks, for whoever reads the profile of this process (attribution.py)."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep

import torch

from opatlas.devices.torch_npu import npu_of_torch
from opatlas.engine.job import MeasureSettings
from opatlas.engine.stop_rule import Rule
from opatlas.instruments.attribution import Launched
from opatlas.instruments.instrument import MSPROF, Samples
from opatlas.instruments.marks import BEGIN, END, row_mark

#: Kernels that are launched before the first mark where a profiler may drop the head of its window, as torch_npu's
#: does (Ascend/pytorch issue 167: one or two calls of ten), and how long the device then waits.
LEAD_IN_KERNELS = 16
_LEAD_IN_S = 0.05
#: Of the tensor that these kernels negate: no mark's.
LEAD_IN = (7,)


class MarkedLaunches:
    """An instrument whose durations are in a profile that is read when this process has ended."""

    def __init__(self, name: str, device: torch.device, synchronize: Callable[[], None]) -> None:
        """
        Args:
            name: of the profiler.
            device: where marks are launched.
            synchronize: waits for all that was launched there.
        """
        self.name = name
        self._device = device
        self._synchronize = synchronize
        self._rows = 0
        self._begin, self._end = self._mark(BEGIN), self._mark(END)

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        """As in `Instrument`, but how long the samples took is not known yet.

        Raises:
            ValueError: more rows than marks can tell apart (opatlas.instruments.marks.MOST_ROWS).
        """
        number = self._rows
        mark = self._mark(row_mark(number))
        self._rows += 1
        mark()
        taken = 0
        while not rule.enough_unseen(taken):
            if before_each:
                before_each()
            self._begin()
            call()
            self._end()
            # A queue of launches would let the time limit pass unseen.
            self._synchronize()
            taken += 1
        return Samples((), launched=Launched(number, taken))

    def lead_in(self) -> None:
        """Launches kernels of no row, and waits: a profiler that has just been started may lose what comes first."""
        launch = self._mark(LEAD_IN)
        for _ in range(LEAD_IN_KERNELS):
            launch()
        self._synchronize()
        sleep(_LEAD_IN_S)

    def _mark(self, shape: tuple[int, ...]) -> Callable[[], object]:
        source = torch.zeros(shape, device=self._device)
        target = torch.zeros_like(source)
        return lambda: torch.neg(source, out=target)


def of_msprof(settings: MeasureSettings) -> MarkedLaunches:
    """For a process that msprof has started, on its NPU."""
    return MarkedLaunches(MSPROF, torch.device("npu"), npu_of_torch().synchronize)
