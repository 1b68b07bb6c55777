"""Sessions with --suite: good, wrong, broken and missing kernels of a folder, and their score."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from chat_server import ChatServer, chat_server
from commands import as_json, run
from operator_kernels import write_kernels
from sessions import ROOT, Finished, Sessions, row, write_table

from opatlas.cli.main import main
from opatlas.data.database import Database
from opatlas.errors import OpAtlasError
from opatlas.outer.generation.attempts import AttemptLog
from opatlas.outer.suites.listing import list_suite, suite_name
from opatlas.outer.suites.score import SuiteScore, read_score
from opatlas.outer.suites.texts import overload_of
from opatlas.row.columns import AVERAGE, SAMPLE, STATUS, TRACE_COUNT

pytestmark = pytest.mark.usefixtures("forks")
TRACE = """\
Operator: aten.add.Tensor
cnt: 3, ((T([64, 64], f32), T([64, 64], f32)), {})
cnt: 1, ((T([0, 64], f32), T([64], f32)), {})
Operator: aten.add_.Tensor
cnt: 2, ((T([64, 64], f32), T([64], f32)), {'alpha': 2})
Operator: aten.relu.default
cnt: 5, ((T([64, 64], f32, stride=(1, 64)),), {})
Operator: aten.exp.default
cnt: 1, ((T([64], f32),), {})
Operator: aten.silu.default
cnt: 1, ((T([64], f32),), {})
Operator: aten.mm.default
cnt: 1, ((T([8, 8], bf16), T([8, 8], bf16)), {})
Operator: aten.sum.dim_IntList
cnt: 1, ((T([8, 8], f32), [1], True), {})
Operator: aten.tanh.default
cnt: 1, ((T([8], f32),), {})
Operator: aten.embedding.default
cnt: 1, ((T([8, 4], f32), T([2, 3], i64)), {})
Operator: aten.argmax.default
cnt: 1, ((T([8, 4], f32), 1), {})
Operator: aten.bernoulli_.float
cnt: 1, ((T([8, 4], f32), 0.5), {})
"""
KERNELS = {
    "add__Tensor": "import torch\n\n\ndef NAME(x, y, *, alpha=1):\n    return torch.add(x, y, alpha=alpha)\n",
    # Right for inputs from 0 on.
    "relu__default": "def NAME(x):\n    return x.clone()\n",
    "exp__default": "import no_such_module\n\n\ndef NAME(x):\n    return x.exp()\n",
    "silu__default": "def NAME(x)\n    return x\n",
    # Another dtype and another shape than torch's.
    "mm__default": "def NAME(x, y):\n    return x.float() @ y.float()\n",
    "sum__dim_IntList": "def NAME(x, dim, keepdim=False, *, dtype=None):\n    return x.sum(dim)\n",
    "tanh__default": "def NAME(x):\n    return x.tanh_()\n",
    "embedding__default": "def NAME(weight, indices, *rest):\n    return weight[indices]\n",
    "argmax__default": "def other(x):\n    return x\n",
}
EXPECTED = {
    "add__Tensor": {"measured", "checked"},
    # Of a variant the functional kernel is measured.
    "add___Tensor": {"measured"},
    "relu__default": {"failed"},
    "exp__default": {"failed"},
    "silu__default": {"failed"},
    "mm__default": {"failed"},
    "sum__dim_IntList": {"failed"},
    "tanh__default": {"failed"},
    "embedding__default": {"measured"},
    "argmax__default": {"failed"},
}


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sessions, Finished, Path]:
    """A session of torch and of a folder on a trace, which has ended; the folder's database."""
    sessions = Sessions(tmp_path_factory.mktemp("suite"))
    shutil.copy(ROOT / "bench" / "test_listed.py", sessions.folder)
    (sessions.folder / "calls.txt").write_text(TRACE + "Operator: aten.abs.default\ncnt: 1, ((T([8], f32),), {})\n")
    folder = write_kernels(sessions.folder / "kit", KERNELS)
    done = sessions.run("--suite=calls.txt", f"--implementation=torch,{folder}", "test_listed.py")
    (own,) = (sessions.database / "implementations").iterdir()
    return sessions, done, own


def statuses(database: Path) -> dict[str, set[str]]:
    found = {}
    for path in database.glob("*.csv"):
        with open(path, newline="") as file:
            found[path.stem] = {row["Status"] for row in csv.DictReader(file)}
    return found


def test_each_kernel_gets_its_status(suite: tuple[Sessions, Finished, Path]) -> None:
    sessions, done, own = suite
    assert statuses(own) == {**EXPECTED, "abs__default": {"unsupported"}}
    # Random operators are no cases, and torch is right in all others.
    assert set().union(*statuses(sessions.database).values()) == {"measured", "checked"}
    assert done.ledger() == {"measured": 14, "checked": 2, "xfailed": 7, "unsupported": 1}
    # A wrong kernel is a result of the session, as for tasks.
    assert done.code == pytest.ExitCode.OK


def test_missing_and_broken_kernels_are_in_the_denominator(suite: tuple[Sessions, Finished, Path]) -> None:
    sessions, done, own = suite
    score = read_score(Database(own), Database(sessions.database))
    # A kernel that only calls torch is right, and none of one's own.
    assert (score.right, score.torchs, score.cases) == (0, 4, 12)
    assert (score.right_operators, len(score.operators)) == (0, 11)
    assert score.speed_up is None
    assert done.has_line("right cases", "0", "of 12")
    assert done.has_line("right operators", "0", "of 11")
    assert done.has_line("torch's own", "4")
    # A report of several implementations lies beside the rows that they share.
    assert len(list((sessions.database / "reports").glob("replay_report_*"))) >= 1
    assert not (own / "reports").exists()
    add = next(each for each in score.operators if each["operator"] == "add.Tensor")
    assert add["cases"] == 2
    # Torch is no rival of itself.
    assert read_score(Database(sessions.database), None).speed_up is None


def test_the_score_is_shown_again(suite: tuple[Sessions, Finished, Path], capsys: pytest.CaptureFixture[str]) -> None:
    *_, own = suite
    score = as_json(capsys, "score", own)
    assert (score["right_cases"], score["pass_through_cases"], score["cases"], score["operators"]) == (0, 4, 12, 11)
    assert {"operator": "abs.default", "cases": 1, "right_cases": 0, "speed_up": None} in score["by_operator"]
    _, out, _ = run(capsys, "score", own, "--format", "csv")
    rows = {each["operator"]: each for each in csv.DictReader(io.StringIO(out.split("\n\n")[-1]))}
    # An operator without a kernel is counted, and has no line.
    assert set(rows) == {overload_of(name) for name in EXPECTED}
    assert (rows["add.Tensor"]["right cases"], rows["add.Tensor"]["cases"]) == ("0", "2")


def test_a_new_folder_has_right_kernels(
    suite: tuple[Sessions, Finished, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions, *_ = suite
    folder = tmp_path / "new"
    # In-place operators are variants of others.
    names = {*EXPECTED, "abs__default"} - {"add___Tensor"}
    assert main(["implementations", "--new", str(folder), f"--ops={','.join(map(overload_of, names))}"]) == 0
    assert {path.name for path in folder.iterdir()} == names
    assert main(["implementations", "--new", str(folder), "--ops=relu.default"]) == 1
    assert main(["implementations", str(folder)]) == 0
    assert "add__Tensor" in capsys.readouterr().out
    done = sessions.run_in_process("--suite=calls.txt", f"--implementation={folder}", "test_listed.py")
    assert done.outcomes() == {"passed": 12}


#: Right for numbers from 0 on.
WRITTEN = "```python\ndef relu__default_kernel_impl(x):\n    return x.clone()\n```"
REPAIRED = '{"modifications": [{"old_string": "x.clone()", "new_string": "x.clamp(min=0)"}]}'


def test_a_model_writes_a_kernel_of_an_operator_and_repairs_it(tmp_path: Path) -> None:
    """Variants are not asked for: they call the functional operator."""
    sessions = Sessions(tmp_path)
    shutil.copy(ROOT / "bench" / "test_listed.py", sessions.folder)
    calls = ["cnt: 1, ((T([64], f32),), {})", "cnt: 1, ((T([4, 8], f32),), {})"]
    lines = ["Operator: aten.relu.default", *calls, "Operator: aten.relu_.default", calls[0]]
    (sessions.folder / "calls.txt").write_text("\n".join(lines) + "\n")
    with chat_server(ChatServer(lambda body: REPAIRED if "attempt 2" in str(body["messages"]) else WRITTEN)) as server:
        models = {"language": "torch", "models": {"writer": {"endpoint": server.url}}}
        (sessions.folder / "models.yaml").write_text(json.dumps(models))
        done = sessions.run_in_process("--suite=calls.txt", "--models=models.yaml", "test_listed.py")
        first, repair = (body["messages"][-1]["content"] for body in server.bodies)
    assert done.outcomes() == {"passed": 2}, done.output
    attempts = list(AttemptLog(sessions.database / "generated" / "torch").all())
    assert [each.judgement.name for each in attempts] == ["mismatch/other", "pass"]
    assert "aten::relu(Tensor self) -> Tensor" in first
    assert "called with ((T([" in repair


def test_the_shipped_traces_are_read_and_named_by_their_content() -> None:
    rows = list_suite("traces", "cpu").rows
    assert len(rows) >= 124
    assert all(cells["Trace Count"] for own in rows.values() for cells in own)
    assert {cells["Functional"] for cells in rows["add___Tensor"]} == {"add__Tensor"}
    name, _, digest = suite_name("traces").rpartition("_")
    assert (name, len(digest)) == ("traces", 8)
    assert suite_name("opinfo") == "opinfo"
    with pytest.raises(OpAtlasError, match="no/such"):
        suite_name("no/such")


def scored(folder: Path, *cases: tuple[str, str, float, str, float]) -> SuiteScore:
    """The score of cases: kernel type, status, duration, count and torch's duration."""
    for name in {case[0] for case in cases}:
        own = [case for case in cases if case[0] == name]
        for place, number in (("own", 2), ("torch", 4)):
            rows = [
                row(8) | {SAMPLE: f"trace/{at}", STATUS: case[1], AVERAGE: str(case[number]), TRACE_COUNT: case[3]}
                for at, case in enumerate(own)
            ]
            (folder / place).mkdir(exist_ok=True)
            write_table(folder / place / f"{name}.csv", rows)
    return read_score(Database(folder / "own"), Database(folder / "torch"))


def test_speed_ups_are_of_right_cases_alone_and_weighted_by_count(tmp_path: Path) -> None:
    score = scored(
        tmp_path,
        ("add__Tensor", "measured", 1.0, "2", 8.0),
        ("add__Tensor", "measured", 1.0, "1", 1.0),
        # An operator with a wrong case has no speed-up.
        ("mul__Tensor", "measured", 1.0, "", 9.0),
        ("mul__Tensor", "failed", 1.0, "", 9.0),
        ("sub__Tensor", "measured", 4.0, "", 1.0),
    )
    assert [each["speed_up"] for each in score.operators] == [pytest.approx(4.0), None, pytest.approx(0.25)]
    assert score.speed_up == pytest.approx((4.0 * 0.25) ** (1 / 2))
    assert [score.faster(p) for p in (0.1, 1.0, 4.0)] == [2, 1, 0]
    assert (score.right_operators, score.right, score.cases) == (2, 4, 5)
