"""What models achieved at tasks, from the attempts of one or more runs, and ways to choose a model by that.

Of a task that a model tried in several runs, the outcome of the last run counts; the earlier ones are repeats.

A route is strategy C as it is run: the complexity of a task chooses the model that is asked, by a table in the file of
--models.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import fsum
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import pandas as pd

from opatlas.ask.compare.calls import replayed_call
from opatlas.ask.compare.comparison import FAST
from opatlas.data.database import Database
from opatlas.errors import UsageError
from opatlas.files import expect_folder, files_below
from opatlas.outer.judging.judgement import Level
from opatlas.outer.tasks.task import CLASSES, kernel_type_of
from opatlas.row.rounds import mean_of
from opatlas.text import Word

from .attempts import ATTEMPTS, AttemptLog, ModelAttempt
from .models_file import ModelsFile

_LEVELS = tuple(Level)
#: A session writes attempts to generated/LANGUAGE in the folder of the database.
_LEVELS_ABOVE = 2


class TaskName(NamedTuple):
    """A task: sets may have tasks of one name."""

    task_set: str
    task: str


#: The attempts of one model at one task, from the first answer to the last repair; never empty.
Loop = tuple[ModelAttempt, ...]


def final_attempt(loop: Loop) -> ModelAttempt:
    """Returns the first attempt that passed, else the last."""
    return next((attempt for attempt in loop if attempt.passed), loop[-1])


@dataclass(frozen=True)
class ExperimentRun:
    """One `attempts.jsonl`.

    Attributes:
        path: the folder of the file.
        loops: by model and task, the last attempts of each.
        attempts: the number of lines that count: of equal ones the first.
        torn: whether the last line is cut off, as a killed session leaves it.
    """

    path: Path
    loops: Mapping[tuple[str, TaskName], Loop]
    attempts: int
    torn: bool


class Experiment:
    """Runs that are evaluated together.

    Attributes:
        runs: in the order in which later ones replace the outcomes of earlier ones.
        loops: by model and task, the attempts of the last run that has some.
        models: the models, in alphabetical order.
        complexities: the complexity of each task: of several that its attempts have, the highest.
        outcomes: a line for each model and task, by both: `passed`, `passed_first` (without a repair), `fixes`
            (attempts after the first answer), `level` (the highest that an attempt passed), `speed_up` (the baseline's
            duration / that of the candidate that passed), cost, times and tokens of all attempts, `asked`, and what the
            judgement of the final attempt says.
    """

    def __init__(self, runs: Sequence[ExperimentRun]) -> None:
        self.runs = runs
        every = {key: loop for run in runs for key, loop in run.loops.items()}
        self.loops = dict(sorted(every.items()))
        self.complexities: dict[TaskName, str] = {}
        for (_, task), loop in self.loops.items():
            classes = [self.complexities.get(task, ""), *(each.complexity for each in loop)]
            self.complexities[task] = max(classes)
        self.models = tuple(dict.fromkeys(model for model, _ in self.loops))
        lines = [_outcome(model, task, loop, self.complexities[task]) for (model, task), loop in self.loops.items()]
        index = pd.MultiIndex.from_tuples([(model, *task) for model, task in self.loops], names=["of", "set", "name"])
        self.outcomes: pd.DataFrame = pd.DataFrame(lines, index=index if lines else None)

    @property
    def common_tasks(self) -> list[TaskName]:
        """The tasks that every model tried, in alphabetical order."""
        return [task for task in sorted(self.complexities) if all((model, task) in self.loops for model in self.models)]

    @property
    def task_sets(self) -> list[str]:
        return sorted({task.task_set for task in self.complexities})

    def by_model(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yields each model with its outcomes."""
        for model in self.models:
            yield model, self.outcomes.loc[[model]]


def _outcome(model: str, task: TaskName, loop: Loop, complexity: str) -> dict[str, Any]:
    final = final_attempt(loop)
    judged = final.judgement
    levels = [level for each in loop if (level := each.judgement.level) is not None]
    return {
        "model": model,
        **task._asdict(),
        "complexity": complexity,
        "passed": judged.passed,
        "passed_first": judged.passed and final.number == 0,
        "fixes": len(loop) - 1,
        "level": max(levels, key=_LEVELS.index, default=None),
        "speed_up": judged.speed_up if judged.passed else None,
        **{name: getattr(judged, name) for name in ("error_class", "sub_class", "within_1e3", "duration_us")},
        "kernel_share": judged.kernel_share,
        **{name: fsum(getattr(each, name) for each in loop) for name in ("cost_usd", "generation_s", "run_s")},
        "tokens": sum(each.tokens_in + each.tokens_out for each in loop),
        "candidate": final.candidate,
        "notes": "; ".join(judged.notes),
        "asked": final.asked or model,
    }


def read_experiment(folders: Sequence[Path]) -> Experiment:
    """Reads the attempts in folders, and in those below folders without attempts.

    Args:
        folders: of runs, the oldest first; the runs below one folder follow their names.

    Raises:
        UsageError: a folder is not there, is named twice or holds no attempts.
        OpAtlasError: a file cannot be read, or a line is no attempt.
    """
    files: list[Path] = []
    for folder in folders:
        expect_folder(folder, "name the folder of a run with models")
        found = sorted(files_below(folder, lambda name: name == ATTEMPTS))
        if not found:
            raise UsageError(f"{folder}: no {ATTEMPTS} in it or below: name the folder of a run with models")
        files += [folder / ATTEMPTS] if folder / ATTEMPTS in found else found
    real = [path.resolve() for path in files]
    if twice := next((path for at, path in enumerate(real) if path in real[:at]), None):
        raise UsageError(f"{twice}: named twice: name each run once")
    experiment = Experiment([_read_run(path.parent) for path in files])
    if not experiment.loops:
        raise UsageError(f"{', '.join(map(str, folders))}: no attempt to evaluate: name a run that tried a task")
    return experiment


def _read_run(folder: Path) -> ExperimentRun:
    log = AttemptLog(folder)
    attempts = log.all()
    return run_of(folder, _with_baselines(folder, attempts), torn=log.torn)


def _with_baselines(folder: Path, attempts: Iterable[ModelAttempt]) -> Iterator[ModelAttempt]:
    """Yields attempts with the stored durations of their tasks, where they were measured and have none.

    They are in the database that the folder of a run lies in. A task of several rows gets none: an attempt does not
    tell which row its duration is of.
    """
    above = [*folder.resolve().parents][_LEVELS_ABOVE - 1 : _LEVELS_ABOVE]
    database = next((Database(path) for path in above if any(path.glob("*.csv"))), None)

    @cache
    def stored_us(kernel_type: str) -> float | None:
        table = database.read_or_empty(kernel_type) if database is not None else None
        return replayed_call(table.row(0)).sum_us if table is not None and len(table.by_signature) == 1 else None

    for attempt in attempts:
        judgement = attempt.judgement
        if judgement.duration_us is not None and judgement.baseline_us is None:
            baseline_us = stored_us(kernel_type_of(attempt.task_set, attempt.task))
            attempt = replace(attempt, judgement=replace(judgement, baseline_us=baseline_us))
        yield attempt


def run_of(folder: Path, attempts: Iterable[ModelAttempt], *, torn: bool = False) -> ExperimentRun:
    """Returns the loops of a file of attempts."""
    loops: dict[tuple[str, TaskName], list[list[ModelAttempt]]] = {}
    counted = list(dict.fromkeys(attempts))
    for attempt in counted:
        of_task = loops.setdefault((attempt.model, TaskName(attempt.task_set, attempt.task)), [])
        subject = (attempt.task_digest, attempt.asked)
        same = next((loop for loop in reversed(of_task) if (loop[-1].task_digest, loop[-1].asked) == subject), None)
        if same is not None and attempt.number > same[-1].number:
            # A task whose file has its former content again goes on with the former loop, which is then the last one.
            of_task.append(of_task.pop(of_task.index(same)))
            same.append(attempt)
        else:
            of_task.append([attempt])
    return ExperimentRun(folder, {key: tuple(of_task[-1]) for key, of_task in loops.items()}, len(counted), torn)


def wilson_interval(passed: int, tasks: int, level: float = 0.95) -> tuple[float, float] | None:
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


def pass_rate(passed: int, of: int) -> dict[str, Any]:
    """Returns a number of passed tasks with its share and Wilson's interval; None where there is no task."""
    low, high = wilson_interval(passed, of) or (None, None)
    return {"passed": passed, "of": of, "rate": share_of(passed, of), "low": low, "high": high}


def share_of(part: int, whole: int) -> float | None:
    """Returns a share; None of nothing."""
    return part / whole if whole else None


#: A line of a table, as JSON has it.
Figures = dict[str, Any]


def figures(outcomes: pd.DataFrame, model: str | None = None, group: str | None = None) -> Figures:
    """Returns what outcomes achieved and cost, and how fast the passed candidates are.

    Sums are of all attempts. `cost_per_pass_usd` is None where none passed; `timed`: passed tasks with the durations of
    candidate and baseline; `own`: passed tasks with more than half of the duration in kernels that the candidate
    defines, None if no attempt tells it; `fast`: by p, the share of all tasks that passed and are more than p times as
    fast as the baseline.

    Args:
        model: the model; None for all models.
        group: the set, or the complexity, of the tasks; None for all tasks.
    """
    passed, timed = outcomes[outcomes["passed"]], outcomes["speed_up"].dropna()
    shares, cost = passed["kernel_share"].dropna(), fsum(outcomes["cost_usd"])
    return {
        "model": model,
        "group": group,
        "passed": pass_rate(len(passed), len(outcomes)),
        "passed_first": int(outcomes["passed_first"].sum()),
        "fixes": int(outcomes["fixes"].sum()),
        "cost_usd": cost,
        "cost_per_pass_usd": cost / len(passed) if len(passed) else None,
        "generation_s": fsum(outcomes["generation_s"]),
        "run_s": fsum(outcomes["run_s"]),
        "tokens": int(outcomes["tokens"].sum()),
        "timed": len(timed),
        "own": int((shares > 0.5).sum()) if len(shares) else None,
        "geometric_mean": mean_of(list(timed)).ratio,
        "fast": {f"{p:g}": share_of(int((timed > p).sum()), len(outcomes)) for p in FAST},
    }


def figures_by(experiment: Experiment, column: str, groups: Sequence[str | None]) -> list[Figures]:
    """Returns the figures of each model for each group of tasks, by a column; the group None has all tasks."""
    return [
        figures(own if group is None else own[own[column] == group], model, group)
        for group in groups
        for model, own in experiment.by_model()
    ]


# A choice that is made from the tasks on which it is then tried passes too many of them. So a task is left out of the
# outcomes from which its own model is chosen.
#: The confidence level of the interval whose lower bound decides.
CHOICE_LEVEL = 0.8
#: The model of the attempts that a route made. It is never chosen.
ROUTED = "routed"


class Strategy(Word):
    """Ways to choose models."""

    BEST = "A"  # one model for all tasks, that of the highest lower bound
    CHEAPEST = "B"  # the model with the cheapest answers
    TABLE = "C"  # for each complexity the model of the highest lower bound
    ROUTE = "R"  # C as a route ran it, with attempts of its own


def _spent(attempts: Sequence[ModelAttempt]) -> tuple[float, int]:
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
            return -bound, cost, *self.price(model)

        return min(self._of, key=rank)

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
        cost = fsum(_spent(loop)[0] for loop in loops) / max(len(loops), 1)
        return 0.0 if interval is None else interval[0], cost

    def price(self, model: str) -> tuple[float, float, str]:
        """Returns the mean cost of an answer, and its tokens, which decide among models without prices."""
        attempts = [each for loop in self._of[model].values() for each in loop]
        cost, tokens = _spent(attempts)
        return cost / len(attempts), tokens / len(attempts), model

    def _tried(self, model: str, complexity: str | None, without: TaskName | None) -> list[Loop]:
        """Returns the loops of a model at the tasks of a complexity, or of all, but for one task."""
        of = self._complexities
        return [loop for task, loop in self._of[model].items() if complexity in (None, of[task]) and task != without]


def strategy_results(experiment: Experiment) -> list[Figures]:
    """Returns the figures of all strategies at the tasks that all models tried, with the tasks by the chosen model."""
    models = [model for model in experiment.models if model != ROUTED]
    outcomes, selector = experiment.outcomes, Selector(experiment)
    # The one with the cheapest answers, as the prices are known before any task is tried.
    cheapest = min(models, key=selector.price, default="")

    model_of: dict[Strategy, Callable[[TaskName], str]] = {
        Strategy.BEST: lambda task: selector.best(None, task),
        Strategy.CHEAPEST: lambda task: cheapest,
        Strategy.TABLE: lambda task: selector.best(experiment.complexities[task], task),
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


#: Returns the model for a complexity.
Route = Callable[[str], str]
#: The key of a table for the complexities that it does not name.
OTHER_CLASSES = "other"


def route_of(path: Path, file: ModelsFile) -> Route | None:
    """Returns the route of a file of models; None if it has none.

    Raises:
        UsageError: a table leaves out a complexity, or names another model than those of the file.
    """
    if not file.route:
        return None
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
    return lambda complexity: table.get(complexity) or table[OTHER_CLASSES]
