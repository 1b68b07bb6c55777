"""A database that revision 181e863b wrote can be used: its reasons name runs, its replaced rows are in tables.

It has two runs, an ingest, a combined source, a row of another tool, a pruned row, and the journals of two workers of a
killed run.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from abs_rows import MIDDLE, NEW, OLD, cells, contents, read, record, write
from folding import csvs, differences, imported, joined, recovered, restored, row_of, session

from opatlas.cli.main import main
from opatlas.data import log
from opatlas.data.database import Database
from opatlas.data.restore import edited_rows
from opatlas.row.columns import AVERAGE, INPUT_SHAPES, PROFILING_AVERAGE, RUN_ID, STATUS, STATUS_REASON, STATUS_RUN_ID

KILLED, NEXT = "20251124T120000-aaaaaa", "20251201T120000-aaaaaa"


@pytest.fixture
def database(tmp_path: Path) -> Database:
    shutil.copytree(Path(__file__).with_name("earlier_database"), tmp_path / "earlier")
    return Database(tmp_path / "earlier/database")


def test_journals_that_were_left_behind_are_merged_in_the_order_of_time(database: Database) -> None:
    recovered(database)
    row = row_of(database, 3)
    assert (row[AVERAGE], row[STATUS], row[RUN_ID]) == ("3.0000", "measured", KILLED)
    assert not list(database.journal_dir.glob("*.jsonl"))
    assert edited_rows(database).count == 0


def test_a_session_changes_the_rows_that_it_ran_only(database: Database) -> None:
    before = {size: row_of(database, size) for size in (1, 3, 4, 5)}
    session(database, record(2, 20.0, run=NEXT))
    assert row_of(database, 2)[AVERAGE] == "20.0000"
    assert {size: row_of(database, size) for size in before} == before
    assert imported(database) == [
        {**cells(5), AVERAGE: "88.5", "Note": "of 5"},
    ]


def test_a_new_duration_leaves_the_status_of_the_run_in_its_reason(database: Database) -> None:
    before = row_of(database, 1)
    assert before[STATUS_REASON].endswith(f" [run {MIDDLE}]")
    # An earlier run comes late.
    session(database, record(1, 7.0, run="20251121T130000-aaaaaa"))
    row = row_of(database, 1)
    assert (row[AVERAGE], row[STATUS], row[STATUS_RUN_ID]) == ("7.0000", "crashed", MIDDLE)
    assert "[run" not in row[STATUS_REASON]


def test_the_csvs_are_made_again_with_the_same_durations(database: Database) -> None:
    recovered(database)
    before = {row[INPUT_SHAPES]: row for row in read(database)}
    restored(database)
    after = {row[INPUT_SHAPES]: row for row in read(database)}
    assert after.keys() == before.keys()
    for shapes, row in before.items():
        for name in (AVERAGE, PROFILING_AVERAGE, STATUS, RUN_ID, "Note"):
            assert after[shapes][name] == row[name]
    assert row_of(database, 1)[STATUS_RUN_ID] == MIDDLE
    assert row_of(database, 4)[AVERAGE] == "77.5"
    again = csvs(database)
    restored(database)
    assert not differences(again, csvs(database))
    assert len(imported(database)) == 1


def test_it_is_combined_with_others(database: Database, tmp_path: Path) -> None:
    source = Database(database.path.parent / "source")
    before = csvs(database)
    joined(database, source)
    assert not differences(before, csvs(database))
    target = Database(tmp_path / "target")
    write(target, [cells(1)])
    recovered(database)
    joined(target, database)
    row = row_of(target, 1)
    assert (row[AVERAGE], row[RUN_ID], row[STATUS], row[STATUS_RUN_ID]) == ("2.0000", OLD, "crashed", MIDDLE)
    assert row_of(target, 2)[RUN_ID] == NEW
    assert [row[AVERAGE] for row in imported(target)] == ["88.5"]
    # Earlier versions named the run of a status only where it was not that of the duration.
    restored(target)
    before = csvs(target)
    joined(target, database)
    restored(target)
    assert not differences(before, csvs(target))


def test_its_pruned_rows_come_back(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", str(database.path), "--restore", "pruned"]) == 0
    row = row_of(database, 6)
    assert (row[STATUS], row[STATUS_REASON]) == ("failed", "because of 6")


def test_the_history_of_its_rows_is_told(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(database.path)
    assert main(["history", str(database.path), "--json"]) == 0
    told = capsys.readouterr().out
    assert all(run in told for run in (OLD, MIDDLE, NEW))
    assert contents(database.path) == before
    assert log.runs(database) == [OLD, MIDDLE, NEW]
