"""Strategies that choose a model for each task, each choice made from the outcomes of the other tasks.

A choice that is made from the tasks on which it is then tried passes too many of them. So a task is left out of the
outcomes from which its own model is chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import fsum

from opatlas.outer.experiment.outcomes import Experiment, TaskName, TaskOutcome
from opatlas.outer.experiment.proportions import PassRate, pass_rate, wilson_interval

#: The confidence level of the interval whose lower bound decides.
CHOICE_LEVEL = 0.8


class Strategy(str, Enum):
    """Ways to choose models."""

    BEST = "A"  # one model for all tasks: the named one, or that of the highest lower bound
    CHEAPEST = "B"  # the model with the lowest cost of a task
    TABLE = "C"  # for each complexity the model of the highest lower bound
    ORACLE = "O"  # the cheapest model that passes, known in advance: the ceiling

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class _Record:
    """Outcomes of a model in a group of tasks. Costs are whole numbers of 1e-9 dollars, so that sums are exact."""

    passed: int = 0
    tasks: int = 0
    cost: int = 0
    tokens: int = 0

    def without(self, outcome: TaskOutcome | None) -> _Record:
        if outcome is None:
            return self
        return _Record(
            self.passed - outcome.passed,
            self.tasks - 1,
            self.cost - _whole_cost(outcome),
            self.tokens - outcome.tokens,
        )

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


def _record(outcomes: Sequence[TaskOutcome]) -> _Record:
    return _Record(
        sum(outcome.passed for outcome in outcomes),
        len(outcomes),
        sum(map(_whole_cost, outcomes)),
        sum(outcome.tokens for outcome in outcomes),
    )


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
                self._records[model, group] = _record(outcomes)

    def best(self, without: TaskName | None = None) -> str:
        """Returns the model of the highest lower bound; of equal ones the cheapest."""
        return self._best(None, without)

    def best_for(self, complexity: str, without: TaskName | None = None) -> str:
        """Returns the best model for a complexity; the best for all tasks, if no other task has the complexity."""
        known = any(self._of(model, complexity, without).tasks for model in self._experiment.models)
        return self._best(complexity if known else None, without)

    def cheapest(self, without: TaskName | None = None) -> str:
        """Returns the model with the lowest mean cost of a task."""
        return min(self._experiment.models, key=lambda model: (self._of(model, None, without).price, model))

    def table(self) -> list[Selection]:
        """Returns the choices from all outcomes: for each complexity, then for all tasks."""
        lines = []
        for complexity in [*sorted(set(self._experiment.complexities.values())), None]:
            model = self.best() if complexity is None else self.best_for(complexity)
            record = self._of(model, complexity, None)
            lines.append(
                Selection(
                    complexity,
                    model,
                    pass_rate(record.passed, record.tasks),
                    record.lower_bound,
                    record.cost / record.tasks / 1e9,
                )
            )
        return lines

    def _best(self, group: str | None, without: TaskName | None) -> str:
        def rank(model: str) -> tuple[float, tuple[float, float], str]:
            record = self._of(model, group, without)
            return (-record.lower_bound, record.price, model)

        return min(self._experiment.models, key=rank)

    def _of(self, model: str, group: str | None, without: TaskName | None) -> _Record:
        record = self._records.get((model, group), _Record())
        outcome = None if without is None else self._experiment.outcomes[model].get(without)
        in_group = without is not None and group in (None, self._experiment.complexities[without])
        return record.without(outcome) if in_group else record


@dataclass(frozen=True)
class StrategyResult:
    """What a strategy achieves at the tasks that all models tried.

    Attributes:
        strategy: the strategy.
        passed: the tasks that it passes.
        models: the number of tasks by the chosen model.
        cost_usd, generation_s, run_s: of all attempts of the chosen models.
        cost_per_pass_usd: None if no task passes.
    """

    strategy: Strategy
    passed: PassRate
    models: Mapping[str, int]
    cost_usd: float
    cost_per_pass_usd: float | None
    generation_s: float
    run_s: float


def strategy_results(experiment: Experiment, baseline: str = "") -> list[StrategyResult]:
    """Returns the results of all strategies.

    Args:
        baseline: the model of Strategy.BEST; "" for the model that the other tasks choose.
    """
    selector = Selector(experiment)

    def best(task: TaskName) -> str:
        return baseline or selector.best(task)

    def oracle(task: TaskName) -> str:
        outcomes = [experiment.outcomes[model][task] for model in experiment.models]
        return min(outcomes, key=lambda each: (not each.passed, _whole_cost(each), each.tokens)).model

    def table(task: TaskName) -> str:
        return selector.best_for(experiment.complexities[task], task)

    return [
        _result(Strategy.BEST, experiment, best),
        _result(Strategy.CHEAPEST, experiment, selector.cheapest),
        _result(Strategy.TABLE, experiment, table),
        _result(Strategy.ORACLE, experiment, oracle),
    ]


def _result(strategy: Strategy, experiment: Experiment, model_of: Callable[[TaskName], str]) -> StrategyResult:
    tried = [experiment.outcomes[model_of(task)][task] for task in experiment.common_tasks]
    passed, cost = sum(outcome.passed for outcome in tried), fsum(outcome.cost_usd for outcome in tried)
    return StrategyResult(
        strategy,
        pass_rate(passed, len(tried)),
        dict(Counter(outcome.model for outcome in tried).most_common()),
        cost,
        cost / passed if passed else None,
        fsum(outcome.generation_s for outcome in tried),
        fsum(outcome.run_s for outcome in tried),
    )
