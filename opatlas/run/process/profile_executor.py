"""Finds the samples of jobs in profiles that exist (--prof-path). Imports no torch."""

from __future__ import annotations

from opatlas.capture.profile_samples import ProfileMatcher
from opatlas.row.kind import native_kind
from opatlas.row.location import UNNAMED_NPU
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription
from opatlas.run.job import Job, RowOutcome


class ProfileExecutor:
    """An Executor that looks up rows in existing profiles (--prof-path), without a device, a process or torch."""

    def __init__(self, samples: ProfileMatcher, device: str) -> None:
        """`device` is the name of the profiled device; "" if it is not known."""
        self._samples = samples
        profile = samples.profile
        facts: dict[str, str | int | float] = {
            "profile": profile.root.name,
            "summaries": len(profile.files),
            "launches": profile.account.ingested,
        }
        self._description = DeviceDescription(device or UNNAMED_NPU, facts, kind=native_kind().name)

    def describe(self) -> DeviceDescription:
        """Returns facts about the profile."""
        return self._description

    def prepare(self) -> None:
        """Does nothing: there is no device to open."""

    def run(self, job: Job) -> RowOutcome:
        """Returns an outcome with the samples of the job's row; a skipped outcome if no profile has samples."""
        found = self._samples.of_row(job.kernel_type, job.cells)
        if isinstance(found, str):
            return RowOutcome(Status.SKIPPED, found)
        return RowOutcome(Status.MEASURED, found.remark, measurement=found.measurement)

    def close(self) -> None:
        """Does nothing: there is nothing to release."""
