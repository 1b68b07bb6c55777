"""Recorded exchanges, and the prices of exchanges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from opatlas.errors import OpAtlasError
from opatlas.outer.generation.answers import NoRecordedAnswer, RecordedAnswers, request_key
from opatlas.outer.generation.endpoint import ChatAnswer, ChatMessage, ChatRequest
from opatlas.outer.generation.models_file import Cost, cost_of, read_models, shipped_prices

REQUEST = ChatRequest("small-model", (ChatMessage("user", "Write ReLU: 写"),))
ANSWER = ChatAnswer("```python\npass\n```", "stop", 10, 1_000, 2.5)


class Counted:
    """A model that counts its questions."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self, request: ChatRequest) -> ChatAnswer:
        self.asked += 1
        return ANSWER


def test_an_answer_is_recorded_once_and_given_again_without_an_endpoint(tmp_path: Path) -> None:
    model = Counted()
    answers = RecordedAnswers(tmp_path / "answers", model)
    assert answers.find(REQUEST) is None
    assert [answers.ask(REQUEST), answers.ask(REQUEST)] == [ANSWER, ANSWER]
    assert model.asked == 1
    alone = RecordedAnswers(tmp_path / "answers")
    assert alone.ask(REQUEST) == ANSWER
    for other in (
        replace(REQUEST, model="other"),
        replace(REQUEST, max_tokens=5),
        replace(REQUEST, messages=(*REQUEST.messages, ChatMessage("user", "more"))),
    ):
        with pytest.raises(NoRecordedAnswer):
            alone.ask(other)
    (path,) = (tmp_path / "answers").iterdir()
    assert path.stem == request_key(REQUEST)
    assert "写" in path.read_text("utf-8")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model": 3}', '{"a": {"b": 1}}', '{"a": {"messages": 3}}'])
def test_a_file_without_an_exchange_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / f"{request_key(REQUEST)}.json"
    path.write_text(text)
    with pytest.raises(OpAtlasError) as caught:
        RecordedAnswers(tmp_path).ask(REQUEST)
    assert str(path) in str(caught.value)


def test_an_edited_request_is_refused_and_an_edited_answer_is_not(tmp_path: Path) -> None:
    path = RecordedAnswers(tmp_path).record(REQUEST, ANSWER)
    content = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**content, "answer": {"text": "edited by hand"}}))
    assert RecordedAnswers(tmp_path).ask(REQUEST) == ChatAnswer("edited by hand")
    path.write_text(json.dumps({**content, "model": "other"}))
    with pytest.raises(OpAtlasError, match=r"\.json"):
        RecordedAnswers(tmp_path).ask(REQUEST)


def test_costs_are_those_of_tokens_and_requests(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    told = "small-model: {in: 100, out: 2}, 'flat': {request: 0.25}, deepseek-chat: {request: 3}, free: {request: 0}"
    path.write_text(f"models: {{{told}}}")
    prices = read_models(path).prices()
    assert "free" in prices
    assert cost_of(prices, REQUEST, ANSWER) == Cost(10, 1_000, False, pytest.approx(0.003))
    assert cost_of(prices, replace(REQUEST, model="flat"), ANSWER).usd == 0.25
    assert "unknown" not in prices
    assert cost_of(prices, replace(REQUEST, model="unknown"), ANSWER).usd == 0
    assert cost_of(prices, replace(REQUEST, model="deepseek-chat"), ANSWER).usd == 3
    uncounted = cost_of(prices, REQUEST, ChatAnswer("12345678"))
    assert (uncounted.tokens_in, uncounted.tokens_out, uncounted.estimated) == (4, 2, True)
    # 166 operators with 226 repairs: the experiment's own table says $0.401.
    shipped = cost_of(shipped_prices(), replace(REQUEST, model="deepseek-chat"), ANSWER)
    assert (166 + 226) * shipped.usd == pytest.approx(0.392)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("language: rust\nmodels: {m: }", ["language", "rust"]),
        ("models: {m: }\nattempts: 0", ["attempts", "1"]),
        ("models: {m: {max_tokens: many}}", ["max_tokens", "int"]),
        ("models: {m: {endpont: x}}", ["endpont", "endpoint"]),
        ("models:\n  m: [open\n", ["line 3"]),
    ],
)
def test_a_wrong_value_is_named_with_its_key(tmp_path: Path, text: str, named: Sequence[str]) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(text)
    with pytest.raises(OpAtlasError) as caught:
        read_models(path)
    assert [each for each in (str(path), *named) if each not in str(caught.value)] == []
