"""Candidates in a profiling session of msprof: one whose source breaks a rule never reaches the device process."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted_trials import job_of_candidate

from opatlas.outer.judging.judgement import ErrorClass, Judgement
from opatlas.row.status import Status
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, RowOutcome
from opatlas.run.msprof.executor import MsprofSession

TASK = Path(__file__).parents[2] / "examples" / "tasks" / "softmax.py"


class _Process:
    """Takes the place of the device process, which would need an NPU."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def run(self, job: Job) -> RowOutcome:
        self.jobs.append(job)
        return RowOutcome(Status.UNSUPPORTED, "no NPU")

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("source", "runs"), [("def candidate(x:\n", False), ("def candidate(x):\n    return x.softmax(-1)\n", True)]
)
def test_the_rules_on_sources_hold_under_msprof(tmp_path: Path, source: str, runs: bool) -> None:
    path = tmp_path / "softmax.py"
    path.write_text(source)
    job, process = job_of_candidate(TASK, path), _Process()
    session = MsprofSession(lambda launcher: process, MeasureSettings(), tmp_path)  # type: ignore[arg-type, return-value]
    outcome = session.run([job], lambda outcome: False).outcomes[job.id]
    assert process.jobs == [job] * runs
    judgement = Judgement.of(outcome)
    assert (judgement is None) if runs else judgement is not None and judgement.error_class is ErrorClass.SYNTAX
