"""A row's outcome, completed with what a profile holds of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bench.job import Outcome
from bench.profiles.attribution import NoSamples, ProfiledSamples
from bench.profiles.own_kernel import AnotherCase, own_kernel
from bench.stand_in import with_device_kernels
from database.schema import Status


def with_samples(
    outcome: Outcome, kernel_type: str, cells: Mapping[str, str], found: ProfiledSamples | NoSamples
) -> Outcome:
    """Returns the outcome of a row that was launched, now that its profile was read.

    Args:
        kernel_type, cells: the row.
    """
    own = found if isinstance(found, NoSamples) else own_kernel(kernel_type, cells, found)
    if isinstance(own, NoSamples):
        reason = f"launched and right, but not measured: {own.reason}"
        return Outcome(Status.FAILED, reason, changed=outcome.changed)
    if isinstance(own, AnotherCase):
        return Outcome(Status.UNSUPPORTED, own.reason, changed=outcome.changed)
    assert outcome.measurement is not None
    measurement = replace(
        outcome.measurement,
        samples_us=own.durations_us,
        device_kernels=own.device_kernels,
        helper_kernels=own.helper_kernels,
        stand_in=with_device_kernels(outcome.measurement.stand_in, own.device_kernels),
        ran_as=own.ran_as,
        counters=own.counters,
        assumptions=(*outcome.measurement.assumptions, *own.assumptions),
    )
    return replace(outcome, measurement=measurement, launched=None)
