"""The client of an endpoint, against a server with faults."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_server import ChatServer, Fault, chat_server

from opatlas.outer.generation.endpoint import ChatMessage, ChatRequest, Endpoint, EndpointError, RecordedAnswers

KEY = "sk-0123456789-secret"
VARIABLE = "OPATLAS_TEST_KEY"
REQUEST = ChatRequest("small-model", (ChatMessage("system", "You write kernels."), ChatMessage("user", "Write one: é")))


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server() as running:
        yield running


@pytest.fixture
def no_waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of the library before it asks again, which no test waits."""
    slept: list[float] = []
    monkeypatch.setattr("openai._base_client.time.sleep", slept.append)
    return slept


def test_a_question_is_posted_and_its_answer_and_tokens_come_back(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a user has for OpenAI's own server is not for any other.
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_ORG_ID", "org-secret")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-secret")
    server.answer = lambda body: f"{body['model']} says hello"
    answer = Endpoint(server.url).ask(REQUEST)
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


@pytest.mark.parametrize(("written", "text"), [("x = '\ud800'", "x = '?'"), ("\\\ud800", "\\?")])
def test_half_a_character_costs_no_more_than_itself(server: ChatServer, written: str, text: str) -> None:
    server.answer = lambda body: written
    assert Endpoint(server.url).ask(REQUEST).text == text


@pytest.mark.parametrize(
    ("faults", "waits"),
    [
        ([Fault.TOO_MANY], [7.0]),
        ([Fault.ERROR, Fault.CUT, Fault.HTML_ERROR, Fault.CUT_CHUNK], None),
        ([Fault.CHUNKS], []),
        ([Fault.MANY_HEADERS], None),
    ],
)
def test_a_passing_fault_is_waited_out(
    server: ChatServer, faults: list[Fault], waits: list[float] | None, no_waits: list[float]
) -> None:
    server.faults = list(faults)
    assert Endpoint(server.url).ask(REQUEST).text == "answer"
    assert no_waits == waits if waits is not None else len(no_waits) == len(faults)


def test_a_server_that_stays_silent_is_given_up(server: ChatServer, no_waits: list[float]) -> None:
    server.faults = [Fault.SILENT] * 2
    # The server is silent for longer than any test takes.
    with pytest.raises(EndpointError, match="silent") as caught:
        Endpoint(server.url, attempts=2, silence_s=0.05).ask(REQUEST)
    assert (caught.value.status, len(no_waits)) == (None, 1)


def test_a_fault_that_lasts_ends_with_an_error(server: ChatServer, no_waits: list[float]) -> None:
    server.faults = [Fault.TOO_MANY] * 9
    with pytest.raises(EndpointError, match="slow down") as caught:
        Endpoint(server.url, attempts=3).ask(REQUEST)
    assert (caught.value.status, len(server.bodies), len(no_waits)) == (429, 3, 2)


@pytest.mark.parametrize(
    "fault",
    [
        *(Fault.HTML, Fault.EMPTY, Fault.NO_CHOICES, Fault.WRONG_JSON, Fault.ERROR_IN_REPLY, Fault.DEEP, Fault.ESCAPES),
        *(Fault.LARGE_ERROR, Fault.CUT_WITHOUT_LENGTH),
    ],
)
def test_a_reply_that_will_not_change_is_an_error_at_once(
    server: ChatServer, fault: Fault, no_waits: list[float]
) -> None:
    server.faults = [fault]
    with pytest.raises(EndpointError) as caught:
        Endpoint(server.url).ask(REQUEST)
    assert server.url in str(caught.value)
    assert len(str(caught.value)) < 1_000
    assert str(caught.value).isprintable()
    assert (len(server.bodies), no_waits) == (1, [])


def test_a_wrong_key_is_not_tried_again_and_not_told(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.key = "another"
    monkeypatch.setenv(VARIABLE, KEY)
    with pytest.raises(EndpointError) as caught:
        Endpoint(server.url, VARIABLE).ask(REQUEST)
    assert (caught.value.status, len(server.bodies)) == (401, 1)
    assert VARIABLE in str(caught.value)
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    # This server quotes the key.
    assert KEY not in f"{caught.value!s}{caught.value!r}{caught.value.__cause__}"
    server.key = KEY
    server.answer = lambda body: f"my key is {KEY}"
    answers = RecordedAnswers(tmp_path, Endpoint(server.url, VARIABLE))
    assert KEY not in answers.ask(REQUEST).text
    assert all(KEY not in path.read_text("utf-8") for path in tmp_path.rglob("*.json"))
    assert KEY not in caplog.text


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
            Endpoint(server.url, VARIABLE).ask(REQUEST)
        assert not other.headers
    assert server.elsewhere in str(caught.value)


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
