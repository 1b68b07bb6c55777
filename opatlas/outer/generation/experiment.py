"""What models achieved at tasks, from the attempts of one or more runs: outcomes, and their figures.

Of a task that a model tried in several runs, the outcome of the last run counts; the earlier ones are repeats.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
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
from opatlas.outer.judging.judgement import ErrorClass, Level
from opatlas.outer.tasks.task import kernel_type_of
from opatlas.row.rounds import mean_of
from opatlas.text import Word

from .attempts import ATTEMPTS, AttemptLog, ModelAttempt

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

    def of_models(self, models: Collection[str]) -> Experiment:
        """Returns the same experiment with some of the models alone."""
        kept = [
            replace(run, loops={key: loop for key, loop in run.loops.items() if key[0] in models}) for run in self.runs
        ]
        return Experiment(kept)

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
    speed_up = None
    if judged.passed and judged.duration_us and judged.baseline_us:
        speed_up = judged.baseline_us / judged.duration_us
    return {
        "model": model,
        **task._asdict(),
        "complexity": complexity,
        "passed": judged.passed,
        "passed_first": judged.passed and final.number == 0,
        "fixes": len(loop) - 1,
        "level": max(levels, key=_LEVELS.index, default=None),
        "speed_up": speed_up,
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
    return {"passed": passed, "of": of, "rate": _share(passed, of), "low": low, "high": high}


def _share(part: int, whole: int) -> float | None:
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
        "fast": {f"{p:g}": _share(int((timed > p).sum()), len(outcomes)) for p in FAST},
    }


def figures_by(experiment: Experiment, column: str, groups: Sequence[str | None]) -> list[Figures]:
    """Returns the figures of each model for each group of tasks, by a column; the group None has all tasks."""
    return [
        figures(own if group is None else own[own[column] == group], model, group)
        for group in groups
        for model, own in experiment.by_model()
    ]


class ErrorGroup(Word):
    """Error classes as the tables of older experiments with Triton-Ascend have them."""

    COMPILE = "compile"
    MISMATCH = "mismatch"
    RUNTIME = "run time"
    INIT = "construction"
    OTHER = "other"


_GROUPS = {
    ErrorClass.COMPILE: ErrorGroup.COMPILE,
    **dict.fromkeys((ErrorClass.MISMATCH, ErrorClass.INTERFACE, ErrorClass.UNSTABLE), ErrorGroup.MISMATCH),
    **dict.fromkeys((ErrorClass.RUNTIME, ErrorClass.OOM, ErrorClass.TIMEOUT, ErrorClass.CRASH), ErrorGroup.RUNTIME),
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


def error_shares(
    experiment: Experiment, error_of: Callable[[ModelAttempt], Enum | None], kinds: Iterable[Enum]
) -> list[Figures]:
    """Returns how often attempts, and tasks by their final attempt, ended with each error that occurs.

    Shares are of those that `error_of` names an error of: of all models together (None), then of each.
    """
    found: list[Figures] = []
    for model in (None, *experiment.models):
        loops = [loop for (name, _), loop in experiment.loops.items() if model in (None, name)]
        attempts = Counter(error_of(attempt) for loop in loops for attempt in loop)
        tasks = Counter(error_of(final_attempt(loop)) for loop in loops)
        del attempts[None], tasks[None]
        found += [
            {
                "model": model,
                "error": str(kind),
                "attempts": attempts[kind],
                "attempts_share": _share(attempts[kind], attempts.total()),
                "tasks": tasks[kind],
                "tasks_share": _share(tasks[kind], tasks.total()),
            }
            for kind in kinds
            if attempts[kind]
        ]
    return found
