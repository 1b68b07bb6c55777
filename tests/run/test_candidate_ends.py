"""The judgement of a candidate whose process ended without a verdict, from its log and its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from opatlas.outer.judging.failures import Phase, run_candidate
from opatlas.outer.judging.judgement import ErrorClass, Judgement, Level
from opatlas.outer.tasks.task import Task, TaskKind
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription
from opatlas.run.implementations.implementation import KernelSource
from opatlas.run.job import Job, RowOutcome

SOURCE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
CRASHED = RowOutcome(Status.CRASHED, "the device process died", exit_code=-6)


class Ends:
    """An executor whose process ends: it leaves a log, a step and an outcome."""

    def __init__(self, phase: Phase, stderr: str, outcome: RowOutcome) -> None:
        self.phase, self.stderr, self.outcome = phase, stderr, outcome

    def run(self, job: Job) -> RowOutcome:
        Path(job.log).write_text(self.stderr)
        Path(job.phase_file).write_text(self.phase.value)
        return self.outcome

    def describe(self) -> DeviceDescription:
        raise NotImplementedError

    def prepare(self) -> None:
        """Has no device."""

    def close(self) -> None:
        """Has no device."""


@pytest.mark.parametrize(
    ("phase", "stderr", "outcome", "error_class", "level"),
    [
        (Phase.FIRST_CALL, "LLVM ERROR: Cannot select: t5\n", CRASHED, ErrorClass.COMPILE, Level.STATIC),
        (Phase.FIRST_CALL, "", CRASHED, ErrorClass.CRASH, Level.STATIC),
        (Phase.LATER_CALL, "", CRASHED, ErrorClass.CRASH, Level.COMPILE),
        (Phase.IMPORT, "", RowOutcome(Status.CRASHED, "died", exit_code=0), ErrorClass.CRASH, Level.STATIC),
        (Phase.LATER_CALL, "", RowOutcome(Status.TIMEOUT, "still running"), ErrorClass.TIMEOUT, Level.COMPILE),
    ],
)
def test_the_log_and_the_end_decide(tmp_path, phase, stderr, outcome, error_class, level) -> None:
    path = tmp_path / "relu.py"
    path.write_text(SOURCE)
    task = Task("relu", "tasks", path, TaskKind.TORCH, "0" * 12)
    source = KernelSource("mine 1", "", str(path), "ModelNew")
    job = Job("m", "m.py", "f", "tasks.relu", {}, 1, source=source, subject=task, log=str(tmp_path / "log"))
    found = run_candidate(Ends(phase, stderr, outcome).run, job)
    assert Judgement.of(found) is not None
    assert (found.status, Judgement.of(found).error_class, Judgement.of(found).level) == (
        outcome.status,
        error_class,
        level,
    )
    assert sorted(each.name for each in tmp_path.iterdir()) == ["relu.py"]


def test_a_source_that_breaks_a_rule_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "relu.py"
    path.write_text(SOURCE.replace("return x", "return x x"))
    task = Task("relu", "tasks", path, TaskKind.TORCH, "0" * 12)
    job = Job(
        "m", "m.py", "f", "tasks.relu", {}, 1, source=KernelSource("mine 1", "", str(path), "ModelNew"), subject=task
    )
    found = run_candidate(Ends(Phase.IMPORT, "", CRASHED).run, job)
    assert Judgement.of(found) is not None
    assert (found.status, Judgement.of(found).error_class) == (Status.FAILED, ErrorClass.SYNTAX)
