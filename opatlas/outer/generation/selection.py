"""Ways to choose a model for a task, by what models achieved; also as a route.

A route is strategy C as it is run: the complexity of a task chooses the model that is asked. The file of --models has
its table, or names a folder with attempts of its models, from which the table is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import fsum
from pathlib import Path

from opatlas.errors import UsageError
from opatlas.files import expect_folder
from opatlas.outer.tasks.task import CLASSES
from opatlas.text import Word

from .attempts import ModelAttempt
from .experiment import (
    Experiment,
    Figures,
    Loop,
    TaskName,
    figures,
    final_attempt,
    pass_rate,
    read_experiment,
    wilson_interval,
)
from .models_file import ModelsFile

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


def spent(attempts: Sequence[ModelAttempt]) -> tuple[float, int]:
    """Returns the cost of attempts in USD, and their tokens."""
    return fsum(each.cost_usd for each in attempts), sum(each.tokens_in + each.tokens_out for each in attempts)


class Selector:
    """Chooses models from the outcomes of an experiment, with all tasks or without one."""

    def __init__(self, experiment: Experiment) -> None:
        self._complexities = experiment.complexities
        self._of = {
            model: {task: loop for (name, task), loop in experiment.loops.items() if name == model}
            for model in experiment.models
            if model != ROUTED
        }

    def best(self, complexity: str | None = None, without: TaskName | None = None) -> str:
        """Returns the model of the highest lower bound for a complexity, or for all tasks; of equal ones the cheapest.

        A complexity that no other task has is that of all tasks.
        """
        if not any(self._tried(model, complexity, without) for model in self._of):
            complexity = None

        def rank(model: str) -> tuple[float, float, float, float, str]:
            bound, cost = self._bound_and_cost(self._tried(model, complexity, without))
            return -bound, cost, *self._price(model)

        return min(self._of, key=rank)

    def cheapest(self) -> str:
        """Returns the model with the cheapest answers, as the prices are known before any task is tried."""
        return min(self._of, key=self._price)

    def table(self) -> list[Figures]:
        """Returns the choices from all outcomes: for each complexity, then for all tasks; none of a single model."""
        lines = []
        for complexity in [*sorted(set(self._complexities.values())), None] if len(self._of) > 1 else []:
            model = self.best(complexity)
            loops = self._tried(model, complexity, None)
            rate = pass_rate(sum(final_attempt(loop).passed for loop in loops), len(loops))
            bound, cost = self._bound_and_cost(loops)
            lines.append(
                {"complexity": complexity, "model": model, "passed": rate, "lower_bound": bound, "cost_usd": cost}
            )
        return lines

    def _bound_and_cost(self, loops: Sequence[Loop]) -> tuple[float, float]:
        """Returns the lower end of Wilson's interval at CHOICE_LEVEL, and the mean cost of a task in USD."""
        interval = wilson_interval(sum(final_attempt(loop).passed for loop in loops), len(loops), CHOICE_LEVEL)
        cost = fsum(spent(loop)[0] for loop in loops) / max(len(loops), 1)
        return 0.0 if interval is None else interval[0], cost

    def _price(self, model: str) -> tuple[float, float, str]:
        """Returns the mean cost of an answer, and its tokens, which decide among models without prices."""
        attempts = [each for loop in self._of[model].values() for each in loop]
        cost, tokens = spent(attempts)
        return cost / len(attempts), tokens / len(attempts), model

    def _tried(self, model: str, complexity: str | None, without: TaskName | None) -> list[Loop]:
        """Returns the loops of a model at the tasks of a complexity, or of all, but for one task."""
        of = self._complexities
        return [loop for task, loop in self._of[model].items() if complexity in (None, of[task]) and task != without]


def strategy_results(experiment: Experiment, baseline: str = "") -> list[Figures]:
    """Returns the figures of all strategies at the tasks that all models tried, with the tasks by the chosen model.

    Args:
        baseline: the model of Strategy.BEST; "" for the model that the other tasks choose.
    """
    models = [model for model in experiment.models if model != ROUTED]
    outcomes, selector = experiment.outcomes, Selector(experiment)

    def oracle(task: TaskName) -> str:
        of = {model: experiment.loops[model, task] for model in models}
        return min(of, key=lambda model: (not final_attempt(of[model]).passed, *spent(of[model])))

    model_of: dict[Strategy, Callable[[TaskName], str]] = {
        Strategy.BEST: lambda task: baseline or selector.best(None, task),
        Strategy.CHEAPEST: lambda task: selector.cheapest(),
        Strategy.TABLE: lambda task: selector.best(experiment.complexities[task], task),
        Strategy.ORACLE: oracle,
    }
    chosen = model_of if models else {}
    if ROUTED in experiment.models:
        chosen = {**chosen, Strategy.ROUTE: lambda task: ROUTED}
    found = []
    for strategy, choose in chosen.items():
        own = outcomes.loc[[(choose(task), *task) for task in experiment.common_tasks]]
        counts = Counter(own["asked"])
        passed = Counter(own.loc[own["passed"], "asked"])
        by_model = dict(counts.most_common())
        found.append(
            figures(own)
            | {"strategy": strategy, "models": by_model, "passed_by_model": {each: passed[each] for each in by_model}}
        )
    return found


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
        if not experiment.loops:
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
