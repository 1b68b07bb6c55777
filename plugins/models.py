"""Models of --models: their implementations, and the loop of attempts in place of a row's only run."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from opatlas.errors import OpAtlasError
from opatlas.outer.candidates.complexity import complexity_of_task
from opatlas.outer.candidates.judgement import ErrorClass, Judgement
from opatlas.outer.experiment.attempts import ModelAttempt
from opatlas.outer.generation.answers import RecordedAnswers
from opatlas.outer.generation.attempt_log import AttemptLog
from opatlas.outer.generation.endpoint import ChatAnswer, ChatRequest, Endpoint, EndpointError
from opatlas.outer.generation.models_file import NamedModel
from opatlas.outer.generation.prompt import Hardware, Prompts, TaskText
from opatlas.outer.generation.repair import LoopTask, RepairLoop, StopReason
from opatlas.outer.tasks.candidate_files import candidate_function
from opatlas.outer.tasks.task import MODEL_NEW, Task
from opatlas.row.location import implementation_label
from opatlas.row.status import Status
from opatlas.run.implementations.contract import KernelSource, content_digest
from opatlas.run.job import RowOutcome
from opatlas.show.result import Column, Table
from opatlas.text import first_line

from .cases import Case, row_of
from .model_options import ANSWERS, ModelSettings
from .session_context import SessionContext

#: Statuses of an endpoint that are about one request. Any other error would meet the next request, too.
_ABOUT_THE_REQUEST = frozenset({400, 413, 422})
#: The class of an attempt whose process ended before it was judged.
_CLASSES = {
    Status.FAILED: ErrorClass.RUNTIME,
    Status.CRASHED: ErrorClass.CRASH,
    Status.TIMEOUT: ErrorClass.TIMEOUT,
    Status.OOM: ErrorClass.OOM,
    Status.DEVICE_ERROR: ErrorClass.RUNTIME,
}
_MOST_SECTION = 2_000
#: The longest wait in which the session cannot be stopped, but for a request that is under way.
_AT_ONCE_S = 1.0


class ModelRuns:
    """Runs the loop of attempts for the rows of models, in one process of a session.

    Attributes:
        rules: the language whose static rules hold for candidates; "" for the rules of all languages.
    """

    def __init__(self, context: SessionContext) -> None:
        """Opens nothing yet. `context` is that of a session with --models."""
        settings = context.settings
        assert settings.models is not None
        self._context = context
        self._session, self._settings, self._folder = settings, settings.models, settings.models_folder
        self.rules = settings.models.language.of_rules
        self._hardware = Hardware(settings.devices[0].name, settings.devices[0].kind)
        file = settings.models.file
        self._log, self._prices = AttemptLog(self._folder), file.prices()
        self._answers = {
            name: RecordedAnswers(file.answers or self._folder / ANSWERS, self._endpoint(model))
            for name, model in file.models.items()
        }

    def _endpoint(self, model: NamedModel) -> Endpoint | None:
        if not model.endpoint:
            return None
        return Endpoint(
            model.endpoint,
            model.api_key_variable,
            sleep=self._wait,
            on_wait=lambda why, seconds: self._context.tell(f"the endpoint {why}: next try in {seconds:.0f} s"),
        )

    def writes(self, item: pytest.Item) -> bool:
        """Returns whether a model writes the candidate of a row."""
        row = row_of(item)
        return row is not None and self._name(row) in self._settings.models

    def run(self, item: pytest.Function, run: Callable[[pytest.Function, KernelSource], RowOutcome]) -> RowOutcome:
        """Returns the outcome of a row: that of the candidate that passed, or of the last attempt.

        A candidate is judged on all rows of its task, until one fails.

        Args:
            item: the test of the row, which gets a section for each attempt.
            run: runs a row with a candidate, and judges it.

        Raises:
            OpAtlasError: an endpoint gives no answer, or a file cannot be read or written.
        """
        row = row_of(item)
        assert row is not None
        name, task = self._name(row), self._session.workload.tasks[row.kernel_type]
        outcomes: dict[Path, RowOutcome] = {}

        def run_own(path: Path) -> RowOutcome:
            outcomes[path] = run(item, self._source(name, path))
            return outcomes[path]

        def judge(path: Path) -> Judgement:
            judgement = _judgement(run_own(path))
            for other in self._other_rows(item):
                if not judgement.passed:
                    break
                found = _judgement(run(other, self._source(name, path)))
                judgement = judgement if found.passed else found
            return judgement

        with self._alone(name, task):
            loop = self._loop(name, task)
            before = len(loop.attempts)
            try:
                reason = loop.run(self, judge)
            except _NotJudged as error:
                return error.outcome
        for attempt in loop.attempts[before:]:
            item.add_report_section("call", f"attempt {attempt.number}", _section(attempt))
        return _outcome(loop, reason, outcomes, run_own)

    def ask(self, request: ChatRequest) -> ChatAnswer:
        """Returns the answer to a request of a loop. Raises OpAtlasError, and _NotJudged if the session is to stop."""
        self._go_on()
        return self._answers[request.model].ask(request)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._go_on()
            time.sleep(min(left, _AT_ONCE_S))

    def _go_on(self) -> None:
        """Raises _NotJudged if the session is to stop: a row of a model may take an hour."""
        if reason := self._context.stop_reason:
            raise _NotJudged(RowOutcome(Status.SKIPPED, f"the next session goes on with it ({reason})"))

    def stops_session(self, error: OpAtlasError) -> bool:
        """Returns whether the next request of a session would meet the same error."""
        return not (isinstance(error, EndpointError) and error.status in _ABOUT_THE_REQUEST)

    def _name(self, row: Case) -> str:
        return self._session.targets[row.target].implementation.name

    def _source(self, name: str, path: Path) -> KernelSource:
        label = implementation_label(name, self._settings.language.value)
        function = candidate_function(path) or MODEL_NEW
        return KernelSource(label, "", str(path), function, digest=content_digest([path]))

    def _other_rows(self, item: pytest.Function) -> Iterator[pytest.Function]:
        """Yields the tests of the other rows of a task and a model: a task with several shapes has several."""
        row = row_of(item)
        assert row is not None
        for other in item.session.items:
            its = row_of(other)
            if its is None or other is item:
                continue
            if (its.kernel_type, its.target) == (row.kernel_type, row.target):
                yield cast("pytest.Function", other)

    def _loop(self, name: str, task: Task) -> RepairLoop:
        settings, source = self._settings, task.source
        model = settings.models[name]
        limits = settings.file.limits(model)
        prompts = Prompts(TaskText(task.full_name, source), self._hardware, settings.language, limits.attempts)
        subject = LoopTask(
            task.task_set,
            task.name,
            complexity_of_task(source, task.name),
            model,
            self._folder / name,
            task.digest,
        )
        return RepairLoop(subject, prompts, self._log, self._prices, limits)

    @contextmanager
    def _alone(self, name: str, task: Task) -> Iterator[None]:
        """Keeps other processes of the session out of the loop: several rows of a task share its attempts."""
        folder = self._folder / name / task.full_name
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


class _NotJudged(Exception):
    """A row that does not run, whatever the candidate. The attempt does not count, and its answer is recorded."""

    def __init__(self, outcome: RowOutcome) -> None:
        self.outcome = outcome
        super().__init__(outcome.explanation)


def _judgement(outcome: RowOutcome) -> Judgement:
    """Returns the judgement of a row that ran with a candidate. Raises _NotJudged for a row that cannot run."""
    if (judgement := Judgement.of(outcome)) is not None:
        return judgement
    if outcome.status not in _CLASSES:
        raise _NotJudged(outcome)
    return Judgement(_CLASSES[outcome.status], text=f"{outcome.explanation}\n{outcome.detail}".strip())


def _outcome(
    loop: RepairLoop, reason: StopReason, outcomes: Mapping[Path, RowOutcome], run: Callable[[Path], RowOutcome]
) -> RowOutcome:
    if not loop.attempts:
        return RowOutcome(Status.SKIPPED, f"no attempt: {reason}")
    last, path = loop.attempts[-1], loop.last_candidate
    if reason is StopReason.PASSED:
        assert path is not None
        return outcomes[path] if path in outcomes else run(path)
    if last.candidate and path is not None and path in outcomes:
        outcome = outcomes[path]
    else:
        judgement = last.judgement
        outcome = RowOutcome(Status.FAILED, f"{judgement.name}: {first_line(judgement.text)}", judged=judgement.judged)
    tried = f"stopped after attempt {last.number + 1}: {reason}"
    return replace(outcome, reason=f"{outcome.reason}; {tried}")


def _section(attempt: ModelAttempt) -> str:
    """Returns what JUnit and a failing test show of an attempt."""
    judgement = attempt.judgement
    level = f", passed {judgement.level}" if judgement.level is not None else ""
    spent = f"{attempt.tokens_in + attempt.tokens_out:,} tokens, ${attempt.cost_usd:.4f}"
    where = attempt.candidate or "no code"
    head = f"{judgement.error_class}{level}; {spent}, {attempt.generation_s:.1f} s + {attempt.run_s:.1f} s; {where}"
    return f"{head}\n{judgement.text[:_MOST_SECTION]}".rstrip()


def score_table(settings: ModelSettings, folder: Path) -> Iterator[Table]:
    """Yields what the attempts of a run achieved, in all its sessions, for each model. Raises OpAtlasError."""
    log = AttemptLog(folder)
    rows = []
    for model in settings.models.values():
        if tasks := log.tasks_of(model):
            passed = [attempts for attempts in tasks if attempts[-1].passed]
            first = sum(attempts[0].passed for attempts in passed)
            usd = sum(attempt.cost_usd for attempts in tasks for attempt in attempts)
            rows.append((str(model), len(tasks), len(passed), first, sum(map(len, tasks)), usd))
    if rows:
        columns = ("model", "tasks", "passed", "at the first attempt", "attempts", Column("cost($)", "{:.4f}".format))
        yield Table(columns, rows, f"models: opatlas score {folder}")
