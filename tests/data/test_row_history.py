"""`opatlas history`: what a row took in each run."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from abs_rows import cells, product_record, read, record, write
from folding import killed, write_back_records
from many_runs import run_name, write_runs

from opatlas.cli.main import main
from opatlas.data.database import Database
from opatlas.data.journal import JournalHeader
from opatlas.data.manifest import Manifest
from opatlas.data.write_back import recover


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """A row of another tool that run-1 and run-2 measured and run-3 could not, and a row that never ran."""
    database = Database(tmp_path / "database")
    write(database, [{**cells(1), "Average Duration(us)": "7.5"}, {**cells(2), "Average Duration(us)": ""}])
    killed(database, record(1, 1.0, 3.0, assumptions=("lengths",), checked_elements=3, total_elements=7))
    killed(database, record(1, 5.0, run="run-2"), run="run-2")
    killed(database, record(1, run="run-3"), run="run-3")
    recover(database, own_run="")
    device = {"name": "NVIDIA H200"}
    Manifest("run-2", 1e9, {}, "", device=device, packages={"torch": "2.9.0", "numpy": "2.0"}).write(database)
    Manifest("run-3", 1.1e9, {}, "").write(database)
    return database


Told = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Returns what the command prints as JSON."""

    def run(database: Database, *rows: str) -> list[dict[str, Any]]:
        assert main(["history", str(database.path), *rows, "--json"]) == 0
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return found

    return run


def cells_of(
    capsys: pytest.CaptureFixture[str], database: Database, *arguments: str, status: int = 0
) -> list[dict[str, str]]:
    """Returns the cells of the CSV that the command prints."""
    assert main(["history", str(database.path), *arguments, "--format", "csv"]) == status
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_each_run_of_a_row_and_which_is_current(database: Database, told: Told) -> None:
    (row,) = told(database, "abs-1x4")
    assert row["kernel_type"] == "Abs"
    runs = row["runs"]
    assert [(run["run_id"], run["kept_in"], run["status"], run["duration_us"]) for run in runs] == [
        ("", "replaced", "measured", 7.5),
        ("run-1", "history", "measured", 2.0),
        ("run-2", "history", "measured", 5.0),
        ("run-3", "history", "failed", None),
    ]
    assert [run["current"] for run in runs] == [False, False, True, False]
    assert (runs[1]["samples_us"], runs[1]["samples"], runs[1]["std_us"]) == (
        [1.0, 3.0],
        2,
        pytest.approx(2**0.5, abs=1e-4),
    )
    assert (runs[1]["assumptions"], runs[1]["checked_elements"], runs[1]["total_elements"]) == (["lengths"], 3, 7)
    assert (runs[2]["devices"], runs[2]["versions"], runs[2]["started_at"]) == (
        ["NVIDIA H200"],
        {"torch": "2.9.0"},
        1e9,
    )
    assert runs[3]["reason"] == "because of 1"


def test_a_duration_that_only_the_csv_has(database: Database, told: Told) -> None:
    rows = read(database)
    rows[1].update({"Average Duration(us)": "8.25", "Run ID": "run-0"})
    write(database, rows)
    (row,) = told(database, "2x4")
    (run,) = row["runs"]
    assert (run["kept_in"], run["current"], run["run_id"], run["duration_us"]) == ("csv", True, "run-0", 8.25)


def test_a_call_that_ran_as_a_sibling_is_told_of_both_rows(tmp_path: Path, told: Told) -> None:
    database = Database(tmp_path / "database")
    asked = product_record()
    write(database, [dict(asked.cells)], asked.kernel_type)
    write_back_records(database, JournalHeader(asked.run_id, "all", prune=False), asked)
    rows = told(database, "MatMul")
    assert [(row["kernel_type"], row["runs"][0]["reason"]) for row in rows] == [
        ("MatMulV2", "ran as MatMulV3"),
        ("MatMulV3", ""),
    ]
    assert [(row["runs"][0]["status"], row["runs"][0]["current"]) for row in rows] == [
        ("unsupported", False),
        ("measured", True),
    ]


def test_the_change_is_to_the_last_run_in_the_same_conditions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = write_runs(tmp_path / "database", [[10.0, 11.0, 22.0]], {0: "2.10.0", 2: "2.11.0"})
    manifest = database.runs_dir / f"{run_name(2)}.json"
    assert [row["change"][:4] for row in cells_of(capsys, database, "Abs")] == ["", "0.10", "1.0"]
    manifest.write_text(manifest.read_text().replace("NVIDIA_H200", "NVIDIA_H100"))
    rows = cells_of(capsys, database, "Abs")
    assert [row["change"][:4] for row in rows] == ["", "0.10", ""]
    assert ["NVIDIA_H100" in row["conditions"] for row in rows] == [False, False, True]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ("DB Nothing", 1),
        ("DB Nothing --fail-slower 5%", 1),
        ("nothing Abs", 2),
        ("nothing", 2),
        ("nothing --restore csvs", 2),
        ("DB Abs --restore csvs", 2),
        ("DB --restore csvs --fail-slower 5%", 2),
        ("DB --restore rows", 2),
        ("DB --fail-slower=-1%", 2),
        ("", 2),
    ],
)
def test_refusals(arguments: str, status: int, database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(database.path) if word == "DB" else word for word in arguments.split()]
    assert main(["history", *words]) == status
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)


def test_a_kernel_type_is_no_part_of_another(tmp_path: Path, told: Told) -> None:
    database = Database(tmp_path / "database")
    for kernel_type in ("Mul", "Muls"):
        write(database, [{**cells(1), "Average Duration(us)": "1"}], kernel_type)
    assert [row["kernel_type"] for row in told(database, "Mul")] == ["Mul"]
    assert [row["kernel_type"] for row in told(database, "mul")] == ["Mul"]
    assert [row["kernel_type"] for row in told(database, "mul", "s-1x")] == ["Mul", "Muls"]
    assert [row["kernel_type"] for row in told(database, "Mul", "muls-")] == ["Mul", "Muls"]
