"""Models that write kernels: their answers, recorded exchanges, messages, and the loop of attempts."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opatlas.errors import OpAtlasError
from opatlas.outer.generation.attempts import AttemptLog, LoopTask, RepairLoop, StopReason
from opatlas.outer.generation.endpoint import ChatAnswer, ChatMessage, ChatRequest, NoRecordedAnswer, RecordedAnswers
from opatlas.outer.generation.models_file import (
    KernelLanguage,
    ModelsFile,
    NamedModel,
    cost_of,
    read_models,
    shipped_prices,
)
from opatlas.outer.generation.prompt import Prompts, read_answer
from opatlas.outer.judging.judgement import ErrorClass, Judgement, Level

FORMER = "class ModelNew:\n    def f(self):\n        x = 1\n        y = 2\n        return  x + y\n\n\nx = 1\n"


def answer(*changes: tuple[str, str]) -> str:
    return json.dumps({"modifications": [{"old_string": old, "new_string": new, "reason": ""} for old, new in changes]})


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("Here:\n```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```python\nuse()\n```\nand\n```python\nclass ModelNew: ...\n```", "class ModelNew: ...\n"),
        ("```python\nx = 1\n```\nagain\n```python\nx = 1\n```", "x = 1\n"),
        ("```text\nno code\n```\n```py\nx = 1\n```", "x = 1\n"),
        ("<think>```python\nwrong\n```</think>```python\nx = 1\n```", "x = 1\n"),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n"),
    ],
)
def test_the_code_block_of_an_answer(text: str, source: str) -> None:
    assert read_answer(text) == source


@pytest.mark.parametrize(
    "form", ["{}", "```json\n{}\n```", "The error is:\n```\n{}\n```", "Change this: {} and run it."]
)
def test_modifications_are_found(form: str) -> None:
    changed = read_answer(form.format(answer(("y = 2", "y = 3"))), FORMER)
    assert changed == FORMER.replace("y = 2", "y = 3")


def test_a_modification_sees_those_before_it() -> None:
    assert read_answer(answer(("y = 2", "y = 7"), ("y = 7", "y = 8")), FORMER) == FORMER.replace("y = 2", "y = 8")


@pytest.mark.parametrize(
    ("text", "sub_class"),
    [
        ("I cannot do that.", "no_code"),
        ("", "no_code"),
        ("```python\n\n```", "no_code"),
        ("```python\nx = 1\n```\n```python\ny = 1\n```", "several_blocks"),
        ("```python\nclass ModelNew: 1\n```\n```python\nclass ModelNew: 2\n```", "several_blocks"),
        ("```python\nclass ModelNew:\n    def f(", "cut"),
        ('{"modifications": [{"old_string": "y', "malformed"),
        ('{"modifications": []}', "malformed"),
        ('{"modifications": [{"old_string": "y"}]}', "malformed"),
        (answer(("y = 2", "y = 2")), "no_change"),
        (answer((" ", "y = 2")), "no_change"),
        (answer(("q = 2", "q = 3")), "not_found"),
        (answer(("x = 1\ny = 2", "x = 5")), "not_found"),
        (answer(("x = 1", "x = 2")), "ambiguous"),
        (answer(("y = 2", "y = 3"), ("y = 2", "y = 4")), "not_found"),
    ],
)
def test_what_is_refused(text: str, sub_class: str) -> None:
    refused = read_answer(text, FORMER)
    assert isinstance(refused, Judgement)
    assert (refused.error_class, refused.sub_class, refused.level) == (ErrorClass.ANSWER, sub_class, None)
    assert refused.text


def test_the_source_can_be_written_to_a_file() -> None:
    changed = read_answer('{"modifications": [{"old_string": "y = 2", "new_string": "y = \'\\ud800\'"}]}', FORMER)
    assert isinstance(changed, str)
    assert b"y = '?'" in changed.encode("utf-8")


def test_a_first_answer_cannot_modify() -> None:
    refused = read_answer(answer(("y = 2", "y = 3")))
    assert isinstance(refused, Judgement)
    assert refused.sub_class == "nothing_to_modify"


REQUEST = ChatRequest("small-model", (ChatMessage("user", "Write ReLU: 写"),))
ANSWER = ChatAnswer("```python\npass\n```", "stop", 10, 1_000, 2.5)


class Counted:
    """A model that counts its questions."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self, request: ChatRequest) -> ChatAnswer:
        self.asked += 1
        return ANSWER


def test_an_answer_is_recorded_once_and_given_again_without_an_endpoint(tmp_path: Path) -> None:
    model = Counted()
    answers = RecordedAnswers(tmp_path / "answers", model)
    assert answers.find(REQUEST) is None
    assert [answers.ask(REQUEST), answers.ask(REQUEST)] == [ANSWER, ANSWER]
    assert model.asked == 1
    alone = RecordedAnswers(tmp_path / "answers")
    assert alone.ask(REQUEST) == ANSWER
    for other in (
        replace(REQUEST, model="other"),
        replace(REQUEST, max_tokens=5),
        replace(REQUEST, messages=(*REQUEST.messages, ChatMessage("user", "more"))),
    ):
        with pytest.raises(NoRecordedAnswer):
            alone.ask(other)
    (path,) = (tmp_path / "answers").iterdir()
    assert path.stem == REQUEST.key
    assert "写" in path.read_text("utf-8")


def test_an_edited_request_is_refused_and_an_edited_answer_is_not(tmp_path: Path) -> None:
    path = RecordedAnswers(tmp_path).record(REQUEST, ANSWER)
    content = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**content, "answer": {"text": "edited by hand"}}))
    assert RecordedAnswers(tmp_path).ask(REQUEST) == ChatAnswer("edited by hand")
    content["request"]["model"] = "other"
    path.write_text(json.dumps(content))
    with pytest.raises(OpAtlasError, match=r"\.json"):
        RecordedAnswers(tmp_path).ask(REQUEST)


def test_costs_are_those_of_tokens_and_requests(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    told = "small-model: {in: 100, out: 2}, 'flat': {request: 0.25}, deepseek-chat: {request: 3}, free: {request: 0}"
    path.write_text(f"models: {{{told}}}")
    prices = read_models(path).prices()
    assert "free" in prices
    assert list(cost_of(prices, REQUEST, ANSWER).values()) == [10, 1_000, False, pytest.approx(0.003)]
    assert cost_of(prices, replace(REQUEST, model="flat"), ANSWER)["cost_usd"] == 0.25
    assert "unknown" not in prices
    assert cost_of(prices, replace(REQUEST, model="unknown"), ANSWER)["cost_usd"] == 0
    assert cost_of(prices, replace(REQUEST, model="deepseek-chat"), ANSWER)["cost_usd"] == 3
    uncounted = cost_of(prices, REQUEST, ChatAnswer("12345678"))
    assert list(uncounted.values())[:3] == [4, 2, True]
    # 166 operators with 226 repairs: the experiment's own table says $0.401.
    shipped = cost_of(shipped_prices(), replace(REQUEST, model="deepseek-chat"), ANSWER)
    assert (166 + 226) * shipped["cost_usd"] == pytest.approx(0.392)


SOURCE = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(16, 16384)]
"""
CODE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x\n"


def prompts(language: KernelLanguage = KernelLanguage.TRITON) -> Prompts:
    return Prompts("level1/19_ReLU", SOURCE, "NVIDIA_H100_80GB_HBM3", "cuda", language, 5)


def test_the_messages_of_a_task_and_of_a_repair(golden: Callable[[str, str], None]) -> None:
    text = 'File "/home/somebody/run/demo/2.py", line 12, in forward\nRuntimeError: at 0x7f0011223344'
    mismatch = Judgement(ErrorClass.MISMATCH, "nan", Level.COMPILE, text)
    unread = Judgement(ErrorClass.ANSWER, text="no block of code")
    asked = {
        "first": prompts().first(),
        "repair of code": prompts().repair(2, CODE, mismatch),
        "repair without code": prompts(KernelLanguage.TORCH).repair(1, "", unread),
    }
    lines = [
        f"===== {name}: {message.role}\n{message.content}" for name, messages in asked.items() for message in messages
    ]
    golden("prompts.txt", "\n".join(lines))


@pytest.mark.parametrize("error_class", [each for each in ErrorClass if each is not ErrorClass.PASS])
def test_each_class_has_advice_in_each_language(error_class: ErrorClass) -> None:
    judged = [
        prompts(language).repair(1, CODE, Judgement(error_class, "unknown part", text="what"))[1].content
        for language in KernelLanguage
    ]
    assert len(set(judged)) == len(KernelLanguage)
    other = prompts().repair(1, CODE, Judgement(_another(error_class), text="what"))
    assert prompts().repair(1, CODE, Judgement(error_class, text="what")) != other


def _another(error_class: ErrorClass) -> ErrorClass:
    return ErrorClass.OOM if error_class is not ErrorClass.OOM else ErrorClass.CRASH


PASS = Judgement(ErrorClass.PASS, level=Level.MEASURED, within_1e3=True, max_error=0.5, duration_us=12.5)
WRONG = Judgement(ErrorClass.MISMATCH, "nan", Level.COMPILE, "nan in /tmp/run1/0.py", False, float("inf"))
PROMPTS = Prompts("relu", "class Model: pass\n", "", "cpu", KernelLanguage.TORCH, 5)


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
    folder: Path, *, max_tokens: int = 8_192, task: str = "relu", digest: str = "3f2a91c0", **limits: Any
) -> RepairLoop:
    subject = LoopTask("tasks", task, "C1", "demo", folder / "demo", digest)
    file = ModelsFile({"demo": NamedModel(request=0.25, max_tokens=max_tokens)}, **limits)
    return RepairLoop(subject, PROMPTS, AttemptLog(folder), file)


def test_a_repair_that_passes_ends_the_loop(tmp_path: Path) -> None:
    """A modification is applied to the former code, and the error is told without the folders of this machine."""
    model, judge = Scripted(block("y = 1"), change("y = 1", "y = 2")), Judged(WRONG, PASS)
    loop = loop_in(tmp_path, max_tokens=77)
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
        ({"attempts": 2}, StopReason.ATTEMPTS, 2),
        ({}, StopReason.SAME_FAILURE, 3),
        ({"cost_limit": 0.5}, StopReason.COST, 2),
        ({"cost_limit": 0.0}, StopReason.COST, 0),
    ],
)
def test_a_loop_ends_at_its_limits(tmp_path: Path, limits: dict[str, float], reason: StopReason, made: int) -> None:
    model = Scripted(*[block(f"y = {n}") for n in range(9)])
    # Equal but for the file of the candidate, and what follows from drawn inputs.
    judge = Judged(*[replace(WRONG, text=f"/tmp/{n}/{n}.py: {n} of 64 elements, by {n}.5e-3") for n in range(9)])
    assert loop_in(tmp_path, **limits).run(model, judge) is reason
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
