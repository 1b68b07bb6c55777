"""How long the rows of a session ran; the time in which they waited for devices that others used is told apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from bench.devices.device_lock import DeviceWaits
from database.progress import duration

#: Key of what the supervisor puts on the report of a row that waited: seconds, by whom the row waited for.
WAITED = "waited"
_FOR_OTHERS = "others"
_FOR_OWN = "own"
#: Shorter waits are nothing to tell of.
_TOLD_FROM_S = 0.5


def waited_s(waits: DeviceWaits) -> dict[str, float]:
    """What the rows of a process have waited so far: for rows of other sessions, and for other workers of their own."""
    return {_FOR_OTHERS: waits.others_s, _FOR_OWN: waits.own_s}


class RunningTime:
    """Adds up the times of rows from their reports."""

    def __init__(self) -> None:
        self._first_at: float | None = None
        self._last_at = 0.0
        self._waited_s = {_FOR_OTHERS: 0.0, _FOR_OWN: 0.0}
        #: The workers of xdist that reported rows; None in the only process of a session.
        self._workers: set[Any] = set()

    def add(self, report: pytest.TestReport, about: Mapping[str, Any]) -> None:
        """Adds the report of a row that has a record; `about` is what the supervisor put on the report."""
        waited = about.get(WAITED, {})
        # A report begins when its row has the device.
        began = report.start - sum(waited.values())
        self._first_at = began if self._first_at is None else min(self._first_at, began)
        self._last_at = max(self._last_at, report.stop)
        self._workers.add(getattr(report, "node", None))
        for who, seconds in waited.items():
            self._waited_s[who] += seconds

    @property
    def seconds(self) -> float:
        """From the first row to the last, without waits for other sessions; of several workers, their average wait."""
        return max(self._last_at - (self._first_at or self._last_at) - self.waited_each_s, 1e-3)

    @property
    def waited_each_s(self) -> float:
        """Seconds that a worker has waited for other sessions, on average."""
        return self._waited_s[_FOR_OTHERS] / max(len(self._workers), 1)

    def waiting_lines(self) -> Iterator[str]:
        """What the user should know of the waits."""
        others_s, own_s = self._waited_s[_FOR_OTHERS], self._waited_s[_FOR_OWN]
        if others_s >= _TOLD_FROM_S:
            who = "" if len(self._workers) < 2 else f"{len(self._workers)} workers "
            yield f"{who}waited {duration(others_s)} for rows of another session on the same device, not counted above"
        if own_s >= _TOLD_FROM_S:
            yield f"workers of this session waited {duration(own_s)} for each other: rows of one device take turns"
