"""Merging records into CSVs: no row lost, order kept, twice is once."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import hypothesis.strategies as st
import pytest
from abs_rows import cells, read, record, write
from captures import SLOTS
from hypothesis import given, settings

from opatlas.data.database import Database
from opatlas.data.write_back import WriteBackResult, write_back
from opatlas.errors import OpAtlasError
from opatlas.row.signature import signature
from opatlas.row.status import Status, UpdateMode
from opatlas.row.table import RowTable

UNMEASURED = [status for status in Status if status is not Status.MEASURED]
RUN = [status for status in UNMEASURED if status is not Status.SKIPPED]


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "database")


def test_a_measured_row_gets_statistics_and_where_they_came_from(database: Database) -> None:
    write(database, [cells(1), cells(2)])
    result = write_back(
        database, [record(2, 1.0, 2.0, 6.0, counters={"aic_mac_ratio": 0.5})], UpdateMode.ALL, prune=False
    )
    untouched, measured = read(database)
    assert set(untouched.values()) <= {*cells(1).values(), ""}
    expected = {
        "Average Duration(us)": "3.0000",
        "MicroBench Median Duration(us)": "2.0000",
        "MicroBench Min Duration(us)": "1.0000",
        "MicroBench Std Duration(us)": "2.6458",
        "MicroBench Samples": "3",
        "MicroBench Device Kernels": "2",
        "MicroBench aic_mac_ratio": "0.5",
        "Status": "measured",
        "Run ID": "run-1",
        "Cache State": "cold",
    }
    assert {name: measured[name] for name in expected} == expected
    assert (result.updated.total(), result.marked.total()) == (1, 0)


@pytest.mark.parametrize("status", RUN)
def test_a_failure_keeps_durations_and_the_run_that_took_them(database: Database, status: Status) -> None:
    write(database, [cells(1), cells(2)])
    write_back(database, [record(1, 5.0, run="run-1")], UpdateMode.ALL, prune=False)
    (before, _) = read(database)
    result = write_back(database, [record(n, status=status, run="run-2") for n in (1, 2)], UpdateMode.ALL, prune=False)
    after, never = read(database)
    count = "1" if status.crash else after.get("Crashes In A Row", "")
    of_status = {"Status": status.value, "Status Reason": "because of 1", "Status Run ID": "run-2"}
    assert {name: cell for name, cell in after.items() if name != "Crashes In A Row"} == {**before, **of_status}
    assert after.get("Crashes In A Row", "") == count
    assert (never["Status"], never["Status Reason"], never["Status Run ID"]) == (status.value, "because of 2", "run-2")
    assert never["Run ID"] == ""
    assert result.marked.total() == 2


def test_modes_differ_in_what_becomes_of_a_sample_without_a_row(database: Database) -> None:
    write(database, [cells(1)])
    reported = write_back(database, [record(7, 5.0)], UpdateMode.MISSING_ONLY, prune=False)
    assert [name.signature for name in reported.unmatched] == [signature("Abs", cells(7))]
    assert len(read(database)) == 1
    write_back(database, [record(8)], UpdateMode.ALL, prune=False)
    assert len(read(database)) == 1, "a failure makes no row"
    added = write_back(database, [record(9, 5.0), record(7, 6.0)], UpdateMode.ALL, prune=False)
    assert added.added == {"Abs": 2}
    assert [row["Input Shapes"] for row in read(database)] == ["1,4", "9,4", "7,4"]


def test_a_file_that_cannot_be_read_keeps_only_its_own_records_out(database: Database) -> None:
    write(database, [cells(1)])
    write(database, [cells(1)], "Neg").write_text("nonsense")
    other = dataclasses.replace(record(1, 5.0), kernel_type="Neg")
    result = write_back(database, [other, record(1, 5.0)], UpdateMode.ALL, prune=False)
    assert "Neg.csv" in result.problems[0]
    assert read(database)[0]["Average Duration(us)"] == "5.0000"


def test_pruning_takes_only_rows_of_this_session_without_any_duration(database: Database) -> None:
    profiled = {"Profiling Average Duration(us)": "3"}
    write(database, [{**cells(n), "Profiling Average Duration(us)": ""} for n in (1, 2)] + [{**cells(3), **profiled}])
    result = write_back(database, [record(2), record(3)], UpdateMode.ALL, prune=True)
    assert [row["Input Shapes"] for row in read(database)] == ["1,4", "3,4"]
    assert len(result.pruned) == 1
    pruned = database.pruned_dir / "Abs.csv"
    assert "because of 2" in pruned.read_text()
    write(database, [{**cells(n), "Profiling Average Duration(us)": ""} for n in (1, 2)])
    write_back(database, [record(1, run="run-2"), record(2)], UpdateMode.ALL, prune=True)
    assert pruned.read_text().count("\n") == 3, "what was pruned before is still there, once"


SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=12)
RECORDS = st.lists(
    st.one_of(
        st.builds(record, st.integers(1, 15), st.floats(0.001, 1e6), st.floats(0.001, 1e6)),
        st.builds(lambda size, status: record(size, status=status), st.integers(1, 15), st.sampled_from(UNMEASURED)),
    ),
    max_size=12,
)


@settings(max_examples=30, deadline=None)
@given(SIZES, RECORDS, st.sampled_from(UpdateMode), st.booleans())
def test_no_row_is_lost_order_is_kept_and_twice_is_once(tmp_path_factory, sizes, records, mode, prune) -> None:
    database = Database(tmp_path_factory.mktemp("database") / "d")
    rows = [{"Mine": f"{i}", **cells(size)} for i, size in enumerate(sizes)]
    write(database, rows)
    result = write_back(database, records, mode, prune=prune)
    after = read(database)
    pruned = database.pruned_dir / "Abs.csv"
    gone = list(csv.DictReader(pruned.open())) if pruned.exists() else []
    kept = [row["Mine"] for row in after if row["Mine"]]
    assert kept == sorted(kept, key=int)
    assert sorted(kept + [row["Mine"] for row in gone], key=int) == [row["Mine"] for row in rows]
    assert not any(row["Average Duration(us)"] for row in gone if "Average Duration(us)" in row)
    assert list(after[0])[:7] == ["Mine", *SLOTS] if after else True
    assert len(after) == len(kept) + result.added.total()
    written = (database.path / "Abs.csv").stat().st_ino
    again = write_back(database, records, UpdateMode.MISSING_ONLY if prune else mode, prune=prune)
    assert (database.path / "Abs.csv").stat().st_ino == written, "the file is written again"
    assert (again.updated.total(), again.added.total(), again.marked.total()) == (0, 0, 0)


def test_what_could_not_be_written_counts_for_nothing(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    write(database, [cells(1), cells(2)])

    def full(table: RowTable) -> None:
        raise OpAtlasError(f"{table.path} was not written")

    monkeypatch.setattr(database, "write", full)
    result = write_back(database, [record(1, 1.0), record(2), record(3, 1.0)], UpdateMode.ALL, prune=True)
    assert result == WriteBackResult(problems=[f"{database.path / 'Abs.csv'} was not written"])


@pytest.mark.parametrize("status", [Status.SKIPPED, Status.UNSUPPORTED])
def test_a_row_that_this_device_did_not_run_is_not_pruned(database: Database, status: Status) -> None:
    write(database, [cells(1), cells(2)])
    result = write_back(database, [record(1, status=status), record(2)], UpdateMode.ALL, prune=True)
    assert [name.signature for name in result.pruned] == [signature("Abs", cells(2))]
    assert [row["Input Shapes"] for row in read(database)] == ["1,4"]


def test_a_record_of_an_earlier_run_does_not_prune(database: Database) -> None:
    write(database, [cells(1), cells(2)])
    write_back(database, [record(1, status=Status.FAILED, run="run-2")], UpdateMode.ALL, prune=False)
    late = [record(n, run="run-1") for n in (1, 2)]
    result = write_back(database, late, UpdateMode.ALL, prune=True)
    assert [name.signature for name in result.outdated] == [signature("Abs", cells(1))]
    assert [name.signature for name in result.pruned] == [signature("Abs", cells(2))]
