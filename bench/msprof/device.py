"""An NPU under msprof: rows run in profiling sessions of a bounded number of rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.errors import DeviceGone
from bench.job import DeviceDescription, DeviceSpec, Job, MeasureSettings, Outcome
from bench.msprof.session import MsprofSession

#: A row whose samples are missing is tried once more, in a session of at most this part of the first one's rows.
_SMALLER = 4


class MsprofDevice:
    """A BatchExecutor: what msprof measured is known when its process has ended."""

    def __init__(self, spec: DeviceSpec, settings: MeasureSettings, folder: Path) -> None:
        """`folder` is where msprof writes while it runs."""
        self._spec = spec
        self._settings = settings
        self._folder = folder
        #: Started to describe the device, and not used yet.
        self._session: MsprofSession | None = None
        self._description: DeviceDescription | None = None

    def describe(self) -> DeviceDescription:
        if self._description is None:
            self._session = self._new_session()
            self._description = self._session.describe()
        return self._description

    def run(self, job: Job) -> Outcome:
        return self.run_all([job], lambda outcome: True)[0]

    def run_all(self, jobs: Sequence[Job], enough: Callable[[Outcome], bool]) -> list[Outcome]:
        session, self._session = self._session or self._new_session(), None
        result = session.run(jobs, enough)
        outcomes = result.outcomes
        for positions in _smaller(result.missing, jobs):
            try:
                again = self._new_session().run([jobs[position] for position in positions], lambda outcome: False)
            except DeviceGone:
                # Whoever asks for the next row is told.
                break
            for position, outcome in zip(positions, again.outcomes, strict=False):
                outcomes[position] = outcome
        return outcomes

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _new_session(self) -> MsprofSession:
        return MsprofSession(self._spec, self._settings, self._folder)


def _smaller(missing: Sequence[int], jobs: Sequence[Job]) -> Iterator[Sequence[int]]:
    """Positions for one session each: of one kernel type, since what spoils a profile may be a kernel's doing."""
    most = max(1, len(jobs) // _SMALLER)
    by_type: dict[str, list[int]] = defaultdict(list)
    for position in missing:
        by_type[jobs[position].kernel_type].append(position)
    for positions in by_type.values():
        for start in range(0, len(positions), most):
            yield positions[start : start + most]
