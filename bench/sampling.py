"""How the samples of a row are taken, on one device or on each of a group: memory, warm-up, cache, stop rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic

from bench.devices import Device
from bench.errors import OutOfMemory
from bench.groups.group import Group
from bench.instruments import Instrument, Samples
from bench.job import MeasureSettings, Outcome
from bench.profiles.profiled import with_samples
from bench.reference.check import Checked
from bench.stop_rule import StopRule
from database.record import Measurement
from database.schema import Status


class Sampling:
    """Of one row, on one device; ranks of a group take as many samples as each other."""

    def __init__(self, device: Device, instrument: Instrument, settings: MeasureSettings, group: Group) -> None:
        self._device = device
        self._instrument = instrument
        self._settings = settings
        self._group = group

    def expect_memory(self, needed_bytes: float) -> None:
        """Raises OutOfMemory where the device has less left."""
        available = self._device.available_bytes()
        if needed_bytes > available:
            raise OutOfMemory(
                f"needs about {needed_bytes / 2**30:.1f} GiB, {available / 2**30:.1f} GiB are available on the device"
            )

    def warm_up(self, call: Callable[[], object], *, most_calls: int, until: float) -> None:
        """Calls so often, or, before that, until a time of `time.monotonic`, in seconds."""
        for _ in range(most_calls):
            if self._group.agree(monotonic() < until):
                call()

    def take(self, call: Callable[[], object], restore: Callable[[], object] | None) -> Samples:
        """Samples of `call`, as many as the settings ask for; when it returns, the device is done with them.

        Args:
            restore: brings back what a call overwrites; None where that is nothing.
        """
        cold = self._settings.cache == "cold"

        def before_each() -> None:
            if restore is not None:
                restore()
            if cold:
                self._device.flush_cache()

        rule = StopRule(repeat_count=self._settings.repeat_count, time_limit_s=self._settings.time_limit_s)
        samples = self._instrument.sample(call, before_each if cold or restore is not None else None, rule)
        self._device.synchronize()
        return samples

    def outcome(
        self,
        samples: Samples,
        checked: Checked,
        kernel_type: str,
        *,
        calls: int = 0,
        assumed: Sequence[str] = (),
        noted: Sequence[str] = (),
    ) -> Outcome:
        """What became of a row that has these samples; failed where they are in a profile, and missing there.

        Args:
            calls: how often the kernel was called in all; 0: nobody counted.
            assumed: of the row.
            noted: besides what the instrument notes; the reason tells these.
        """
        notes = (*samples.notes, *noted)
        measurement = Measurement(
            samples_us=samples.durations_us,
            instrument=self._instrument.name,
            cache_state=self._settings.cache,
            device_kernels=samples.device_kernels,
            calls_per_sample=samples.calls_per_sample,
            checked_elements=checked.elements,
            total_elements=checked.total,
            assumptions=tuple(assumed),
            throttled=samples.throttled,
        )
        launched = replace(samples.launched, calls=calls) if samples.launched else None
        outcome = Outcome(Status.MEASURED, "; ".join(notes), measurement=measurement, launched=launched)
        return outcome if samples.profiled is None else with_samples(outcome, kernel_type, samples.profiled)
