"""Exchanges with models: replies of an endpoint, recorded answers, files of models and of their attempts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
from simulated_attempts import attempt, loop

from opatlas.outer.generation.attempts import ATTEMPTS, attempt_line
from opatlas.outer.generation.endpoint import ChatAnswer, ChatMessage, ChatRequest, RecordedAnswers, read_exchange
from opatlas.outer.generation.models_file import cost_of, read_models
from opatlas.outer.generation.outcomes import read_experiment
from opatlas.outer.generation.score_command import make_report, report_as_json

from .target import Target, expect, refusing

_REQUEST = ChatRequest("small", (ChatMessage("user", "Write ReLU: 写"),), name="tasks/relu/0")
_ANSWER = ChatAnswer("```python\npass\n```", "stop", 10, 1_000, 2.5)


def _exchanges() -> Iterator[bytes]:
    exchange = {"model": "small", "messages": [{"role": "user", "content": "x"}], "parameters": {"top_p": 0.9}}
    yield json.dumps({**exchange, "answer": {"text": "y", "tokens_in": 3}}).encode()


def _check_exchanges(data: bytes, folder: Path) -> None:
    path = folder / "answers.json"
    path.write_bytes(data)
    with refusing(path):
        expect(bool(read_exchange(path).key), "neither an exchange nor an error")
    with refusing(path):
        answers = RecordedAnswers(folder)
        found = answers.find(_REQUEST)
        answers.record(_REQUEST, _ANSWER)
        expect(found is None or found.text is not None, "an answer without text")
        expect(answers.find(_REQUEST) == _ANSWER, "a recorded answer is not found")


def _models() -> Iterator[bytes]:
    yield b"language: torch\ncost_limit: 5\nmodels:\n  small: {in: 0.27, out: 1.1}\n  'a b': {request: 0.001}\n"
    yield b"answers: .\nattempts: 3\nmodels: {small: {endpoint: http://h, max_tokens: 9}, demo: }\n"


def _check_models(data: bytes, folder: Path) -> None:
    path = folder / "models.yaml"
    path.write_bytes(data)
    with refusing(path):
        found = read_models(path)
        expect(bool(found.models), "neither a model nor an error")
        cost = cost_of(found.prices(), _REQUEST, _ANSWER)
        expect(math.isfinite(cost.usd) and cost.usd >= 0, f"a price of {cost.usd}")


EXCHANGES = Target(
    "answers",
    "recorded exchanges are read, or refused with the file",
    _exchanges,
    _check_exchanges,
    (b'"messages"', b'"answer"', b"null", b"1e999", b"\\ud800", b"{}", b"[]"),
)
MODELS = Target(
    "models",
    "a file of models names some, with prices that are numbers, or is refused by name",
    _models,
    _check_models,
    (b"request:", b"endpoint:", b"models:", b".inf", b".nan", b"-1", b"&a", b"*a", b"? []", b"\xff"),
)


def _attempts() -> Iterator[bytes]:
    attempts = [
        *loop("a", "relu", 2, passes=True),
        *loop("b", "relu", 1, passes=False, complexity="C2"),
        attempt("b", "sort", within_1e3=True, duration_us=2.5, baseline_us=5.0, kernel_share=1.0, tokens_in=7),
    ]
    yield "".join(map(attempt_line, attempts)).encode()


def _check_attempts(data: bytes, folder: Path) -> None:
    (folder / ATTEMPTS).write_bytes(data)
    with refusing(folder):
        experiment = read_experiment([folder])
        report = make_report(experiment)
        json.dumps(msgspec.to_builtins(report_as_json(experiment, report), enc_hook=str), allow_nan=False)
        for each in report.strategies:
            expect(each.passed.of == len(experiment.common_tasks), "a strategy lost a task")
        expect(sum(each.attempts for each in experiment.runs) <= data.count(b"\n") + 1, "more attempts than lines")


SCORED = Target(
    "attempts",
    "attempts are evaluated without NaN, or refused with the file",
    _attempts,
    _check_attempts,
    (
        b'"model"',
        b'"number"',
        b'"pass"',
        b'"C9"',
        b"1e308",
        b"5e-324",
        b"9223372036854775807",
        b"null",
        b"\\ud800",
        b"\n",
    ),
)
