"""An NPU, or a group of them, under msprof: rows run in profiling sessions of a bounded number of rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from opatlas.devices.device_lock import DeviceWaits
from opatlas.engine.errors import DeviceGone
from opatlas.engine.job import (
    DeviceDescription,
    DeviceSpec,
    Job,
    MeasureSettings,
    Outcome,
)
from opatlas.instruments.msprof.session import MsprofSession
from opatlas.isolation.device_process import DeviceProcess
from opatlas.isolation.groups.process import GroupProcess
from opatlas.isolation.groups.spec import GroupSpec

#: A row whose samples are missing is tried once more, in a session of at most this part of the first one's rows.
_SMALLER = 4


def of_device(
    spec: DeviceSpec, settings: MeasureSettings, folder: Path, waits: DeviceWaits | None = None
) -> MsprofExecutor:
    """For rows of one device.

    Args:
        folder: where msprof writes while it runs.
        waits: times the waits for the device; None: nobody asks how long they were.
    """
    return MsprofExecutor(
        lambda: MsprofSession(lambda launcher: DeviceProcess(spec, settings, launcher, waits), settings, folder)
    )


def of_group(
    spec: GroupSpec,
    devices: Sequence[DeviceSpec],
    settings: MeasureSettings,
    folder: Path,
    waits: DeviceWaits | None = None,
) -> MsprofExecutor:
    """For rows of a group, each of whose ranks on this node runs under an msprof of its own.

    Args:
        devices: of this node, one for each of its ranks.
        folder, waits: as in `of_device`.
    """

    def session() -> MsprofSession:
        return MsprofSession(
            lambda launcher: GroupProcess(spec, devices, settings, waits, launcher),
            settings,
            folder,
            ranks=spec.local_ranks,
        )

    # Which samples are missing, no other node knows, and all must run the same rows.
    return MsprofExecutor(session, tries_again=spec.nnodes == 1)


class MsprofExecutor:
    """A BatchExecutor: what msprof measured is known when its processes have ended."""

    def __init__(self, session_of: Callable[[], MsprofSession], *, tries_again: bool = True) -> None:
        """
        Args:
            session_of: makes a session, whose processes are started on first use.
            tries_again: whether rows whose samples are missing run once more.
        """
        self._new_session = session_of
        self._tries_again = tries_again
        #: Started to describe the device, and not used yet.
        self._session: MsprofSession | None = None
        self._description: DeviceDescription | None = None

    def describe(self) -> DeviceDescription:
        if self._description is None:
            self._session = self._new_session()
            self._description = self._session.describe()
        return self._description

    def prepare(self) -> None:
        # Each later batch has a session of its own, which begins with the batch.
        self.describe()

    def run(self, job: Job) -> Outcome:
        return self.run_all([job], lambda outcome: True)[job.id]

    def run_all(self, jobs: Sequence[Job], enough: Callable[[Outcome], bool]) -> dict[int, Outcome]:
        session, self._session = self._session or self._new_session(), None

        def described(outcome: Outcome) -> bool:
            self._description = self._description or session.describe()
            return enough(outcome)

        result = session.run(jobs, described)
        outcomes = result.outcomes
        for smaller in _smaller(result.missing if self._tries_again else [], len(jobs)):
            try:
                again = self._new_session().run(smaller, lambda outcome: False)
            except DeviceGone:
                # Whoever asks for the next row is told.
                break
            outcomes |= again.outcomes
        return outcomes

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _smaller(missing: Sequence[Job], rows: int) -> Iterator[Sequence[Job]]:
    """Jobs for one session each: of one kernel type, since what spoils a profile may be a kernel's doing.

    Args:
        rows: of the session in which they were missing.
    """
    most = max(1, rows // _SMALLER)
    by_type: dict[str, list[Job]] = defaultdict(list)
    for job in missing:
        by_type[job.kernel_type].append(job)
    for jobs in by_type.values():
        for start in range(0, len(jobs), most):
            yield jobs[start : start + most]
