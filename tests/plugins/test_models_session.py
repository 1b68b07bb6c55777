"""Sessions with --models: repairs, failures, a server that refuses, and what stays on the disk."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Mapping
from typing import Any

import pytest
from chat_server import ChatServer, chat_server
from sessions import ROOT, Sessions

from opatlas.outer.generation.attempts import AttemptLog
from opatlas.outer.generation.endpoint import read_exchange
from opatlas.outer.judging.judgement import ErrorClass

KEY = "sk-0123456789-secret"
TASK = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(8, 16)]
"""
WRONG = """```python
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x.clamp(max=0)
```"""
REPAIR = '{"modifications": [{"old_string": "clamp(max=0)", "new_string": "clamp(min=0)"}]}'


def answer(body: Mapping[str, Any]) -> str:
    """`good` repairs its code, and any other model writes no Python."""
    if body["model"] != "good":
        return "```python\nclass ModelNew(:\n```"
    return REPAIR if "This is attempt 2" in body["messages"][-1]["content"] else WRONG


@pytest.mark.slow
def test_models_write_and_repair_candidates(sessions: Sessions) -> None:
    shutil.copy(ROOT / "bench" / "test_listed.py", sessions.folder)
    (sessions.folder / "tasks").mkdir()
    (sessions.folder / "tasks" / "relu.py").write_text(TASK)
    options = ("test_listed.py", "--tasks=tasks", "--models=models.yaml")
    file = sessions.folder / "models.yaml"
    with chat_server(ChatServer(answer, key=KEY)) as server:
        asked_at = {"endpoint": server.url, "api_key_variable": "TEST_KEY"}
        file.write_text(json.dumps({"language": "torch", "models": {"good": asked_at, "bad": asked_at}}))
        done = sessions.run_in_process(*options, TEST_KEY=KEY)
        assert done.code == pytest.ExitCode.OK, done.output
        assert done.outcomes() == {"passed": 1, "xfailed": 1}
        run = sessions.database / "generated" / "torch"
        attempts = list(AttemptLog(run).all())
        classes = {
            model: [each.judgement.error_class for each in attempts if each.model == model] for model in ("good", "bad")
        }
        assert classes == {"good": [ErrorClass.MISMATCH, ErrorClass.PASS], "bad": [ErrorClass.SYNTAX] * 3}
        assert done.has_line("opatlas score", run)
        assert [each["Error Class"] for each in rows_of(sessions, "good")] == ["pass"]
        assert [each["Error Class"] for each in rows_of(sessions, "bad")] == ["syntax/syntax_error"]
        # Each exchange is recorded, and the key is nowhere.
        recorded = [read_exchange(path) for path in (run / "answers").iterdir()]
        assert len(recorded) == len(server.bodies) == len(attempts)
        files = [path for path in sessions.folder.rglob("*") if path.is_file()]
        assert not [path for path in files if KEY.encode() in path.read_bytes()]
        assert KEY not in done.output

        # A route asks its model itself, also what was asked before.
        route = {"C1": "bad", "other": "good"}
        file.write_text(
            json.dumps({"language": "torch", "models": {"good": asked_at, "bad": asked_at}, "route": route})
        )
        routed = sessions.run_in_process(*options, TEST_KEY=KEY)
        assert routed.outcomes() == {"xfailed": 1}
        own = AttemptLog(run).attempts("tasks", "relu", "routed")
        assert [each.asked for each in own] == ["bad"] * 3
        assert len(server.bodies) == len(attempts) + 3
        assert len(list((run / "answers" / "routed").iterdir())) == 3
        assert [each["Error Class"] for each in rows_of(sessions, "routed")] == ["syntax/syntax_error"]

        # The server has another key now. Whoever is done needs no answer; the next model ends the session.
        server.key = "another"
        asked = len(server.bodies)
        models = dict.fromkeys(("good", "bad", "new"), asked_at)
        file.write_text(json.dumps({"language": "torch", "models": models}))
        more = sessions.run_in_process(*options, TEST_KEY=KEY)
        assert more.code == pytest.ExitCode.TESTS_FAILED
        assert more.outcomes() == {"passed": 1, "xfailed": 1, "failed": 1}
        assert len(server.bodies) == asked + 1
        assert more.has_line("401", "TEST_KEY")
        assert list(AttemptLog(run).all()) == [*attempts, *own]

    # The folder of a model is one of candidates: each attempt is a rival of the others.
    given = sessions.run_in_process("test_listed.py", "--tasks=tasks", f"--implementation={run / 'good'}")
    assert given.outcomes() == {"passed": 1, "xfailed": 1}
    assert given.has_line("good-0")
    assert given.has_line("good-1")


def rows_of(sessions: Sessions, model: str) -> list[dict[str, str]]:
    """The rows of a model's database."""
    with open(sessions.database / "implementations" / f"{model}-torch" / "tasks.relu.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_the_answers_that_ship_show_two_models_and_their_route(sessions: Sessions) -> None:
    shutil.copy(ROOT / "bench" / "test_listed.py", sessions.folder)
    examples = ROOT / "examples"
    ops = ",".join(
        f"tasks.{name}" for name in ("gelu", "rms_norm", "row_extremes", "softmax", "matmul", "cross_entropy")
    )
    for name, passed, xfailed in (("demo", 9, 3), ("routed", 5, 1)):
        given = (f"--tasks={examples / 'tasks'}", f"--models={examples / 'answers' / name}.yaml", f"--ops={ops}")
        done = sessions.run("test_listed.py", *given)
        assert done.outcomes() == {"passed": passed, "xfailed": xfailed}, done.output
    attempts = AttemptLog(sessions.database / "generated" / "torch").all()
    outcomes: dict[str, dict[str, list[str]]] = {}
    for each in attempts:
        outcomes.setdefault(each.model, {}).setdefault(each.task, []).append(str(each.judgement.error_class))
    assert outcomes["small"]["rms_norm"] == ["init-args", "answer", "pass"]
    assert outcomes["large"]["cross_entropy"] == ["answer", "mismatch", "pass"]
    assert outcomes["small"]["matmul"] == ["import"] * 3
    passed_by = {model: {task for task, each in of.items() if each[-1] == "pass"} for model, of in outcomes.items()}
    assert {model: len(tasks) for model, tasks in passed_by.items()} == {"small": 3, "large": 6, "routed": 5}
    assert {each.asked for each in attempts if each.model == "routed"} == {"small", "large"}
    # Nothing was written beside the answers.
    assert {path.suffix for path in (examples / "answers").rglob("*") if path.is_file()} == {".md", ".yaml"}
