"""Rows answered from profiles that are there already (--prof-path): no device, no process, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from opatlas.capture.profile_samples import SamplesOfRows
from opatlas.engine.job import DeviceDescription, Job, Outcome
from opatlas.engine.stand_in import with_device_kernels
from opatlas.instruments.attribution import AnotherCase, NoSamples, ProfiledSamples, own_kernel
from opatlas.model.location import UNNAMED_NPU
from opatlas.model.schema import Status


class ProfileExecutor:
    """An Executor that looks rows up instead of running them."""

    def __init__(self, samples: SamplesOfRows, device: str) -> None:
        """`device`: name of the one that was profiled; "" where nobody said."""
        self._samples = samples
        profile = samples.profile
        facts: dict[str, str | int | float] = {
            "profile": profile.root.name,
            "summaries": len(profile.files),
            "launches": profile.account.ingested,
        }
        self._description = DeviceDescription(device or UNNAMED_NPU, facts, kind="npu")

    def describe(self) -> DeviceDescription:
        """What was profiled."""
        return self._description

    def prepare(self) -> None:
        """There is no device to open."""

    def run(self, job: Job) -> Outcome:
        """The samples of the job's row; skipped where there are none."""
        found = self._samples.of_row(job.kernel_type, job.cells)
        if isinstance(found, str):
            return Outcome(Status.SKIPPED, found)
        return Outcome(Status.MEASURED, found.remark, measurement=found.measurement)

    def close(self) -> None:
        """Nothing is held."""


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
