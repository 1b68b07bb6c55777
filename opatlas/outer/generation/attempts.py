"""The attempts of models at tasks: the loop that asks for a kernel and for repairs, and its file.

Each attempt is a line of `attempts.jsonl` as soon as it is judged.

Several processes of a session share the file. A line is written in one step under a lock, and synced to disk.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Protocol

import msgspec

from opatlas.data.csv_files import write_text
from opatlas.data.journal import write_whole
from opatlas.errors import OpAtlasError
from opatlas.files import open_safely, safe_file
from opatlas.outer.judging.judgement import ErrorClass, Judgement
from opatlas.text import Word, cut_middle
from opatlas.typed_json import Count, DecodeError, decode, json_line

from .endpoint import ChatAnswer, ChatMessage, ChatModel, ChatRequest, NoRecordedAnswer
from .models_file import ModelsFile, cost_of
from .prompt import error_text, read_answer, without_places

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
        model: the name of the model; that of the route for a model that a route chose.
        number: 0 for the first answer, then one more for each repair.
        judgement: what was found of the candidate, or of an answer without one.
        generation_s: seconds until the answer was there.
        run_s: seconds to judge it.
        tokens_in, tokens_out: tokens of the request and of the answer.
        tokens_estimated: whether the endpoint gave no tokens, and they are characters / 4.
        cost_usd: the price of the exchange in US dollars.
        candidate: path of the judged file, relative to the folder; "" if the answer held no code.
        task_digest: stands for the content of the task's file; a changed task is begun anew.
        asked: the model that a route chose; "" without a route.
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
    asked: str = ""

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
        torn: whether the last line that was read has no end, as a killed session leaves it. It does not count.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / ATTEMPTS
        self.torn = False

    def all(self) -> list[ModelAttempt]:
        """Returns all attempts in their order.

        Raises:
            OpAtlasError: the file cannot be read, or a line of it is no attempt: the error names line and field.
        """
        try:
            with open_safely(self.path) as file:
                *lines, rest = file.read().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise OpAtlasError(f"{self.path}: cannot be read ({error.strerror}): check its permissions") from None
        self.torn = bool(rest.strip())
        attempts = []
        for number, line in enumerate(lines, 1):
            place = f"{self.path}:{number}"
            try:
                attempts += [decode(line, ModelAttempt, place)] if line.strip() else []
            except DecodeError as error:
                raise DecodeError(place, f"{error.problem}: delete the line, or move the folder away") from None
        return attempts

    def attempts(self, task_set: str, task: str, model: str) -> list[ModelAttempt]:
        """Returns the attempts of a model at a task, in their order. Raises OpAtlasError as `all` does."""
        wanted = (task_set, task, model)
        return [each for each in self.all() if (each.task_set, each.task, each.model) == wanted]

    def append(self, attempt: ModelAttempt) -> None:
        """Adds a line, and returns once it is on the disk. Raises OpAtlasError if it cannot be written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(safe_file(self.path), "a+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(0)
                whole = file.read().rfind(b"\n") + 1
                # A killed process left a part of a line, whose attempt is made again.
                file.truncate(whole)
                try:
                    write_whole(file, attempt_line(attempt).encode())
                except OSError:
                    file.truncate(whole)
                    raise
                os.fsync(file.fileno())
        except OSError as error:
            raise OpAtlasError(
                f"{self.path} was not written ({error.strerror}): make room, or name another folder"
            ) from None


#: The number of attempts in a row with the same failure (class and text) that ends a loop.
_SAME_FAILURES = 3
#: Judges the candidate in a file.
Judge = Callable[[Path], Judgement]
#: The longest text of an error in the file of attempts.
_MOST_TEXT = 16_000
_CANDIDATE = re.compile(r"\b\d+\.py\b")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\b(?:nan|inf)\b")


class LoopPrompts(Protocol):
    """Writes the messages about one subject."""

    def first(self) -> tuple[ChatMessage, ...]:
        """Returns the messages that ask for the kernel."""
        ...

    def repair(self, number: int, code: str, judgement: Judgement) -> tuple[ChatMessage, ...]:
        """Returns the messages that ask for a repair of `code` ("" for none), after `number` attempts."""
        ...


class StopReason(Word):
    """Why a loop has ended."""

    PASSED = "passed"
    ATTEMPTS = "the last attempt failed"
    SAME_FAILURE = "the last attempts failed in the same way"
    COST = "the cost limit is reached"
    NO_ANSWER = "no answer to the next question is recorded"


@dataclass(frozen=True)
class LoopTask:
    """A task and the model that is asked.

    Attributes:
        task_set: the set that the task belongs to.
        task: the name of the task.
        complexity: the class of the task, C1 to C4.
        model: the name of the model, or of the route.
        folder: the folder of the model's candidates, below that of the run.
        digest: stands for the content of the task. Attempts at another content do not count.
        asked: the model that the route chose; "" without a route. Attempts of another one do not count.
        defines: the class or function that a candidate has.
    """

    task_set: str
    task: str
    complexity: str
    model: str
    folder: Path
    digest: str = ""
    asked: str = ""
    defines: str = "ModelNew"


class RepairLoop:
    """The attempts of one model at one task.

    Attempts of a former session count: they are neither asked for nor judged again.
    """

    def __init__(self, task: LoopTask, prompts: LoopPrompts, log: AttemptLog, file: ModelsFile) -> None:
        """Reads the attempts of former sessions; `file` has prices and limits.

        Raises:
            OpAtlasError: the file of attempts cannot be read.
            OSError: a candidate of it cannot be read.
        """
        self.task = task
        self._prompts, self._log, self._file = prompts, log, file
        made = log.attempts(task.task_set, task.task, task.model)
        self._attempts = [each for each in made if (each.task_digest, each.asked) == (task.digest, task.asked)]
        #: The number of attempts at other contents of the task or by other models, whose candidates stay.
        self._others = len(made) - len(self._attempts)
        self._code = self.last_candidate.read_text("utf-8-sig") if self.last_candidate is not None else ""

    @property
    def attempts(self) -> Sequence[ModelAttempt]:
        """The attempts so far."""
        return self._attempts

    @property
    def last_candidate(self) -> Path | None:
        """The file of the candidate that was judged last; None if no answer held code."""
        made = [attempt.candidate for attempt in self._attempts if attempt.candidate]
        return self._log.path.parent / made[-1] if made else None

    def stop_reason(self) -> StopReason | None:
        """Returns why no further attempt is made; None: the next one may be. Raises OpAtlasError."""
        last = self._attempts[-_SAME_FAILURES:]
        if last and last[-1].passed:
            return StopReason.PASSED
        if len(last) == _SAME_FAILURES and len({_failure(attempt) for attempt in last}) == 1:
            return StopReason.SAME_FAILURE
        if len(self._attempts) >= self._file.attempts:
            return StopReason.ATTEMPTS
        limit = self._file.cost_limit
        if limit is not None and sum(each.cost_usd for each in self._log.all()) >= limit:
            return StopReason.COST
        return None

    def run(self, model: ChatModel, judge: Judge) -> StopReason:
        """Makes attempts until there is a reason to stop, and returns the reason.

        Raises:
            OpAtlasError: an endpoint gives no answer, or a file cannot be written. The attempts so far are recorded.
        """
        while (reason := self.stop_reason()) is None:
            request = self.request()
            try:
                answer = model.ask(request)
            except NoRecordedAnswer:
                return StopReason.NO_ANSWER
            self.take(request, answer, judge)
        return reason

    def request(self) -> ChatRequest:
        """Returns the question of the next attempt."""
        task, number, last = self.task, len(self._attempts), self._attempts[-1:]
        messages = self._prompts.repair(number, self._code, last[0].judgement) if last else self._prompts.first()
        model = task.asked or task.model
        return ChatRequest(
            model,
            messages,
            max_tokens=self._file.models[model].max_tokens,
            name=f"{task.task_set}/{task.task}/{number}",
            # Inputs are drawn anew in each run, so that the numbers in an error differ.
            varying=error_text(last[0].judgement) if last else "",
        )

    def take(self, request: ChatRequest, answer: ChatAnswer, judge: Judge) -> ModelAttempt:
        """Judges an answer, and records the attempt.

        Raises:
            OpAtlasError: a file cannot be written.
        """
        task, run_folder = self.task, self._log.path.parent
        start, candidate = time.monotonic(), ""
        judged = read_answer(answer.text, self._code or None, task.defines)
        if isinstance(judged, str):
            path = task.folder / task.task_set / task.task / f"{self._others + len(self._attempts)}.py"
            write_text(path, judged)
            candidate, self._code = path.relative_to(run_folder).as_posix(), judged
            judged = judge(path)
        elif answer.finish_reason == "length":
            judged = replace(judged, text=f"{judged.text} (it reached max_tokens)")
        if judged.max_error is not None and not math.isfinite(judged.max_error):
            judged = replace(judged, max_error=None)
        attempt = ModelAttempt(
            task.task,
            task.task_set,
            task.complexity,
            task.model,
            len(self._attempts),
            replace(judged, text=cut_middle(judged.text, _MOST_TEXT)),
            answer.seconds,
            time.monotonic() - start,
            **cost_of(self._file.prices(), request, answer),
            candidate=candidate,
            task_digest=task.digest,
            asked=task.asked,
        )
        self._log.append(attempt)
        self._attempts.append(attempt)
        return attempt


def _failure(attempt: ModelAttempt) -> tuple[str, str]:
    """Returns class and text of a failure, without file names and, for wrong results, without numbers."""
    judgement = attempt.judgement
    text = _CANDIDATE.sub("", without_places(judgement.text))
    if judgement.error_class in (ErrorClass.MISMATCH, ErrorClass.UNSTABLE):
        text = _NUMBER.sub("", text)
    return judgement.name, text
