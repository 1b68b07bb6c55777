"""Models of --models: their implementations, and the loop of attempts in place of a row's only run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from opatlas.errors import OpAtlasError, UsageError
from opatlas.files import expect_folder, safe_lock
from opatlas.outer.judging.judgement import CLASS_OF_STATUS, Judgement
from opatlas.outer.tasks.task import MODEL_NEW
from opatlas.outer.tasks.task_rows import candidate_function
from opatlas.row.location import implementation_label
from opatlas.row.status import Status
from opatlas.run.implementation import Implementation, KernelSource, content_digest, default_devices
from opatlas.run.implementation_catalog import ALL, shipped
from opatlas.run.job import RowOutcome
from opatlas.text import first_line

from .attempts import AttemptLog, LoopTask, ModelAttempt, RepairLoop, StopReason
from .endpoint import ChatAnswer, ChatRequest, Endpoint, EndpointError, RecordedAnswers, model_folder
from .experiment import ROUTED, Route, TaskName, route_of
from .models_file import LANGUAGE_OF_KIND, KernelLanguage, ModelsFile, read_models
from .prompt import Prompts

#: The folder of attempts and candidates in the database of tasks; a folder for each language lies in it.
GENERATED = "generated"
#: The folder of recorded answers beside the attempts, without another in the file of models.
ANSWERS = "answers"


class LoopSubject(Protocol):
    """A task or an operator that models write kernels for, as a source of rows has it by kernel type.

    Attributes:
        task_set, name, full_name: the set, its name in there, and both ("opinfo/add.Tensor").
        source: the text that a model gets.
        complexity: its class, C1 to C4.
        digest: stands for its content. Attempts at another content do not count.
        candidate: the function that a candidate defines; "" for a task, whose candidates may have several forms.
    """

    task_set: str
    name: str
    full_name: str
    source: str
    complexity: str
    digest: str
    candidate: str


@dataclass(frozen=True)
class ModelSettings:
    """What a session knows about models.

    Attributes:
        models: the names under which attempts are recorded, those of the models or ROUTED, by the name of their
            implementation.
        language: what kernels are written in.
        file: the content of the file that names the models.
        route: chooses a model for each task; None: each model tries each task.
    """

    models: Mapping[str, str]
    language: KernelLanguage
    file: ModelsFile
    route: Route | None

    def folder(self, database: Path) -> Path:
        """Returns the folder of attempts and candidates in a database of tasks."""
        return database / GENERATED / self.language.value

    def implementations(self, subjects: Mapping[str, LoopSubject | None]) -> list[Implementation]:
        """Returns the implementation of each model, for the kernel types whose subject is a task or an operator.

        Its sources have no file: a candidate is made when its row runs.
        """
        found = []
        for name, model in self.models.items():
            label = implementation_label(name, self.language.value)
            sources = {
                kernel_type: KernelSource(label, "", "", subject.candidate or MODEL_NEW)
                for kernel_type, subject in subjects.items()
                if subject is not None
            }
            about = f"kernels in {self.language} that {model} writes"
            found.append(Implementation(name, self.language.value, about, sources))
        return found

    def runs(self, context: Any, row_of: Callable[[Any], Any]) -> ModelRuns:
        """Returns what runs the rows of models in a process of a session (`ModelRuns`)."""
        return ModelRuns(context, row_of)

    def told(self) -> Mapping[str, object]:
        """Returns what a manifest records."""
        file = self.file
        return {
            "models": {
                name: {"endpoint": model.endpoint, "max_tokens": model.max_tokens}
                for name, model in file.models.items()
            },
            "language": self.language.value,
            "answers": Path(file.answers).name or None,
            "attempts": file.attempts,
            "cost_limit": file.cost_limit,
            "route": file.route or None,
        }


def model_settings(path: Path, kind: str) -> ModelSettings:
    """Returns what the file of --models says.

    Args:
        path: the file.
        kind: the kind of the device.

    Raises:
        OpAtlasError: a file or folder cannot be used, or an address or its key.
        UsageError: the names of models contradict each other.
    """
    file = read_models(path)
    models: dict[str, str] = {}
    for model, entry in file.models.items():
        other = models.setdefault(model_folder(model), model)
        if other != model:
            raise UsageError(f"{path}: {other} and {model} have the same folder, {model_folder(model)}")
        if entry.endpoint:
            # Refuses a wrong address, and a variable without a key.
            try:
                Endpoint(entry.endpoint, entry.api_key_variable)
            except EndpointError as error:
                raise UsageError(f"{path}: {model}: {error}") from None
        elif not file.answers:
            raise UsageError(
                f"{path}: {model}: name its server with `endpoint: URL`, or recorded answers with `answers: DIR`"
            )
        else:
            expect_folder(Path(file.answers), "name a folder with recorded answers", option=f"{path}: answers")
    if taken := models.keys() & {ALL, ROUTED, *default_devices(), *shipped()}:
        raise UsageError(f"{path}: {min(taken)} is the name of an implementation of OpAtlas: rename the model")
    route = route_of(path, file)
    language = file.language or LANGUAGE_OF_KIND.get(kind, KernelLanguage.TORCH)
    return ModelSettings(models if route is None else {ROUTED: ROUTED}, language, file, route)


#: Statuses of an endpoint that are about one request. Any other error would meet the next request, too.
_ABOUT_THE_REQUEST = frozenset({400, 413, 422})
_MOST_SECTION = 2_000


class ModelRuns:
    """Runs the loop of attempts for the rows of models, in one process of a session.

    Attributes:
        rules: the language whose static rules hold for candidates; "" for the rules of all languages.
    """

    def __init__(self, context: Any, row_of: Callable[[Any], Any]) -> None:
        """Opens nothing yet.

        Args:
            context: options, folders and the request to stop of a session with --models.
            row_of: returns the row of a test; None for other tests.
        """
        settings = context.settings
        assert settings.models is not None
        self._context, self._row_of = context, row_of
        self._session, self._settings, self._folder = settings, settings.models, settings.models_folder
        self.rules = settings.models.language.of_rules
        self._device = settings.devices[0]
        file = settings.models.file
        self._log = AttemptLog(self._folder)
        answers = Path(file.answers) if file.answers else self._folder / ANSWERS
        # The time and the cost of a route are those of its own questions.
        asked = answers if self._settings.route is None else answers / ROUTED
        self._answers = {
            name: RecordedAnswers(asked, Endpoint(model.endpoint, model.api_key_variable))
            if model.endpoint
            else RecordedAnswers(answers)
            for name, model in file.models.items()
        }

    def writes(self, item: Any) -> bool:
        """Returns whether a model writes the candidate of a row."""
        row = self._row_of(item)
        return row is not None and self._name(row) in self._settings.models

    def run(self, item: Any, run: Callable[[Any, KernelSource], RowOutcome]) -> RowOutcome:
        """Returns the outcome of a row: that of the candidate that passed, or of the last attempt.

        A candidate is judged on all rows of its task, until one fails.

        Args:
            item: the test of the row, which gets a section for each attempt.
            run: runs a row with a candidate, and judges it.

        Raises:
            OpAtlasError: an endpoint gives no answer, or a file cannot be read or written.
        """
        row = self._row_of(item)
        assert row is not None
        name, task = self._name(row), self._subject(row)
        outcomes: dict[Path, RowOutcome] = {}

        def run_own(path: Path) -> RowOutcome:
            outcomes[path] = run(item, self._source(row, path))
            return outcomes[path]

        def judge(path: Path) -> Judgement:
            judgement = _judgement(run_own(path))
            for other in self._other_rows(item):
                if not judgement.passed:
                    break
                found = _judgement(run(other, self._source(row, path)))
                judgement = judgement if found.passed else found
            return judgement

        # Several rows of a task share its attempts, and processes of the session have a part of the rows each.
        folder = self._folder / name / task.full_name
        folder.mkdir(parents=True, exist_ok=True)
        with safe_lock(folder / "loop.lock"):
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

    def _go_on(self) -> None:
        """Raises _NotJudged if the session is to stop: a row of a model may take an hour."""
        if reason := self._context.stop_reason:
            raise _NotJudged(RowOutcome(Status.SKIPPED, f"the next session goes on with it ({reason})"))

    def stops_session(self, error: OpAtlasError) -> bool:
        """Returns whether the next request of a session would meet the same error."""
        return not (isinstance(error, EndpointError) and error.status in _ABOUT_THE_REQUEST)

    def _name(self, row: Any) -> str:
        return str(self._session.targets[row.target].implementation.name)

    def _subject(self, row: Any) -> LoopSubject:
        return self._session.source.asked[row.kernel_type]

    def _source(self, row: Any, path: Path) -> KernelSource:
        label = implementation_label(self._name(row), self._settings.language.value)
        function = self._subject(row).candidate or candidate_function(path) or MODEL_NEW
        return KernelSource(label, "", str(path), function, digest=content_digest([path]))

    def _other_rows(self, item: Any) -> Iterator[Any]:
        """Yields the tests of the other rows of a task and a model: a task with several shapes has several."""
        row = self._row_of(item)
        assert row is not None
        for other in item.session.items:
            its = None if other is item else self._row_of(other)
            if its is not None and (its.kernel_type, its.target) == (row.kernel_type, row.target):
                yield other

    def _loop(self, name: str, subject: LoopSubject) -> RepairLoop:
        settings, device = self._settings, self._device
        model, task = settings.models[name], TaskName(subject.task_set, subject.name)
        asked = "" if settings.route is None else settings.route(subject.complexity)
        prompts = Prompts(
            *(subject.full_name, subject.source, device.name, device.kind, settings.language, settings.file.attempts),
            function=subject.candidate,
        )
        loop_task = LoopTask(
            *(*task, subject.complexity, model, self._folder / name, subject.digest, asked),
            defines=subject.candidate or MODEL_NEW,
        )
        return RepairLoop(loop_task, prompts, self._log, settings.file)


class _NotJudged(Exception):
    """A row that does not run, whatever the candidate. The attempt does not count, and its answer is recorded."""

    def __init__(self, outcome: RowOutcome) -> None:
        self.outcome = outcome
        super().__init__(outcome.explanation)


def _judgement(outcome: RowOutcome) -> Judgement:
    """Returns the judgement of a row that ran with a candidate. Raises _NotJudged for a row that cannot run."""
    if (judgement := Judgement.of(outcome)) is not None:
        return judgement
    if outcome.status not in CLASS_OF_STATUS:
        raise _NotJudged(outcome)
    return Judgement(CLASS_OF_STATUS[outcome.status], text=f"{outcome.explanation}\n{outcome.detail}".strip())


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
        outcome = last.judgement.outcome(text=first_line(last.judgement.text))
    tried = f"stopped after attempt {last.number + 1}: {reason}"
    return replace(outcome, reason=f"{outcome.reason}; {tried}")


def _section(attempt: ModelAttempt) -> str:
    """Returns what JUnit and a failing test show of an attempt."""
    judgement = attempt.judgement
    level = f", passed {judgement.level}" if judgement.level is not None else ""
    spent = f"{attempt.tokens_in + attempt.tokens_out:,} tokens, ${attempt.cost_usd:.4f}"
    where = attempt.candidate or "no code"
    asked = f"{attempt.asked}: " if attempt.asked else ""
    head = (
        f"{asked}{judgement.error_class}{level}; {spent}, {attempt.generation_s:.1f} s + {attempt.run_s:.1f} s; {where}"
    )
    return f"{head}\n{judgement.text[:_MOST_SECTION]}".rstrip()
