"""Recorded exchanges with models: a folder of files, from which requests are answered without an endpoint.

{sha256}.json                   an exchange. The digest is that of model, messages and parameters, so an equal request
                                has the recorded answer, whoever recorded it. What varies between runs does not count
{model}/{set}/{task}/{n}.md     the answer to attempt n at a task, as a person wrote it or copied it from a chat
any other name.json             a cache file of AKG's agents. It names no model, and answers any model
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from opatlas.data.csv_files import write_text
from opatlas.errors import OpAtlasError
from opatlas.files import read_safely
from opatlas.typed_json import DecodeError, decode

from .endpoint import ChatAnswer, ChatMessage, ChatRequest

#: The largest file that is read; one exchange has some 100 kB.
_MOST_BYTES = 64 << 20
#: Characters of a sha256 in hexadecimal digits.
_KEY_DIGITS = 64
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
    """A request and its answer: the content of a file.

    Attributes:
        model: the name of the model; "" if the file does not tell it.
        messages: the messages of the request.
        parameters: the other parameters of the request, by name.
        answer: the answer.
        name: what the question is about.
        varying: the part of the messages that is not in the key; "" for none.
    """

    model: str
    messages: tuple[ChatMessage, ...]
    parameters: Mapping[str, float]
    answer: ChatAnswer
    name: str = ""
    varying: str = ""

    @property
    def key(self) -> str:
        """The sha256 of the request, in hexadecimal digits."""
        return _key(self.model, self.messages, self.parameters, self.varying)


@dataclass(frozen=True)
class _AkgUsage:
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True)
class _AkgResult:
    content: str | None = None
    finish_reason: str | None = None
    usage: _AkgUsage | None = None


@dataclass(frozen=True)
class _AkgEntry:
    """An entry of an AKG cache file. Entries about the states of its agents have no messages."""

    messages: tuple[ChatMessage, ...] = ()
    result: _AkgResult | None = None
    params: Mapping[str, Any] = field(default_factory=dict)


def request_key(request: ChatRequest) -> str:
    """Returns the sha256 of a request, in hexadecimal digits."""
    return _key(request.model, request.messages, request.parameters, request.varying)


def model_folder(model: str) -> str:
    """Returns the name of a model as that of a folder: "qwen_qwen2.5" for "qwen/qwen2.5"."""
    return _NOT_IN_FOLDERS.sub("_", model).lstrip(".+-") or "_"


def read_exchanges(path: Path) -> list[RecordedExchange]:
    """Returns the exchanges of a file, each once, in its order: one of our own, or those of an AKG cache file.

    Raises:
        OpAtlasError: the file cannot be read, or holds no exchange.
    """
    text = _read(path)
    try:
        return [decode(text, RecordedExchange, str(path))]
    except DecodeError as error:
        entries = _akg_entries(text, path)
        if entries is None:
            raise OpAtlasError(f"{error}: remove the file, or record the answer again") from None
    exchanges: dict[str, RecordedExchange] = {}
    for entry in entries:
        if entry.messages and entry.result is not None:
            result, usage = entry.result, entry.result.usage or _AkgUsage()
            answer = ChatAnswer(
                result.content or "", result.finish_reason or "", usage.prompt_tokens, usage.completion_tokens
            )
            parameters = {name: value for name, value in entry.params.items() if isinstance(value, (int, float))}
            exchange = RecordedExchange("", entry.messages, parameters, answer)
            exchanges.setdefault(exchange.key, exchange)
    if not exchanges:
        raise OpAtlasError(f"{path}: holds no exchange: remove the file")
    return list(exchanges.values())


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
        self._imported: dict[str, RecordedExchange] | None = None

    def find(self, request: ChatRequest) -> ChatAnswer | None:
        """Returns the recorded answer of a request; None if it is not recorded. Raises OpAtlasError."""
        key = request_key(request)
        path = self._folder / f"{key}.json"
        if path.exists():
            exchange = read_exchanges(path)[0]
            if exchange.key != key:
                raise OpAtlasError(f"{path}: its request was edited: rename it to {exchange.key}.json, or remove it")
            return exchange.answer
        written = self._folder / model_folder(request.model) / f"{request.name}.md"
        if request.name and written.is_file():
            return ChatAnswer(_read(written).decode("utf-8-sig", "replace"))
        found = self._other_files().get(_key("", request.messages, request.parameters, ""))
        return found.answer if found is not None else None

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
                f"{self._folder} has no answer of {request.model} to {request.name or 'request'} "
                f"({request_key(request)}): "
                "give the model an endpoint in the file of --models, or choose tasks that are recorded"
            )
        answer = self._endpoint.ask(request)
        self.record(request, answer)
        return answer

    def record(self, request: ChatRequest, answer: ChatAnswer) -> Path:
        """Writes an exchange in one step, and returns its file. Raises OpAtlasError."""
        exchange = RecordedExchange(
            request.model, request.messages, request.parameters, answer, request.name, request.varying
        )
        path = self._folder / f"{exchange.key}.json"
        write_text(path, json.dumps(asdict(exchange), indent=1, ensure_ascii=False) + "\n")
        return path

    def _other_files(self) -> Mapping[str, RecordedExchange]:
        """Returns the exchanges of files of AKG's agents, by key."""
        if self._imported is None:
            files = sorted(self._folder.glob("*.json")) if self._folder.is_dir() else []
            others = [path for path in files if len(path.stem) != _KEY_DIGITS]
            self._imported = {exchange.key: exchange for path in others for exchange in read_exchanges(path)}
        return self._imported


def _read(path: Path) -> bytes:
    try:
        return read_safely(path, _MOST_BYTES)
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror}): check the path") from None


def _akg_entries(text: bytes, path: Path) -> Iterator[_AkgEntry] | None:
    """Returns the entries of an AKG cache file; None for any other text."""
    try:
        values = decode(text, dict[str, dict[str, Any]], str(path))
        entries = [
            decode(json.dumps(value), _AkgEntry, f"{path}: {name}")
            for name, value in values.items()
            if "messages" in value
        ]
    except DecodeError:
        return None
    return iter(entries) if entries else None


def _key(model: str, messages: tuple[ChatMessage, ...], parameters: Mapping[str, float], varying: str) -> str:
    # A number is the same number in the file of another program, which may write 1 for 1.0.
    numbers = {name: float(number) for name, number in parameters.items()}
    fixed = [asdict(message) for message in messages]
    if varying:
        fixed = [{**each, "content": each["content"].replace(varying, "")} for each in fixed]
    request = {"model": model, "messages": fixed, "parameters": numbers}
    canonical = json.dumps(request, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
