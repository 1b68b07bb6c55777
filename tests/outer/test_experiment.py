"""Experiments with models: intervals, outcomes, choices, and what `opatlas score` tells of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from commands import as_json, run
from compared import lost, measured, write_tables
from hypothesis import given, settings, strategies as st
from simulated_attempts import attempt, loop, mixed_run, write_run

from opatlas.errors import OpAtlasError
from opatlas.files import UnsafePath
from opatlas.outer.generation.attempts import ATTEMPTS, AttemptLog, ModelAttempt, attempt_line
from opatlas.outer.generation.experiment import (
    ROUTED,
    Experiment,
    Figures,
    Selector,
    Strategy,
    TaskName,
    read_experiment,
    run_of,
    strategy_results,
    wilson_interval,
)
from opatlas.outer.judging.judgement import ErrorClass, Level
from opatlas.show.output import USAGE
from opatlas.typed_json import DecodeError

counts = st.integers(1, 5000).flatmap(lambda tasks: st.tuples(st.integers(0, tasks), st.just(tasks)))
levels = st.floats(0.01, 0.999)


@given(counts, levels)
def test_an_interval_lies_in_0_to_1_around_the_rate(count: tuple[int, int], level: float) -> None:
    passed, tasks = count
    interval = wilson_interval(passed, tasks, level)
    assert interval is not None
    low, high = interval
    assert 0 <= low <= passed / tasks <= high <= 1
    assert low < high
    # The failed tasks have the mirrored interval.
    assert wilson_interval(tasks - passed, tasks, level) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_figures_of_textbooks() -> None:
    # Newcombe (1998), Statistics in Medicine 17, table I, method 3: 81/263, 15/148, 0/20, 1/29.
    for count, expected in (
        ((81, 263), (0.2553, 0.3662)),
        ((15, 148), (0.0624, 0.1605)),
        ((0, 20), (0, 0.1611)),
        ((1, 29), (0.0061, 0.1718)),
    ):
        assert wilson_interval(*count) == pytest.approx(expected, abs=6e-5)


RELU, SORT = TaskName("set", "relu"), TaskName("set", "sort")


def outcomes_of(experiment: Experiment, model: str) -> dict[TaskName, Any]:
    lines = experiment.outcomes.loc[[model]].astype(object)
    return {TaskName(each.task_set, each.task): each for each in lines.where(lines.notna(), None).itertuples()}


def test_the_attempts_of_a_loop_are_one_outcome(tmp_path: Path) -> None:
    first = attempt("m", "relu", ErrorClass.SYNTAX, cost_usd=0.1)
    second = attempt("m", "relu", ErrorClass.MISMATCH, number=1, cost_usd=0.2, level=Level.COMPILE)
    third = attempt("m", "relu", number=2, cost_usd=0.3, duration_us=2.0, baseline_us=5.0)
    other = attempt("m", "sort", ErrorClass.CRASH, level=None)
    found = outcomes_of(read_experiment([write_run(tmp_path, [first, other, second, third])]), "m")
    relu, sort = found[RELU], found[SORT]
    assert (relu.passed, relu.passed_first, relu.fixes, relu.duration_us) == (True, False, 2, 2.0)
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
    assert experiment.loops["m", RELU] == tuple(attempts)
    assert experiment.runs[0].torn


def test_a_task_with_its_former_content_goes_on_with_the_attempts_at_that_content(tmp_path: Path) -> None:
    first = attempt("m", "relu", ErrorClass.COMPILE, task_digest="one", cost_usd=0.1)
    changed = attempt("m", "relu", ErrorClass.CRASH, task_digest="two", cost_usd=0.2)
    second = attempt("m", "relu", number=1, task_digest="one", cost_usd=0.4)
    experiment = read_experiment([write_run(tmp_path, [first, changed, second])])
    assert experiment.loops["m", RELU] == (first, second)


def test_the_last_run_counts(tmp_path: Path) -> None:
    tasks = [f"{number}" for number in range(9)]
    one = write_run(
        tmp_path / "1", [attempt("m", task, [ErrorClass.PASS, ErrorClass.OOM][at % 2]) for at, task in enumerate(tasks)]
    )
    two = write_run(tmp_path / "2", [attempt("m", task) for task in tasks[:6]] + [attempt("other", "0")])
    experiment = read_experiment([one, two])
    assert sum(each.passed for each in outcomes_of(experiment, "m").values()) == 6 + 2
    # The other way round the first run counts.
    assert sum(each.passed for each in outcomes_of(read_experiment([two, one]), "m").values()) == 5


def test_the_baseline_is_that_of_the_tasks_in_the_database_around_the_run(tmp_path: Path) -> None:
    one, two = {**measured(1, 30)}, {**measured(2, 12)}
    database = write_tables(
        tmp_path / "db", {"set.level1.relu": [one], "set.dynamic": [one, two], "set.lost": [lost(1, "failed")]}
    )
    names = ("level1/relu", "dynamic", "lost", "none")
    attempts = [attempt("m", name, duration_us=10.0) for name in names]
    attempts.append(attempt("other", "level1/relu", duration_us=10.0, baseline_us=5.0))
    found = read_experiment([write_run(database / "generated" / "triton", attempts)])
    speed_ups = {task.task: outcome.speed_up for task, outcome in outcomes_of(found, "m").items()}
    assert speed_ups == {"level1/relu": 3.0, "dynamic": None, "lost": None, "none": None}
    assert [outcome.speed_up for outcome in outcomes_of(found, "other").values()] == [0.5]
    alone = read_experiment([write_run(tmp_path / "elsewhere" / "generated" / "triton", attempts)])
    assert {outcome.speed_up for outcome in outcomes_of(alone, "m").values()} == {None}


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
    folder = write_run(tmp_path / "run", [attempt("m", "relu")])
    (folder / ATTEMPTS).write_bytes(b'\xff\xfe{"task"\n')
    with pytest.raises(OpAtlasError, match=f"{ATTEMPTS}:1"):
        read_experiment([folder])
    # A pipe is not waited for.
    (folder / ATTEMPTS).unlink()
    os.mkfifo(folder / ATTEMPTS)
    with pytest.raises(UnsafePath):
        read_experiment([folder])


PASS, FAIL = ErrorClass.PASS, ErrorClass.COMPILE


def experiment_of(attempts: list[ModelAttempt]) -> Experiment:
    return Experiment([run_of(Path("run"), attempts)])


def results_of(attempts: list[ModelAttempt]) -> dict[Strategy, Figures]:
    return {each["strategy"]: each for each in strategy_results(experiment_of(attempts))}


def specialists(tasks: int = 12) -> list[ModelAttempt]:
    """One model passes C1 alone, one C4 alone, and a cheap one every third task."""
    return [
        attempt(model, f"{complexity}/{at}", PASS if passes else FAIL, complexity=complexity, cost_usd=cost)
        for complexity in ("C1", "C4")
        for at in range(tasks)
        for model, passes, cost in (
            ("of-c1", complexity == "C1", 0.01),
            ("of-c4", complexity == "C4", 0.02),
            ("cheap", at % 3 == 0, 0.001),
        )
    ]


def test_specialists_are_chosen_by_complexity() -> None:
    found = results_of(specialists())
    table = Selector(experiment_of(specialists())).table()
    assert {each["complexity"]: each["model"] for each in table} == {
        "C1": "of-c1",
        "C4": "of-c4",
        None: "of-c1",  # as good as of-c4, and cheaper
    }
    assert found[Strategy.TABLE]["models"] == {"of-c1": 12, "of-c4": 12}
    assert (found[Strategy.TABLE]["passed"]["passed"], found[Strategy.TABLE]["cost_usd"]) == (24, pytest.approx(0.36))
    # Without the task itself the other specialist is one task ahead wherever a model passes: the choice flips.
    assert found[Strategy.BEST]["passed"]["passed"] == 0
    assert (found[Strategy.CHEAPEST]["passed"]["passed"], found[Strategy.CHEAPEST]["models"]) == (8, {"cheap": 24})


def test_a_complexity_with_one_task_takes_the_model_that_is_best_elsewhere() -> None:
    attempts = [attempt(model, "only", PASS if model == "b" else FAIL, complexity="C4") for model in ("a", "b")]
    attempts += [attempt(model, f"{at}", PASS if model == "a" else FAIL) for at in range(5) for model in ("a", "b")]
    table = results_of(attempts)[Strategy.TABLE]
    assert (table["models"], table["passed"]["passed"]) == ({"a": 6}, 5)


def test_the_cheapest_model_is_that_of_the_lowest_price_of_an_answer() -> None:
    """Also of the only task, and for a model that asks more often; without prices tokens decide."""
    attempts = [*loop("cheap", "0", 3, passes=False, cost_usd=0.001), attempt("dear", "0", cost_usd=0.003)]
    assert results_of(attempts)[Strategy.CHEAPEST]["models"] == {"cheap": 1}
    free = [
        attempt(model, f"{at}", cost_usd=0.0, tokens_out=tokens)
        for at in range(3)
        for model, tokens in (("many", 900), ("few", 30))
    ]
    assert results_of(free)[Strategy.CHEAPEST]["models"] == {"few": 3}


def test_a_route_is_a_strategy_with_attempts_of_its_own() -> None:
    attempts = [attempt(model, f"{at}", PASS if model == "b" else FAIL) for at in range(2) for model in ("a", "b")]
    routed = [attempt(ROUTED, f"{at}", cost_usd=0.5, generation_s=9.0, asked="b") for at in range(2)]
    found = results_of(attempts + routed)
    assert set(found) == set(Strategy)
    route = found[Strategy.ROUTE]
    assert (route["passed"]["passed"], route["cost_usd"], route["generation_s"]) == (2, 1.0, 18.0)
    assert route["models"] == route["passed_by_model"] == {"b": 2}
    # No other strategy chooses the route, and it stands alone where nothing else ran.
    assert all(ROUTED not in each["models"] for each in found.values())
    assert results_of(routed) == {Strategy.ROUTE: route}


@settings(max_examples=40)
@given(st.data())
def test_what_holds_for_any_attempts(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True))
    attempts = [
        attempt(
            model,
            f"{at}",
            data.draw(st.sampled_from([PASS, FAIL])),
            complexity=f"C{1 + at % 3}",
            cost_usd=data.draw(st.sampled_from([0.0, 0.001, 0.5])),
        )
        for at in range(data.draw(st.integers(1, 9)))
        for model in names
        if at == 0 or data.draw(st.booleans())
    ]
    found = results_of(attempts)
    common = experiment_of(attempts).common_tasks
    for result in found.values():
        assert result["passed"]["of"] == len(common) == sum(result["models"].values())
        assert set(result["models"]) <= set(names)
        assert (result["cost_per_pass_usd"] is None) == (result["passed"]["passed"] == 0)
    if len(names) == 1:
        assert len({result["passed"]["passed"] for result in found.values()}) == 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", mixed_run())


def test_json_has_all_tables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = as_json(capsys, "score", folder)
    lists = {name: lines for name, lines in content.items() if isinstance(lines, list)}
    (large,) = (each for each in lists["task_sets"] if each["group"] is None and each["model"] == "large")
    outcomes = [each for each in lists["outcomes"] if each["model"] == "large"]
    assert large["passed"]["passed"] == sum(each["passed"] for each in outcomes)
    assert large["cost_usd"] == pytest.approx(sum(each["cost_usd"] for each in outcomes))
    assert [each["strategy"] for each in lists["strategies"]] == ["A", "B", "C"]
    fast = lists["speed_ups"][0]["fast"]
    timed = [each["speed_up"] for each in lists["outcomes"] if each["speed_up"] is not None]
    assert fast == {f"{p:g}": sum(each > p for each in timed) / len(lists["outcomes"]) for p in (1, 1.5, 2)}


def test_without_data_there_are_no_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No pass, no price, no duration, no common task, no task of a complexity: no NaN, no division by zero."""
    attempts = [
        attempt("a", "1", ErrorClass.ANSWER, level=None, cost_usd=0.0, generation_s=0.0, run_s=0.0),
        attempt("b", "2", ErrorClass.OOM, complexity="C4", level=None),
    ]
    folder = write_run(tmp_path / "run", attempts)
    content = as_json(capsys, "score", folder)
    assert {each["passed"]["rate"] for each in content["strategies"]} == {None}
    assert {each["cost_per_pass_usd"] for each in content["task_sets"]} == {None}
    assert {each["geometric_mean"] for each in content["speed_ups"]} == {None}
    status, out, err = run(capsys, "score", folder)
    assert (status, err) == (0, "")
    assert "nan" not in out.lower().split()


@pytest.mark.parametrize(
    ("words", "status", "named"),
    [
        ([], USAGE, "give"),
        (["nothing"], USAGE, "nothing"),
        (["empty"], USAGE, "empty"),
        (["none"], USAGE, "none"),
        (["run", "run"], USAGE, "run"),
        (["suite", "run"], USAGE, "suite"),
        (["suite"], 1, "suite"),
        (["damaged"], 1, "attempts.jsonl:1"),
    ],
)
def test_what_is_refused(
    words: list[str],
    status: int,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run", [attempt("m", "relu")])
    write_run(tmp_path / "none", [])
    write_run(tmp_path / "damaged", [], tail="{}\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "abs__default.csv").write_text("Input Shapes\n4\n")
    found, out, err = run(capsys, "score", *words)
    assert (found, out) == (status, "")
    assert named in err
