"""Every candidate that ships gets the verdict of its first line: `# verdict: mismatch/nan`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from opatlas.outer.judging.failures import run_candidate
from opatlas.outer.judging.judgement import ErrorClass, Judgement, Level
from opatlas.outer.tasks.task import Task, read_tasks
from opatlas.outer.tasks.task_rows import TaskRows, find_candidates, task_rows
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.implementation_catalog import read_directory
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job
from opatlas.run.runner import Runner

pytestmark = pytest.mark.usefixtures("forks")
ROOT = Path(__file__).parents[2]
CANDIDATES = ROOT / "examples" / "candidates"
FILES = sorted(CANDIDATES.rglob("*.py"))
TASKS = {task.name: task for task in read_tasks(ROOT / "examples" / "tasks")}
#: It ends the process that runs it.
CRASH = "crash"
#: The highest level that candidates of a class pass; those of `hack` differ.
LEVELS = {
    ErrorClass.SYNTAX: Level.ANSWER,
    ErrorClass.IMPORT: Level.STATIC,
    ErrorClass.RULE: Level.ANSWER,
    ErrorClass.INIT_ARGS: Level.STATIC,
    ErrorClass.COMPILE: Level.STATIC,
    ErrorClass.OOM: Level.STATIC,
    ErrorClass.CRASH: Level.STATIC,
    ErrorClass.INTERFACE: Level.COMPILE,
    ErrorClass.MISMATCH: Level.COMPILE,
    ErrorClass.UNSTABLE: Level.COMPILE,
    ErrorClass.PASS: Level.MEASURED,
}


def verdicts(path: Path) -> list[str]:
    """The expected verdict of each row, or of all rows."""
    return [each.strip() for each in path.read_text().partition("\n")[0].removeprefix("# verdict:").split(",")]


def fits(found: str, expected: str) -> bool:
    """Whether an error class is the expected one; without a sub-class any will do."""
    return found == expected or found.startswith(f"{expected}/")


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=2, cache="warm"))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def rows() -> TaskRows:
    return task_rows(list(TASKS.values()))


def job_of(task: Task, candidate: Path | None, cells: dict[str, str]) -> Job:
    source = None
    if candidate is not None:
        [source] = [
            each.sources[task.kernel_type]
            for each in read_directory(CANDIDATES, find_candidates(list(TASKS.values())))
            if each.name == f"candidates-{candidate.stem}"
        ]
    return Job("opatlas.bench.test_listed", "", "test_task", task.kernel_type, cells, 60, source=source, subject=task)


def test_there_are_twelve_tasks_and_a_right_candidate_for_each() -> None:
    assert len(TASKS) == 12
    assert {path.parent.name for path in FILES if path.stem == "right"} == TASKS.keys()
    classes = {ErrorClass(each.partition("/")[0]) for path in FILES for each in verdicts(path)}
    # An answer is judged without a file; a hang would keep everybody who tries the candidates waiting.
    assert classes == set(ErrorClass) - {ErrorClass.ANSWER, ErrorClass.TIMEOUT}


@pytest.mark.parametrize(
    "path", [pytest.param(each, id=f"{each.parent.name}-{each.stem}") for each in FILES if each.stem != CRASH]
)
def test_a_candidate_gets_its_verdict(path: Path, runner: Runner, rows: TaskRows) -> None:
    task = TASKS[path.parent.name]
    expected = verdicts(path)
    for number, cells in enumerate(rows.rows[task.kernel_type]):
        outcome = run_candidate(runner.run, job_of(task, path, dict(cells)))
        judgement = Judgement.of(outcome)
        assert judgement is not None, outcome.reason
        assert fits(judgement.name, expected[min(number, len(expected) - 1)]), judgement.text
        assert judgement.passed == (outcome.status is Status.MEASURED)
        assert judgement.level is LEVELS.get(judgement.error_class, judgement.level)
        if judgement.error_class in (ErrorClass.PASS, ErrorClass.MISMATCH):
            assert judgement.within_1e3 is not None
            assert judgement.max_error is None or (judgement.max_error <= 1) == judgement.passed


def test_the_models_of_the_tasks_pass(runner: Runner, rows: TaskRows) -> None:
    """Without a candidate the Model of a task is measured: the baseline."""
    for name in ("softmax", "layer_norm"):
        task = TASKS[name]
        outcome = runner.run(job_of(task, None, dict(rows.rows[task.kernel_type][0])))
        assert outcome.status is Status.MEASURED, outcome.reason
