"""Rows answered from profiles that are there already (--prof-path): no device, no process, no torch."""

from __future__ import annotations

from bench.job import DeviceDescription, Job, Outcome
from database.ingest.samples import SamplesOfRows
from database.layout import UNNAMED_NPU
from database.schema import Status


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
