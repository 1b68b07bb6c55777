"""The record of one attempt of a model at a task: a line of `attempts.jsonl`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from opatlas.errors import OpAtlasError
from opatlas.files import open_safely
from opatlas.outer.judging.judgement import Judgement
from opatlas.typed_json import Count, DecodeError, decode, json_line

#: The name of the file in the folder of a run.
ATTEMPTS = "attempts.jsonl"

#: Seconds and dollars in a file. Their sums are finite.
_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


@dataclass(frozen=True)
class ModelAttempt:
    """One attempt of a model at a task.

    Attributes:
        task: the name of the task ("level1/19_ReLU").
        task_set: the set that the task belongs to ("kernelbench").
        complexity: the class of the task, C1 to C4.
        model: the name of the model.
        number: 0 for the first answer, then one more for each repair.
        judgement: what was found of the candidate, or of an answer without one.
        generation_s: seconds until the answer was there.
        run_s: seconds to judge it.
        tokens_in, tokens_out: tokens of the request and of the answer.
        tokens_estimated: whether the endpoint gave no tokens, and they are characters / 4.
        cost_usd: the price of the exchange in US dollars.
        candidate: path of the judged file, relative to the folder; "" if the answer held no code.
        task_digest: stands for the content of the task's file; a changed task is begun anew.
    """

    task: str
    task_set: str
    complexity: str
    model: str
    number: Count
    judgement: Judgement
    generation_s: _Amount = 0.0
    run_s: _Amount = 0.0
    tokens_in: Count = 0
    tokens_out: Count = 0
    tokens_estimated: bool = False
    cost_usd: _Amount = 0.0
    candidate: str = ""
    task_digest: str = ""

    @property
    def passed(self) -> bool:
        """Whether the candidate is right and was measured."""
        return self.judgement.passed


def attempt_line(attempt: ModelAttempt) -> str:
    """Returns the line of an attempt, which ends with a newline."""
    return json_line(asdict(attempt)) + "\n"


@dataclass(frozen=True)
class AttemptsFile:
    """What a file of attempts holds.

    Attributes:
        attempts: in their order.
        torn: whether the last line is cut off, as a killed session leaves it.
    """

    attempts: tuple[ModelAttempt, ...]
    torn: bool


def decode_attempt(line: bytes, place: str) -> ModelAttempt:
    """Returns the attempt in a line of the file. Raises DecodeError."""
    try:
        return decode(line, ModelAttempt, place)
    except DecodeError as error:
        raise DecodeError(place, f"{error.problem}: delete the line, or move the folder away") from None


def read_attempts(path: Path) -> AttemptsFile:
    """Reads a file of attempts.

    Raises:
        OpAtlasError: the file cannot be read.
        DecodeError: a line is no attempt. The error names the file, the line and the field.
    """
    try:
        with open_safely(path) as file:
            *lines, rest = file.read().split(b"\n")
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror}): check its permissions") from None
    found = [decode_attempt(line, f"{path}:{at}") for at, line in enumerate(lines, 1) if line.strip()]
    if not rest.strip():
        return AttemptsFile(tuple(found), torn=False)
    try:
        return AttemptsFile((*found, decode_attempt(rest, f"{path}:{len(lines) + 1}")), torn=False)
    except DecodeError:
        return AttemptsFile(tuple(found), torn=True)
