"""`opatlas score` of an experiment: its JSON, its tables and its exit status."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from commands import as_json, run
from simulated_attempts import attempt, mixed_run, write_run

from opatlas.outer.judging.judgement import ErrorClass
from opatlas.show.output import USAGE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", mixed_run())


def test_json_has_all_tables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = as_json(capsys, "score", folder)
    lists = {name: lines for name, lines in content.items() if isinstance(lines, list)}
    (large,) = (each for each in lists["task_sets"] if each["group"] is None and each["model"] == "large")
    outcomes = [each for each in lists["outcomes"] if each["model"] == "large"]
    assert large["passed"]["passed"] == sum(each["passed"] for each in outcomes)
    assert large["cost_usd"] == pytest.approx(sum(each["cost_usd"] for each in outcomes))
    assert [each["strategy"] for each in lists["strategies"]] == ["A", "B", "C", "O"]
    fast = lists["speed_ups"][0]["fast"]
    timed = [each["speed_up"] for each in lists["outcomes"] if each["speed_up"] is not None]
    assert fast == {f"{p:g}": sum(each > p for each in timed) / len(lists["outcomes"]) for p in (1, 1.5, 2)}


def test_the_tables_hold_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = as_json(capsys, "score", folder)
    _, out, err = run(capsys, "score", folder, "--format", "csv")
    assert err == ""
    tables = [list(csv.DictReader(io.StringIO(text))) for text in out.split("\n\n")]
    passed = {(each["set"], each["model"]): each for table in tables for each in table if "fixes" in each}
    assert {key: (float(each["rate"]), int(each["first"])) for key, each in passed.items()} == {
        (each["group"] or "all", each["model"]): (each["passed"]["rate"], each["passed_first"])
        for each in content["task_sets"]
    }
    (costs,) = [table for table in tables if "strategy" in table[0] and "cost($)" in table[0]]
    assert [float(each["cost($)"]) for each in costs] == [each["cost_usd"] for each in content["strategies"]]
    (chosen,) = [table for table in tables if "strategy" in table[0] and "share" in table[0]]
    assert sum(int(each["tasks"]) for each in chosen) == 4 * content["common_tasks"]


def test_a_model_of_strategy_a(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = as_json(capsys, "score", folder, "--baseline", "small-7b")
    assert content["strategies"][0]["models"] == {"small-7b": 20}


def test_without_data_there_are_no_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No pass, no price, no duration, no common task, no task of a complexity: no NaN, no division by zero."""
    attempts = [
        attempt("a", "1", ErrorClass.ANSWER, level=None, cost_usd=0.0, generation_s=0.0, run_s=0.0),
        attempt("b", "2", ErrorClass.OOM, complexity="C4", level=None),
    ]
    folder = write_run(tmp_path / "run", attempts)
    content = as_json(capsys, "score", folder)
    assert {each["passed"]["rate"] for each in content["strategies"]} == {None}
    assert {each["cost_per_pass_usd"] for each in content["task_sets"]} == {None}
    assert {each["geometric_mean"] for each in content["speed_ups"]} == {None}
    status, out, err = run(capsys, "score", folder)
    assert (status, err) == (0, "")
    assert "nan" not in out.lower().split()


@pytest.mark.parametrize(
    ("words", "status", "named"),
    [
        ([], USAGE, "give"),
        (["nothing"], USAGE, "nothing"),
        (["empty"], USAGE, "empty"),
        (["run", "run"], USAGE, "run"),
        (["run", "--baseline", "n"], USAGE, "n"),
        (["suite", "run"], USAGE, "suite"),
        (["suite", "--baseline", "m"], USAGE, "suite"),
        (["suite"], 1, "suite"),
        (["damaged"], 1, "attempts.jsonl:1"),
    ],
)
def test_what_is_refused(
    words: list[str],
    status: int,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run", [attempt("m", "relu")])
    write_run(tmp_path / "damaged", [], tail="{}\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "abs__default.csv").write_text("Input Shapes\n4\n")
    found, out, err = run(capsys, "score", *words)
    assert (found, out) == (status, "")
    assert named in err
