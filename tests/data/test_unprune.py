"""`opatlas history --restore pruned`: pruned rows come back."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path

import pytest
from abs_rows import cells, read, record, write

from opatlas.cli.main import main
from opatlas.data.database import Database, SessionLock
from opatlas.data.restore import unprune
from opatlas.data.update_mode import UpdateMode
from opatlas.data.write_back import write_back
from opatlas.row.record import RowName
from opatlas.row.signature import RowChoice, digest, signature


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """Of the rows 1 to 3 of Abs, 2 and 3 were pruned; of Neg, the only one."""
    database = Database(tmp_path / "database")
    write(database, [{"Note": f"of {n}", **cells(n)} for n in (1, 2, 3)])
    write(database, [cells(4)], "Neg")
    of_neg = dataclasses.replace(record(4), kernel_type="Neg", signature=signature("Neg", cells(4)))
    write_back(database, [record(1, 1.0), record(2), record(3), of_neg], UpdateMode.ALL, prune=True)
    return database


def pruned(database: Database, kernel_type: str = "Abs") -> list[str]:
    path = database.pruned_dir / f"{kernel_type}.csv"
    return [row["Input Shapes"] for row in csv.DictReader(path.open())] if path.exists() else []


def shapes(database: Database, kernel_type: str = "Abs") -> list[str]:
    return [row["Input Shapes"] for row in read(database, kernel_type)]


def test_all_rows_come_back_with_their_columns(database: Database) -> None:
    columns = list(read(database)[0])
    assert main(["history", str(database.path), "--restore", "pruned"]) == 0
    rows = read(database)
    assert [row["Note"] for row in rows] == ["of 1", "of 2", "of 3"]
    assert list(rows[0]) == columns
    assert (rows[1]["Status"], rows[1]["Status Run ID"]) == ("failed", "run-1")
    assert shapes(database, "Neg") == ["4,4"]
    assert not list(database.pruned_dir.glob("*.csv"))


@pytest.mark.parametrize(
    "name",
    [
        digest("Abs", signature("Abs", cells(2))),
        "abs-2x4",
        f"bench/test_x.py::test_abs[Abs-2x4-FLOAT-2x4-{digest('Abs', signature('Abs', cells(2)))}]",
    ],
)
def test_one_row_by_its_name(database: Database, name: str) -> None:
    assert main(["history", str(database.path), name, "--restore", "pruned"]) == 0
    assert (shapes(database), pruned(database), pruned(database, "Neg")) == (["1,4", "2,4"], ["3,4"], ["4,4"])


def test_a_row_that_is_there_again_stays_in_pruned(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    write(database, [*read(database), {**cells(2), "Average Duration(us)": "5.0000"}])
    assert main(["history", str(database.path), "--restore", "pruned", "--json"]) == 0
    assert (shapes(database), pruned(database)) == (["1,4", "2,4", "3,4"], ["2,4"])
    assert read(database)[1]["Average Duration(us)"] == "5.0000"
    assert json.loads(capsys.readouterr().out) == {str(database.path): {"restored": 2, "still pruned": 1}}


def test_a_row_that_was_pruned_twice_comes_back_once(database: Database) -> None:
    write(database, [cells(2)])
    write_back(database, [record(2, run="run-2")], UpdateMode.ALL, prune=True)
    rows = {size: RowName("Abs", signature("Abs", cells(size))) for size in (2, 3)}
    of_neg = RowName("Neg", signature("Neg", cells(4)))
    done = unprune(database, RowChoice(()))
    assert ({*done.restored}, done.kept, done.problems) == ({of_neg, *rows.values()}, [rows[2]], [])
    assert [row["Status Run ID"] for row in read(database) if row["Input Shapes"] == "2,4"] == ["run-2"]
    assert pruned(database) == ["2,4"]


def test_a_database_that_a_session_has_is_refused(database: Database) -> None:
    lock = SessionLock(database, run_id="run-3", command="pytest")
    lock.acquire()
    assert main(["history", str(database.path), "--restore", "pruned"]) == 1
    assert pruned(database) == ["2,4", "3,4"]
    lock.release()
