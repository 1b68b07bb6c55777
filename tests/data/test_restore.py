"""`opatlas history --restore`: the CSVs are made again from the histories, to the letter."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import pytest
from abs_rows import cells, product_record, read, record, write
from folding import csvs, filled, imported, killed, write_back_records

from opatlas.cli.main import main
from opatlas.data.database import Database, SessionLock
from opatlas.data.journal import JournalHeader
from opatlas.data.restore import rebuild
from opatlas.data.write_back import recover, write_back
from opatlas.row.signature import signature
from opatlas.row.status import UpdateMode


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """Three rows, of which run-1 measured two and run-2 one again."""
    database = Database(tmp_path / "database")
    write(database, [cells(1), {**cells(2)}, cells(3)])
    killed(database, record(1, 1.0, 3.0), record(2, 2.0), run="run-1")
    killed(database, record(1, 5.0, run="run-2"), record(3, run="run-2"), run="run-2")
    recover(database, own_run="")
    return database


def edit(database: Database, size: int, **changes: str) -> None:
    rows = read(database)
    for row in rows:
        if row["Input Shapes"] == f"{size},4":
            row.update(changes)
    write(database, rows)


def test_damaged_cells_are_made_again_and_what_stood_there_is_kept(database: Database) -> None:
    before = csvs(database)
    edit(database, 1, **{"Average Duration(us)": "77", "Status": "failed"})
    edit(database, 2, **{"Average Duration(us)": "", "Run ID": ""})
    rebuilt = rebuild(database)
    assert (rebuilt.changed, rebuilt.added) == ({"Abs": 2}, {"Abs": 0})
    assert csvs(database) == before
    path = database.csv_path("Abs")
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    before = csvs(database)
    rebuild(database)
    assert csvs(database) == before, "a file in which no cell changes is not written"
    assert [row["Average Duration(us)"] for row in imported(database)] == ["77"]


def test_a_table_that_is_gone_comes_back_with_its_measured_rows(database: Database) -> None:
    before = {row["Input Shapes"]: row for row in read(database) if row["Average Duration(us)"]}
    (database.path / "Abs.csv").unlink()
    assert rebuild(database).added == {"Abs": 2}
    after = {row["Input Shapes"]: filled(row) for row in read(database)}
    assert after == {shapes: filled(row) for shapes, row in before.items()}


def test_a_history_that_cannot_be_read_costs_itself_only(database: Database) -> None:
    before = csvs(database)
    (database.runs_dir / "run-2.jsonl.gz").write_bytes(b"damaged")
    rebuilt = rebuild(database)
    assert (len(rebuilt.problems), rebuilt.runs) == (1, ["run-1"])
    assert csvs(database) == before


def test_samples_of_a_sibling_fill_the_row_that_ran_again(tmp_path: Path) -> None:
    database = Database(tmp_path / "database")
    asked = product_record()
    write(database, [dict(asked.cells)], asked.kernel_type)
    write_back_records(database, JournalHeader(asked.run_id, "all", prune=False), asked)
    before = csvs(database)
    assert len(before) == 2
    for kernel_type in (path.stem for path in database.path.glob("*.csv")):
        empty = dict.fromkeys(("Average Duration(us)", "Run ID"), "")
        rows = [{name: empty.get(name, cell) for name, cell in row.items()} for row in read(database, kernel_type)]
        write(database, rows, kernel_type)
    assert rebuild(database).changed.total() == 1
    assert csvs(database) == before


@pytest.fixture
def emptied(tmp_path: Path) -> Database:
    """Of the rows 1 to 3 of Abs, 2 and 3 were pruned; of Neg, the only one."""
    emptied = Database(tmp_path / "database")
    write(emptied, [{"Note": f"of {n}", **cells(n)} for n in (1, 2, 3)])
    write(emptied, [cells(4)], "Neg")
    of_neg = dataclasses.replace(record(4), kernel_type="Neg", signature=signature("Neg", cells(4)))
    write_back(emptied, [record(1, 1.0), record(2), record(3), of_neg], UpdateMode.ALL, prune=True)
    return emptied


def pruned(emptied: Database, kernel_type: str = "Abs") -> list[str]:
    path = emptied.pruned_dir / f"{kernel_type}.csv"
    return [row["Input Shapes"] for row in csv.DictReader(path.open())] if path.exists() else []


def shapes(emptied: Database, kernel_type: str = "Abs") -> list[str]:
    return [row["Input Shapes"] for row in read(emptied, kernel_type)]


def test_pruned_rows_that_were_moved_elsewhere_are_combined(emptied: Database, tmp_path: Path) -> None:
    assert (pruned(emptied), pruned(emptied, "Neg")) == (["2,4", "3,4"], ["4,4"])
    emptied.pruned_dir.rename(tmp_path / "back")
    assert main(["combine", str(emptied.path), str(tmp_path / "back")]) == 0
    rows = read(emptied)
    assert [row["Note"] for row in rows] == ["of 1", "of 2", "of 3"]
    assert (rows[1]["Status"], rows[1]["Status Run ID"]) == ("failed", "run-1")
    assert shapes(emptied, "Neg") == ["4,4"]


def test_a_database_that_a_session_has_is_refused(emptied: Database) -> None:
    lock = SessionLock(emptied, run_id="run-3", command="pytest")
    lock.acquire()
    before = csvs(emptied)
    assert main(["history", str(emptied.path), "--restore", "csvs"]) == 1
    assert (csvs(emptied), pruned(emptied)) == (before, ["2,4", "3,4"])
    lock.release()
