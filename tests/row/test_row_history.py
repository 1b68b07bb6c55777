"""`opatlas history`: what a row took in each run."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from abs_rows import cells, read, record, write
from many_runs import run_name, write_runs
from test_history import abandoned
from test_matmul_family import record as matmul_record

from opatlas.cli.main import main
from opatlas.data.database import Database
from opatlas.data.journal import JournalHeader
from opatlas.data.manifest import Manifest
from opatlas.data.write_back import recover, write_back_run


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """A row of another tool that run-1 and run-2 measured and run-3 could not, and a row that never ran."""
    database = Database(tmp_path / "database")
    write(database, [{**cells(1), "Average Duration(us)": "7.5"}, {**cells(2), "Average Duration(us)": ""}])
    abandoned(database, record(1, 1.0, 3.0, assumptions=("lengths",), checked_elements=3, total_elements=7))
    abandoned(database, record(1, 5.0, run="run-2"), run="run-2")
    abandoned(database, record(1, run="run-3"), run="run-3")
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
    assert (runs[1]["samples_us"], runs[1]["samples"], runs[1]["std_us"]) == ([1.0, 3.0], 2, pytest.approx(2**0.5))
    assert (runs[1]["assumptions"], runs[1]["checked_elements"], runs[1]["total_elements"]) == (["lengths"], 3, 7)
    assert (runs[2]["devices"], runs[2]["versions"], runs[2]["started_at"]) == (
        ["NVIDIA H200"],
        {"torch": "2.9.0"},
        1e9,
    )
    assert runs[3]["reason"] == "because of 1"


def test_a_kernel_type_has_all_its_rows(database: Database, told: Told) -> None:
    assert [len(row["runs"]) for row in told(database, "Abs")] == [4, 0]


def test_a_duration_that_only_the_csv_has(database: Database, told: Told) -> None:
    rows = read(database)
    rows[1].update({"Average Duration(us)": "8.25", "Run ID": "run-0"})
    write(database, rows)
    (row,) = told(database, "2x4")
    (run,) = row["runs"]
    assert (run["kept_in"], run["current"], run["run_id"], run["duration_us"]) == ("csv", True, "run-0", 8.25)


def test_a_row_that_is_gone_from_its_csv(database: Database, told: Told) -> None:
    write(database, read(database)[1:])
    (row,) = told(database, "1x4")
    assert [run["current"] for run in row["runs"]] == [False] * 4


def test_a_call_that_ran_as_a_sibling_is_told_of_both_rows(tmp_path: Path, told: Told) -> None:
    database = Database(tmp_path / "database")
    asked = matmul_record()
    write(database, [dict(asked.cells)], asked.kernel_type)
    write_back_run(database, JournalHeader(asked.run_id, "all", prune=False), [asked.to_json()])
    rows = told(database, "MatMul")
    assert [(row["kernel_type"], row["runs"][0]["reason"]) for row in rows] == [
        ("MatMulV2", "ran as MatMulV3"),
        ("MatMulV3", ""),
    ]
    assert all(row["runs"][0]["current"] for row in rows)


def test_the_current_duration_is_marked(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    unknown, first, second, third = cells_of(capsys, database, "abs-1x4")
    assert [row["current"] for row in (unknown, first, second, third)] == ["", "", "*", ""]
    assert (second["run"], second["status"], float(second["median(us)"])) == ("run-2", "measured", 5)
    assert "2001-09-09 01:46" in second["conditions"]
    assert (unknown["run"], unknown["status"]) == ("(unknown)", "measured, replaced")
    assert main(["history", str(database.path), "Abs"]) == 0
    out = capsys.readouterr().out
    assert [out.count(word) for word in ("Abs-1x4", "Abs-2x4", "run-2", "*")] == [1, 1, 1, 1]


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


def test_many_rows_have_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [[10.0, 5.0], [math.nan, 3.0], *[[1.0]] * 20]
    database = write_runs(tmp_path / "database", rows, {})
    assert main(["history", str(database.path), "Abs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = {line.split("-")[-4]: line.split()[:-1] for line in lines if " Abs-" in line}
    assert len(told) == 22
    assert told["1x4"] == ["2", "10", "5", "-50.0", "%"]
    assert told["2x4"] == ["2", "3", "3"]
    assert told["3x4"] == ["1", "1", "1"]


def test_a_damaged_history_is_named_and_costs_itself_only(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    (database.runs_dir / "run-1.jsonl.gz").write_bytes(b"damaged")
    assert main(["history", str(database.path), "1x4", "--json"]) == 1
    out, err = capsys.readouterr()
    assert [run["run_id"] for run in json.loads(out)[0]["runs"]] == ["run-2", "run-3"]
    assert "run-1.jsonl.gz" in err


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ("DB Nothing", 1),
        ("DB Nothing --fail-slower 5%", 1),
        ("nothing Abs", 2),
        ("nothing", 2),
        ("nothing --restore csvs", 2),
        ("nothing --restore pruned", 2),
        ("DB Nothing --restore pruned", 1),
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
    assert [row["kernel_type"] for row in told(database, "mul")] == ["Mul", "Muls"]
    assert [row["kernel_type"] for row in told(database, "Mul", "muls-")] == ["Mul", "Muls"]
