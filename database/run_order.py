"""Decides which of two runs is the newer one."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Mapping

#: Greater is newer. The run id comes last, so that two different runs are never equally new.
Age = tuple[int, float, str]
_NO_RUN, _UNKNOWN_TIME, _KNOWN_TIME = range(3)
_TIME = re.compile(r"([0-9]{8}T[0-9]{6})(?=-|$)")
#: Clocks of machines that are set by the network differ by seconds. One that differs by more was set by nobody.
_CLOCK_TOLERANCE_S = 600.0


class RunOrder:
    """Compares runs by the time at which they began.

    The time is that of the run's manifest, else that in its id, which is in UTC. A run whose time lies in the future
    was made on a machine whose clock was ahead: its time says nothing, so the run is older than all runs whose time is
    known.

    Attributes:
        ahead: ids of the runs that were compared and whose time lies in the future.
    """

    def __init__(self, started_at: Mapping[str, float] | None = None, *, now: float | None = None) -> None:
        """
        Args:
            started_at: seconds since the epoch at which runs began, by run id, as their manifests say.
            now: seconds since the epoch; default: this machine's clock.
        """
        self._started_at = started_at or {}
        self._latest = (time.time() if now is None else now) + _CLOCK_TOLERANCE_S
        self._ages: dict[str, Age] = {}
        self.ahead: set[str] = set()

    def age(self, run_id: str) -> Age:
        """How new a run is; "" is no run, which is older than any."""
        if run_id not in self._ages:
            self._ages[run_id] = self._age(run_id)
        return self._ages[run_id]

    def _age(self, run_id: str) -> Age:
        if not run_id:
            return _NO_RUN, 0.0, ""
        started_at = self._started_at.get(run_id, time_in(run_id))
        if started_at is None:
            return _UNKNOWN_TIME, 0.0, run_id
        if started_at > self._latest:
            self.ahead.add(run_id)
            return _UNKNOWN_TIME, started_at, run_id
        return _KNOWN_TIME, started_at, run_id


def time_in(run_id: str) -> float | None:
    """Seconds since the epoch at the start of `20261121T163006-1f0c9a`; None for an id of another form."""
    found = _TIME.match(run_id)
    try:
        return float(calendar.timegm(time.strptime(found[1], "%Y%m%dT%H%M%S"))) if found else None
    except (OverflowError, ValueError):
        return None
