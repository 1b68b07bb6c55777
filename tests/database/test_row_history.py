"""`opatlas history`: what a row took in each run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from abs_rows import cells, read, record, write
from many_runs import run_name, write_runs
from test_history import abandoned
from test_matmul_family import record as matmul_record

from opatlas.cli.main import main
from opatlas.store.database import Database
from opatlas.store.journal import JournalHeader
from opatlas.store.manifest import Manifest
from opatlas.store.write_back import recover, write_back_run


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


def told(database: Database, *rows: str) -> list[dict[str, Any]]:
    path = database.path.parent / "history.json"
    assert main(["history", str(database.path), *rows, "--json", str(path)]) == 0
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def test_each_run_of_a_row_and_which_is_current(database: Database) -> None:
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


def test_a_kernel_type_has_all_its_rows(database: Database) -> None:
    assert [len(row["runs"]) for row in told(database, "Abs")] == [4, 0]


def test_a_duration_that_only_the_csv_has(database: Database) -> None:
    rows = read(database)
    rows[1].update({"Average Duration(us)": "8.25", "Run ID": "run-0"})
    write(database, rows)
    (row,) = told(database, "2x4")
    (run,) = row["runs"]
    assert (run["kept_in"], run["current"], run["run_id"], run["duration_us"]) == ("csv", True, "run-0", 8.25)


def test_a_row_that_is_gone_from_its_csv(database: Database) -> None:
    write(database, read(database)[1:])
    (row,) = told(database, "1x4")
    assert [run["current"] for run in row["runs"]] == [False] * 4


def test_a_call_that_ran_as_a_sibling_is_told_of_both_rows(tmp_path: Path) -> None:
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


def test_the_table_marks_the_current_duration(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", str(database.path), "Abs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (current,) = (line for line in lines if line.startswith("*"))
    assert current.split()[1:5] == ["run-2", "measured", "5.00", "us"]
    assert any({"2001-09-09", "01:46,"} <= set(line.split()) for line in lines)
    assert max(map(len, lines)) <= 80
    assert any("(unknown run)" in line for line in lines)
    assert lines[-1].strip() == "never run"


def test_the_change_is_to_the_last_run_in_the_same_conditions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = write_runs(tmp_path / "database", [[10.0, 11.0, 22.0]], {0: "2.10.0", 2: "2.11.0"})
    manifest = database.runs_dir / f"{run_name(2)}.json"
    assert main(["history", str(database.path), "Abs"]) == 0
    assert [line.split()[-2:] for line in capsys.readouterr().out.splitlines() if line.endswith("%")] == [
        ["+10.0", "%"],
        ["+100.0", "%"],
    ]
    manifest.write_text(manifest.read_text().replace("NVIDIA_H200", "NVIDIA_H100"))
    assert main(["history", str(database.path), "Abs"]) == 0
    out = capsys.readouterr().out
    assert out.count("+10.0 %") == 1
    assert "+100.0 %" not in out
    assert (out.count("NVIDIA_H200"), out.count("NVIDIA_H100")) == (1, 1)


def test_many_rows_have_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [[10.0, 5.0], [math.nan, 3.0], *[[1.0]] * 20]
    database = write_runs(tmp_path / "database", rows, {})
    assert main(["history", str(database.path), "Abs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    told = {line.split("-")[1]: line.split()[1:] for line in lines if line.startswith("Abs-")}
    assert len(told) == 22
    assert told["1x4"] == ["2", "10.0", "us", "5.00", "us", "-50.0", "%"]
    assert told["2x4"] == ["2", "3.00", "us", "3.00", "us"]
    assert told["3x4"] == ["1", "1.00", "us", "1.00", "us"]


def test_a_damaged_history_is_named_and_costs_itself_only(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    (database.runs_dir / "run-1.jsonl.gz").write_bytes(b"damaged")
    path = database.path.parent / "history.json"
    assert main(["history", str(database.path), "1x4", "--json", str(path)]) == 1
    assert len(json.loads(path.read_text())[0]["runs"]) == 3
    assert "run-1.jsonl.gz" in capsys.readouterr().err


def test_names_of_nothing(database: Database, tmp_path: Path) -> None:
    assert main(["history", str(database.path), "Nothing"]) == 1
    assert main(["history", str(tmp_path / "nothing"), "Abs"]) == 2


def test_a_kernel_type_is_no_part_of_another(tmp_path: Path) -> None:
    database = Database(tmp_path / "database")
    for kernel_type in ("Mul", "Muls"):
        write(database, [{**cells(1), "Average Duration(us)": "1"}], kernel_type)
    assert [row["kernel_type"] for row in told(database, "Mul")] == ["Mul"]
    assert [row["kernel_type"] for row in told(database, "mul")] == ["Mul", "Muls"]
    assert [row["kernel_type"] for row in told(database, "Mul", "muls-")] == ["Mul", "Muls"]
