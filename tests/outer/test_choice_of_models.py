"""Choice of models, where the right answers follow from how the attempts were made."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_attempts import attempt

from opatlas.outer.experiment.outcomes import Experiment, run_of
from opatlas.outer.experiment.strategies import Selector, Strategy, StrategyResult, strategy_results
from opatlas.outer.generation.attempts import ModelAttempt
from opatlas.outer.judging.judgement import ErrorClass

PASS, FAIL = ErrorClass.PASS, ErrorClass.COMPILE


def experiment_of(attempts: list[ModelAttempt]) -> Experiment:
    return Experiment([run_of(Path("run"), attempts)])


def results_of(attempts: list[ModelAttempt], baseline: str = "") -> dict[Strategy, StrategyResult]:
    return {each.strategy: each for each in strategy_results(experiment_of(attempts), baseline)}


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
    assert {each.complexity: each.model for each in Selector(experiment_of(specialists())).table()} == {
        "C1": "of-c1",
        "C4": "of-c4",
        None: "of-c1",  # as good as of-c4, and cheaper
    }
    assert found[Strategy.TABLE].models == {"of-c1": 12, "of-c4": 12}
    assert (found[Strategy.TABLE].passed.passed, found[Strategy.TABLE].cost_usd) == (24, pytest.approx(0.36))
    # Without the task itself the other specialist is one task ahead wherever a model passes: the choice flips.
    assert found[Strategy.BEST].passed.passed == 0
    assert (found[Strategy.CHEAPEST].passed.passed, found[Strategy.CHEAPEST].models) == (8, {"cheap": 24})
    # The oracle takes the cheapest that passes: the cheap one for 8 tasks, a specialist for 8 of each complexity.
    assert found[Strategy.ORACLE].cost_usd == pytest.approx(8 * 0.001 + 8 * 0.01 + 8 * 0.02)
    assert found[Strategy.ORACLE].passed.passed == 24


def test_a_given_model() -> None:
    best = results_of(specialists(), "of-c4")[Strategy.BEST]
    assert (best.passed.passed, best.models) == (12, {"of-c4": 24})
    assert (best.cost_usd, best.generation_s, best.run_s) == (pytest.approx(24 * 0.02), 2.0 * 24, 1.0 * 24)
    assert best.cost_per_pass_usd == pytest.approx(24 * 0.02 / 12)


def test_a_complexity_with_one_task_takes_the_model_that_is_best_elsewhere() -> None:
    attempts = [attempt(model, "only", PASS if model == "b" else FAIL, complexity="C4") for model in ("a", "b")]
    attempts += [attempt(model, f"{at}", PASS if model == "a" else FAIL) for at in range(5) for model in ("a", "b")]
    table = results_of(attempts)[Strategy.TABLE]
    assert (table.models, table.passed.passed) == ({"a": 6}, 5)


def test_models_without_prices_are_cheap_by_their_tokens() -> None:
    attempts = [
        attempt(model, f"{at}", cost_usd=0.0, tokens_out=tokens)
        for at in range(3)
        for model, tokens in (("many", 900), ("few", 30))
    ]
    assert results_of(attempts)[Strategy.CHEAPEST].models == {"few": 3}


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
        assert result.passed.of == len(common) == sum(result.models.values())
        assert result.passed.passed <= found[Strategy.ORACLE].passed.passed
        assert set(result.models) <= set(names)
        assert (result.cost_per_pass_usd is None) == (result.passed.passed == 0)
    if len(names) == 1:
        assert len({result.passed.passed for result in found.values()}) == 1
