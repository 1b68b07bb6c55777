"""Asks a model a question: at an endpoint that takes OpenAI's chat completions, or in a folder of recorded answers."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import urllib.parse
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from opatlas.data.csv_files import write_text
from opatlas.errors import OpAtlasError
from opatlas.files import read_file
from opatlas.installation import require_extra
from opatlas.text import shortened
from opatlas.typed_json import DecodeError, decode

if TYPE_CHECKING:
    import openai

_VERSIONED = re.compile(r"/v\d+$")
#: The longest quotation of a server's error.
_QUOTED = 300
#: Headers that the client would add: a user's organization at OpenAI, and the machine's system and Python.
_NOT_SENT = (
    *("OpenAI-Organization", "OpenAI-Project", "X-Stainless-OS", "X-Stainless-Arch", "X-Stainless-Runtime"),
    "X-Stainless-Runtime-Version",
)
#: What to do, by the status of the reply; {key} is the variable of the key.
_REMEDIES = {
    401: "check the key in {key}",
    403: "check the key in {key}, and what it allows",
    404: "check the address and the name of the model",
    402: "the account has no credit",
    413: "the request is too large for this endpoint",
    429: "try again later",
}


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
    def body(self) -> dict[str, Any]:
        """The JSON value that is posted."""
        return {
            "model": self.model,
            "messages": [asdict(message) for message in self.messages],
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
        }

    @property
    def key(self) -> str:
        """The sha256 of model, messages and parameters, without what varies, in hexadecimal digits."""
        fixed = self.body
        for message in fixed["messages"] if self.varying else ():
            message["content"] = message["content"].replace(self.varying, "")
        return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


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


class Endpoint:
    """A server that takes POST requests at `/v1/chat/completions`.

    The key is read from its environment variable for each request. It is in no message or file.
    """

    def __init__(self, url: str, key_variable: str = "", *, attempts: int = 5, silence_s: float = 300.0) -> None:
        """Makes a client, which sends nothing yet.

        Args:
            url: address of the server (`http://localhost:8000`), or of its versioned path (`https://host/api/v4`).
            key_variable: name of the environment variable that holds the key; "" for a server without keys.
            attempts: the most requests of a question. A server that is overloaded, silent or cuts the connection is
                asked again after its Retry-After (at most a minute), or after half a second, one, two and so on.
            silence_s: the longest silence of the server in seconds.

        Raises:
            EndpointError: the address is not one of HTTP, or the variable is not set.
            UsageError: the library that asks endpoints is not installed.
        """
        require_extra("models", "asking a model", "openai")
        self.url = _completions_url(url)
        self._key_variable, self._attempts, self._silence_s = key_variable, attempts, silence_s
        self._key()

    def ask(self, request: ChatRequest) -> ChatAnswer:
        """Returns the answer of the model.

        Raises:
            EndpointError: the server refuses the request, does not speak the protocol, or stays silent.
        """
        # Imported where it is needed: it takes as long as pytest's own start.
        import openai

        key, start = self._key(), time.monotonic()
        headers: Any = {name: openai.Omit() for name in (*_NOT_SENT, *(() if key else ("Authorization",)))}
        with openai.OpenAI(
            api_key=key or "none",
            base_url=self.url.removesuffix("/chat/completions"),
            timeout=self._silence_s,
            max_retries=self._attempts - 1,
            http_client=openai.DefaultHttpxClient(follow_redirects=False),
        ) as client:
            try:
                reply = client.chat.completions.with_raw_response.create(**request.body, extra_headers=headers)
                text = reply.text
            except openai.APIStatusError as error:
                raise self._refusal(error, key) from None
            except openai.APITimeoutError:
                raise self._error(f"was silent for {self._silence_s:g} s", "check that the server runs") from None
            except (openai.OpenAIError, UnicodeError) as error:
                reason = _without(key, _quote(str(error.__cause__ or error)))
                problem = f"cannot be reached, or cut the connection ({reason})"
                raise self._error(problem, "check that the server runs, or try again later") from None
        return self._answer(_without(key, text), time.monotonic() - start)

    def _answer(self, text: str, seconds: float) -> ChatAnswer:
        try:
            # With "?" for each half of a pair of surrogates: models write such, and msgspec refuses it.
            plain = json.dumps(json.loads(text), ensure_ascii=False).encode(errors="replace")
            reply = decode(plain, _ChatReply, "reply")
        except (DecodeError, ValueError, RecursionError):
            what = "HTML" if text.lstrip()[:1] == "<" else "something other than a chat completion"
            remedy = "check the address: it is that of the API, not of a web page"
            raise self._error(f"answered with {what}: {_quote(text) or 'nothing'}", remedy, 200) from None
        if reply.error:
            raise self._error(f"answered with an error: {_quote(str(reply.error))}", "see its message")
        if not reply.choices:
            raise self._error("answered without choices", "check the name of the model", 200)
        choice, usage = reply.choices[0], reply.usage or _ReplyUsage()
        counts = usage.prompt_tokens, usage.completion_tokens
        # A number of tokens below 0 would lower the cost.
        asked, answered = (tokens if tokens is None or tokens >= 0 else None for tokens in counts)
        return ChatAnswer(choice.message.content or "", choice.finish_reason or "", asked, answered, seconds)

    def _refusal(self, error: openai.APIStatusError, key: str) -> EndpointError:
        """Returns the meaning of a reply whose status is an error."""
        status, quoted = error.status_code, _quote(_without(key, error.response.text))
        variable = f"the variable {self._key_variable or 'that api_key_variable names'}"
        remedy = _REMEDIES.get(status, "try again later" if status >= 500 else "see its message").format(key=variable)
        if status < 400:
            place = _quote(error.response.headers.get("Location", ""))
            remedy = f"it refers to {place}: name that address if you trust it"
        return self._error(f"answered HTTP {status}" + (f": {quoted}" if quoted else ""), remedy, status)

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


def _without(key: str, text: str) -> str:
    """Returns a text with the key replaced, which some servers quote in their errors."""
    return text.replace(key, "[key]") if len(key) >= 6 else text


def _quote(text: str) -> str:
    return shortened(" ".join(text.split()), _QUOTED)


# Recorded exchanges: a folder of files, from which requests are answered without an endpoint.
#
# {sha256}.json                 an exchange. The digest is that of model, messages and parameters, so an equal request
#                               has the recorded answer, whoever recorded it. What varies between runs does not count
# {model}/{set}/{task}/{n}.md   the answer to attempt n at a task, as a person wrote it or copied it from a chat

#: The largest file that is read; one exchange has some 100 kB.
_MOST_BYTES = 64 << 20
_NOT_IN_FOLDERS = re.compile(r"[^A-Za-z0-9.+-]+")


class ChatModel(Protocol):
    """Answers questions: an endpoint, or recorded answers."""

    def ask(self, request: ChatRequest) -> ChatAnswer:
        """Returns the answer. Raises OpAtlasError where there is none."""
        ...


class NoRecordedAnswer(OpAtlasError):
    """A request that is not recorded, and no endpoint to ask."""


@dataclass(frozen=True)
class RecordedExchange:
    """A request and its answer: the content of a file."""

    request: ChatRequest
    answer: ChatAnswer


def model_folder(model: str) -> str:
    """Returns the name of a model as that of a folder: "qwen_qwen2.5" for "qwen/qwen2.5"."""
    return _NOT_IN_FOLDERS.sub("_", model).lstrip(".+-") or "_"


def read_exchange(path: Path) -> RecordedExchange:
    """Returns the exchange of a file. Raises OpAtlasError if the file cannot be read, or holds none."""
    try:
        return decode(_read(path), RecordedExchange, str(path))
    except DecodeError as error:
        raise OpAtlasError(f"{error}: remove the file, or record the answer again") from None


class RecordedAnswers:
    """A folder of recorded exchanges, and the endpoint that answers and records any other request."""

    def __init__(self, folder: Path, endpoint: ChatModel | None = None) -> None:
        """Reads nothing yet, and makes no folder.

        Args:
            folder: the folder of the exchanges.
            endpoint: answers requests that are not recorded; None: such requests raise NoRecordedAnswer.
        """
        self._folder = folder
        self._endpoint = endpoint

    def find(self, request: ChatRequest) -> ChatAnswer | None:
        """Returns the recorded answer of a request; None if it is not recorded. Raises OpAtlasError."""
        path = self._folder / f"{request.key}.json"
        if path.exists():
            exchange = read_exchange(path)
            if (key := exchange.request.key) != request.key:
                raise OpAtlasError(f"{path}: its request was edited: rename it to {key}.json, or remove it")
            return exchange.answer
        written = self._folder / model_folder(request.model) / f"{request.name}.md"
        if request.name and written.is_file():
            return ChatAnswer(_read(written).decode("utf-8-sig", "replace"))
        return None

    def ask(self, request: ChatRequest) -> ChatAnswer:
        """Returns the recorded answer, or that of the endpoint, which is recorded before it is returned.

        Raises:
            NoRecordedAnswer: the request is not recorded, and there is no endpoint.
            OpAtlasError: a file cannot be read or written, or the endpoint gives no answer.
        """
        answer = self.find(request)
        if answer is not None:
            return answer
        if self._endpoint is None:
            raise NoRecordedAnswer(
                f"{self._folder} has no answer of {request.model} to {request.name or 'request'} ({request.key}): "
                "give the model an endpoint in the file of --models, or choose tasks that are recorded"
            )
        answer = self._endpoint.ask(request)
        self.record(request, answer)
        return answer

    def record(self, request: ChatRequest, answer: ChatAnswer) -> Path:
        """Writes an exchange in one step, and returns its file. Raises OpAtlasError."""
        path = self._folder / f"{request.key}.json"
        write_text(path, json.dumps(asdict(RecordedExchange(request, answer)), indent=1, ensure_ascii=False) + "\n")
        return path


def _read(path: Path) -> bytes:
    return read_file(path, _MOST_BYTES, "check the path")
