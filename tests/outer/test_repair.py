"""The loop of attempts: what is asked, judged and recorded, and when it ends."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from opatlas.errors import OpAtlasError
from opatlas.outer.generation.answers import RecordedAnswers
from opatlas.outer.generation.attempts import AttemptLog, LoopTask, RepairLoop, StopReason
from opatlas.outer.generation.endpoint import ChatAnswer, ChatRequest
from opatlas.outer.generation.models_file import KernelLanguage, LoopLimits, Price
from opatlas.outer.generation.prompt import Prompts
from opatlas.outer.judging.judgement import ErrorClass, Judgement, Level

PASS = Judgement(ErrorClass.PASS, level=Level.MEASURED, within_1e3=True, max_error=0.5, duration_us=12.5)
WRONG = Judgement(ErrorClass.MISMATCH, "nan", Level.COMPILE, "nan in /tmp/run1/0.py", False, float("inf"))
PROMPTS = Prompts("relu", "class Model: pass\n", "", "cpu", KernelLanguage.TORCH, 5)
PRICES = {"demo": Price(request=0.25)}


def block(code: str) -> str:
    return f"Here it is:\n\n```python\n{code}\n```\n"


def change(old: str, new: str) -> str:
    return f"```json\n{json.dumps({'modifications': [{'old_string': old, 'new_string': new}]})}\n```"


class Scripted:
    """A model whose answers are given; it remembers the questions."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[ChatRequest] = []

    def ask(self, request: ChatRequest) -> ChatAnswer:
        self.asked.append(request)
        return ChatAnswer(self.answers.pop(0), "stop", 100, 10, 1.5)


class Judged:
    """Judges by a list; it remembers the sources. A judgement that is an exception is raised."""

    def __init__(self, *judgements: Judgement | BaseException) -> None:
        self.judgements = list(judgements)
        self.sources: list[str] = []

    def __call__(self, path: Path) -> Judgement:
        self.sources.append(path.read_text("utf-8").strip())
        judgement = self.judgements.pop(0)
        if isinstance(judgement, BaseException):
            raise judgement
        return judgement


def loop_in(
    folder: Path,
    limits: LoopLimits | None = None,
    *,
    task: str = "relu",
    digest: str = "3f2a91c0",
) -> RepairLoop:
    subject = LoopTask("tasks", task, "C1", "demo", folder / "demo", digest)
    return RepairLoop(subject, PROMPTS, AttemptLog(folder), PRICES, limits or LoopLimits())


def test_a_repair_that_passes_ends_the_loop(tmp_path: Path) -> None:
    """A modification is applied to the former code, and the error is told without the folders of this machine."""
    model, judge = Scripted(block("y = 1"), change("y = 1", "y = 2")), Judged(WRONG, PASS)
    loop = loop_in(tmp_path, LoopLimits(max_tokens=77))
    assert loop.run(model, judge) is StopReason.PASSED
    assert judge.sources == ["y = 1", "y = 2"]
    assert [request.max_tokens for request in model.asked] == [77, 77]
    repair = model.asked[1].messages[-1].content
    assert "y = 1" in repair
    assert "nan in 0.py" in repair
    assert "/tmp" not in repair
    first, second = AttemptLog(tmp_path).attempts("tasks", "relu", "demo")
    assert (first.number, first.judgement.error_class, first.judgement.max_error) == (0, ErrorClass.MISMATCH, None)
    assert (second.number, second.judgement) == (1, PASS)
    assert (second.generation_s, second.tokens_in, second.tokens_out, second.cost_usd) == (1.5, 100, 10, 0.25)
    assert (tmp_path / second.candidate).read_text("utf-8").strip() == "y = 2"
    assert loop.last_candidate == tmp_path / second.candidate


def test_a_modification_that_does_not_fit_is_an_attempt_and_the_code_stays(tmp_path: Path) -> None:
    model = Scripted("I cannot do that.", block("y = 1"), change("z", "w"), change("y = 1", "y = 3"))
    judge = Judged(WRONG, PASS)
    assert loop_in(tmp_path).run(model, judge) is StopReason.PASSED
    assert judge.sources == ["y = 1", "y = 3"]
    attempts = AttemptLog(tmp_path).attempts("tasks", "relu", "demo")
    answer = ErrorClass.ANSWER
    assert [each.judgement.error_class for each in attempts] == [answer, ErrorClass.MISMATCH, answer, ErrorClass.PASS]
    assert [bool(each.candidate) for each in attempts] == [False, True, False, True]
    assert attempts[2].judgement.level is None
    assert attempts[2].judgement.text in model.asked[3].messages[-1].content


@pytest.mark.parametrize(
    ("limits", "reason", "made"),
    [
        (LoopLimits(attempts=2), StopReason.ATTEMPTS, 2),
        (LoopLimits(), StopReason.SAME_FAILURE, 3),
        (LoopLimits(cost_usd=0.5), StopReason.COST, 2),
        (LoopLimits(cost_usd=0.0), StopReason.COST, 0),
    ],
)
def test_a_loop_ends_at_its_limits(tmp_path: Path, limits: LoopLimits, reason: StopReason, made: int) -> None:
    model = Scripted(*[block(f"y = {n}") for n in range(9)])
    # Equal but for the file of the candidate, and what follows from drawn inputs.
    judge = Judged(*[replace(WRONG, text=f"/tmp/{n}/{n}.py: {n} of 64 elements, by {n}.5e-3") for n in range(9)])
    assert loop_in(tmp_path, limits).run(model, judge) is reason
    assert len(model.asked) == made


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """Killed while the second candidate was judged: its answer is recorded, the attempt is not."""
    model = Scripted(block("y = 1"), change("y = 1", "y = 2"))
    answers = RecordedAnswers(tmp_path / "answers", model)
    with pytest.raises(KeyboardInterrupt):
        loop_in(tmp_path).run(answers, Judged(WRONG, KeyboardInterrupt()))
    with open(tmp_path / "attempts.jsonl", "ab") as file:
        file.write(b'{"task":"relu","task_s')
    loop = loop_in(tmp_path)
    assert len(loop.attempts) == 1
    judge = Judged(PASS)
    assert loop.run(answers, judge) is StopReason.PASSED
    assert judge.sources == ["y = 2"]
    assert len(model.asked) == 2
    # A third session has nothing to do.
    done = loop_in(tmp_path)
    assert done.run(RecordedAnswers(tmp_path / "empty"), Judged()) is StopReason.PASSED
    assert [attempt.number for attempt in done.attempts] == [0, 1]


def test_a_recorded_repair_does_not_depend_on_the_numbers_of_an_error(tmp_path: Path) -> None:
    answers = RecordedAnswers(tmp_path / "answers", Scripted(block("y = 1"), block("y = 2")))
    wrong = [replace(WRONG, text=f"{n} of 64 elements") for n in (3, 5)]
    assert loop_in(tmp_path / "a").run(answers, Judged(wrong[0], PASS)) is StopReason.PASSED
    replayed = RecordedAnswers(tmp_path / "answers")
    assert loop_in(tmp_path / "b").run(replayed, Judged(wrong[1], PASS)) is StopReason.PASSED
    # Another class is another question.
    other = replace(WRONG, error_class=ErrorClass.UNSTABLE)
    assert loop_in(tmp_path / "c").run(replayed, Judged(other)) is StopReason.NO_ANSWER


def test_a_changed_task_is_begun_anew_and_its_former_candidates_stay(tmp_path: Path) -> None:
    assert loop_in(tmp_path).run(Scripted(block("y = 1")), Judged(PASS)) is StopReason.PASSED
    changed = loop_in(tmp_path, digest="0c4d5e6f")
    assert changed.run(Scripted(block("y = 2")), Judged(PASS)) is StopReason.PASSED
    attempts = AttemptLog(tmp_path).attempts("tasks", "relu", "demo")
    assert [attempt.number for attempt in attempts] == [0, 0]
    assert [(tmp_path / attempt.candidate).read_text("utf-8").strip() for attempt in attempts] == ["y = 1", "y = 2"]
    assert loop_in(tmp_path).run(Scripted(), Judged()) is StopReason.PASSED


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    loop_in(tmp_path).run(Scripted(block("y = 1")), Judged(PASS))
    path = tmp_path / "attempts.jsonl"
    before = path.read_bytes()
    log = AttemptLog(tmp_path)
    (attempt,) = log.attempts("tasks", "relu", "demo")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(OpAtlasError) as caught:
            log.append(attempt)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before
