"""The outcomes of models at tasks, from the attempts of one or more runs.

Of a task that a model tried in several runs, the outcome of the last run counts; the earlier ones are repeats.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import fsum
from pathlib import Path
from typing import NamedTuple

from opatlas.ask.compare.calls import replayed_call
from opatlas.data.database import Database
from opatlas.errors import UsageError
from opatlas.files import expect_folder, files_below
from opatlas.outer.judging.judgement import Level
from opatlas.outer.tasks.task import kernel_type_of

from .attempts import ATTEMPTS, AttemptLog, ModelAttempt

_LEVELS = tuple(Level)
#: A session writes attempts to generated/LANGUAGE in the folder of the database.
_LEVELS_ABOVE = 2


class TaskName(NamedTuple):
    """A task: sets may have tasks of one name."""

    task_set: str
    task: str


@dataclass(frozen=True)
class TaskOutcome:
    """The attempts of one model at one task, from the first answer to the last repair; never empty."""

    attempts: tuple[ModelAttempt, ...]

    @property
    def model(self) -> str:
        return self.final.model

    @property
    def task(self) -> TaskName:
        return TaskName(self.final.task_set, self.final.task)

    @cached_property
    def final(self) -> ModelAttempt:
        """The first attempt that passed, else the last."""
        return next((attempt for attempt in self.attempts if attempt.passed), self.attempts[-1])

    @property
    def passed(self) -> bool:
        return self.final.passed

    @property
    def passed_first(self) -> bool:
        """Whether the first answer passed, without a repair."""
        return self.passed and self.final.number == 0

    @property
    def fixes(self) -> int:
        """The number of attempts after the first answer."""
        return len(self.attempts) - 1

    @cached_property
    def cost_usd(self) -> float:
        """The price of all attempts in US dollars."""
        return fsum(attempt.cost_usd for attempt in self.attempts)

    @property
    def generation_s(self) -> float:
        return fsum(attempt.generation_s for attempt in self.attempts)

    @property
    def run_s(self) -> float:
        return fsum(attempt.run_s for attempt in self.attempts)

    @property
    def tokens(self) -> int:
        """The tokens of all requests and answers."""
        return sum(attempt.tokens_in + attempt.tokens_out for attempt in self.attempts)

    @property
    def level(self) -> Level | None:
        """The highest level that an attempt passed; None if none passed L0."""
        levels = [level for each in self.attempts if (level := each.judgement.level) is not None]
        return max(levels, key=_LEVELS.index, default=None)

    @property
    def speed_up(self) -> float | None:
        """The baseline's duration / that of the candidate; None if it did not pass, or a duration is not known."""
        final = self.final.judgement
        if not final.passed or not final.duration_us or not final.baseline_us:
            return None
        return final.baseline_us / final.duration_us


@dataclass(frozen=True)
class ExperimentRun:
    """The outcomes of one `attempts.jsonl`.

    Attributes:
        path: the folder of the file.
        outcomes: by model and task, the last loop of attempts of each.
        attempts: the number of lines that count: of equal ones the first.
        torn: whether the last line is cut off, as a killed session leaves it.
    """

    path: Path
    outcomes: Mapping[tuple[str, TaskName], TaskOutcome]
    attempts: int
    torn: bool


class Experiment:
    """Runs that are evaluated together.

    Attributes:
        runs: in the order in which later ones replace the outcomes of earlier ones.
        outcomes: by model and task, the outcome of the last run that has one.
        models: the models, in alphabetical order.
        tasks: the tasks that a model tried, in alphabetical order.
        complexities: the complexity of each task: of several that its attempts have, the highest.
    """

    def __init__(self, runs: Sequence[ExperimentRun]) -> None:
        self.runs = runs
        self.outcomes: dict[str, dict[TaskName, TaskOutcome]] = {}
        self.complexities: dict[TaskName, str] = {}
        for (model, task), outcome in (each for run in runs for each in run.outcomes.items()):
            self.outcomes.setdefault(model, {})[task] = outcome
        for outcome in self.all_outcomes():
            classes = [self.complexities.get(outcome.task, ""), *(each.complexity for each in outcome.attempts)]
            self.complexities[outcome.task] = max(classes)
        self.models = tuple(sorted(self.outcomes))
        self.tasks = tuple(sorted(self.complexities))

    def of_models(self, models: Collection[str]) -> Experiment:
        """Returns the same experiment with some of the models alone."""
        kept = [
            replace(run, outcomes={key: outcome for key, outcome in run.outcomes.items() if key[0] in models})
            for run in self.runs
        ]
        return Experiment(kept)

    @property
    def common_tasks(self) -> tuple[TaskName, ...]:
        """The tasks that every model tried."""
        return tuple(task for task in self.tasks if all(task in of_model for of_model in self.outcomes.values()))

    @property
    def task_sets(self) -> tuple[str, ...]:
        return tuple(sorted({task.task_set for task in self.tasks}))

    def all_outcomes(self) -> Iterator[TaskOutcome]:
        """Yields the outcomes that count, by model."""
        for model in sorted(self.outcomes):
            yield from self.outcomes[model].values()


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
    if not experiment.outcomes:
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
    """Returns the outcomes of a file of attempts."""
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
    outcomes = {key: TaskOutcome(tuple(of_task[-1])) for key, of_task in loops.items()}
    return ExperimentRun(folder, outcomes, len(counted), torn)
