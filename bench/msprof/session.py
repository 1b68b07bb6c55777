"""A profiling session: a device process under msprof, the rows that it ran, and what msprof says of them."""

from __future__ import annotations

import contextlib
import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from bench.devices.device_lock import DeviceWaits
from bench.errors import DeviceGone
from bench.job import DeviceDescription, DeviceSpec, Job, MeasureSettings, Outcome
from bench.msprof.command import PATIENCE_S, profiled
from bench.msprof.launched import forget_launched, note_launched
from bench.msprof.output import samples_of
from bench.noise_limit import attempt_of, limited
from bench.processes.device_process import DeviceProcess
from bench.profiles.attribution import NoSamples, ProfiledRow
from bench.profiles.profiled import with_samples


@dataclass(frozen=True)
class SessionResult:
    """What became of the jobs of a session.

    Attributes:
        outcomes: of the jobs that were run, in their order, by the job's id.
        missing: those that were launched, but whose samples are in no summary.
    """

    outcomes: dict[int, Outcome]
    missing: list[Job]


class MsprofSession:
    """Lives from the start of its device process to the reading of what msprof wrote.

    A process that a row has killed is replaced within the session, under an msprof of its own, which
    writes to a folder of its own.
    """

    patience_s = PATIENCE_S
    _numbers = count(1)

    def __init__(
        self,
        spec: DeviceSpec,
        settings: MeasureSettings,
        folder: Path,
        waits: DeviceWaits | None = None,
        *,
        keep_outputs: bool = False,
    ) -> None:
        """
        Args:
            folder: where msprof writes.
            waits: see DeviceProcess.
            keep_outputs: whether what msprof wrote stays there, for somebody else to read.
        """
        self._keep_outputs = keep_outputs
        self._settings = settings
        self._folder = folder
        self._process = DeviceProcess(spec, settings, launcher=self, waits=waits)
        self._outputs: list[Path] = []

    def command(self, words: Sequence[str]) -> list[str]:
        """Starts `words` under msprof. Raises DeviceGone where there is no msprof."""
        output = self._folder / f"{next(self._numbers):04d}"
        command = profiled(words, output, self._settings.aic_metrics)
        output.mkdir(parents=True)
        self._outputs.append(output)
        return command

    def describe(self) -> DeviceDescription:
        return self._process.describe()

    def run(self, jobs: Sequence[Job], enough: Callable[[Outcome], bool]) -> SessionResult:
        """Runs jobs, ends the process, and reads what msprof wrote. Raises DeviceGone where none could be run.

        Args:
            enough: told of each outcome; whether no further job is to be run.
        """
        outcomes: dict[int, Outcome] = {}
        launched: dict[Path, list[Job]] = defaultdict(list)
        try:
            for job in jobs:
                outcome = self._process.run(job)
                if outcome.launched:
                    launched[self._outputs[-1]].append(job)
                    # Without room for it a killed session could not be read later; this one can.
                    with contextlib.suppress(OSError):
                        note_launched(self._outputs[-1], job, outcome)
                outcomes[job.id] = outcome
                if enough(outcome):
                    break
        except DeviceGone:
            if not outcomes:
                raise
        finally:
            self._process.close()
        missing: list[Job] = []
        for output, its_jobs in launched.items():
            rows = [_profiled_row(job, outcomes[job.id]) for job in its_jobs]
            for job, found in zip(its_jobs, samples_of(output, rows), strict=True):
                outcome = with_samples(outcomes[job.id], job.kernel_type, job.cells, found)
                attempts = [attempt_of(outcome.measurement.samples_us)] if outcome.measurement is not None else []
                outcomes[job.id] = limited(outcome, self._settings.max_noise, attempts)
                if isinstance(found, NoSamples):
                    missing.append(job)
            forget_launched(output)
        self._remove_outputs(keep=bool(missing) or self._keep_outputs)
        return SessionResult(outcomes, missing)

    def close(self) -> None:
        """Ends a session in which nothing was run."""
        self._process.close()
        self._remove_outputs(keep=False)

    def _remove_outputs(self, keep: bool) -> None:
        if keep:
            return
        for output in self._outputs:
            shutil.rmtree(output, ignore_errors=True)
        for folder in (self._folder, *self._folder.parents[:2]):
            # Not where another session, or a worker of this one, still needs it.
            with contextlib.suppress(OSError):
                folder.rmdir()


def _profiled_row(job: Job, outcome: Outcome) -> ProfiledRow:
    assert outcome.launched is not None
    return ProfiledRow(job.kernel_type, job.cells, outcome.launched)
