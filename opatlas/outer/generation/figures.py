"""The figures of an experiment: pass rates with intervals, costs, errors, speed-ups; and how to choose a model by them.

A route is strategy C as it is run: the complexity of a task chooses the model that is asked. The file of --models has
its table, or names a folder with attempts of its models, from which the table is made.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import fsum
from pathlib import Path
from statistics import NormalDist

from opatlas.ask.compare.comparison import FAST
from opatlas.errors import UsageError
from opatlas.files import expect_folder
from opatlas.outer.judging.judgement import ErrorClass
from opatlas.outer.tasks.task import CLASSES
from opatlas.row.rounds import mean_of
from opatlas.text import Word

from .attempts import ModelAttempt
from .models_file import ModelsFile
from .outcomes import Experiment, TaskName, TaskOutcome, read_experiment

#: The confidence level of the intervals of pass rates.
LEVEL = 0.95


def wilson_interval(passed: int, tasks: int, level: float = LEVEL) -> tuple[float, float] | None:
    """Returns the ends of Wilson's score interval of a proportion, from 0 to 1; None without tasks.

    Args:
        passed: from 0 to `tasks`.
        level: the two-sided confidence level, between 0 and 1.

    Source: E. B. Wilson, Journal of the American Statistical Association 22 (1927), 209-212.
    """
    if not tasks:
        return None
    z2 = NormalDist().inv_cdf((1 + level) / 2) ** 2
    share = passed / tasks
    centre = (share + z2 / (2 * tasks)) / (1 + z2 / tasks)
    half = math.sqrt(z2 * (share * (1 - share) / tasks + z2 / (4 * tasks**2))) / (1 + z2 / tasks)
    # At the ends rounding would leave 1e-17 in place of the exact bound.
    return (centre - half if passed else 0.0), (centre + half if passed < tasks else 1.0)


@dataclass(frozen=True)
class PassRate:
    """A number of passed tasks, or attempts, with its share.

    Attributes:
        passed, of: the passed ones, and all.
        rate: passed / of; None if there is none.
        low, high: Wilson's interval at LEVEL; None if there is none.
    """

    passed: int
    of: int
    rate: float | None
    low: float | None
    high: float | None


def pass_rate(passed: int, of: int) -> PassRate:
    """Returns a pass rate with its interval."""
    interval = wilson_interval(passed, of)
    return PassRate(passed, of, _share(passed, of), *(interval or (None, None)))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True)
class Figures:
    """What outcomes achieved and cost, and how fast the passed candidates are.

    Attributes:
        model: the model; None for all models.
        group: the set, or the complexity, of the tasks; None for all tasks.
        passed: the tasks that passed, of those that were tried.
        passed_first: the tasks whose first answer passed.
        fixes: attempts after the first ones.
        cost_usd, cost_per_pass_usd: of all attempts, and that divided by the passed tasks; None if none passed.
        generation_s, run_s: seconds until the answers were there, and to judge them.
        tokens: of all attempts.
        timed: passed tasks with the durations of candidate and baseline.
        own: passed tasks with more than half of the duration in kernels that the candidate defines; None if no
            attempt tells it.
        geometric_mean: of the speed-ups of the timed tasks; None without.
        fast: by p ("1.5"), the share of all tasks that passed and are more than p times as fast as the baseline.
    """

    model: str | None
    group: str | None
    passed: PassRate
    passed_first: int
    fixes: int
    cost_usd: float
    cost_per_pass_usd: float | None
    generation_s: float
    run_s: float
    tokens: int
    timed: int
    own: int | None
    geometric_mean: float | None
    fast: Mapping[str, float | None]


def figures_of(outcomes: Sequence[TaskOutcome], model: str | None = None, group: str | None = None) -> Figures:
    """Returns the figures of outcomes."""
    passed = [outcome.final.judgement for outcome in outcomes if outcome.passed]
    timed = [speed_up for outcome in outcomes if (speed_up := outcome.speed_up) is not None]
    shares = [judgement.kernel_share for judgement in passed if judgement.kernel_share is not None]
    cost = fsum(outcome.cost_usd for outcome in outcomes)
    return Figures(
        model,
        group,
        pass_rate(len(passed), len(outcomes)),
        sum(outcome.passed_first for outcome in outcomes),
        sum(outcome.fixes for outcome in outcomes),
        cost,
        cost / len(passed) if passed else None,
        fsum(outcome.generation_s for outcome in outcomes),
        fsum(outcome.run_s for outcome in outcomes),
        sum(outcome.tokens for outcome in outcomes),
        len(timed),
        sum(share > 0.5 for share in shares) if shares else None,
        mean_of(timed).ratio,
        {f"{p:g}": _share(sum(speed_up > p for speed_up in timed), len(outcomes)) for p in FAST},
    )


def figures_by(
    experiment: Experiment, groups: Sequence[str | None], group_of: Callable[[TaskName], str]
) -> list[Figures]:
    """Returns the figures of each model for each group of tasks; the group None has all tasks."""
    figures = []
    for group in groups:
        for model in experiment.models:
            tried = experiment.outcomes[model].items()
            outcomes = [each for task, each in tried if group in (None, group_of(task))]
            figures.append(figures_of(outcomes, model, group))
    return figures


class ErrorGroup(Word):
    """Error classes as the tables of older experiments with Triton-Ascend have them."""

    COMPILE = "compile"
    MISMATCH = "mismatch"
    RUNTIME = "run time"
    INIT = "construction"
    OTHER = "other"


_GROUPS = {
    ErrorClass.COMPILE: ErrorGroup.COMPILE,
    ErrorClass.MISMATCH: ErrorGroup.MISMATCH,
    ErrorClass.INTERFACE: ErrorGroup.MISMATCH,
    ErrorClass.UNSTABLE: ErrorGroup.MISMATCH,
    ErrorClass.RUNTIME: ErrorGroup.RUNTIME,
    ErrorClass.OOM: ErrorGroup.RUNTIME,
    ErrorClass.TIMEOUT: ErrorGroup.RUNTIME,
    ErrorClass.CRASH: ErrorGroup.RUNTIME,
    ErrorClass.INIT_ARGS: ErrorGroup.INIT,
}
#: ACL's code and word for an exception of a vector core, a run-time error that those tables count under compilation.
_VECTOR_CORE = ("507035", "vector core exception")


def error_group(attempt: ModelAttempt) -> ErrorGroup | None:
    """Returns the group of an attempt's error; None if it passed."""
    if attempt.passed:
        return None
    judgement = attempt.judgement
    words = f"{judgement.sub_class} {judgement.text}".lower()
    if judgement.error_class is ErrorClass.RUNTIME and any(word in words for word in _VECTOR_CORE):
        return ErrorGroup.COMPILE
    return _GROUPS.get(judgement.error_class, ErrorGroup.OTHER)


@dataclass(frozen=True)
class ErrorShare:
    """How often attempts, and tasks, ended with an error.

    Attributes:
        model: the model; None for all models.
        error: the class or the group of the error.
        attempts, attempts_share: attempts with the error, and their share of all (of a class) or of the failed ones (of
            a group).
        tasks, tasks_share: the same of tasks, by their last attempt; the share is None if there are none.
    """

    model: str | None
    error: str
    attempts: int
    attempts_share: float | None
    tasks: int
    tasks_share: float | None


def error_shares(
    experiment: Experiment, error_of: Callable[[ModelAttempt], Enum | None], kinds: Iterable[Enum]
) -> list[ErrorShare]:
    """Returns the shares of the errors that occur, of all models together and of each."""
    found = []
    for model, outcomes in _by_model(experiment):
        attempts = Counter(error_of(attempt) for outcome in outcomes for attempt in outcome.attempts)
        tasks = Counter(error_of(outcome.final) for outcome in outcomes)
        del attempts[None], tasks[None]
        for kind in kinds:
            if attempts[kind]:
                shares = (_share(counts[kind], counts.total()) for counts in (attempts, tasks))
                attempts_share, tasks_share = shares
                found.append(ErrorShare(model, str(kind), attempts[kind], attempts_share, tasks[kind], tasks_share))
    return found


def _by_model(experiment: Experiment) -> Iterator[tuple[str | None, Sequence[TaskOutcome]]]:
    """Yields None with all outcomes, then each model with its own."""
    yield None, [*experiment.all_outcomes()]
    for model in experiment.models:
        yield model, [*experiment.outcomes[model].values()]


def speed_ups(experiment: Experiment) -> list[Figures]:
    """Returns the figures of all models together and of each."""
    return [figures_of(outcomes, model) for model, outcomes in _by_model(experiment)]


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
