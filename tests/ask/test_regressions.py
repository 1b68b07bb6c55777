"""`opatlas history` without ROW: rows that became slower or faster from some run on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from many_runs import run_name, write_runs

from opatlas.cli.main import main
from opatlas.data.database import Database

RUNS = 10


def series(level: float, *steps: tuple[int, float], seed: int, deviation: float = 0.01) -> list[float]:
    """Durations of RUNS runs around a level, multiplied by a factor from some runs on."""
    errors = np.random.default_rng(seed).normal(0, deviation, RUNS).tolist()
    factors = [math.prod(by for start, by in steps if run >= start) for run in range(RUNS)]
    return [level * math.exp(error) * factor for error, factor in zip(errors, factors, strict=True)]


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """Forty rows; the second became slower with a version of torch, the third faster."""
    rows = [series(10 + number, seed=number) for number in range(40)]
    rows[1] = series(50, (6, 1.3), seed=101)
    rows[2] = series(60, (6, 0.8), seed=102)
    return write_runs(tmp_path / "database", rows, {0: "2.10.0", 6: "2.11.0"})


Changes = Callable[..., dict[str, Any]]


@pytest.fixture
def changes(capsys: pytest.CaptureFixture[str]) -> Changes:
    """Returns what the command prints as JSON; on stderr a line only if it fails."""

    def run(database: Database, *arguments: str, status: int = 0) -> dict[str, Any]:
        assert main(["history", str(database.path), *arguments, "--json"]) == status
        out, err = capsys.readouterr()
        assert len(err.splitlines()) == status
        found: dict[str, Any] = json.loads(out)
        return found

    return run


def test_steps_with_the_versions_on_both_sides(
    database: Database, changes: Changes, capsys: pytest.CaptureFixture[str]
) -> None:
    found = changes(database)
    assert (found["rows"], found["searched"], len(found["runs"])) == (40, 40, RUNS)
    slower, faster = found["changes"]
    assert [each["id"].split("-")[1] for each in (slower, faster)] == ["2x4", "3x4"]
    assert (slower["before_run"], slower["after_run"]) == (run_name(5), run_name(6))
    assert (slower["runs_before"], slower["runs_after"]) == (6, 4)
    assert slower["percent"] == pytest.approx(30, abs=2)
    assert slower["differences"] == ["torch 2.10.0 -> 2.11.0"]
    assert faster["percent"] == pytest.approx(-20, abs=2)
    assert main(["history", str(database.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("-")[-4] for line in lines if " Abs-" in line] == ["2x4", "3x4"]


@pytest.mark.parametrize(("percent", "rows", "status"), [("5%", (), 1), ("40%", (), 0), ("5", ("abs-3x4",), 0)])
def test_slower_rows_fail_a_pipeline(
    database: Database, changes: Changes, percent: str, rows: tuple[str, ...], status: int
) -> None:
    changes(database, *rows, "--fail-slower", percent, status=status)


def test_up_and_down_again_is_a_disturbance(tmp_path: Path, changes: Changes) -> None:
    rows = [series(10 + number, seed=number) for number in range(20)]
    rows[5] = series(50, (3, 1.5), (7, 1 / 1.5), seed=5)
    found = changes(write_runs(tmp_path / "database", rows, {}), "--fail-slower", "5%")
    assert (found["changes"], found["shifts"]) == ([], [])


def test_a_change_of_all_rows_is_told_once_as_the_machines(
    tmp_path: Path, changes: Changes, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [series(10 + number, (4, 1.4), seed=number) for number in range(20)]
    rows[5] = series(50, (4, 1.4), (6, 1.3), seed=5)
    database = write_runs(tmp_path / "database", rows, {0: "2.10.0", 4: "2.11.0"})
    found = changes(database)
    (shift,) = found["shifts"]
    assert (shift["before_run"], shift["after_run"], shift["rows"]) == (run_name(3), run_name(4), 20)
    assert shift["percent"] == pytest.approx(40, abs=2)
    assert shift["differences"] == ["torch 2.10.0 -> 2.11.0"]
    (step,) = found["changes"]
    assert (step["after_run"], step["percent"]) == (run_name(6), pytest.approx(30, abs=3))
    # On the machine of the newest run.
    assert step["before_us"] == pytest.approx(70, rel=0.03)
    assert main(["history", str(database.path)]) == 0
    assert run_name(4) in capsys.readouterr().out


def disturb(database: Database, phrases: dict[int, tuple[list[str], list[str]]]) -> None:
    """Writes the disturbances at start and end of some runs into their manifests."""
    for number, (start, end) in phrases.items():
        path = database.runs_dir / f"{run_name(number)}.json"
        content = json.loads(path.read_text())
        content |= {"machine_at_start": {"disturbances": start}, "machine_at_end": {"disturbances": end}}
        path.write_text(json.dumps(content))


def test_disturbed_runs_do_not_decide(tmp_path: Path, changes: Changes, capsys: pytest.CaptureFixture[str]) -> None:
    """Three rows, which tell no common change, became slower while others used the machine."""
    rows = [series(10 + number, (7, 1.5), seed=number) for number in range(3)]
    database = write_runs(tmp_path / "database", rows, {})
    assert len(changes(database)["changes"]) == 3
    always = "governor powersave"
    disturb(database, {number: ([always], [always]) for number in range(RUNS)})
    busy = [always, "other processes keep 1.9 of 2 cores busy"]
    disturb(database, {7: (busy, []), 8: ([always], busy), 9: (busy, busy)})
    found = changes(database, "--fail-slower", "5%")
    assert (found["disturbed"], found["changes"]) == ([run_name(number) for number in (7, 8, 9)], [])
    assert "1.9 of 2" in found["facts"][run_name(8)]["disturbances"]
    assert main(["history", str(database.path)]) == 0
    assert "disturbed  3" in capsys.readouterr().out


def test_runs_that_do_not_compare_are_apart(tmp_path: Path, changes: Changes) -> None:
    """A step by another device is none; failed runs are left out."""
    rows = [series(10 + number, (4, 1.5), seed=number) for number in range(20)]
    rows[0] = [math.nan if run == 2 else us for run, us in enumerate(rows[0])]
    database = write_runs(tmp_path / "database", rows, {})
    for number in range(4, RUNS):
        path = database.runs_dir / f"{run_name(number)}.json"
        path.write_text(path.read_text().replace("NVIDIA_H200", "NVIDIA_H100"))
    found = changes(database)
    assert (found["changes"], found["searched"]) == ([], 20)


@pytest.mark.parametrize("runs", [1, 5])
def test_a_search_needs_six_runs(runs: int, tmp_path: Path, changes: Changes) -> None:
    found = changes(write_runs(tmp_path / "database", [[10.0] * runs], {0: "2.10.0"}))
    assert (len(found["runs"]), found["searched"], found["changes"]) == (runs, 0, [])


def test_a_damaged_history_costs_its_run(database: Database, changes: Changes) -> None:
    (database.runs_dir / f"{run_name(0)}.jsonl.gz").write_bytes(b"damaged")
    assert len(changes(database, status=1)["changes"]) == 2
