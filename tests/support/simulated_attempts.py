"""Attempts of simulated models, whose pass rates are known, and files of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from opatlas.outer.generation.attempts import ATTEMPTS, ModelAttempt, attempt_line
from opatlas.outer.judging.judgement import ErrorClass, Judgement, Level

#: The last level that a candidate of an error class passed.
_LEVELS = {
    ErrorClass.SYNTAX: Level.ANSWER,
    ErrorClass.COMPILE: Level.STATIC,
    ErrorClass.RUNTIME: Level.COMPILE,
    ErrorClass.MISMATCH: Level.COMPILE,
    ErrorClass.PASS: Level.MEASURED,
}
_JUDGED = {field.name for field in fields(Judgement)}


def attempt(
    model: str,
    task: str,
    error_class: ErrorClass = ErrorClass.PASS,
    *,
    number: int = 0,
    task_set: str = "set",
    complexity: str = "C1",
    **values: Any,
) -> ModelAttempt:
    """Returns an attempt that costs 0.001 dollars, with the level of its error class."""
    judged = {name: values.pop(name) for name in _JUDGED & values.keys()}
    judgement = Judgement(error_class, **{"level": _LEVELS.get(error_class), **judged})
    defaults = {"cost_usd": 0.001, "generation_s": 2.0, "run_s": 1.0}
    return ModelAttempt(task, task_set, complexity, model, number, judgement, **{**defaults, **values})


def loop(
    model: str,
    task: str,
    fixes: int,
    passes: bool,
    *,
    error_class: ErrorClass = ErrorClass.COMPILE,
    task_set: str = "set",
    complexity: str = "C1",
    cost_usd: float = 0.001,
) -> list[ModelAttempt]:
    """Returns the attempts of a model at a task: `fixes` after the first, of which the last passes or fails."""
    last = ErrorClass.PASS if passes else error_class
    return [
        attempt(
            model,
            task,
            last if number == fixes else error_class,
            number=number,
            task_set=task_set,
            complexity=complexity,
            cost_usd=cost_usd,
        )
        for number in range(fixes + 1)
    ]


def write_run(folder: Path, attempts: Iterable[ModelAttempt], *, tail: str = "") -> Path:
    """Writes the attempts of a run, and a tail as of a line that was cut off; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ATTEMPTS).write_text("".join(map(attempt_line, attempts)) + tail, "utf-8")
    return folder


def mixed_run() -> Sequence[ModelAttempt]:
    """Returns attempts of three models at 20 tasks of two sets, with all columns of the tables."""
    found: list[ModelAttempt] = []
    draw = random.Random(24)
    errors = [ErrorClass.COMPILE, ErrorClass.COMPILE, ErrorClass.MISMATCH, ErrorClass.RUNTIME]
    for number in range(20):
        where = {"task_set": "ours" if number < 8 else "public", "complexity": f"C{1 + number % 4}"}
        for model, rate, cost in (("small-7b", 0.3, 0.0005), ("large", 0.6, 0.003), ("large-reasoner", 0.7, 0.004)):
            tried = loop(model, f"{number:02}_task", draw.randrange(4), draw.random() < rate, cost_usd=cost, **where,
                         error_class=draw.choice(errors))  # fmt: skip
            *failed, last = tried
            times = {"duration_us": draw.uniform(5, 20), "baseline_us": 12.0, "kernel_share": draw.choice([0.1, 1.0])}
            judgement = replace(last.judgement, **times) if last.passed else last.judgement
            found += [*failed, replace(last, judgement=judgement, tokens_in=1000, tokens_out=500)]
    return found
