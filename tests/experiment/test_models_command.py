"""`opatlas models`: its text, its JSON and its exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import as_json, run
from simulated_attempts import attempt, loop, mixed_run, write_run

from opatlas.candidates.judgement import ErrorClass
from opatlas.cli.main import USAGE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", mixed_run())


def test_the_tables(folder: Path, golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "models", folder)
    assert (status, err) == (0, "")
    plain = out.replace(str(folder), "RUN")
    golden("models.txt", plain)
    assert max(map(len, plain.splitlines())) <= 80


def test_json_has_all_tables(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "models", folder, "--json", tmp_path / "all.json")
    assert (status, err) == (0, "")
    content = json.loads((tmp_path / "all.json").read_text("utf-8"))
    lists = {name: lines for name, lines in content.items() if isinstance(lines, list)}
    (large,) = (each for each in lists["task_sets"] if each["group"] is None and each["model"] == "large")
    outcomes = [each for each in lists["outcomes"] if each["model"] == "large"]
    assert large["passed"]["passed"] == sum(each["passed"] for each in outcomes)
    assert large["cost_usd"] == pytest.approx(sum(each["cost_usd"] for each in outcomes))
    assert [each["strategy"] for each in lists["strategies"]] == ["A", "B", "C", "C", "O"]
    fast = lists["speed_ups"][0]["fast"]
    timed = [each["speed_up"] for each in lists["outcomes"] if each["speed_up"] is not None]
    assert fast == {f"{p:g}": sum(each > p for each in timed) / len(lists["outcomes"]) for p in (1, 1.5, 2)}
    attempts = mixed_run()
    for table in lists["verdicts"]:
        of = [each for each in attempts if table["model"] in (None, each.model)]
        if table["of"] == "attempts":
            assert table["only_within"] == sum(bool(each.judgement.within_1e3) and not each.passed for each in of)
            assert table["not_compared"] == sum(each.judgement.within_1e3 is None for each in of)


def test_only_some_sets(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = as_json(capsys, "models", folder, "--task-sets", "ours", "--baseline", "small-7b")
    assert {each["task_set"] for each in content["outcomes"]} == {"ours"}
    assert content["tasks"] == 8
    assert content["strategies"][0]["models"] == {"small-7b": 8}


def test_without_data_there_are_no_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No pass, no price, no duration, no common task, no task of a complexity: no NaN, no division by zero."""
    attempts = [
        attempt("a", "1", ErrorClass.ANSWER, level=None, cost_usd=0.0, generation_s=0.0, run_s=0.0),
        attempt("b", "2", ErrorClass.OOM, complexity="C4", level=None),
    ]
    folder = write_run(tmp_path / "run", attempts)
    content = as_json(capsys, "models", folder)
    assert {each["passed"]["rate"] for each in content["strategies"]} == {None}
    assert {each["cost_per_pass_usd"] for each in content["task_sets"]} == {None}
    assert {each["geometric_mean"] for each in content["speed_ups"]} == {None}
    status, out, _ = run(capsys, "models", folder)
    assert status == 0
    assert "no data" in out
    assert "nan" not in out.lower().split()


def test_long_names_and_large_counts_fit_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"a-vendor/a-model-with-a-long-name-{at}-instruct-2026" for at in range(3)]
    attempts = [
        each
        for model in names
        for at in range(1200)
        for each in loop(model, f"task-{at}", at % 9, at % 7 == 0, complexity=f"C{1 + at % 4}", cost_usd=12.3456)
    ]
    folder = write_run(tmp_path / "run", attempts)
    status, out, err = run(capsys, "models", folder, write_run(tmp_path / "later", attempts[:4000]))
    assert (status, err) == (0, "")
    lines = [line for line in out.splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines)) <= 80
    assert max(len(line) for line in lines if line.startswith("a-vendor")) <= 80


def test_wrong_usage_and_damaged_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", [attempt("m", "relu")])
    for arguments in ([tmp_path / "nothing"], [folder, "--task-sets", "n"], [folder, "--baseline", "n"]):
        status, _, err = run(capsys, "models", *arguments)
        assert status == USAGE
        assert str(arguments[-1]) in err
    write_run(folder, [], tail="{}\n")
    assert run(capsys, "models", folder)[0] == 1
    (tmp_path / "file").touch()
    write_run(folder, [attempt("m", "relu")])
    assert run(capsys, "models", folder, "--json", tmp_path / "file" / "all.json")[0] == 1
