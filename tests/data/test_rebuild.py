"""`opatlas history --restore csvs`: the CSVs can be made again from the histories, to the letter."""

from __future__ import annotations

from pathlib import Path

import pytest
from abs_rows import cells, product_record, read, record, write
from folding import imported, killed

from opatlas.cli.main import main
from opatlas.data.database import Database, SessionLock
from opatlas.data.journal import JournalHeader
from opatlas.data.restore import rebuild
from opatlas.data.write_back import recover, write_back_run


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """Three rows, of which run-1 measured two and run-2 one again."""
    database = Database(tmp_path / "database")
    write(database, [cells(1), {**cells(2)}, cells(3)])
    killed(database, record(1, 1.0, 3.0), record(2, 2.0), run="run-1")
    killed(database, record(1, 5.0, run="run-2"), record(3, run="run-2"), run="run-2")
    recover(database, own_run="")
    return database


def contents(database: Database) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in database.path.glob("*.csv")}


def edit(database: Database, size: int, **changes: str) -> None:
    rows = read(database)
    for row in rows:
        if row["Input Shapes"] == f"{size},4":
            row.update(changes)
    write(database, rows)


def test_damaged_cells_are_made_again_and_what_stood_there_is_kept(database: Database) -> None:
    before = contents(database)
    edit(database, 1, **{"Average Duration(us)": "77", "Status": "failed"})
    edit(database, 2, **{"Average Duration(us)": "", "Run ID": ""})
    rebuilt = rebuild(database)
    assert (rebuilt.changed, rebuilt.added) == ({"Abs": 2}, {"Abs": 0})
    assert contents(database) == before
    assert [row["Average Duration(us)"] for row in imported(database)] == ["77"]


def test_a_table_that_is_gone_comes_back_with_its_measured_rows(database: Database) -> None:
    before = {row["Input Shapes"]: row for row in read(database) if row["Average Duration(us)"]}
    (database.path / "Abs.csv").unlink()
    assert rebuild(database).added == {"Abs": 2}
    after = {row["Input Shapes"]: {name: cell for name, cell in row.items() if cell} for row in read(database)}
    assert after == {shapes: {name: cell for name, cell in row.items() if cell} for shapes, row in before.items()}


def test_a_history_that_cannot_be_read_costs_itself_only(database: Database) -> None:
    before = contents(database)
    (database.runs_dir / "run-2.jsonl.gz").write_bytes(b"damaged")
    rebuilt = rebuild(database)
    assert (len(rebuilt.problems), rebuilt.runs) == (1, ["run-1"])
    assert contents(database) == before


def test_samples_of_a_sibling_fill_both_rows_again(tmp_path: Path) -> None:
    database = Database(tmp_path / "database")
    asked = product_record()
    write(database, [dict(asked.cells)], asked.kernel_type)
    write_back_run(database, JournalHeader(asked.run_id, "all", prune=False), [asked.to_json()])
    before = contents(database)
    assert len(before) == 2
    for kernel_type in (path.stem for path in database.path.glob("*.csv")):
        rows = [{**row, "Average Duration(us)": "", "Run ID": ""} for row in read(database, kernel_type)]
        write(database, rows, kernel_type)
    assert rebuild(database).changed.total() == 2
    assert contents(database) == before


class TestCommand:
    def test_an_edited_cell_comes_back(self, database: Database, capsys: pytest.CaptureFixture[str]) -> None:
        edit(database, 1, **{"Average Duration(us)": "77"})
        assert main(["history", str(database.path), "--restore", "csvs"]) == 0
        assert ["Abs", "1", "0"] in [line.split() for line in capsys.readouterr().out.splitlines()]
        assert read(database)[0]["Average Duration(us)"] == "5.0000"

    def test_a_database_that_a_session_has_is_refused(self, database: Database) -> None:
        lock = SessionLock(database, run_id="run-3", command="pytest")
        lock.acquire()
        before = contents(database)
        assert main(["history", str(database.path), "--restore", "csvs"]) == 1
        assert contents(database) == before
        lock.release()
