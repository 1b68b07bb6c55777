"""A profiling session: a process, or the ranks of a group, under msprof, the rows that it ran, and what msprof has."""

from __future__ import annotations

import contextlib
import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from opatlas.engine.errors import DeviceGone
from opatlas.engine.job import (
    DeviceDescription,
    Job,
    MeasureSettings,
    Outcome,
)
from opatlas.engine.noise_limit import attempt_of, limited
from opatlas.instruments.attribution import ProfiledRow
from opatlas.instruments.msprof.command import PATIENCE_S, profiled
from opatlas.instruments.msprof.output import folder_of_rank, read_back
from opatlas.instruments.msprof.pending import forget_launched, note_launched
from opatlas.isolation.device_process import Launcher
from opatlas.isolation.executor import Executor
from opatlas.isolation.groups.messages import RANK_PLACE


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
    """Lives from the start of its processes to the reading of what msprof wrote.

    A process, or group, that a row has killed is replaced within the session, under an msprof of its own, which
    writes to a folder of its own.
    """

    patience_s = PATIENCE_S
    _numbers = count(1)

    def __init__(
        self,
        process_of: Callable[[Launcher], Executor],
        settings: MeasureSettings,
        folder: Path,
        *,
        ranks: int = 0,
        keep_outputs: bool = False,
    ) -> None:
        """
        Args:
            process_of: makes the executor whose processes run under a launcher.
            folder: where msprof writes.
            ranks: of a group, on this node, each of which is launched with its number; 0: one process.
            keep_outputs: whether what msprof wrote stays there, for somebody else to read.
        """
        self._keep_outputs = keep_outputs
        self._settings = settings
        self._folder = folder
        self._ranks = ranks
        self._process = process_of(self)
        self._outputs: list[Path] = []

    def command(self, words: Sequence[str]) -> list[str]:
        """Starts `words` under msprof. Raises DeviceGone where there is no msprof."""
        output = self._folder / f"{next(self._numbers):04d}"
        own = folder_of_rank(output, RANK_PLACE) if self._ranks else output
        command = profiled(words, own, self._settings.aic_metrics)
        output.mkdir(parents=True)
        for rank in range(self._ranks):
            folder_of_rank(output, rank).mkdir()
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
            pending = [outcomes[job.id] for job in its_jobs]
            rows = [_profiled_row(job, outcome) for job, outcome in zip(its_jobs, pending, strict=True)]
            for job, read in zip(its_jobs, read_back(output, rows, pending), strict=True):
                outcome = read.outcome
                attempts = [attempt_of(outcome.measurement.samples_us)] if outcome.measurement is not None else []
                outcomes[job.id] = limited(outcome, self._settings.max_noise, attempts)
                if read.is_missing:
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
