"""Asks a model a question at an endpoint that takes OpenAI's chat completions."""

from __future__ import annotations

import json
import logging
import os
import re
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from opatlas.errors import OpAtlasError
from opatlas.installation import require_extra
from opatlas.text import printable, shortened
from opatlas.typed_json import DecodeError, decode

if TYPE_CHECKING:
    import httpx2

#: Statuses of a server that is overloaded or restarts: the same request may succeed later.
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
_VERSIONED = re.compile(r"/v\d+$")
#: The longest quotation of a server's error.
_QUOTED = 300
#: The headers of a request: the library would add the machine's system and Python, and an organization. By the last it
#: tells, when the reply is there, that it is to be streamed.
_SENT = frozenset(
    {"accept", "authorization", "content-length", "content-type", "host", "user-agent", "x-stainless-raw-response"}
)


class EndpointError(OpAtlasError):
    """A request without an answer. The message names the endpoint, the reason and the remedy.

    Attributes:
        status: the HTTP status of the last reply; None without a reply.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


@dataclass(frozen=True)
class ChatMessage:
    """One message of a conversation.

    Attributes:
        role: "system", "user" or "assistant".
        content: its text.
    """

    role: str
    content: str


@dataclass(frozen=True)
class ChatRequest:
    """A question to a model.

    Attributes:
        model: the name of the model, as the endpoint knows it.
        messages: the conversation so far.
        temperature, top_p: how much the answer varies.
        max_tokens: the largest number of tokens of the answer.
        name: what the question is about ("tasks/relu/0"); it is not sent.
        varying: a part of the messages that differs between runs, such as the text of an error with its numbers.
            Recorded answers do not depend on it.
    """

    model: str
    messages: tuple[ChatMessage, ...]
    temperature: float = 0.2
    top_p: float = 0.9
    max_tokens: int = 8_192
    name: str = ""
    varying: str = ""

    @property
    def parameters(self) -> Mapping[str, float]:
        """The parameters besides model and messages, by name."""
        return {"max_tokens": self.max_tokens, "temperature": self.temperature, "top_p": self.top_p}

    @property
    def body(self) -> dict[str, Any]:
        """The JSON value that is posted."""
        return {"model": self.model, "messages": [asdict(message) for message in self.messages], **self.parameters}


@dataclass(frozen=True)
class ChatAnswer:
    """The answer of a model.

    Attributes:
        text: the answer; "" if the model gave none.
        finish_reason: why the answer ends: "stop", or "length" for an answer that was cut at max_tokens.
        tokens_in, tokens_out: tokens of the request and of the answer; None if the endpoint does not count them.
        seconds: how long the model took, retries and waits included.
    """

    text: str
    finish_reason: str = ""
    tokens_in: int | None = None
    tokens_out: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class EndpointLimits:
    """The limits of one question.

    Attributes:
        attempts: the most requests, the first one included.
        read_s: the longest silence of the server in seconds.
        wait_s: the longest wait that a Retry-After of the server may ask for in seconds.
        total_s: the longest time for all requests and waits in seconds.
        most_bytes: the largest reply.
    """

    attempts: int = 5
    read_s: float = 300.0
    wait_s: float = 120.0
    total_s: float = 1_200.0
    most_bytes: int = 16 << 20


@dataclass(frozen=True)
class _ReplyText:
    content: str | None = None


@dataclass(frozen=True)
class _ReplyChoice:
    message: _ReplyText = field(default_factory=_ReplyText)
    finish_reason: str | None = None


@dataclass(frozen=True)
class _ReplyUsage:
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True)
class _ChatReply:
    choices: list[_ReplyChoice] | None = None
    usage: _ReplyUsage | None = None
    error: Any = None


class _Retryable(Exception):
    """A request that may succeed later."""

    def __init__(self, reason: str, *, status: int | None = None, wait_s: float | None = None) -> None:
        self.reason = reason
        self.status = status
        self.wait_s = wait_s
        super().__init__(reason)


class Endpoint:
    """A server that takes POST requests at `/v1/chat/completions`.

    The key is read from its environment variable for each request. It is in no message, log or file.
    """

    def __init__(
        self,
        url: str,
        key_variable: str = "",
        limits: EndpointLimits | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        on_wait: Callable[[str, float], None] | None = None,
    ) -> None:
        """Makes a client, which sends nothing yet.

        Args:
            url: address of the server (`http://localhost:8000`), or of its versioned path (`https://host/api/v4`).
            key_variable: name of the environment variable that holds the key; "" for a server without keys.
            limits: limits of each question.
            sleep, clock: wait for a number of seconds, and tell seconds.
            on_wait: called before each wait with its reason and its seconds.

        Raises:
            EndpointError: the address is not one of HTTP, or the variable is not set.
            UsageError: the library that asks endpoints is not installed.
        """
        require_extra("models", "asking a model", "openai")
        self.url = _completions_url(url)
        self.limits = limits or EndpointLimits()
        self._key_variable = key_variable
        self._sleep, self._clock, self._on_wait = sleep, clock, on_wait
        self._key()

    def ask(self, request: ChatRequest) -> ChatAnswer:
        """Returns the answer of the model.

        A server that is overloaded or cuts the connection is asked again: after the seconds of its Retry-After, or
        after 1, 2, 4 ... seconds.

        Raises:
            EndpointError: the server refuses the request, does not speak the protocol, or exceeds the limits.
        """
        key, limits, start = self._key(), self.limits, self._clock()
        end = start + limits.total_s
        for attempt in range(1, limits.attempts + 1):
            try:
                answer = self._post(request.body, key, end)
            except EndpointError as error:
                raise EndpointError(_without(key, str(error)), status=error.status) from None
            except _Retryable as error:
                reason, wait_s = _without(key, error.reason), error.wait_s
                if wait_s is None:
                    wait_s = 2.0 ** (attempt - 1)
                is_too_long = wait_s >= min(end - self._clock(), limits.wait_s)
                if attempt == limits.attempts or is_too_long:
                    tried = f"{reason}, {attempt} times" if attempt > 1 else reason
                    asked = f", and asks to wait {wait_s:.0f} s" if is_too_long and error.wait_s else ""
                    later = "try again later" if error.status else "check that the server runs, or try again later"
                    raise EndpointError(f"{self.url} {tried}{asked}: {later}", status=error.status) from None
                if self._on_wait is not None:
                    self._on_wait(reason, wait_s)
                self._sleep(wait_s)
            else:
                return replace(answer, seconds=self._clock() - start)
        raise AssertionError("the last attempt returns or raises")

    def _post(self, body: Mapping[str, Any], key: str, end: float) -> ChatAnswer:
        # Imported where it is needed: it takes as long as pytest's own start.
        import httpx2
        import openai

        # Their logs would quote the server.
        for library in ("openai", "httpx2", "httpcore2"):
            logging.getLogger(library).setLevel(logging.CRITICAL)

        def prepare(request: httpx2.Request) -> None:
            for name in set(request.headers) - (_SENT if key else _SENT - {"authorization"}):
                del request.headers[name]
            request.headers["Accept-Encoding"] = "identity"

        def check(response: httpx2.Response) -> None:
            # Here, since the library reads the whole of an error, whatever its size.
            encoding = response.headers.get("Content-Encoding", "identity")
            packed = "" if encoding == "identity" else f"in the encoding {_quote(encoding)}, which was not asked for"
            if response.status_code >= 300:
                raise self._refusal(response, packed or self._read(response.iter_raw(), key, end))
            if packed:
                raise self._error(f"answered {packed}", "check the address", response.status_code)

        http = openai.DefaultHttpxClient(
            event_hooks={"request": [prepare], "response": [check]}, follow_redirects=False
        )
        silence_s = max(min(self.limits.read_s, end - self._clock()), 1e-3)
        address = self.url.removesuffix("/chat/completions")
        try:
            with openai.OpenAI(api_key=key or "none", base_url=address, max_retries=0, http_client=http) as client:
                create: Any = client.chat.completions.with_streaming_response.create
                with create(**body, timeout=silence_s) as response:
                    return self._answer(self._read(response.iter_bytes(), key, end))
        except (openai.APIConnectionError, httpx2.RequestError, OSError) as error:
            cause = error.__cause__ if isinstance(error, openai.APIConnectionError) else error
            if isinstance(cause, httpx2.TimeoutException):
                raise _Retryable(f"was silent for {silence_s:g} s") from None
            what = "cannot be reached" if isinstance(cause, httpx2.ConnectError) else "cut the connection"
            raise _Retryable(f"{what} ({_quote(str(cause)) or type(cause).__name__})") from None

    def _read(self, parts: Iterable[bytes], key: str, end: float) -> str:
        """Returns the body of a reply, without the key. Raises EndpointError if it is too large or takes too long."""
        body = bytearray()
        for part in parts:
            body += part
            if len(body) > self.limits.most_bytes:
                problem = f"answered with more than {self.limits.most_bytes:,} bytes"
                raise self._error(problem, "check the address, and lower max_tokens")
            if self._clock() > end:
                problem = f"was not done after {self.limits.total_s:g} s"
                raise self._error(problem, "use a faster model, or lower max_tokens")
        return _without(key, body.decode("utf-8", "replace"))

    def _answer(self, text: str) -> ChatAnswer:
        start = text.lstrip()[:1]
        try:
            reply = decode(_without_lone_surrogates(text), _ChatReply, "reply")
        except DecodeError as error:
            if start == "{" and "truncated" in error.problem:
                raise _Retryable("cut its answer") from None
            what = "HTML" if start == "<" else "something other than a chat completion"
            remedy = "check the address: it is that of the API, not of a web page"
            raise self._error(f"answered with {what}: {_quote(text) or 'nothing'}", remedy, 200) from None
        if reply.error:
            raise self._error(f"answered with an error: {_quote(str(reply.error))}", "see its message")
        if not reply.choices:
            raise self._error("answered without choices", "check the name of the model", 200)
        choice, usage = reply.choices[0], reply.usage or _ReplyUsage()
        return ChatAnswer(
            choice.message.content or "",
            choice.finish_reason or "",
            _counted(usage.prompt_tokens),
            _counted(usage.completion_tokens),
        )

    def _refusal(self, response: httpx2.Response, body: str) -> Exception:
        """Returns the meaning of a reply whose status is an error."""
        status, quoted = response.status_code, _quote(body)
        problem = f"answered HTTP {status} {printable(response.reason_phrase)}".rstrip()
        problem += f": {quoted}" if quoted else ""
        if status in _LATER:
            return _Retryable(problem, status=status, wait_s=_retry_after(response.headers.get("Retry-After", "")))
        named = (
            f"the variable {self._key_variable}" if self._key_variable else "the variable that api_key_variable names"
        )
        remedies = {
            401: f"check the key in {named}",
            403: f"check the key in {named}, and what it allows",
            404: "check the address and the name of the model",
            402: "the account has no credit",
            413: "the request is too large for this endpoint",
        }
        remedy = remedies.get(status, "see its message")
        if status < 400:
            remedy = (
                f"it refers to {printable(response.headers.get('Location', ''))}: name that address if you trust it"
            )
        return self._error(problem, remedy, status)

    def _key(self) -> str:
        """Returns the key; "" for a server without keys. Raises EndpointError without quoting it."""
        if not self._key_variable:
            return ""
        key = os.environ.get(self._key_variable, "").strip()
        if not key:
            raise EndpointError(f"the variable {self._key_variable} is not set: put the key of {self.url} there")
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise EndpointError(
                f"the variable {self._key_variable} holds blanks or characters that no key has: put the key alone there"
            )
        return key

    def _error(self, problem: str, remedy: str, status: int | None = None) -> EndpointError:
        return EndpointError(f"{self.url} {problem}: {remedy}", status=status)


def _completions_url(url: str) -> str:
    """Returns the address that questions are posted to. Raises EndpointError."""
    plain = url.strip().rstrip("/")
    try:
        parts = urllib.parse.urlsplit(plain)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or not plain.isascii() or not plain.isprintable() or " " in plain:
        raise EndpointError(f"{url!r} is no address of an endpoint: write http://HOST:PORT or https://HOST")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise EndpointError(
            f"{parts.scheme}://{parts.hostname}: the address holds a password, a query or a fragment: leave them out, "
            "and name the variable of the key with `api_key_variable`"
        )
    if plain.endswith("/chat/completions"):
        return plain
    return f"{plain}/chat/completions" if _VERSIONED.search(parts.path) else f"{plain}/v1/chat/completions"


def _counted(tokens: int | None) -> int | None:
    """Returns a number of tokens; None for one below 0, which would lower the cost."""
    return tokens if tokens is None or tokens >= 0 else None


def _retry_after(text: str) -> float | None:
    """Returns the seconds that a Retry-After header names; None for any other text."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _without_lone_surrogates(reply: str) -> str:
    """Returns a reply with "?" for each half of a pair of surrogates: models write such, and msgspec refuses it."""
    if "\\ud" not in reply.lower():
        return reply
    try:
        return json.dumps(json.loads(reply), ensure_ascii=False).encode(errors="replace").decode()
    except (ValueError, RecursionError):
        return reply


def _without(key: str, text: str) -> str:
    """Returns a text with the key replaced, which some servers quote in their errors."""
    return text.replace(key, "[key]") if len(key) >= 6 else text


def _quote(text: str) -> str:
    return shortened(" ".join(text.split()), _QUOTED)
