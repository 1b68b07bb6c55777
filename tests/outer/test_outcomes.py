"""Reading of attempts: several runs, repeated lines, tasks begun anew, torn and damaged files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from compared import lost, measured, write_tables
from simulated_attempts import attempt, loop, write_run

from opatlas.errors import OpAtlasError, UsageError
from opatlas.files import UnsafePath
from opatlas.outer.experiment.command import make_report
from opatlas.outer.experiment.outcomes import TaskName, read_experiment
from opatlas.outer.generation.attempts import ATTEMPTS, AttemptLog, attempt_line
from opatlas.outer.judging.judgement import ErrorClass, Level
from opatlas.typed_json import DecodeError

RELU, SORT = TaskName("set", "relu"), TaskName("set", "sort")


def test_the_attempts_of_a_loop_are_one_outcome(tmp_path: Path) -> None:
    first = attempt("m", "relu", ErrorClass.SYNTAX, cost_usd=0.1)
    second = attempt("m", "relu", ErrorClass.MISMATCH, number=1, cost_usd=0.2, level=Level.COMPILE)
    third = attempt("m", "relu", number=2, cost_usd=0.3, duration_us=2.0, baseline_us=5.0)
    other = attempt("m", "sort", ErrorClass.CRASH, level=None)
    found = read_experiment([write_run(tmp_path, [first, other, second, third])]).outcomes["m"]
    relu, sort = found[RELU], found[SORT]
    assert (relu.passed, relu.passed_first, relu.fixes, relu.final) == (True, False, 2, third)
    assert (relu.cost_usd, relu.level, relu.speed_up) == (0.6, Level.MEASURED, 2.5)
    assert (sort.passed, sort.passed_first, sort.fixes, sort.level, sort.speed_up) == (False, False, 0, None, None)


def test_a_loop_that_later_sessions_went_on_with_is_one_outcome(tmp_path: Path) -> None:
    attempts = loop("m", "relu", 3, passes=True)
    for each in attempts:
        # As in a session of its own, after one that was killed while it wrote.
        AttemptLog(tmp_path).append(each)
        with (tmp_path / ATTEMPTS).open("a") as file:
            file.write('{"task":"rel')
    experiment = read_experiment([tmp_path])
    assert experiment.outcomes["m"][RELU].attempts == tuple(attempts)
    assert experiment.runs[0].torn


def test_a_task_with_its_former_content_goes_on_with_the_attempts_at_that_content(tmp_path: Path) -> None:
    first = attempt("m", "relu", ErrorClass.COMPILE, task_digest="one", cost_usd=0.1)
    changed = attempt("m", "relu", ErrorClass.CRASH, task_digest="two", cost_usd=0.2)
    second = attempt("m", "relu", number=1, task_digest="one", cost_usd=0.4)
    experiment = read_experiment([write_run(tmp_path, [first, changed, second])])
    assert experiment.outcomes["m"][RELU].attempts == (first, second)


def test_a_whole_line_without_a_line_break_counts(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [attempt("m", "relu")], tail=attempt_line(attempt("m", "sort")).rstrip())
    log = AttemptLog(folder)
    assert (len(log.all()), log.torn) == (2, False)


def test_the_last_run_counts(tmp_path: Path) -> None:
    tasks = [f"{number}" for number in range(9)]
    one = write_run(
        tmp_path / "1", [attempt("m", task, [ErrorClass.PASS, ErrorClass.OOM][at % 2]) for at, task in enumerate(tasks)]
    )
    two = write_run(tmp_path / "2", [attempt("m", task) for task in tasks[:6]] + [attempt("other", "0")])
    experiment = read_experiment([one, two])
    assert sum(each.passed for each in experiment.outcomes["m"].values()) == 6 + 2
    # The other way round the first run counts.
    assert sum(each.passed for each in read_experiment([two, one]).outcomes["m"].values()) == 5


def test_runs_below_a_folder_are_read_by_their_names(tmp_path: Path) -> None:
    write_run(tmp_path / "2026-02", [attempt("m", "relu")])
    write_run(tmp_path / "2026-01", [attempt("m", "relu", ErrorClass.COMPILE)])
    experiment = read_experiment([tmp_path])
    assert [run.path.name for run in experiment.runs] == ["2026-01", "2026-02"]
    assert experiment.outcomes["m"][RELU].passed


def test_a_model_without_some_tasks_has_figures_of_its_own_tasks(tmp_path: Path) -> None:
    attempts = [attempt("whole", f"{at}", ErrorClass.COMPILE if at else ErrorClass.PASS) for at in range(10)]
    attempts += [attempt("part", f"{at}") for at in range(4)]
    experiment = read_experiment([write_run(tmp_path, attempts)])
    assert (experiment.missing("part"), experiment.missing("whole"), len(experiment.common_tasks)) == (6, 0, 4)
    report = make_report(experiment)
    figures = {each.model: each for each in report.task_sets if each.group is None}
    assert (figures["part"].passed.passed, figures["part"].passed.of, figures["part"].missing) == (4, 4, 6)
    assert all(each.passed.of == 4 for each in report.strategies)


def test_the_baseline_is_that_of_the_tasks_in_the_database_around_the_run(tmp_path: Path) -> None:
    one, two = {**measured(1, 30)}, {**measured(2, 12)}
    database = write_tables(
        tmp_path / "db", {"set.level1.relu": [one], "set.dynamic": [one, two], "set.lost": [lost(1, "failed")]}
    )
    names = ("level1/relu", "dynamic", "lost", "none")
    attempts = [attempt("m", name, duration_us=10.0) for name in names]
    attempts.append(attempt("other", "level1/relu", duration_us=10.0, baseline_us=5.0))
    found = read_experiment([write_run(database / "generated" / "triton", attempts)])
    speed_ups = {task.task: outcome.speed_up for task, outcome in found.outcomes["m"].items()}
    assert speed_ups == {"level1/relu": 3.0, "dynamic": None, "lost": None, "none": None}
    assert [outcome.speed_up for outcome in found.outcomes["other"].values()] == [0.5]
    alone = read_experiment([write_run(tmp_path / "elsewhere" / "generated" / "triton", attempts)])
    assert {outcome.speed_up for outcome in alone.outcomes["m"].values()} == {None}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ('"number":-1', "$.number"),
        ('"cost_usd":-0.5', "$.cost_usd"),
        ('"duration_us":0', "$.judgement.duration_us"),
        ('"run_s":NaN', ":2"),
        ('"run_s":1e999', ":2"),
        ('"error_class":"bad luck"', "$.judgement.error_class"),
        ('"level":"L9"', "$.judgement.level"),
    ],
)
def test_a_damaged_line_is_named(fields: str, named: str, tmp_path: Path) -> None:
    line = attempt_line(attempt("m", "relu"))
    write_run(tmp_path, [attempt("m", "sort")], tail=line.replace("}", f",{fields}}}"))
    with pytest.raises(DecodeError) as raised:
        read_experiment([tmp_path])
    assert raised.value.place == f"{tmp_path / ATTEMPTS}:2"
    assert named in str(raised.value)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "none", [])
    folder = write_run(tmp_path / "run", [attempt("m", "relu")])
    for folders in ([tmp_path / "nothing"], [tmp_path / "empty"], [tmp_path / "none"], [folder, folder]):
        with pytest.raises(UsageError, match=str(folders[0])):
            read_experiment(folders)
    with pytest.raises(UsageError, match="m"):
        make_report(read_experiment([folder]), "n")
    (folder / ATTEMPTS).write_bytes(b'\xff\xfe{"task"\n')
    with pytest.raises(OpAtlasError, match=f"{ATTEMPTS}:1"):
        read_experiment([folder])
    # A pipe is not waited for.
    (folder / ATTEMPTS).unlink()
    os.mkfifo(folder / ATTEMPTS)
    with pytest.raises(UnsafePath):
        read_experiment([folder])
