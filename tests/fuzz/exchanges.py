"""Exchanges with models: replies of an endpoint, recorded answers, files of models."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

from opatlas.outer.generation.answers import RecordedAnswers, read_exchange
from opatlas.outer.generation.endpoint import ChatAnswer, ChatMessage, ChatRequest
from opatlas.outer.generation.models_file import cost_of, read_models

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
