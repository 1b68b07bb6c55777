"""A published experiment's tables, given to OpAtlas as attempts: what they sum up to, and where they disagree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from simulated_attempts import loop, write_run

from opatlas.outer.experiment.command import ExperimentReport, make_report
from opatlas.outer.experiment.outcomes import read_experiment
from opatlas.outer.experiment.strategies import Strategy
from opatlas.outer.generation.attempts import ModelAttempt
from opatlas.outer.judging.judgement import ErrorClass, Judgement

PUBLISHED: Mapping[str, Any] = yaml.safe_load((Path(__file__).parent / "published.yaml").read_text("utf-8"))
MODELS: Mapping[str, Mapping[str, Any]] = PUBLISHED["models"]
ALL_TASKS = sum(PUBLISHED["tasks"].values())
STRATEGIES: Mapping[str, Mapping[str, Any]] = PUBLISHED["strategies"]


def attempts_of(model: str, task_set: str) -> list[ModelAttempt]:
    """Attempts with the published numbers of passed tasks, first answers and fixes."""
    passed, first, fixes = MODELS[model][task_set]
    tasks, price = PUBLISHED["tasks"][task_set], MODELS[model]["usd"]
    # Repaired tasks have one fix each; the failed ones share the rest as evenly as they can.
    rest, failed = fixes - (passed - first), tasks - passed
    counts = [0] * first + [1] * (passed - first) + [rest // failed + (at < rest % failed) for at in range(failed)]
    return [
        attempt
        for number, count in enumerate(counts)
        for attempt in loop(model, f"{number}", count, number < passed, task_set=task_set, cost_usd=price)
    ]


@pytest.fixture(scope="module")
def by_set(tmp_path_factory: pytest.TempPathFactory) -> ExperimentReport:
    attempts = [
        attempt for task_set in PUBLISHED["tasks"] for model in MODELS for attempt in attempts_of(model, task_set)
    ]
    return make_report(read_experiment([write_run(tmp_path_factory.mktemp("by_set"), attempts)]))


@pytest.fixture(scope="module")
def by_complexity(tmp_path_factory: pytest.TempPathFactory) -> ExperimentReport:
    attempts = [
        attempt
        for at, (complexity, tasks) in enumerate(PUBLISHED["complexities"].items())
        for model, published in MODELS.items()
        for number in range(tasks)
        for attempt in loop(
            model,
            f"{complexity}/{number}",
            0,
            number < published["complexities"][at],
            complexity=complexity,
            cost_usd=published["usd"],
        )
    ]
    return make_report(read_experiment([write_run(tmp_path_factory.mktemp("by_complexity"), attempts)]))


def test_the_tables_of_the_two_sets(by_set: ExperimentReport) -> None:
    for task_set, percents in PUBLISHED["percent"].items():
        if task_set in PUBLISHED["tasks"]:
            found = {each.model: each for each in by_set.task_sets if each.group == task_set}
            assert {model: [each.passed.passed, each.passed_first, each.fixes] for model, each in found.items()} == {
                model: published[task_set] for model, published in MODELS.items()
            }
            assert {model: round(100 * (each.passed.rate or 0)) for model, each in found.items()} == percents


def test_the_table_of_complexities(by_complexity: ExperimentReport) -> None:
    for complexity in PUBLISHED["complexities"]:
        found = {each.model: each.passed for each in by_complexity.complexities if each.group == complexity}
        assert {each.of for each in found.values()} == {PUBLISHED["complexities"][complexity]}
        # 1 of 40 is printed as 3 %.
        percents = {model: int(100 * (each.rate or 0) + 0.5) for model, each in found.items()}
        assert percents == PUBLISHED["percent"][complexity]


def test_the_ceiling_of_a_choice_by_complexity(by_complexity: ExperimentReport) -> None:
    """26 + 4 + 21 + 7: what the best model of each class passes, when it is chosen from the very tasks."""
    passed = [each.passed for each in by_complexity.selection if each.complexity is not None]
    in_sample = sum(each.passed for each in passed)
    assert (in_sample, sum(each.of for each in passed)) == (58, ALL_TASKS)
    chosen = {each.complexity: each.model for each in by_complexity.selection}
    # Of equal pass rates the lower price decides: deepseek-chat for C1, C3, and glm-5.1 for C2.
    assert chosen == {
        "C1": "deepseek-chat",
        "C2": "glm-5.1",
        "C3": "deepseek-chat",
        "C4": "glm-5.1",
        None: "deepseek-reasoner",
    }
    assert STRATEGIES["C"]["passed"] < in_sample


def test_costs_follow_from_attempts_and_prices(by_set: ExperimentReport) -> None:
    cost = {each.model: each.cost_usd for each in by_set.task_sets if each.group is None}
    for strategy, expected in (("A", 0.392), ("B", 0.223)):
        published = STRATEGIES[strategy]
        assert cost[published["model"]] == pytest.approx(expected, abs=1e-9)
        assert cost[published["model"]] == pytest.approx(published["usd"], rel=0.025)
    for published in STRATEGIES.values():
        assert round(published["usd"] / published["passed"], 4) == published["usd_per_pass"]
    assert STRATEGIES["C"]["usd"] / STRATEGIES["A"]["usd"] == pytest.approx(1.19, abs=5e-3)


def test_errors_in_the_published_groups(tmp_path: Path) -> None:
    """A vector core exception (ACL 507035) is a run-time error, which the published table counts under compilation."""
    counts = (
        (ErrorClass.COMPILE, "", 35),
        (ErrorClass.RUNTIME, "ACL error 507035", 10),
        (ErrorClass.MISMATCH, "", 30),
        (ErrorClass.RUNTIME, "ACL stream synchronize failed, error code: 507015", 15),
        (ErrorClass.INIT_ARGS, "", 10),
        (ErrorClass.PASS, "", 25),
    )
    attempts = [
        ModelAttempt(f"{error_class}-{text}-{number}", "numpy", "C1", "m", 0, Judgement(error_class, text=text))
        for error_class, text, count in counts
        for number in range(count)
    ]
    report = make_report(read_experiment([write_run(tmp_path, attempts)]))
    groups = {each.error: round(100 * (each.attempts_share or 0)) for each in report.groups if each.model is None}
    assert groups == PUBLISHED["errors"]
    classes = {each.error: each.attempts for each in report.classes if each.model is None}
    assert classes == {"pass": 25, "init-args": 10, "compile": 35, "runtime": 25, "mismatch": 30}


def test_a_strategy_of_one_given_model(by_complexity: ExperimentReport, tmp_path: Path) -> None:
    attempts = [
        attempt for task_set in PUBLISHED["tasks"] for model in MODELS for attempt in attempts_of(model, task_set)
    ]
    report = make_report(read_experiment([write_run(tmp_path, attempts)]), "deepseek-chat")
    found = {each.strategy: each for each in report.strategies}
    assert found[Strategy.BEST].passed.passed == 49
    assert found[Strategy.CHEAPEST].models == {"qwen2.5-coder-7b": ALL_TASKS}
    assert found[Strategy.CHEAPEST].cost_usd == pytest.approx(0.223)
    assert found[Strategy.BEST].cost_per_pass_usd == pytest.approx(0.392 / 49)
