"""Recorded exchanges with models: a folder of files, from which requests are answered without an endpoint.

{sha256}.json                   an exchange. The digest is that of model, messages and parameters, so an equal request
                                has the recorded answer, whoever recorded it. What varies between runs does not count
{model}/{set}/{task}/{n}.md     the answer to attempt n at a task, as a person wrote it or copied it from a chat
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from opatlas.data.csv_files import write_text
from opatlas.errors import OpAtlasError
from opatlas.files import read_safely
from opatlas.typed_json import DecodeError, decode

from .endpoint import ChatAnswer, ChatMessage, ChatRequest

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
    """A request and its answer: the content of a file.

    Attributes:
        model: the name of the model.
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


def request_key(request: ChatRequest) -> str:
    """Returns the sha256 of a request, in hexadecimal digits."""
    return _key(request.model, request.messages, request.parameters, request.varying)


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
        key = request_key(request)
        path = self._folder / f"{key}.json"
        if path.exists():
            exchange = read_exchange(path)
            if exchange.key != key:
                raise OpAtlasError(f"{path}: its request was edited: rename it to {exchange.key}.json, or remove it")
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


def _read(path: Path) -> bytes:
    try:
        return read_safely(path, _MOST_BYTES)
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror}): check the path") from None


def _key(model: str, messages: tuple[ChatMessage, ...], parameters: Mapping[str, float], varying: str) -> str:
    # A number is the same number in the file of another program, which may write 1 for 1.0.
    numbers = {name: float(number) for name, number in parameters.items()}
    fixed = [asdict(message) for message in messages]
    if varying:
        fixed = [{**each, "content": each["content"].replace(varying, "")} for each in fixed]
    request = {"model": model, "messages": fixed, "parameters": numbers}
    canonical = json.dumps(request, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
