"""`opatlas regressions`: rows that became slower or faster from some run on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from many_runs import run_name, write_runs

from opatlas.cli.main import main
from opatlas.compare.steps import LEAST_RUNS
from opatlas.store.database import Database

RUNS = 10


def series(level: float, *steps: tuple[int, float], seed: int, deviation: float = 0.01) -> list[float]:
    """Durations of RUNS runs around a level, multiplied by a factor from some runs on."""
    errors = np.random.default_rng(seed).normal(0, deviation, RUNS).tolist()
    factors = [math.prod(by for start, by in steps if run >= start) for run in range(RUNS)]
    return [level * math.exp(error) * factor for error, factor in zip(errors, factors, strict=True)]


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """Forty rows; the second became slower with a version of torch, the third faster, the fourth drifts."""
    rows = [series(10 + number, seed=number) for number in range(40)]
    rows[1] = series(50, (6, 1.3), seed=101)
    rows[2] = series(60, (6, 0.8), seed=102)
    rows[3] = [70 * 1.03**run for run in range(RUNS)]
    return write_runs(tmp_path / "database", rows, {0: "2.10.0", 6: "2.11.0"})


def changes(database: Database, *arguments: str, status: int = 0) -> dict[str, Any]:
    file = database.path.parent / "regressions.json"
    assert main(["regressions", str(database.path), *arguments, "--json", str(file)]) == status
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_steps_and_drifts_with_the_versions_on_both_sides(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    found = changes(database)
    assert (found["rows"], found["searched"], len(found["runs"])) == (40, 40, RUNS)
    slower, drift, faster = found["changes"]
    assert [each["id"].split("-")[1] for each in (slower, drift, faster)] == ["2x4", "4x4", "3x4"]
    assert (slower["before_run"], slower["after_run"]) == (run_name(5), run_name(6))
    assert (slower["runs_before"], slower["runs_after"], slower["is_drift"]) == (6, 4, False)
    assert slower["percent"] == pytest.approx(30, abs=2)
    assert slower["differences"] == ["torch 2.10.0 -> 2.11.0"]
    assert (drift["is_drift"], drift["percent"]) == (True, pytest.approx(100 * (1.03**9 - 1), abs=1))
    assert faster["percent"] == pytest.approx(-20, abs=2)
    out = capsys.readouterr().out
    assert max(map(len, (line for line in out.splitlines() if str(database.path) not in line))) <= 80
    assert out.count("torch 2.10.0 -> 2.11.0") == 3


def test_rows_can_be_chosen(database: Database) -> None:
    assert [each["percent"] < 0 for each in changes(database, "abs-3x4")["changes"]] == [True]
    assert main(["regressions", str(database.path), "MatMulV2"]) == 1


@pytest.mark.parametrize(("percent", "rows", "status"), [("5%", (), 1), ("40%", (), 0), ("5", ("abs-3x4",), 0)])
def test_slower_rows_fail_a_pipeline(
    database: Database, percent: str, rows: tuple[str, ...], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    changes(database, *rows, "--fail-slower", percent, status=status)
    assert bool(capsys.readouterr().err) == bool(status)


def test_a_row_that_recovered_fails_nothing(tmp_path: Path) -> None:
    rows = [series(10 + number, seed=number) for number in range(20)]
    rows[5] = series(50, (3, 1.5), (7, 1 / 1.5), seed=5)
    found = changes(write_runs(tmp_path / "database", rows, {}), "--fail-slower", "5%")
    assert [each["is_newest"] for each in found["changes"]] == [False, True]


def test_runs_that_do_not_compare_are_apart(tmp_path: Path) -> None:
    """A step by another device is none; failed runs are left out."""
    rows = [series(10 + number, (5, 1.5), seed=number) for number in range(20)]
    rows[0] = [math.nan if run == 2 else us for run, us in enumerate(rows[0])]
    database = write_runs(tmp_path / "database", rows, {})
    for number in range(5, RUNS):
        path = database.runs_dir / f"{run_name(number)}.json"
        path.write_text(path.read_text().replace("NVIDIA_H200", "NVIDIA_H100"))
    found = changes(database)
    assert (found["changes"], found["searched"]) == ([], 40)


def test_a_step_of_all_rows_is_found(tmp_path: Path) -> None:
    rows = [series(10 + number, (5, 1.2), seed=number) for number in range(20)]
    found = changes(write_runs(tmp_path / "database", rows, {}))
    assert [each["after_run"] for each in found["changes"]] == [run_name(5)] * 20


def test_too_few_runs_name_another_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = write_runs(tmp_path / "database", [[1.0, 2.0], [1.0, 3.0]], {})
    assert changes(database)["searched"] == 0
    assert "opatlas compare" in capsys.readouterr().out


def test_a_damaged_history_costs_its_run(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    path = database.runs_dir / f"{run_name(0)}.jsonl.gz"
    path.write_bytes(b"damaged")
    found = changes(database, status=1)
    assert len(found["changes"]) == 3
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize("runs", [1, 2])
def test_too_few_runs_tell_how_many_are_missing_and_where_they_go(
    runs: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = write_runs(tmp_path / "database", [[10.0] * runs], {0: "2.10.0"})
    assert main(["regressions", str(database.path)]) == 0
    words = capsys.readouterr().out.split()
    assert str(LEAST_RUNS - runs) in words
    assert str(database.runs_dir) in words
