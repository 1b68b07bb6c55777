"""A row whose shape was edited does not keep the duration of the old one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from abs_rows import cells, read, record, write
from test_history import abandoned, filled, replaced
from test_matmul_family import record as matmul_record

from opatlas.data import log as history
from opatlas.data.database import Database
from opatlas.data.edited import clear_edited, edited_rows
from opatlas.data.journal import JournalHeader
from opatlas.data.row_history import row_histories
from opatlas.data.write_back import recover, write_back_run
from opatlas.row.columns import BASE
from opatlas.row.record import RowName
from opatlas.row.signature import RowChoice, signature


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """Two rows that run-1 measured, one of which stands twice, one that it could not, and one of another tool."""
    database = Database(tmp_path / "database")
    foreign = {**cells(9), "Average Duration(us)": "7.5", "Pooled Runs": "2"}
    write(database, [dict.fromkeys(foreign, "") | row for row in (cells(1), cells(2), cells(2), cells(3), foreign)])
    abandoned(database, record(1, 1.0), record(2, 2.0), record(3))
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
        assert replaced(database, "edited") == [filled(before[position])]
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


def test_a_journal_of_a_run_with_a_dot_in_its_id_vouches_for_its_rows(tmp_path: Path) -> None:
    database = Database(tmp_path / "dots")
    write(database, [cells(1)])
    abandoned(database, record(1, 1.0, run="night.2"), run="night.2")
    recover(database, own_run="")
    edit(database, 0, **cells(5))
    assert edited_rows(database).count == 1
    (database.journal_dir / "night.2.jsonl").touch()
    assert edited_rows(database).count == 0


def test_signatures_of_an_older_version_are_computed_anew(tmp_path: Path) -> None:
    database = Database(tmp_path / "database")
    write(database, [{**cells(1), "Average Duration(us)": "1.0", "Run ID": "run-1"}])
    older = dataclasses.replace(record(1, 1.0), signature="as it was then")
    history.add(database, JournalHeader("run-1", "all", prune=False), [older])
    assert edited_rows(database).count == 0


def test_of_two_rows_that_were_one_case_in_an_older_version_the_measured_one_keeps_its_duration(tmp_path: Path) -> None:
    measured, alike = (
        {**cells(1), "Input Shapes": shapes, "Output Shapes": out, "Average Duration(us)": "1.0", "Run ID": "run-1"}
        for shapes, out in (("64,32;1;2;8", "8,32"), ("64,32;2;2;8;8", "8"))
    )
    database = Database(tmp_path / "database")
    write(database, [measured, alike], "Index")
    named = {name: measured[name] for name in BASE if name in measured}
    older = dataclasses.replace(record(1, 1.0), kernel_type="Index", signature="64,32|BF16|ND|8|BF16", cells=named)
    history.add(database, JournalHeader("run-1", "all", prune=False), [older])
    assert edited_rows(database).positions == {"Index": [1]}


def test_rows_of_siblings_are_told_of(tmp_path: Path) -> None:
    database = Database(tmp_path / "database")
    asked = matmul_record()
    write(database, [dict(asked.cells)], asked.kernel_type)
    write_back_run(database, JournalHeader(asked.run_id, "all", prune=False), [asked.to_json()])
    assert len(list(database.path.glob("*.csv"))) == 2
    assert edited_rows(database).count == 0
