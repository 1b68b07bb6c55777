"""The attempts of models at tasks on disk: each is a line of `attempts.jsonl` as soon as it is judged.

Several processes of a session share the file. A line is written in one step under a lock, and synced to disk.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from opatlas.errors import OpAtlasError
from opatlas.files import open_safely, safe_file
from opatlas.outer.judging.judgement import Judgement
from opatlas.typed_json import Count, DecodeError, decode, json_line

#: The name of the file in the folder of a run.
ATTEMPTS = "attempts.jsonl"
_BLOCK_BYTES = 1 << 16
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


class AttemptLog:
    """The file of attempts in the folder of a run. Attempts of former sessions and of other processes are in it.

    Attributes:
        path: the file; it need not exist.
        torn: whether the last line that was read is cut off, as a killed session leaves it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / ATTEMPTS
        self.torn = False
        self._read_bytes = self._lines = 0
        self._attempts: list[ModelAttempt] = []

    def all(self) -> Sequence[ModelAttempt]:
        """Returns all attempts in their order; a last line without an end counts where it is whole.

        Raises:
            OpAtlasError: the file cannot be read, or a line of it is no attempt: the error names line and field.
        """
        rest = self._read()
        try:
            last = [self._decoded(rest, self._lines + 1)] if rest.strip() else []
        except DecodeError:
            last = []
        self.torn = bool(rest.strip()) and not last
        return [*self._attempts, *last]

    def _read(self) -> bytes:
        """Reads the lines that were added since the last call, and returns the beginning of one without an end."""
        try:
            with open_safely(self.path) as file:
                file.seek(self._read_bytes)
                *lines, rest = file.read().split(b"\n")
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise OpAtlasError(f"{self.path}: cannot be read ({error.strerror}): check its permissions") from None
        for line in lines:
            self._lines += 1
            if line.strip():
                self._attempts.append(self._decoded(line, self._lines))
            self._read_bytes += len(line) + 1
        return rest

    def _decoded(self, line: bytes, number: int) -> ModelAttempt:
        place = f"{self.path}:{number}"
        try:
            return decode(line, ModelAttempt, place)
        except DecodeError as error:
            raise DecodeError(place, f"{error.problem}: delete the line, or move the folder away") from None

    def attempts(self, task_set: str, task: str, model: str) -> list[ModelAttempt]:
        """Returns the attempts of a model at a task, in their order. Raises OpAtlasError as `all` does."""
        self._read()
        wanted = (task_set, task, model)
        return [each for each in self._attempts if (each.task_set, each.task, each.model) == wanted]

    def tasks_of(self, model: str) -> list[list[ModelAttempt]]:
        """Returns the attempts of a model at each task. Raises OpAtlasError as `all` does."""
        self._read()
        found: dict[tuple[str, str], list[ModelAttempt]] = {}
        for each in self._attempts:
            if each.model == model:
                found.setdefault((each.task_set, each.task), []).append(each)
        return list(found.values())

    def cost_usd(self) -> float:
        """Returns what all attempts of the run cost. Raises OpAtlasError as `all` does."""
        self._read()
        return sum(attempt.cost_usd for attempt in self._attempts)

    def append(self, attempt: ModelAttempt) -> None:
        """Adds a line, and returns once it is on the disk. Raises OpAtlasError if it cannot be written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(safe_file(self.path), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                whole = _end_of_lines(file)
                # A killed process left a part of a line, whose attempt is made again.
                os.ftruncate(file, whole)
                try:
                    rest = memoryview(attempt_line(attempt).encode())
                    while rest:
                        rest = rest[os.write(file, rest) :]
                except OSError:
                    os.ftruncate(file, whole)
                    raise
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise OpAtlasError(
                f"{self.path} was not written ({error.strerror}): make room, or name another folder"
            ) from None


def _end_of_lines(file: int) -> int:
    """Returns the number of bytes up to the end of the last whole line."""
    end = os.fstat(file).st_size
    while end > 0:
        start = max(end - _BLOCK_BYTES, 0)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
