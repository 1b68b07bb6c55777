"""Durations of the tasks' own models, from the database of tasks that a run's folder lies in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

from opatlas.ask.compare.calls import replayed_call
from opatlas.data.database import Database
from opatlas.outer.experiment.attempts import ModelAttempt
from opatlas.outer.tasks.task import kernel_type_of

#: A session writes attempts to generated/LANGUAGE in the folder of the database.
_LEVELS_ABOVE = 2


def with_baselines(folder: Path, attempts: Iterable[ModelAttempt]) -> list[ModelAttempt]:
    """Returns attempts with the stored durations of their tasks, where they were measured and have none.

    A task of several rows gets none: an attempt does not tell which row its duration is of.

    Args:
        folder: that of the run.

    Raises:
        OpAtlasError: a CSV of the database cannot be read.
    """
    database = _database_above(folder)
    if database is None:
        return list(attempts)

    @cache
    def stored_us(kernel_type: str) -> float | None:
        table = database.read_or_empty(kernel_type)
        return replayed_call(table.row(0)).sum_us if len(table.by_signature) == 1 else None

    def with_baseline(attempt: ModelAttempt) -> ModelAttempt:
        judgement = attempt.judgement
        if judgement.duration_us is None or judgement.baseline_us is not None:
            return attempt
        baseline_us = stored_us(kernel_type_of(attempt.task_set, attempt.task))
        return replace(attempt, judgement=replace(judgement, baseline_us=baseline_us))

    return list(map(with_baseline, attempts))


def _database_above(folder: Path) -> Database | None:
    """Returns the database that the folder of a run lies in; None if there is none."""
    above = [*folder.resolve().parents][_LEVELS_ABOVE - 1 : _LEVELS_ABOVE]
    return next((Database(path) for path in above if any(path.glob("*.csv"))), None)
