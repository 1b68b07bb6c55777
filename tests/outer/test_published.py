"""A published experiment's tables, given to OpAtlas as attempts: what they sum up to, and where they disagree."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from simulated_attempts import loop, write_run

from opatlas.outer.generation.attempts import ModelAttempt
from opatlas.outer.generation.experiment import read_experiment
from opatlas.outer.generation.score_command import ExperimentReport, make_report
from opatlas.outer.judging.judgement import ErrorClass, Judgement
from opatlas.outer.tasks.task import read_tasks

PUBLISHED: Mapping[str, Any] = yaml.safe_load((Path(__file__).parent / "published.yaml").read_text("utf-8"))
MODELS: Mapping[str, Mapping[str, Any]] = PUBLISHED["models"]


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
            found = {each["model"]: each for each in by_set["task_sets"] if each["group"] == task_set}
            counts = {
                model: [each["passed"]["passed"], each["passed_first"], each["fixes"]] for model, each in found.items()
            }
            assert counts == {model: published[task_set] for model, published in MODELS.items()}
            assert {model: round(100 * (each["passed"]["rate"] or 0)) for model, each in found.items()} == percents


def test_the_table_of_complexities(by_complexity: ExperimentReport) -> None:
    for complexity in PUBLISHED["complexities"]:
        found = {each["model"]: each["passed"] for each in by_complexity["complexities"] if each["group"] == complexity}
        assert {each["of"] for each in found.values()} == {PUBLISHED["complexities"][complexity]}
        # 1 of 40 is printed as 3 %.
        percents = {model: int(100 * (each["rate"] or 0) + 0.5) for model, each in found.items()}
        assert percents == PUBLISHED["percent"][complexity]


def test_errors_have_the_published_shares(tmp_path: Path) -> None:
    counts = {ErrorClass.COMPILE: 45, ErrorClass.MISMATCH: 30, ErrorClass.RUNTIME: 15, ErrorClass.INIT_ARGS: 10}
    attempts = [
        ModelAttempt(f"{error_class}-{number}", "numpy", "C1", "m", 0, Judgement(error_class))
        for error_class, count in counts.items()
        for number in range(count)
    ]
    report = make_report(read_experiment([write_run(tmp_path, attempts)]))
    found = {each["error"]: 100 * (each["attempts_share"] or 0) for each in report["classes"] if each["model"] is None}
    assert found == pytest.approx(PUBLISHED["errors"])


CONVOLUTIONS = range(54, 88)


@pytest.mark.parametrize(
    ("rule", "counts"), [("here", {"C1": 26, "C2": 56, "C3": 36, "C4": 48}), ("published", PUBLISHED["complexities"])]
)
def test_the_classes_of_the_166_tasks(rule: str, counts: Mapping[str, int]) -> None:
    found: Counter[str] = Counter()
    for group in PUBLISHED["groups"]:
        found[group[rule]] += sum(1 if number in CONVOLUTIONS else 2 for number in group["tasks"])
    assert found == counts
    assert sorted(number for group in PUBLISHED["groups"] for number in group["tasks"]) == [*range(1, 101)]


@pytest.mark.skipif("OPATLAS_PUBLIC_SETS" not in os.environ, reason="OPATLAS_PUBLIC_SETS names no public sets")
def test_the_class_of_each_of_the_166_tasks() -> None:
    expected = {number: group["here"] for group in PUBLISHED["groups"] for number in group["tasks"]}
    akg = Path(os.environ["OPATLAS_PUBLIC_SETS"], "mindspore-ai+akg")
    tasks = read_tasks(akg / "akg_agents" / "benchmark" / "kernelbench")
    assert len(tasks) == 166
    assert {each: each.complexity for each in tasks} == {
        each: expected[int(each.name.partition("_")[0])] for each in tasks
    }
