"""Writes the messages that ask a model for a kernel, or for a repair. Equal arguments give equal messages.

A message tells the name and the peaks of the device, and nothing else of the machine: `without_places` removes paths
and addresses from the text of errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from opatlas.outer.judging.judgement import Judgement
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
    """Writes the messages about one task.

    Attributes:
        task: the name of the task ("level1/19_ReLU").
        source: the text of its file.
        device: the name of the device that the kernel is for ("NVIDIA_H100_80GB_HBM3"); "" if it has none.
        kind: the kind of the device.
        language: what the kernel is to be written in.
        attempts: the number of attempts that the model has.
    """

    task: str
    source: str
    device: str
    kind: str
    language: KernelLanguage
    attempts: int

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
        parts = [
            texts.request.format(language=texts.languages[self.language]["name"]),
            f"Task {self.task}:\n```python\n{self.source.rstrip()}\n```",
            "\n".join(["Hardware:", *self._hardware()]),
            f"Rules:\n{texts.rules.rstrip()}\n{texts.languages[self.language]['rules'].rstrip()}",
            last.rstrip(),
        ]
        return ChatMessage("system", texts.system.rstrip()), ChatMessage("user", "\n\n".join(parts) + "\n")


@dataclass(frozen=True)
class _Texts:
    """The sentences of prompts, from `prompts.yaml`."""

    system: str
    request: str
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
