"""The loop of attempts: what is asked, judged, recorded, and when it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from opatlas.candidates.judgement import ErrorClass, Judgement, Level
from opatlas.errors import OpAtlasError
from opatlas.experiment.attempts import ModelAttempt
from opatlas.generation.answers import RecordedAnswers
from opatlas.generation.attempt_log import AttemptLog
from opatlas.generation.endpoint import ChatAnswer, ChatRequest
from opatlas.generation.prices import Price, Prices
from opatlas.generation.prompt import Hardware, KernelLanguage, Prompts, TaskText
from opatlas.generation.repair import LoopLimits, LoopTask, RepairLoop, StopReason

PASS = Judgement(ErrorClass.PASS, level=Level.MEASURED, within_1e3=True, max_error=0.5, duration_us=12.5)
WRONG = Judgement(ErrorClass.MISMATCH, "nan", Level.COMPILE, "nan in /tmp/run1/0.py", False, float("inf"))
PROMPTS = Prompts(TaskText("relu", "class Model: pass\n"), Hardware("", "cpu"), KernelLanguage.TORCH, 5)
PRICES = Prices({"demo": Price(request=0.25)})


def block(code: str) -> str:
    return f"Here it is:\n\n```python\n{code}\n```\n"


def change(old: str, new: str) -> str:
    return f"```json\n{json.dumps({'modifications': [{'old_string': old, 'new_string': new}]})}\n```"


class Scripted:
    """A model whose answers are given, and who remembers the questions."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[ChatRequest] = []

    def ask(self, request: ChatRequest) -> ChatAnswer:
        self.asked.append(request)
        return ChatAnswer(self.answers.pop(0), "stop", 100, 10, 1.5)


class Judged:
    """Judges by a list of judgements, and remembers the sources."""

    def __init__(self, *judgements: Judgement) -> None:
        self.judgements = list(judgements)
        self.sources: list[str] = []

    def __call__(self, path: Path) -> Judgement:
        self.sources.append(path.read_text("utf-8").strip())
        return self.judgements.pop(0)


def loop_in(
    folder: Path, limits: LoopLimits | None = None, ticks: Iterator[float] = iter(()), task: str = "relu"
) -> RepairLoop:
    subject = LoopTask("tasks", task, "C1", "demo", folder / "demo")
    clock = (lambda: next(ticks)) if (ticks := iter(ticks)) and False else (lambda: 0.0)
    return RepairLoop(subject, PROMPTS, AttemptLog(folder), PRICES, limits or LoopLimits(), clock=clock)
