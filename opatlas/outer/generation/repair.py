"""The loop that asks a model for a kernel and for repairs, until the kernel passes or a limit is reached."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opatlas.data.csv_files import write_text
from opatlas.outer.judging.answer import read_answer
from opatlas.outer.judging.judgement import ErrorClass, Judgement
from opatlas.text import Word, cut_middle

from .answers import ChatModel, NoRecordedAnswer
from .attempts import AttemptLog, ModelAttempt
from .endpoint import ChatAnswer, ChatRequest
from .models_file import LoopLimits, Price, cost_of
from .prompt import Prompts, error_text, without_places

#: Judges the candidate in a file.
Judge = Callable[[Path], Judgement]
#: The longest text of an error in the file of attempts.
_MOST_TEXT = 16_000
_CANDIDATE = re.compile(r"\b\d+\.py\b")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\b(?:nan|inf)\b")


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
        model: the name of the model.
        folder: the folder of the model's candidates, below that of the run.
        digest: stands for the content of the task. Attempts at another content do not count.
    """

    task_set: str
    task: str
    complexity: str
    model: str
    folder: Path
    digest: str = ""


class RepairLoop:
    """The attempts of one model at one task.

    Attempts of a former session count: they are neither asked for nor judged again.
    """

    def __init__(
        self,
        task: LoopTask,
        prompts: Prompts,
        log: AttemptLog,
        prices: Mapping[str, Price],
        limits: LoopLimits,
    ) -> None:
        """Reads the attempts of former sessions.

        Raises:
            OpAtlasError: the file of attempts cannot be read.
            OSError: a candidate of it cannot be read.
        """
        self.task = task
        self._prompts, self._log, self._prices, self._limits = prompts, log, prices, limits
        made = log.attempts(task.task_set, task.task, task.model)
        self._attempts = [attempt for attempt in made if attempt.task_digest == task.digest]
        #: The number of attempts at other contents of the task, whose candidates stay.
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
        limits = self._limits
        last = self._attempts[-limits.same_failures :]
        if last and last[-1].passed:
            return StopReason.PASSED
        if len(last) == limits.same_failures and len({_failure(attempt) for attempt in last}) == 1:
            return StopReason.SAME_FAILURE
        if len(self._attempts) >= limits.attempts:
            return StopReason.ATTEMPTS
        if limits.cost_usd is not None and self._log.cost_usd() >= limits.cost_usd:
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
        number, limits = len(self._attempts), self._limits
        name = f"{self.task.task_set}/{self.task.task}/{number}"
        if not number:
            return ChatRequest(self.task.model, self._prompts.first(), max_tokens=limits.max_tokens, name=name)
        judgement = self._attempts[-1].judgement
        messages = self._prompts.repair(number, self._code, judgement)
        # Inputs are drawn anew in each run, so that the numbers in an error differ.
        return ChatRequest(
            self.task.model, messages, max_tokens=limits.max_tokens, name=name, varying=error_text(judgement)
        )

    def take(self, request: ChatRequest, answer: ChatAnswer, judge: Judge) -> ModelAttempt:
        """Judges an answer, and records the attempt.

        Raises:
            OpAtlasError: a file cannot be written.
        """
        start, path = time.monotonic(), None
        read = read_answer(answer.text, self._code or None)
        if isinstance(read, Judgement):
            judgement = read
            if answer.finish_reason == "length":
                judgement = replace(read, text=f"{read.text} (it reached max_tokens)")
        else:
            path = self.task.folder / self.task.task_set / self.task.task / f"{self._others + len(self._attempts)}.py"
            write_text(path, read)
            self._code = read
            judgement = judge(path)
        return self._record(request, answer, judgement, path, time.monotonic() - start)

    def _record(
        self, request: ChatRequest, answer: ChatAnswer, judgement: Judgement, path: Path | None, run_s: float
    ) -> ModelAttempt:
        cost = cost_of(self._prices, request, answer)
        max_error = judgement.max_error
        is_finite = max_error is not None and math.isfinite(max_error)
        attempt = ModelAttempt(
            self.task.task,
            self.task.task_set,
            self.task.complexity,
            self.task.model,
            len(self._attempts),
            replace(judgement, text=cut_middle(judgement.text, _MOST_TEXT), max_error=max_error if is_finite else None),
            answer.seconds,
            run_s,
            cost.tokens_in,
            cost.tokens_out,
            cost.estimated,
            cost.usd,
            path.relative_to(self._log.path.parent).as_posix() if path is not None else "",
            self.task.digest,
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
