"""Strategies that choose a model for each task, each choice made from the outcomes of the other tasks.

A choice that is made from the tasks on which it is then tried passes too many of them. So a task is left out of the
outcomes from which its own model is chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from opatlas.text import Word

from .outcomes import Experiment, TaskName, TaskOutcome
from .tables import PassRate, Spent, pass_rate, spent, wilson_interval

#: The confidence level of the interval whose lower bound decides.
CHOICE_LEVEL = 0.8


class Strategy(Word):
    """Ways to choose models."""

    BEST = "A"  # one model for all tasks: the named one, or that of the highest lower bound
    CHEAPEST = "B"  # the model with the lowest cost of a task
    TABLE = "C"  # for each complexity the model of the highest lower bound
    ORACLE = "O"  # the cheapest model that passes, known in advance: the ceiling


class _Record(NamedTuple):
    """Outcomes of a model in a group of tasks. Costs are whole numbers of 1e-9 dollars, so that sums are exact."""

    passed: int = 0
    tasks: int = 0
    cost: int = 0
    tokens: int = 0

    @classmethod
    def of(cls, outcomes: Iterable[TaskOutcome]) -> _Record:
        each = [(outcome.passed, 1, _whole_cost(outcome), outcome.tokens) for outcome in outcomes]
        return cls(*map(sum, zip(*each, strict=True)))

    def without(self, outcome: TaskOutcome) -> _Record:
        return _Record(*(own - its for own, its in zip(self, _Record.of([outcome]), strict=True)))

    @property
    def lower_bound(self) -> float:
        interval = wilson_interval(self.passed, self.tasks, CHOICE_LEVEL)
        return 0.0 if interval is None else interval[0]

    @property
    def price(self) -> tuple[float, float]:
        """Cost and tokens of a task: of models without prices the tokens decide."""
        return (self.cost / self.tasks, self.tokens / self.tasks) if self.tasks else (float("inf"), 0.0)


def _whole_cost(outcome: TaskOutcome) -> int:
    return sum(round(attempt.cost_usd * 1e9) for attempt in outcome.attempts)


@dataclass(frozen=True)
class Selection:
    """A line of the selection table.

    Attributes:
        complexity: a complexity; None for all tasks.
        model: the chosen model.
        passed: the tasks that it passed, of those that it tried.
        lower_bound: the lower end of Wilson's interval at CHOICE_LEVEL.
        cost_usd: the mean cost of a task.
    """

    complexity: str | None
    model: str
    passed: PassRate
    lower_bound: float
    cost_usd: float


class Selector:
    """Chooses models from the outcomes of an experiment, with all tasks or without one."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._records: dict[tuple[str, str | None], _Record] = {}
        for model, tried in experiment.outcomes.items():
            groups: dict[str | None, list[TaskOutcome]] = {None: [*tried.values()]}
            for task, outcome in tried.items():
                groups.setdefault(experiment.complexities[task], []).append(outcome)
            for group, outcomes in groups.items():
                self._records[model, group] = _Record.of(outcomes)

    def best(self, complexity: str | None = None, without: TaskName | None = None) -> str:
        """Returns the model of the highest lower bound for a complexity, or for all tasks; of equal ones the cheapest.

        A complexity that no other task has is that of all tasks.
        """
        models = self._experiment.models
        known = any(self._of(model, complexity, without).tasks for model in models)

        def rank(model: str) -> tuple[float, tuple[float, float], str]:
            record = self._of(model, complexity if known else None, without)
            return (-record.lower_bound, record.price, model)

        return min(models, key=rank)

    def cheapest(self, without: TaskName | None = None) -> str:
        """Returns the model with the lowest mean cost of a task."""
        return min(self._experiment.models, key=lambda model: (self._of(model, None, without).price, model))

    def table(self) -> list[Selection]:
        """Returns the choices from all outcomes: for each complexity, then for all tasks."""
        lines = []
        for complexity in [*sorted(set(self._experiment.complexities.values())), None]:
            model = self.best(complexity)
            record = self._of(model, complexity, None)
            rate, cost_usd = pass_rate(record.passed, record.tasks), record.cost / record.tasks / 1e9
            lines.append(Selection(complexity, model, rate, record.lower_bound, cost_usd))
        return lines

    def _of(self, model: str, group: str | None, without: TaskName | None) -> _Record:
        record = self._records.get((model, group), _Record())
        outcome = None if without is None else self._experiment.outcomes[model].get(without)
        if outcome is None or group not in (None, self._experiment.complexities[outcome.task]):
            return record
        return record.without(outcome)


@dataclass(frozen=True)
class StrategyResult(Spent):
    """What a strategy achieves at the tasks that all models tried.

    Attributes:
        strategy: the strategy.
        passed: the tasks that it passes.
        models: the number of tasks by the chosen model.
    """

    strategy: Strategy
    passed: PassRate
    models: Mapping[str, int]


def strategy_results(experiment: Experiment, baseline: str = "") -> list[StrategyResult]:
    """Returns the results of all strategies.

    Args:
        baseline: the model of Strategy.BEST; "" for the model that the other tasks choose.
    """
    selector = Selector(experiment)

    def oracle(task: TaskName) -> str:
        outcomes = [experiment.outcomes[model][task] for model in experiment.models]
        return min(outcomes, key=lambda each: (not each.passed, _whole_cost(each), each.tokens)).model

    model_of: Mapping[Strategy, Callable[[TaskName], str]] = {
        Strategy.BEST: lambda task: baseline or selector.best(None, task),
        Strategy.CHEAPEST: selector.cheapest,
        Strategy.TABLE: lambda task: selector.best(experiment.complexities[task], task),
        Strategy.ORACLE: oracle,
    }
    results = []
    for strategy, choose in model_of.items():
        tried = [experiment.outcomes[choose(task)][task] for task in experiment.common_tasks]
        passed = pass_rate(sum(outcome.passed for outcome in tried), len(tried))
        models = dict(Counter(outcome.model for outcome in tried).most_common())
        results.append(StrategyResult(**vars(spent(tried)), strategy=strategy, passed=passed, models=models))
    return results
