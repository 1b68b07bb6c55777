"""The client of an endpoint, against a server with faults; no test waits."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from chat_server import ChatServer, Fault, chat_server

from opatlas.outer.generation.answers import RecordedAnswers
from opatlas.outer.generation.endpoint import ChatMessage, ChatRequest, Endpoint, EndpointError, EndpointLimits

KEY = "sk-0123456789-secret"
VARIABLE = "OPATLAS_TEST_KEY"
REQUEST = ChatRequest("small-model", (ChatMessage("system", "You write kernels."), ChatMessage("user", "Write one: é")))


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server() as running:
        yield running


class Waits:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.reasons: list[str] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def clock(self) -> float:
        return sum(self.slept)

    def note(self, reason: str, seconds: float) -> None:
        self.reasons.append(reason)

    def endpoint(self, url: str, key_variable: str = "", limits: EndpointLimits | None = None) -> Endpoint:
        return Endpoint(url, key_variable, limits, sleep=self.sleep, clock=self.clock, on_wait=self.note)


def test_a_question_is_posted_and_its_answer_and_tokens_come_back(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a user has for OpenAI's own server is not for any other.
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_ORG_ID", "org-secret")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-secret")
    server.answer = lambda body: f"{body['model']} says hello"
    answer = Waits().endpoint(server.url).ask(REQUEST)
    assert (answer.text, answer.finish_reason) == ("small-model says hello", "stop")
    assert (answer.tokens_in, answer.tokens_out) == (12, 34)
    (body,) = server.bodies
    assert body == REQUEST.body
    assert (body["temperature"], body["top_p"]) == (0.2, 0.9)
    assert "Authorization" not in server.headers[0]
    sent = str(server.headers[0]).lower()
    assert not [
        word for word in (KEY, "secret", "python/", "linux", "runtime") if word in sent.replace("openai/python", "")
    ]


@pytest.mark.parametrize(
    ("faults", "slept"),
    [
        ([Fault.TOO_MANY], [7.0]),
        ([Fault.ERROR, Fault.CUT, Fault.CUT_WITHOUT_LENGTH, Fault.HTML_ERROR], [1.0, 2.0, 4.0, 8.0]),
        ([Fault.CUT_CHUNK, Fault.CHUNKS], [1.0]),
        ([Fault.MANY_HEADERS], [1.0]),
    ],
)
def test_a_passing_fault_is_waited_out(server: ChatServer, faults: list[Fault], slept: list[float]) -> None:
    waits = Waits()
    server.faults = list(faults)
    answer = waits.endpoint(server.url).ask(REQUEST)
    assert answer.text == "answer"
    assert waits.slept == slept
    assert len(waits.reasons) == len(slept)
    assert answer.seconds == sum(slept)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("x = '\ud800'", "x = '?'"),
        ("\udc00\ud83d\ude00\ud83d", "?\U0001f600?"),
        (r"'\ud800'", r"'\ud800'"),
        ("\\\ud800", "\\?"),
    ],
)
def test_half_a_character_costs_no_more_than_itself(server: ChatServer, written: str, text: str) -> None:
    server.answer = lambda body: written
    assert Waits().endpoint(server.url).ask(REQUEST).text == text


@pytest.mark.parametrize("count", [-1, -(10**12)])
def test_a_negative_number_of_tokens_lowers_no_cost(server: ChatServer, count: int) -> None:
    server.usage = {"prompt_tokens": count, "completion_tokens": 34}
    answer = Waits().endpoint(server.url).ask(REQUEST)
    assert (answer.tokens_in, answer.tokens_out) == (None, 34)


def test_a_server_that_stays_silent_is_given_up(server: ChatServer) -> None:
    server.faults = [Fault.SILENT] * 2
    waits = Waits()
    # The server is silent for longer than any test takes.
    with pytest.raises(EndpointError) as caught:
        waits.endpoint(server.url, limits=EndpointLimits(attempts=2, read_s=0.05)).ask(REQUEST)
    assert (caught.value.status, len(waits.reasons) + 1, waits.slept) == (None, 2, [1.0])


def test_a_silent_server_is_not_waited_for_beyond_the_limit_of_all_requests(server: ChatServer) -> None:
    server.faults = [Fault.SILENT]
    with pytest.raises(EndpointError) as caught:
        Waits().endpoint(server.url, limits=EndpointLimits(read_s=3, total_s=0.05)).ask(REQUEST)
    assert (len(server.bodies), "0.05 s" in str(caught.value)) == (1, True)


@pytest.mark.parametrize(("asked", "sent"), [("3600", 1), ("1199", 1), ("-1", 3), ("soon", 3)])
def test_a_fault_that_lasts_ends_with_an_error(server: ChatServer, asked: str, sent: int) -> None:
    """A server may ask to wait for two minutes at most."""
    server.faults, server.retry_after = [Fault.TOO_MANY] * 9, asked
    with pytest.raises(EndpointError) as caught:
        Waits().endpoint(server.url, limits=EndpointLimits(attempts=3)).ask(REQUEST)
    assert (caught.value.status, len(server.bodies)) == (429, sent)
    assert "slow down" in str(caught.value)


@pytest.mark.parametrize(
    "fault",
    [
        Fault.HTML,
        Fault.EMPTY,
        Fault.NO_CHOICES,
        Fault.TOO_LARGE,
        Fault.WRONG_JSON,
        Fault.ERROR_IN_REPLY,
        Fault.DEEP,
        Fault.LARGE_ERROR,
        Fault.GZIP,
        Fault.ESCAPES,
    ],
)
def test_a_reply_that_will_not_change_is_an_error_at_once(server: ChatServer, fault: Fault) -> None:
    server.faults = [fault]
    waits = Waits()
    with pytest.raises(EndpointError) as caught:
        waits.endpoint(server.url, limits=EndpointLimits(most_bytes=1 << 20)).ask(REQUEST)
    assert server.url in str(caught.value)
    assert len(str(caught.value)) < 1_000
    assert str(caught.value).isprintable()
    assert ("gzip" in str(caught.value)) == (fault is Fault.GZIP)
    assert (len(server.bodies), waits.slept) == (1, [])


def test_an_answer_that_takes_too_long_is_given_up(server: ChatServer) -> None:
    ticks = count(0, 300)
    endpoint = Endpoint(server.url, limits=EndpointLimits(total_s=500), clock=lambda: float(next(ticks)))
    with pytest.raises(EndpointError) as caught:
        endpoint.ask(REQUEST)
    assert "500 s" in str(caught.value)


def test_a_wrong_key_is_not_tried_again_and_not_told(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.key = "another"
    monkeypatch.setenv(VARIABLE, KEY)
    with pytest.raises(EndpointError) as caught:
        Waits().endpoint(server.url, VARIABLE).ask(REQUEST)
    assert (caught.value.status, len(server.bodies)) == (401, 1)
    assert VARIABLE in str(caught.value)
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    # This server quotes the key.
    assert KEY not in f"{caught.value!s}{caught.value!r}{caught.value.__cause__}"
    server.key = KEY
    server.answer = lambda body: f"my key is {KEY}"
    answers = RecordedAnswers(tmp_path, Waits().endpoint(server.url, VARIABLE))
    assert KEY not in answers.ask(REQUEST).text
    assert all(KEY not in path.read_text("utf-8") for path in tmp_path.rglob("*.json"))
    assert KEY not in caplog.text
    assert server.url not in caplog.text


@pytest.mark.parametrize("key", ["", "two words", f"{KEY}\nX-Injected: 1", "schlüssel"])
def test_a_key_that_cannot_be_sent_is_refused_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv(VARIABLE, key)
    with pytest.raises(EndpointError) as caught:
        Endpoint("http://127.0.0.1:9", VARIABLE)
    assert VARIABLE in str(caught.value)
    assert not key or key not in str(caught.value)


@pytest.mark.parametrize("fault", [Fault.REDIRECT, Fault.REDIRECT_POST])
def test_a_redirect_is_told_and_does_not_get_the_key(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    with chat_server() as other:
        server.faults, server.elsewhere = [fault], f"{other.url}/v1/chat/completions"
        with pytest.raises(EndpointError) as caught:
            Waits().endpoint(server.url, VARIABLE).ask(REQUEST)
        assert not other.headers
    assert server.elsewhere in str(caught.value)


def test_a_port_that_nobody_listens_to_is_an_error(server: ChatServer) -> None:
    with chat_server() as gone:
        url = gone.url
    waits = Waits()
    with pytest.raises(EndpointError) as caught:
        waits.endpoint(url, limits=EndpointLimits(attempts=2)).ask(REQUEST)
    assert (caught.value.status, len(waits.reasons) + 1, waits.slept) == (None, 2, [1.0])


@pytest.mark.parametrize(
    ("url", "posted"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1/chat/completions"),
        ("http://localhost:8000/v1/", "http://localhost:8000/v1/chat/completions"),
        ("https://host/api/paas/v4", "https://host/api/paas/v4/chat/completions"),
        ("https://host/x/chat/completions", "https://host/x/chat/completions"),
    ],
)
def test_an_address_may_be_given_with_or_without_its_path(url: str, posted: str) -> None:
    assert Endpoint(url).url == posted


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "file:///etc/passwd", "http://", "http://a b", "http://h:x", f"http://me:{KEY}@host"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(EndpointError) as caught:
        Endpoint(url)
    assert KEY not in str(caught.value)
