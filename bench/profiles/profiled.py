"""A row's outcome, completed with what a profile holds of it."""

from __future__ import annotations

from dataclasses import replace

from bench.job import Outcome
from bench.profiles.attribution import NoSamples, ProfiledSamples
from bench.stand_in import with_device_kernels
from database.matmul_family import siblings
from database.record import RanAs
from database.schema import Status
from database.signature import normalized_kernel_type


def with_samples(outcome: Outcome, kernel_type: str, found: ProfiledSamples | NoSamples) -> Outcome:
    """The outcome of a row of `kernel_type` that was launched, now that its profile was read."""
    if isinstance(found, NoSamples):
        reason = f"launched and right, but not measured: {found.reason}"
        return Outcome(Status.FAILED, reason, changed=outcome.changed)
    seen = {normalized_kernel_type(launch.kernel_type): launch for launch in found.kernels}
    ran_as = None
    if kernel_type not in seen:
        sibling = next((name for name in siblings(kernel_type) if name in seen), None)
        if sibling is None:
            return Outcome(
                Status.UNSUPPORTED,
                f"the call launches {' + '.join(seen)} here, whose duration is not that of {kernel_type}",
                changed=outcome.changed,
            )
        ran_as = RanAs(sibling, seen[sibling].cells)
    assert outcome.measurement is not None
    measurement = replace(
        outcome.measurement,
        samples_us=found.durations_us,
        device_kernels=len(found.kernels),
        stand_in=with_device_kernels(outcome.measurement.stand_in, len(found.kernels)),
        ran_as=ran_as,
        counters=found.counters,
        assumptions=(*outcome.measurement.assumptions, *([found.assumption] if found.assumption else [])),
    )
    return replace(outcome, measurement=measurement, launched=None)
