"""The tables of an experiment: pass rates, error classes, levels, verdicts, speed-ups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import fsum

from opatlas.ask.compare.comparison import FAST, geometric_mean
from opatlas.outer.experiment.attempts import ModelAttempt
from opatlas.outer.experiment.outcomes import Experiment, TaskName, TaskOutcome
from opatlas.outer.experiment.proportions import PassRate, pass_rate
from opatlas.outer.judging.judgement import ErrorClass, Level

_LEVELS = tuple(Level)


@dataclass(frozen=True)
class ModelFigures:
    """What a model achieved at a group of tasks.

    Attributes:
        model: the model.
        group: a set of tasks, or a complexity; None for all tasks.
        passed: the tasks that passed, of those that the model tried.
        passed_first: the tasks whose first answer passed.
        missing: tasks of the group that other models tried and this one did not.
        fixes: attempts after the first ones.
        cost_usd, generation_s, run_s, tokens: of all attempts.
        cost_per_pass_usd: the cost of all tasks / the passed ones; None if none passed.
    """

    model: str
    group: str | None
    passed: PassRate
    passed_first: int
    missing: int
    fixes: int
    cost_usd: float
    cost_per_pass_usd: float | None
    generation_s: float
    run_s: float
    tokens: int


def figures_by_task_set(experiment: Experiment) -> list[ModelFigures]:
    """Returns the figures of each model for each set of tasks, and for all tasks."""
    return _figures_by(experiment, [*experiment.task_sets, None], lambda task: task.task_set)


def figures_by_complexity(experiment: Experiment) -> list[ModelFigures]:
    """Returns the figures of each model for each complexity."""
    groups: list[str | None] = [*sorted(set(experiment.complexities.values()))]
    return _figures_by(experiment, groups, lambda task: experiment.complexities[task])


def _figures_by(
    experiment: Experiment, groups: Sequence[str | None], group_of: Callable[[TaskName], str]
) -> list[ModelFigures]:
    figures = []
    for group in groups:
        tasks = [task for task in experiment.tasks if group is None or group == group_of(task)]
        for model in experiment.models:
            tried = experiment.outcomes[model]
            outcomes = [tried[task] for task in tasks if task in tried]
            passed = sum(outcome.passed for outcome in outcomes)
            cost = fsum(outcome.cost_usd for outcome in outcomes)
            figures.append(
                ModelFigures(
                    model,
                    group,
                    pass_rate(passed, len(outcomes)),
                    sum(outcome.passed_first for outcome in outcomes),
                    len(tasks) - len(outcomes),
                    sum(outcome.fixes for outcome in outcomes),
                    cost,
                    cost / passed if passed else None,
                    fsum(outcome.generation_s for outcome in outcomes),
                    fsum(outcome.run_s for outcome in outcomes),
                    sum(outcome.tokens for outcome in outcomes),
                )
            )
    return figures


class ErrorGroup(str, Enum):
    """Error classes as the tables of older experiments with Triton-Ascend have them."""

    COMPILE = "compile"
    MISMATCH = "mismatch"
    RUNTIME = "run time"
    INIT = "construction"
    OTHER = "other"

    def __str__(self) -> str:
        return self.value


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
            a group); the share is None if there are none.
        tasks, tasks_share: the same of tasks, by their last attempt.
    """

    model: str | None
    error: str
    attempts: int
    attempts_share: float | None
    tasks: int
    tasks_share: float | None


def error_classes(experiment: Experiment) -> list[ErrorShare]:
    """Returns the shares of the error classes that occur, of all models together and of each."""
    return list(_error_shares(experiment, lambda attempt: attempt.judgement.error_class, ErrorClass))


def error_groups(experiment: Experiment) -> list[ErrorShare]:
    """Returns the shares of the groups of errors, of the failed attempts and of the failed tasks."""
    return list(_error_shares(experiment, error_group, ErrorGroup))


def _error_shares(
    experiment: Experiment, error_of: Callable[[ModelAttempt], Enum | None], kinds: Iterable[Enum]
) -> Iterator[ErrorShare]:
    for model, outcomes in _by_model(experiment):
        attempts = _count(error_of(attempt) for outcome in outcomes for attempt in outcome.attempts)
        tasks = _count(error_of(outcome.final) for outcome in outcomes)
        for kind in kinds:
            if attempts[kind]:
                yield ErrorShare(
                    model,
                    str(kind),
                    attempts[kind],
                    _share(attempts[kind], attempts.total()),
                    tasks[kind],
                    _share(tasks[kind], tasks.total()),
                )


def _count(errors: Iterable[Enum | None]) -> Counter[Enum]:
    return Counter(error for error in errors if error is not None)


def _by_model(experiment: Experiment) -> Iterator[tuple[str | None, Collection[TaskOutcome]]]:
    """Yields None with all outcomes, then each model with its own."""
    yield None, [*experiment.all_outcomes()]
    for model in experiment.models:
        yield model, experiment.outcomes[model].values()


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True)
class LevelRate:
    """How many attempts, and tasks, passed a level.

    Attributes:
        model: the model; None for all models.
        attempts: attempts that passed the level.
        tasks: tasks of which an attempt passed the level.
    """

    model: str | None
    level: Level
    attempts: PassRate
    tasks: PassRate


def level_rates(experiment: Experiment) -> list[LevelRate]:
    """Returns the pass rates of the levels, of all models together and of each."""
    rates = []
    for model, outcomes in _by_model(experiment):
        reached_by_attempts = [_rank(each.judgement.level) for outcome in outcomes for each in outcome.attempts]
        reached_by_tasks = [_rank(outcome.level) for outcome in outcomes]
        for rank, level in enumerate(_LEVELS):
            attempts, tasks = (
                pass_rate(sum(each >= rank for each in reached), len(reached))
                for reached in (reached_by_attempts, reached_by_tasks)
            )
            rates.append(LevelRate(model, level, attempts, tasks))
    return rates


def _rank(level: Level | None) -> int:
    return -1 if level is None else _LEVELS.index(level)


@dataclass(frozen=True)
class VerdictCounts:
    """The two verdicts on results against each other: OpAtlas' check, and max|d| < 1e-3 over all elements.

    Attributes:
        model: the model; None for all models.
        of: "attempts", or "tasks" by their last attempt.
        both, only_passed, only_within, neither: numbers by the two verdicts.
        not_compared: without a result that was compared with the reference.
    """

    model: str | None
    of: str
    both: int
    only_passed: int
    only_within: int
    neither: int
    not_compared: int


def verdict_counts(experiment: Experiment) -> list[VerdictCounts]:
    """Returns the cross tables of the verdicts, of all models together and of each."""
    tables = []
    for model, outcomes in _by_model(experiment):
        of_attempts = [attempt for outcome in outcomes for attempt in outcome.attempts]
        for of, attempts in (("attempts", of_attempts), ("tasks", [outcome.final for outcome in outcomes])):
            judged = [attempt.judgement for attempt in attempts]
            counts = Counter((None if each.within_1e3 is None else each.passed, each.within_1e3) for each in judged)
            cells = [counts[key] for key in ((True, True), (True, False), (False, True), (False, False), (None, None))]
            tables.append(VerdictCounts(model, of, *cells))
    return tables


@dataclass(frozen=True)
class SpeedUps:
    """How fast the passed candidates of a model are.

    Attributes:
        model: the model; None for all models.
        tasks, passed: tasks that the model tried, and passed.
        timed: passed tasks with the durations of candidate and baseline.
        own: passed tasks with more than half of the duration in kernels that the candidate defines; None if no
            attempt tells it.
        geometric_mean: of the speed-ups of the timed tasks; None without.
        fast: by p ("1.5"), the share of all tasks that passed and are more than p times as fast as the baseline.
    """

    model: str | None
    tasks: int
    passed: int
    timed: int
    own: int | None
    geometric_mean: float | None
    fast: Mapping[str, float | None]


def speed_ups(experiment: Experiment) -> list[SpeedUps]:
    """Returns the speed-ups of all models together and of each."""
    found = []
    for model, outcomes in _by_model(experiment):
        timed = [speed_up for outcome in outcomes if (speed_up := outcome.speed_up) is not None]
        passed = [outcome.final for outcome in outcomes if outcome.passed]
        shares = [share for attempt in passed if (share := attempt.judgement.kernel_share) is not None]
        found.append(
            SpeedUps(
                model,
                len(outcomes),
                len(passed),
                len(timed),
                sum(share > 0.5 for share in shares) if shares else None,
                geometric_mean(timed),
                {f"{p:g}": _share(sum(speed_up > p for speed_up in timed), len(outcomes)) for p in FAST},
            )
        )
    return found
