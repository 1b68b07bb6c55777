"""The loop of attempts in place of a row's run: outcomes, resumption, what ends a session. No device takes part."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest
from opatlas.plugins.cases import CaseTable, Fate, SessionCase, row_of

from opatlas.errors import OpAtlasError
from opatlas.outer.generation.attempts import AttemptLog
from opatlas.outer.generation.experiment import ROUTED, read_experiment
from opatlas.outer.generation.session_models import model_settings
from opatlas.outer.judging.judgement import ErrorClass, Judgement, Level
from opatlas.outer.tasks.task import read_tasks
from opatlas.row.status import Status
from opatlas.row.table import RowTable
from opatlas.run.implementation import KernelSource
from opatlas.run.job import RowOutcome

TASK = "class Model:\n    pass\n\n\ndef get_inputs():\n    return []\n"
PASS = Judgement(ErrorClass.PASS, level=Level.MEASURED, duration_us=12.5)
WRONG = Judgement(ErrorClass.MISMATCH, "nan", Level.COMPILE, "nan at 3")


def models_file(folder: Path, *, models: object = None, **given: object) -> Path:
    """Writes a file of models, by default of one whose answers are recorded."""
    path = folder / "models.yaml"
    path.write_text(json.dumps({"models": models or {"demo": {}}, **given}))
    return path


class _Item:
    """What a loop needs of a test."""

    def __init__(self, row: SessionCase, sections: list[str]) -> None:
        self.row, self.sections = row, sections
        self.callspec = SimpleNamespace(params={"row": row})
        self.session = SimpleNamespace(items=[])

    def add_report_section(self, when: str, name: str, text: str) -> None:
        self.sections.append(f"{when} {name}: {text}")


@dataclass
class Rows:
    """A session without a device: a task, its rows for one model, and what judges candidates."""

    folder: Path
    outcomes: list[RowOutcome]
    inputs: int = 1
    ran: list[tuple[str, int]] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)
    stops_after: int = 0
    context: Any = None

    def run(self, position: int = 0, **given: object) -> RowOutcome:
        """Runs one row in a session of its own, which finds what earlier ones left."""
        (self.folder / "tasks").mkdir(exist_ok=True)
        (self.folder / "tasks" / "relu.py").write_text(TASK)
        (task,) = read_tasks(self.folder / "tasks")
        models = model_settings(models_file(self.folder, answers="answers", **given), "cpu")
        subjects = {task.kernel_type: task}
        (implementation,) = models.implementations(subjects)
        session = SimpleNamespace(
            models=models,
            models_folder=models.folder(self.folder),
            devices=[SimpleNamespace(name="", kind="cpu")],
            targets=[SimpleNamespace(implementation=implementation)],
            source=SimpleNamespace(asked=subjects),
        )
        context: Any = SimpleNamespace(settings=session, tell=lambda line: None, stop_reason="")
        self.context = context
        runs = models.runs(context, row_of)
        table = CaseTable(RowTable(task.kernel_type, self.folder, pd.DataFrame(index=range(self.inputs))))
        items = [
            _Item(SessionCase(table, each, f"case-{each}", Fate.TO_RUN), self.sections) for each in range(self.inputs)
        ]
        for item in items:
            item.session.items = items
        assert runs.writes(cast("Any", items[position]))
        return runs.run(cast("Any", items[position]), cast("Any", self._run))

    def _run(self, item: _Item, source: KernelSource) -> RowOutcome:
        text = Path(source.path).read_text("utf-8")
        self.ran.append((text.strip().rpartition(" ")[2], item.row.position))
        if len(self.ran) == self.stops_after:
            self.context.stop_reason = "Ctrl-C"
        return self.outcomes.pop(0)

    def answer(self, number: int, text: str, model: str = "demo") -> None:
        path = self.folder / "answers" / model / "tasks" / "relu" / f"{number}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def failed(judgement: Judgement = WRONG) -> RowOutcome:
    return RowOutcome(Status.FAILED, judgement.text, judged=judgement.judged)


def passed() -> RowOutcome:
    return RowOutcome(Status.MEASURED, judged=PASS.judged)


def block(code: str) -> str:
    return f"```python\n{code}\n```"


def test_a_row_has_the_outcome_of_the_attempt_that_passed(tmp_path: Path) -> None:
    rows = Rows(tmp_path, [failed(), passed()])
    rows.answer(0, block("y = 1"))
    rows.answer(1, '{"modifications": [{"old_string": "y = 1", "new_string": "y = 2"}]}')
    assert rows.run().status is Status.MEASURED
    assert rows.ran == [("1", 0), ("2", 0)]
    assert [section.split(":")[0] for section in rows.sections] == ["call attempt 0", "call attempt 1"]
    # A later session measures the candidate again, and asks for nothing.
    rows.outcomes.append(passed())
    assert rows.run().status is Status.MEASURED
    assert rows.ran[2:] == [("2", 0)]
    assert len(rows.sections) == 2


def test_a_model_that_fails_is_not_run_again(tmp_path: Path) -> None:
    rows = Rows(tmp_path, [failed(), failed(), failed()])
    for number in range(3):
        rows.answer(number, block(f"y = {number}"))
    outcome = rows.run()
    assert (outcome.status, Judgement.of(outcome)) == (Status.FAILED, WRONG)
    again = rows.run()
    assert (again.status, Judgement.of(again)) == (Status.FAILED, WRONG)
    assert len(rows.ran) == 3


def test_a_candidate_is_judged_on_all_rows_of_its_task(tmp_path: Path) -> None:
    rows = Rows(tmp_path, [passed(), failed(), passed(), passed()], inputs=2)
    rows.answer(0, block("y = 1"))
    rows.answer(1, block("y = 2"))
    assert rows.run().status is Status.MEASURED
    assert rows.ran == [("1", 0), ("1", 1), ("2", 0), ("2", 1)]
    rows.outcomes.append(passed())
    assert rows.run(position=1).status is Status.MEASURED
    assert rows.ran[4:] == [("2", 1)]


def test_a_session_that_is_stopped_ends_after_the_running_attempt(tmp_path: Path) -> None:
    rows = Rows(tmp_path, [failed(), passed()], stops_after=1)
    rows.answer(0, block("y = 1"))
    rows.answer(1, block("y = 2"))
    assert rows.run().status is Status.SKIPPED
    assert len(rows.ran) == 1
    assert rows.run().status is Status.MEASURED
    assert [code for code, _ in rows.ran] == ["1", "2"]


def test_a_row_that_cannot_run_is_no_attempt(tmp_path: Path) -> None:
    rows = Rows(tmp_path, [RowOutcome(Status.UNSUPPORTED, "no such operator"), passed()])
    rows.answer(0, block("y = 1"))
    assert rows.run().status is Status.UNSUPPORTED
    assert rows.run().status is Status.MEASURED
    assert rows.ran == [("1", 0), ("1", 0)]


BOTH = {"demo": {"request": 0.5}, "large": {"request": 2}}


def test_a_route_asks_one_model_in_attempts_of_its_own(tmp_path: Path) -> None:
    """The models' own attempts stay theirs; another route begins anew."""
    rows = Rows(tmp_path, [failed(), passed(), passed()])
    rows.answer(0, block("y = 1"))
    rows.answer(1, block("y = 2"))
    rows.answer(0, block("y = 3"), "large")
    assert rows.run().status is Status.MEASURED
    route = {"other": "demo", "C1": "large"}
    assert rows.run(models=BOTH, route=route).status is Status.MEASURED
    assert [code for code, _ in rows.ran] == ["1", "2", "3"]
    run = tmp_path / "generated" / "torch"
    routed = [each for each in AttemptLog(run).all() if each.model == ROUTED]
    assert [(each.asked, each.number, each.cost_usd, each.passed) for each in routed] == [("large", 0, 2, True)]
    rows.outcomes += [failed(), passed()]
    assert rows.run(models=BOTH, route={**route, "C1": "demo"}).status is Status.MEASURED
    assert [code for code, _ in rows.ran] == ["1", "2", "3", "1", "2"]
    (attempts,) = (loop for (model, _), loop in read_experiment([run]).loops.items() if model == ROUTED)
    assert [(each.asked, each.cost_usd) for each in attempts] == [("demo", 0.5)] * 2


_SERVER = {"endpoint": "http://h"}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "demo"),
        ({"models": {"a/b": _SERVER, "a:b": _SERVER}}, "a/b"),
        ({"models": {"demo": _SERVER, "torch": _SERVER}}, "torch"),
        ({"models": {"demo": {"endpoint": "h"}}}, "'h'"),
        ({"models": {"demo": {**_SERVER, "api_key_variable": "OPATLAS_NOT_SET"}}}, "OPATLAS_NOT_SET"),
        ({"answers": "no_such_folder"}, "no_such_folder"),
        ({"models": {"demo": _SERVER}, "cost_limit": 1.0}, "cost_limit"),
        ({"attempts": 0}, "attempts"),
        ({"answer": "answers"}, "answers"),
        ({"models": {"demo": {"endpiont": "http://h"}}}, "endpiont"),
        ({"models": {"demo": {"in": -1}}}, "models[...].in"),
        ({"models": [1]}, "models"),
        *(
            ({"models": {"demo": _SERVER}, "route": route}, named)
            for route, named in (
                ({"C1": "demo"}, "C2"),
                ({"other": "demo", "C5": "demo"}, "C5"),
                ({"other": "large"}, "large"),
                ("a_run", "route"),
            )
        ),
        ({"models": {ROUTED: _SERVER}}, ROUTED),
    ],
)
def test_a_file_of_models_that_cannot_work_is_refused(given: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(OpAtlasError) as caught:
        model_settings(models_file(tmp_path, **given), "cpu")
    assert named in str(caught.value)
    assert "models.yaml" in str(caught.value) or "OPATLAS_NOT_SET" in str(caught.value) or named == "'h'"
