"""The figures of an experiment: pass rates with intervals, costs, error classes and speed-ups."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import fsum
from statistics import NormalDist

from opatlas.ask.compare.comparison import FAST
from opatlas.outer.judging.judgement import ErrorClass
from opatlas.row.rounds import mean_of
from opatlas.text import Word

from .attempts import ModelAttempt
from .outcomes import Experiment, TaskName, TaskOutcome

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
