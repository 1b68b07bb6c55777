"""Writes the messages that ask a model for a kernel, or for a repair, and reads the code out of its answer.

Equal arguments give equal messages.

A message tells the name and the peaks of the device, and nothing else of the machine: `without_places` removes paths
and addresses from the text of errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from opatlas.outer.judging.judgement import ErrorClass, Judgement
from opatlas.row.roofline import device_peak
from opatlas.text import cut_middle

from .endpoint import ChatMessage
from .models_file import KernelLanguage

#: The longest text of an error that is sent.
MOST_ERROR_CHARACTERS = 4_000
_TEXTS = Path(__file__).with_name("prompts.yaml")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{4,}\b")
#: The folders of an absolute path: of one in quotes, which may hold blanks, and of any other.
_FOLDERS = re.compile(
    r"""(?<=["'])/[^"'\n]*/(?=[^"'/\n]+["'])|(?<![\w.:/])(?:/[^\s/'"<>:,;()\[\]]+)*/(?=[^\s/'"<>:,;()\[\]])"""
)


@dataclass(frozen=True)
class Prompts:
    """Writes the messages about one task, or about one operator.

    Attributes:
        task: the name of the task ("level1/19_ReLU").
        source: the text of its file, or what an operator computes, with some of its calls.
        device: the name of the device that the kernel is for ("NVIDIA_H100_80GB_HBM3"); "" if it has none.
        kind: the kind of the device.
        language: what the kernel is to be written in.
        attempts: the number of attempts that the model has.
        function: the function that computes an operator; "" for a task, which is a class.
    """

    task: str
    source: str
    device: str
    kind: str
    language: KernelLanguage
    attempts: int
    function: str = ""

    def first(self) -> tuple[ChatMessage, ...]:
        """Returns the messages that ask for the kernel."""
        return self._messages(_texts().answer_with_code)

    def repair(self, number: int, code: str, judgement: Judgement) -> tuple[ChatMessage, ...]:
        """Returns the messages that ask for a repair.

        Args:
            number: the number of attempts so far, 1 or more.
            code: the candidate that was judged last; "" if no answer held code.
            judgement: the judgement of the last attempt.
        """
        texts = _texts()
        told = f"{judgement.error_class}{f' ({judgement.sub_class})' if judgement.sub_class else ''}"
        error = error_text(judgement)
        parts = [f"This is attempt {number + 1} of {self.attempts}. The last one failed."]
        if code:
            parts.append(f"Your code:\n```python\n{code.rstrip()}\n```")
        parts.append(f"What was wrong: {told}\n```text\n{error}\n```")
        parts.append(texts.advice_for(judgement))
        parts.append(texts.answer_with_modifications if code else texts.answer_with_code)
        return self._messages("\n\n".join(parts))

    def _hardware(self) -> list[str]:
        """Returns the name and kind of the device, and its peaks if they are known."""
        peak = device_peak(self.device)
        lines = [f"- device: {self.device.replace('_', ' ') or 'unnamed'} ({self.kind})"]
        if peak.bandwidth_gbps is not None:
            lines.append(f"- memory bandwidth: {peak.bandwidth_gbps:,.0f} GB/s")
        rates = sorted(peak.tera_ops.items())
        return lines + [f"- dense matrix products, {dtype}: {rate:,.1f} TFLOPS" for dtype, rate in rates]

    def _messages(self, last: str) -> tuple[ChatMessage, ...]:
        texts = _texts()
        of = texts.operator if self.function else texts.task
        parts = [
            of["request"].format(language=texts.languages[self.language]["name"], function=self.function).rstrip(),
            f"{of['subject']} {self.task}:\n```python\n{self.source.rstrip()}\n```",
            "\n".join(["Hardware:", *self._hardware()]),
            f"Rules:\n{of['rules'].rstrip()}\n{texts.rules.rstrip()}\n{texts.languages[self.language]['rules'].rstrip()}",
            last.rstrip(),
        ]
        return ChatMessage("system", texts.system.rstrip()), ChatMessage("user", "\n\n".join(parts) + "\n")


@dataclass(frozen=True)
class _Texts:
    """The sentences of prompts, from `prompts.yaml`."""

    system: str
    task: Mapping[str, str]
    operator: Mapping[str, str]
    rules: str
    answer_with_code: str
    answer_with_modifications: str
    languages: Mapping[str, Mapping[str, str]]
    advice: Mapping[str, str]

    def advice_for(self, judgement: Judgement) -> str:
        """Returns the advice for a class, and for its part if there is one."""
        own = self.advice.get(f"{judgement.error_class} {judgement.sub_class}")
        return (own or self.advice[judgement.error_class]).strip()


def error_text(judgement: Judgement) -> str:
    """Returns the text of an error as a message has it."""
    return cut_middle(without_places(judgement.text).strip(), MOST_ERROR_CHARACTERS) or "no message"


def without_places(text: str) -> str:
    """Returns a text without what differs between machines: the folders of files, and addresses of memory."""
    return _ADDRESS.sub("0x...", _FOLDERS.sub("", text))


@cache
def _texts() -> _Texts:
    return msgspec.yaml.decode(_TEXTS.read_bytes(), type=_Texts)


#: The parts of an answer: code blocks, or modifications of the former code. Modifications are a JSON object, in a
#: block or by itself:
#:
#: {"modifications": [{"old_string": "BLOCK = 1024", "new_string": "BLOCK = 256"}]}
#:
#: Further keys are allowed. They are applied one after the other, each to the result of the one before.
_FENCE = re.compile(r"^[ \t]*(`{3,})[ \t]*([\w+-]*)[^\n`]*$", re.MULTILINE)
_THOUGHTS = re.compile(r"<think>.*?</think>", re.DOTALL)
_PYTHON = ("", "python", "py", "python3", "triton")


class _Modification(msgspec.Struct):
    old_string: str
    new_string: str


class _Modifications(msgspec.Struct):
    modifications: list[_Modification]


class _Block(NamedTuple):
    """A fenced block of an answer; one that does not end was cut."""

    language: str
    body: str
    ends: bool


class _Refused(Exception):
    """The answer holds no code that can be judged: the sub-class, and why."""


def read_answer(text: str, former_source: str | None = None, name: str = "ModelNew") -> str | Judgement:
    """Returns the source of the candidate that an answer holds, or a judgement of class `answer`.

    Of several code blocks it is the one that defines `name`. Thoughts between <think> and </think> are left out.

    Args:
        text: the answer.
        former_source: the code that modifications change; None for a first answer.
        name: the class or function that a candidate has.
    """
    text = _THOUGHTS.sub("", text)
    blocks = list(_blocks(text))
    try:
        changes = _modifications(text, blocks)
        found = _code(blocks, name) if changes is None else _modified(former_source, changes)
    except _Refused as error:
        sub_class, why = error.args
        return Judgement(ErrorClass.ANSWER, sub_class, None, why)
    # A lone surrogate, which JSON can have, cannot be written to a file.
    return found.encode("utf-8", "replace").decode("utf-8")


def _blocks(text: str) -> Iterator[_Block]:
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif not fence[2] and len(fence[1]) >= len(opened[1]):
            yield _Block(opened[2].lower(), text[opened.end() + 1 : fence.start()], True)
            opened = None
    if opened is not None:
        yield _Block(opened[2].lower(), text[opened.end() + 1 :], False)


def _code(blocks: Sequence[_Block], name: str) -> str:
    sources = {block.body: block.ends for block in blocks if block.language in _PYTHON and block.body.strip()}
    if not sources:
        raise _Refused("no_code", "the answer holds neither a code block nor modifications")
    if len(sources) > 1:
        defining = [
            each for each in sources if re.search(rf"^(?:(?:class|def) {name}\b|{name}\s*=)", each, re.MULTILINE)
        ]
        if len(defining) != 1:
            why = f"{len(sources)} code blocks, of which {len(defining)} define {name}: one has to"
            raise _Refused("several_blocks", why)
        sources = {defining[0]: sources[defining[0]]}
    [(source, ends)] = sources.items()
    if not ends:
        raise _Refused("cut", "the code block does not end: the answer was cut")
    return source


def _modifications(text: str, blocks: Sequence[_Block]) -> list[_Modification] | None:
    """Returns the modifications in an answer; None if it holds none."""
    places = [block.body for block in blocks if block.language in ("json", "")]
    if not any(block.language in _PYTHON for block in blocks):
        places.append(text)
    for place in places:
        start = re.search(r'\{\s*"', place)
        if start is None or '"modifications"' not in place:
            continue
        try:
            content, _ = json.JSONDecoder(strict=False).raw_decode(place, start.start())
            changes = msgspec.convert(content, _Modifications).modifications
        except (ValueError, RecursionError) as error:
            raise _Refused("malformed", f"the modifications cannot be read: {error}") from None
        if not changes:
            raise _Refused("malformed", "the list of modifications is empty")
        for number, change in enumerate(changes, 1):
            if not change.old_string.strip() or change.old_string == change.new_string:
                raise _Refused("no_change", f"modification {number}: old_string is empty, or equals new_string")
        return changes
    return None


def _modified(source: str | None, changes: Sequence[_Modification]) -> str:
    if source is None:
        raise _Refused("nothing_to_modify", "the answer holds modifications, and there is no former code")
    for number, change in enumerate(changes, 1):
        old = change.old_string
        if (count := len(re.findall(f"(?={re.escape(old)})", source))) != 1:
            times = f"occurs {count} times" if count else "does not occur"
            why = f"modification {number}: {times} in the code: {old[:200]!r}"
            raise _Refused("ambiguous" if count else "not_found", why)
        source = source.replace(old, change.new_string)
    return source
