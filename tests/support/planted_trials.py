"""Reads the planted kernels of tests/candidates/planted, and makes the jobs that judge them."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from opatlas.outer.judging.judgement import ErrorClass, Judgement
from opatlas.outer.tasks.task import read_tasks
from opatlas.row.columns import TASK_DIGEST, TASK_INPUTS
from opatlas.run.implementation import KernelSource
from opatlas.run.job import Job, RowOutcome

PLANTED = Path(__file__).parents[1] / "candidates" / "planted"
_HEADER = re.compile(r"^(\w[\w ]*): (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class PlantedKernel:
    """A planted kernel with its header.

    Attributes:
        path, task: the candidate, and the file of its task.
        error_class, sub_class: the expected ones; PASS for one that gains nothing.
        static: class and sub-class of the rule on its source; "" if no rule fails it.
        device: "cuda" if it needs a GPU, "cpu" if it needs none; "" for both.
        notes: words of its expected notes ("torch threads").
        row: the number of the task's inputs that it is wrong for.
        has_own_process: whether it must not run in the process of tests.
    """

    path: Path
    task: Path
    error_class: ErrorClass
    sub_class: str
    static: str
    device: str
    notes: str
    row: int
    has_own_process: bool

    @property
    def number(self) -> int:
        return int(self.path.name[1:3])

    def job(self, folder: Path) -> Job:
        """The job that judges a copy in `folder`; one of them edits its task."""
        task, path = (Path(shutil.copy(each, folder)) for each in (self.task, self.path))
        return job_of_candidate(task, path, self.row)

    def expect(self, outcome: RowOutcome) -> None:
        """Asserts that an outcome matches the header."""
        judgement = Judgement.of(outcome)
        assert judgement is not None, f"{outcome.reason}\n{outcome.detail}"
        assert judgement.error_class is self.error_class, f"{outcome.reason}\n{outcome.detail}"
        assert self.sub_class in ("", judgement.sub_class)
        assert self.notes in " ".join((*judgement.notes, *outcome.changed))


def planted_kernels() -> list[PlantedKernel]:
    return [_planted(path) for path in sorted(PLANTED.glob("p*.py"))]


def _planted(path: Path) -> PlantedKernel:
    fields = dict(_HEADER.findall(path.read_text().split('"""')[1]))
    error_class, _, sub_class = fields["Expected"].partition(" ")
    return PlantedKernel(
        path,
        PLANTED / "tasks" / f"{fields['Task']}.py",
        ErrorClass(error_class),
        sub_class,
        fields.get("Static", ""),
        fields.get("Device", ""),
        fields.get("Notes", ""),
        int(fields.get("Row", "0")),
        "Process" in fields,
    )


def job_of_candidate(task: Path, path: Path, row: int = 0) -> Job:
    """The job that judges a file with ModelNew for a task, without the rules on its source."""
    (found,) = read_tasks(task)
    return Job(
        "opatlas.bench.test_listed",
        "",
        "test_task",
        found.kernel_type,
        {TASK_DIGEST: found.digest, TASK_INPUTS: str(row)},
        timeout_s=120,
        subject=found,
        source=KernelSource("planted 1", "", str(path), "ModelNew"),
        log=str(path.with_suffix(".log")),
    )


def each_of(kernels: list[PlantedKernel]) -> list[Any]:
    """Parameters of pytest, one for each kernel."""
    return [pytest.param(kernel, id=kernel.path.stem) for kernel in kernels]
