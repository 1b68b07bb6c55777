"""A row whose shape was edited does not keep the duration of the old one."""

from __future__ import annotations

from pathlib import Path

import pytest
from abs_rows import cells, product_record, read, record, write
from folding import filled, imported, killed, write_back_records

from opatlas.data import log as history
from opatlas.data.database import Database
from opatlas.data.journal import JournalHeader
from opatlas.data.restore import clear_edited, edited_rows
from opatlas.data.row_history import row_histories
from opatlas.data.write_back import recover
from opatlas.row.record import RowName
from opatlas.row.signature import RowChoice, signature


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """Two rows that run-1 measured, one of which stands twice, one that it could not, and one of another tool."""
    database = Database(tmp_path / "database")
    foreign = {**cells(9), "Average Duration(us)": "7.5", "Pooled Runs": "2"}
    write(database, [dict.fromkeys(foreign, "") | row for row in (cells(1), cells(2), cells(2), cells(3), foreign)])
    killed(database, record(1, 1.0), record(2, 2.0), record(3))
    recover(database, own_run="")
    return database


def edit(database: Database, position: int, **changes: str) -> None:
    rows = read(database)
    rows[position].update(changes)
    write(database, rows)


def test_rows_that_nobody_edited_stay(database: Database) -> None:
    before = read(database)
    assert edited_rows(database).positions == clear_edited(database, "run-2").positions == {}
    assert read(database) == before


def test_a_note_or_another_spelling_is_no_other_case(database: Database) -> None:
    edit(database, 0, **{"Input Data Types": "DT_FLOAT", "Input Shapes": '"1,4"', "Status Reason": "nice"})
    assert edited_rows(database).count == 0


@pytest.mark.parametrize("position", [0, 3])
def test_an_edited_row_is_as_if_it_had_never_run_and_its_duration_is_kept(database: Database, position: int) -> None:
    edit(database, position, **cells(5), **{"Pooled Runs": "2"})
    before = read(database)
    edited = edited_rows(database)
    assert (edited.positions, read(database)) == ({"Abs": [position]}, before)
    assert edited.example is not None
    assert edited.example.signature == signature("Abs", cells(5))
    assert clear_edited(database, "run-2").positions == edited.positions
    after = read(database)
    assert after[position] == {**dict.fromkeys(before[0], ""), **cells(5)}
    assert [row for n, row in enumerate(after) if n != position] == [
        row for n, row in enumerate(before) if n != position
    ]
    if before[position]["Average Duration(us)"]:
        assert imported(database, "edited") == [filled(before[position])]
    assert edited_rows(database).count == 0


def test_a_cleared_duration_is_no_part_of_the_history_of_the_new_shape(database: Database) -> None:
    edit(database, 0, **cells(5))
    clear_edited(database, "run-2")
    found = row_histories(database, RowChoice(["Abs"]), [])
    assert found[RowName("Abs", signature("Abs", cells(5)))] == []
    assert [run.duration_us for run in found[RowName("Abs", signature("Abs", cells(1)))]] == [1.0]


def test_a_run_without_history_vouches_for_its_rows(database: Database) -> None:
    edit(database, 0, **cells(5))
    history.file_path(database, "run-1").unlink()
    assert edited_rows(database).count == 0


@pytest.mark.parametrize("name", ["run-1.jsonl", "run-1-gw0.jsonl.unreadable"])
def test_a_run_whose_journal_is_still_there_vouches_for_its_rows(database: Database, name: str) -> None:
    edit(database, 0, **cells(5))
    (database.journal_dir / name).touch()
    assert edited_rows(database).count == 0


def test_rows_of_siblings_are_told_of(tmp_path: Path) -> None:
    database = Database(tmp_path / "database")
    asked = product_record()
    write(database, [dict(asked.cells)], asked.kernel_type)
    write_back_records(database, JournalHeader(asked.run_id, "all", prune=False), asked)
    assert len(list(database.path.glob("*.csv"))) == 2
    assert edited_rows(database).count == 0
