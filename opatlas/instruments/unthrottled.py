"""Samples of a device that is throttled are dropped, and taken again when it has cooled down."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from opatlas.engine.stop_rule import Rule
from opatlas.instruments.instrument import Instrument, Samples

#: A power cap that an earlier row has brought about ends within tenths of a second. One that does not is the row's own:
#: large matrix products draw what a GPU may draw, and heat stays for hours.
_PAUSES_S = (0.1, 0.4)


class Unthrottled:
    """Another instrument, watched: it does not sample while the device is throttled, as long as that ends."""

    def __init__(
        self,
        instrument: Instrument,
        throttles: Callable[[], tuple[str, ...]],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`throttles` tells why the device is slower now than it could be; () where it is not."""
        self.name = instrument.name
        self._instrument = instrument
        self._throttles = throttles
        self._sleep = sleep

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        """As in `Instrument`. The notes name dropped samples; `throttled` tells of those that were kept."""
        dropped, reasons = 0, self._throttles()
        pauses = list(_PAUSES_S)
        while True:
            while reasons and pauses:
                self._sleep(pauses.pop(0))
                reasons = self._throttles()
            samples = self._instrument.sample(call, before_each, rule)
            reasons = self._throttles() or reasons
            again = rule.again() if reasons and pauses else None
            if again is None:
                return replace(samples, notes=(*samples.notes, *_notes(dropped)), throttled=_told(reasons))
            dropped += len(samples.durations_us)
            rule = again


def _notes(dropped: int) -> list[str]:
    were = "sample was" if dropped == 1 else "samples were"
    return [f"{dropped} {were} dropped: the device was throttled"] if dropped else []


def _told(reasons: tuple[str, ...]) -> str:
    return f"the device was throttled ({', '.join(reasons)})" if reasons else ""
