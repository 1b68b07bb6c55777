"""Strategies that choose a model for each task: computed from the outcomes of all models, or run as a route.

A route is strategy C as it is run: the complexity of a task chooses the model that is asked. The file of --models has
its table, or names a folder with attempts of its models, from which the table is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from pathlib import Path

from opatlas.errors import UsageError
from opatlas.files import expect_folder
from opatlas.outer.tasks.task import CLASSES
from opatlas.text import Word

from .figures import Figures, PassRate, figures_of, pass_rate, wilson_interval
from .models_file import ModelsFile
from .outcomes import Experiment, TaskName, TaskOutcome, read_experiment

# A choice that is made from the tasks on which it is then tried passes too many of them. So a task is left out of the
# outcomes from which its own model is chosen.
#: The confidence level of the interval whose lower bound decides.
CHOICE_LEVEL = 0.8
#: The model of the attempts that a route made. It is never chosen.
ROUTED = "routed"


class Strategy(Word):
    """Ways to choose models."""

    BEST = "A"  # one model for all tasks: the named one, or that of the highest lower bound
    CHEAPEST = "B"  # the model with the cheapest answers
    TABLE = "C"  # for each complexity the model of the highest lower bound
    ORACLE = "O"  # the cheapest model that passes, known in advance: the ceiling
    ROUTE = "R"  # C as a route ran it, with attempts of its own


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
        self._models = [model for model in experiment.models if model != ROUTED]

    def best(self, complexity: str | None = None, without: TaskName | None = None) -> str:
        """Returns the model of the highest lower bound for a complexity, or for all tasks; of equal ones the cheapest.

        A complexity that no other task has is that of all tasks.
        """
        known = any(self._of(model, complexity, without) for model in self._models)

        def rank(model: str) -> tuple[float, float, float, float, str]:
            outcomes = self._of(model, complexity if known else None, without)
            return (-_lower_bound(outcomes), _mean_cost(outcomes), *self._price(model))

        return min(self._models, key=rank)

    def cheapest(self) -> str:
        """Returns the model with the cheapest answers, as the prices are known before any task is tried."""
        return min(self._models, key=self._price)

    def table(self) -> list[Selection]:
        """Returns the choices from all outcomes: for each complexity, then for all tasks; none of a single model."""
        lines = []
        groups = [*sorted(set(self._experiment.complexities.values())), None] if len(self._models) > 1 else []
        for complexity in groups:
            model = self.best(complexity)
            outcomes = self._of(model, complexity, None)
            rate = pass_rate(sum(each.passed for each in outcomes), len(outcomes))
            lines.append(Selection(complexity, model, rate, _lower_bound(outcomes), _mean_cost(outcomes)))
        return lines

    def _price(self, model: str) -> tuple[float, float, str]:
        """Returns the mean cost of an answer, and its tokens, which decide among models without prices."""
        attempts = [each for outcome in self._of(model, None, None) for each in outcome.attempts]
        tokens = sum(each.tokens_in + each.tokens_out for each in attempts)
        return fsum(each.cost_usd for each in attempts) / len(attempts), tokens / len(attempts), model

    def _of(self, model: str, group: str | None, without: TaskName | None) -> list[TaskOutcome]:
        """Returns the outcomes of a model at the tasks of a complexity, or of all, but for one task."""
        of, tried = self._experiment.complexities, self._experiment.outcomes[model]
        return [each for task, each in tried.items() if group in (None, of[task]) and task != without]


def _mean_cost(outcomes: Sequence[TaskOutcome]) -> float:
    """Returns the mean cost of a task in USD."""
    return fsum(each.cost_usd for each in outcomes) / max(len(outcomes), 1)


def _lower_bound(outcomes: Sequence[TaskOutcome]) -> float:
    interval = wilson_interval(sum(outcome.passed for outcome in outcomes), len(outcomes), CHOICE_LEVEL)
    return 0.0 if interval is None else interval[0]


@dataclass(frozen=True)
class StrategyResult(Figures):
    """What a strategy achieves at the tasks that all models tried.

    Attributes:
        strategy: the strategy.
        models: the number of tasks by the chosen model.
        passed_by_model: those of them that passed.
    """

    strategy: Strategy
    models: Mapping[str, int]
    passed_by_model: Mapping[str, int]


def strategy_results(experiment: Experiment, baseline: str = "") -> list[StrategyResult]:
    """Returns the results of all strategies.

    Args:
        baseline: the model of Strategy.BEST; "" for the model that the other tasks choose.
    """
    chosen = experiment.of_models([model for model in experiment.models if model != ROUTED])
    if not chosen.models:
        return [_result(Strategy.ROUTE, list(experiment.all_outcomes()))]
    selector = Selector(chosen)

    def oracle(task: TaskName) -> str:
        outcomes = [chosen.outcomes[model][task] for model in chosen.models]
        return min(outcomes, key=lambda each: (not each.passed, each.cost_usd, each.tokens)).model

    model_of: dict[Strategy, Callable[[TaskName], str]] = {
        Strategy.BEST: lambda task: baseline or selector.best(None, task),
        Strategy.CHEAPEST: lambda task: selector.cheapest(),
        Strategy.TABLE: lambda task: selector.best(experiment.complexities[task], task),
        Strategy.ORACLE: oracle,
    }
    if ROUTED in experiment.outcomes:
        model_of[Strategy.ROUTE] = lambda task: ROUTED
    return [
        _result(strategy, [experiment.outcomes[choose(task)][task] for task in experiment.common_tasks])
        for strategy, choose in model_of.items()
    ]


def _result(strategy: Strategy, outcomes: Sequence[TaskOutcome]) -> StrategyResult:
    models = Counter(outcome.final.asked or outcome.model for outcome in outcomes)
    passed = Counter(outcome.final.asked or outcome.model for outcome in outcomes if outcome.passed)
    by_model = dict(models.most_common())
    return StrategyResult(
        **vars(figures_of(outcomes)),
        strategy=strategy,
        models=by_model,
        passed_by_model={model: passed[model] for model in by_model},
    )


#: Returns the model for a complexity and a task.
Route = Callable[[str, TaskName], str]
#: The key of a table for the complexities that it does not name.
OTHER_CLASSES = "other"


def route_of(path: Path, file: ModelsFile) -> Route | None:
    """Returns the route of a file of models; None if it has none.

    Raises:
        UsageError: a table leaves out a complexity, or names another model than those of the file; a folder has no
            attempts of these.
        OpAtlasError: a file of attempts cannot be read.
    """
    if isinstance(file.route, str):
        if not file.route:
            return None
        expect_folder(Path(file.route), "name the folder of a run with models", option=f"{path}: route")
        experiment = read_experiment([Path(file.route)]).of_models(file.models)
        if not experiment.outcomes:
            raise UsageError(f"{path}: route: {file.route} has no attempts of {', '.join(file.models)}")
        return Selector(experiment).best
    if ROUTED in file.models:
        raise UsageError(f"{path}: {ROUTED} is the name of the route: rename the model")
    table = file.route
    wrong = [name for name in table if name not in (*CLASSES, OTHER_CLASSES)]
    wrong += [model for model in table.values() if model not in file.models]
    wrong += [] if OTHER_CLASSES in table else [name for name in CLASSES if name not in table]
    if wrong:
        raise UsageError(
            f"{path}: route: {wrong[0]}: give one of the models for each of {', '.join(CLASSES)}, or for some of them "
            f"and for `{OTHER_CLASSES}`"
        )
    return lambda complexity, task: table.get(complexity) or table[OTHER_CLASSES]
