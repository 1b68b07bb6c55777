"""What the fold decides, one test for each decision.

==== =================================================================================
X1   a duration brings its counters, and no others
X2   a column of ours is there for a cell only
X3   the largest error of a judged failure goes with its status
X4   lengths of attention that make a row another case empty its pooled cells
X5   nobody appends a pruned row
X6   a row that somebody deleted comes back by a restore only
X7   a prune that is cut off, and done again, keeps the row once
X8   of two durations of one run the later counts, and the other is told
X9   what a judged kernel got moves with its status
X10  pooled runs stay pooled when the CSVs are made again
X12  a new run starts after all others, and the start decides
X13  the time decides between two workers, not their names
X14  crashes of two machines add up
X15  a run that appended nothing appends nothing when the CSVs are made again
X16  the empty shape of an appended row is ``""``, whoever appends it
X17  a row that was skipped keeps what earlier runs found out
X18  collectives are combined as kernels are, and come back as they were
X19  a row without a record is not an edited one
X20  a duration without a record is kept with its run before it is replaced
==== =================================================================================
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from abs_rows import MIDDLE, NEW, OLD, cells, contents, manifest, measured, read, record, write
from attention_calls import DECODE, decode
from captures import launch, write_capture
from combining import apply
from folding import at, csvs, imported, joined, killed, recovered, restored, row_of, session

from opatlas.capture.ingest import IngestRequest, ingest_captures
from opatlas.cli.main import main
from opatlas.data import log
from opatlas.data.database import Database
from opatlas.data.fold import add_rows
from opatlas.data.restore import clear_edited
from opatlas.data.write_back import recover, write_back
from opatlas.row import columns as col
from opatlas.row.record import Measurement, Record
from opatlas.row.signature import signature
from opatlas.row.status import Status, UpdateMode

COUNTER = "MicroBench aic_mac_ratio"
MESSAGE = {"message_bytes": "1048576", "num_devices": "16", "dtype": "DT_BF16", "topology_tier": "1"}
SCALAR = {**cells(1), col.INPUT_SHAPES: "", col.OUTPUT_SHAPES: ""}


@pytest.fixture
def database(tmp_path: Path) -> Database:
    database = Database(tmp_path / "database")
    write(database, [cells(1), cells(2)])
    return database


@pytest.fixture
def other(tmp_path: Path) -> Database:
    other = Database(tmp_path / "other")
    write(other, [cells(1), cells(2)])
    return other


def message(duration_us: float, run: str) -> Record:
    kernel_type = "hcom_allReduce_"
    measurement = Measurement((duration_us,), "cupti", "warm", device_kernels=1)
    return Record(
        kernel_type, signature(kernel_type, MESSAGE), MESSAGE, Status.MEASURED, "", run, 0.0, measurement=measurement
    )


def crashed(run: str) -> Record:
    return record(1, status=Status.CRASHED, run=run)


def judged(run: str, **got: str) -> Record:
    return replace(record(1, status=Status.INVALID, run=run), judged={**got})


def assert_restored_as_it_is(database: Database) -> None:
    before = csvs(database)
    restored(database)
    assert csvs(database) == before


def then(by: str, database: Database, other: Database, record: Record) -> None:
    """A further run, of the database or of another one, which is combined with it; then perhaps a restore."""
    session(other if by == "combine" else database, record)
    if by == "combine":
        joined(database, other)
    elif by == "restore":
        restored(database)


BY = pytest.mark.parametrize("by", ["session", "combine", "restore"])


@BY
def test_a_duration_brings_its_counters_and_no_others(database: Database, other: Database, by: str) -> None:
    session(database, record(1, 1.0, run=OLD, counters={"aic_mac_ratio": 0.5}))
    then(by, database, other, record(1, 2.0, run=NEW))
    assert row_of(database)[col.AVERAGE] == "2.0000"
    assert COUNTER not in row_of(database)


def test_a_column_of_ours_is_there_for_a_cell_only(database: Database, other: Database, tmp_path: Path) -> None:
    session(database, record(1, run=OLD))
    write(other, [{**cells(3), col.AVERAGE: "", "Note": ""}])
    joined(database, other)
    add_rows(database, {"Neg": [cells(1)]})
    capture = write_capture(tmp_path / "capture/kernel_details.csv", [launch()])
    ingest_captures(database, [capture], IngestRequest(capture))
    for kernel_type in ("Abs", "Neg", "MatMulV3"):
        rows = read(database, kernel_type)
        empty = {name for name in rows[0] if name in col.OWN and not any(row[name] for row in rows)}
        assert empty <= {col.AVERAGE}, kernel_type


def test_the_largest_error_of_a_judged_failure_goes_with_its_status(database: Database) -> None:
    session(database, judged(OLD, **{col.MAX_ERROR: "7.5"}))
    assert row_of(database)[col.MAX_ERROR] == "7.5"
    session(database, record(1, run=NEW))
    assert col.MAX_ERROR not in row_of(database)


def test_lengths_that_make_a_row_another_case_empty_its_pooled_cells(tmp_path: Path) -> None:
    database = Database(tmp_path / "database")
    kernel_type = "FusedInferAttentionScore"
    dtypes = ["DT_BF16"] * 3 + ["DT_UNDEFINED", "INT8", "INT64", "INT64", *["DT_UNDEFINED"] * 7, "INT32"]
    types = ";".join([*dtypes, *["DT_UNDEFINED"] * 16])
    formats = ";".join("NULL" if dtype == "DT_UNDEFINED" else "ND" for dtype in types.split(";"))
    launched = launch(type=kernel_type, shapes=DECODE, dtypes=types, formats=formats, out="3,4,128;")
    capture = write_capture(tmp_path / "capture/kernel_details.csv", [launched])
    assert not ingest_captures(database, [capture], IngestRequest(capture)).problems
    (row,) = read(database, kernel_type)
    name = signature(kernel_type, row)
    own = Measurement((9.0,), "wall-clock", "cold", device_kernels=2)
    session(database, Record(kernel_type, name, row, Status.MEASURED, "", OLD, 0.0, own))
    joined(database, pooled=True)
    assert read(database, kernel_type)[0][col.POOLED_MEDIAN]
    calls = tmp_path / "calls.jsonl"
    calls.write_text("".join(f"{json.dumps(call)}\n" for call in (decode(), decode(kv=(301, 129, 8)))))
    words = ["--attention-records", str(calls), "--database-path", str(database.path)]
    assert main(["ingest", *words]) == 0
    first, second = read(database, kernel_type)
    for after in (first, second):
        assert not any(after.get(column) for column in (*col.POOLED, col.AVERAGE, col.STATUS, col.RUN_ID))


@pytest.mark.parametrize("by", ["session", "combine", "restore", "copy"])
def test_nobody_appends_a_pruned_row(database: Database, other: Database, by: str) -> None:
    session(database, record(1, run=OLD), prune=True)
    before = contents(database.pruned_dir)
    if by == "session":
        assert write_back(database, [record(1, 1.0, run=NEW)], UpdateMode.ALL, prune=False).unmatched
    elif by == "combine":
        session(other, record(1, 1.0, run=NEW))
        joined(database, other)
    elif by == "restore":
        log.add(database, log.JournalHeader(NEW, "all", prune=False), [record(1, 1.0, run=NEW)])
        restored(database)
    else:
        add_rows(database, {"Abs": [cells(1)]})
    assert [row[col.INPUT_SHAPES] for row in read(database)] == ["2,4"]
    assert contents(database.pruned_dir) == before


def test_a_row_that_somebody_deleted_comes_back_by_a_restore_only(database: Database, other: Database) -> None:
    session(database, record(1, 1.0, run=OLD), record(2, 2.0, run=OLD))
    write(database, read(database)[1:])
    session(database, record(2, 3.0, run=NEW))
    joined(database, pooled=True)
    assert [row[col.INPUT_SHAPES] for row in read(database)] == ["2,4"]
    restored(database)
    assert sorted(row[col.INPUT_SHAPES] for row in read(database)) == ["1,4", "2,4"]


def test_a_prune_that_is_cut_off_keeps_the_row_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(database, record(1, run=OLD))
    path = next(database.journal_dir.glob("*.jsonl"))
    path.write_text(path.read_text().replace('"prune":false', '"prune":true'))
    replaced = os.replace

    def cut_off(source: str, target: str) -> None:
        if Path(target) == database.csv_path("Abs"):
            raise KeyboardInterrupt
        replaced(source, target)

    with monkeypatch.context() as patched:
        patched.setattr("os.replace", cut_off)
        with pytest.raises(KeyboardInterrupt):
            recovered(database)
    assert len(read(Database(database.pruned_dir))) == 1
    assert len(read(database)) == 2
    recovered(database)
    assert [row[col.INPUT_SHAPES] for row in read(Database(database.pruned_dir))] == ["1,4"]
    assert [row[col.INPUT_SHAPES] for row in read(database)] == ["2,4"]


@pytest.mark.parametrize("later_in", ["target", "source"])
def test_of_two_durations_of_one_run_the_later_counts(database: Database, other: Database, later_in: str) -> None:
    early, late = (at(record(1, us, run=OLD), time_s) for us, time_s in ((1.0, 10.0), (2.0, 20.0)))
    session(database, late if later_in == "target" else early)
    session(other, early if later_in == "target" else late)
    apply(database, other)
    assert row_of(database)[col.AVERAGE] == "2.0000"
    assert_restored_as_it_is(database)


@BY
def test_what_a_judged_kernel_got_moves_with_its_status(database: Database, other: Database, by: str) -> None:
    session(database, judged(OLD, **{col.LEVEL: "L1", col.ERROR_CLASS: "mismatch/nan"}))
    then(by, database, other, judged(NEW, **{col.LEVEL: "L0"}))
    assert row_of(database)[col.LEVEL] == "L0"
    assert col.ERROR_CLASS not in row_of(database)


def test_pooled_runs_stay_pooled_when_the_csvs_are_made_again(database: Database) -> None:
    for run, us in ((OLD, 10.0), (MIDDLE, 11.0), (NEW, 30.0)):
        session(database, record(1, us, run=run))
    joined(database, pooled=True)
    assert row_of(database)[col.AVERAGE] == "11.0000"
    assert_restored_as_it_is(database)
    session(database, record(1, 50.0, run="20251201T120000-aaaaaa"))
    before = csvs(database)
    assert row_of(database)[col.AVERAGE] == "50.0000"
    restored(database)
    assert csvs(database) == before


def test_a_new_run_starts_after_all_others_and_the_start_decides(database: Database) -> None:
    now = time.time()
    session(database, record(1, 1.0, run="first"))
    manifest(database, "first", now)
    # The clock was set back.
    started_at = log.start_of_run(database, "second", now - 3600)
    assert started_at > now
    manifest(database, "second", started_at)
    session(database, record(1, 2.0, run="second"))
    assert row_of(database)[col.AVERAGE] == "2.0000"
    manifest(database, "late", now - 7200)
    session(database, record(1, 3.0, run="late"))
    assert row_of(database)[col.AVERAGE] == "2.0000"
    assert_restored_as_it_is(database)


@pytest.mark.parametrize("parts", [("-gw0", "-gw1"), ("-gw1", "-gw0"), ("", "-gw10"), ("-gw10", "-gw2")])
@pytest.mark.parametrize("is_killed", [False, True])
def test_the_time_decides_between_two_workers(database: Database, parts: tuple[str, str], is_killed: bool) -> None:
    first, second = parts
    killed(database, at(crashed(NEW), 10.0), part=first)
    killed(database, at(record(1, 2.0, run=NEW), 20.0), part=second)
    if is_killed:
        recovered(database)
    else:
        session(database, at(record(2, 3.0, run=NEW), 1.0))
    row = row_of(database)
    assert (row[col.AVERAGE], row[col.STATUS]) == ("2.0000", "measured")
    assert_restored_as_it_is(database)


@pytest.mark.parametrize("parts", [("-gw0", "-gw1"), ("-gw1", "-gw0")])
def test_a_later_failure_of_another_worker_is_the_status(database: Database, parts: tuple[str, str]) -> None:
    first, second = parts
    killed(database, at(record(1, 2.0, run=NEW), 10.0), part=first)
    killed(database, at(crashed(NEW), 20.0), part=second)
    recovered(database)
    recovered_csvs = csvs(database)
    assert row_of(database)[col.STATUS] == "crashed"
    restored(database)
    assert csvs(database) == recovered_csvs


@pytest.mark.parametrize("turned", [False, True])
def test_crashes_of_two_machines_add_up(database: Database, other: Database, turned: bool) -> None:
    session(database, crashed(OLD))
    session(other, crashed(NEW))
    target, source = (other, database) if turned else (database, other)
    joined(target, source)
    assert row_of(target)[col.CRASHES_IN_A_ROW] == "2"
    joined(target, source)
    restored(target)
    assert row_of(target)[col.CRASHES_IN_A_ROW] == "2"


def test_a_run_that_appended_nothing_appends_nothing_when_the_csvs_are_made_again(database: Database) -> None:
    killed(database, record(1, 1.0, run=OLD), record(3, 3.0, run=OLD), mode="missing-only")
    recover(database, own_run="")
    assert [row[col.INPUT_SHAPES] for row in read(database)] == ["1,4", "2,4"]
    assert_restored_as_it_is(database)
    assert {each.cells[col.INPUT_SHAPES] for each in log.read(database, OLD).records} == {"1,4", "3,4"}


def test_a_run_that_appended_rows_and_replaced_a_typed_duration_appends_when_the_csvs_are_made_again(
    database: Database,
) -> None:
    write(database, [{**cells(1), col.AVERAGE: "7.5"}])
    session(database, record(1, 1.0, run=OLD), record(3, 3.0, run=OLD))
    before = csvs(database)
    write(database, read(database)[:1])
    restored(database)
    assert csvs(database) == before


@pytest.mark.parametrize("by", ["session", "combine", "copy"])
def test_the_empty_shape_of_an_appended_row(database: Database, other: Database, by: str) -> None:
    name = signature("Abs", SCALAR)
    if by == "session":
        one = record(1, 1.0, run=NEW)
        session(database, replace(one, cells=SCALAR, signature=name))
    elif by == "combine":
        write(other, [SCALAR])
        joined(database, other)
    else:
        add_rows(database, {"Abs": [SCALAR]})
    added = read(database)[-1]
    assert (added[col.INPUT_SHAPES], added[col.OUTPUT_SHAPES]) == ('""', '""')
    assert signature("Abs", added) == name


@BY
def test_a_row_that_was_skipped_keeps_what_earlier_runs_found_out(database: Database, other: Database, by: str) -> None:
    session(database, crashed(OLD))
    before = csvs(database)
    then(by, database, other, record(1, status=Status.SKIPPED, run=NEW))
    assert csvs(database) == before


def test_a_newer_run_with_the_same_status_is_the_run_of_the_status(database: Database, other: Database) -> None:
    session(database, record(1, run=OLD))
    session(other, record(1, run=NEW))
    joined(database, other)
    assert row_of(database)[col.STATUS_RUN_ID] == NEW


def test_collectives_are_combined_and_come_back(database: Database, other: Database) -> None:
    session(database, message(10.0, OLD))
    session(other, message(20.0, NEW))
    joined(database, other)
    (row,) = read(database, "hcom_allReduce_")
    assert (row["Duration(us)"], row[col.RUN_ID]) == ("20.0000", NEW)
    assert_restored_as_it_is(database)
    (database.path / "hcom_allReduce_.csv").unlink()
    restored(database)
    assert read(database, "hcom_allReduce_")[0]["Duration(us)"] == "20.0000"


def test_a_row_without_a_record_is_not_an_edited_one(database: Database) -> None:
    session(database, record(1, 1.0, run=OLD))
    first, second = read(database)
    others = [
        {**dict.fromkeys(first, ""), **cells(n), col.AVERAGE: f"{n}.0", col.RUN_ID: run}
        for n, run in ((8, "8"), (9, ""))
    ]
    write(database, [first, second, {**first, **cells(7)}, *others])
    assert clear_edited(database, NEW).positions == {"Abs": [2]}
    assert [row[col.AVERAGE] for row in read(database)] == ["1.0000", "", "", "8.0", "9.0"]


@pytest.mark.parametrize("by", ["session", "combine", "pool", "restore"])
@pytest.mark.parametrize("of_run", [OLD, "a-run", ""])
def test_a_duration_without_a_record_is_kept_with_its_run(
    database: Database, other: Database, by: str, of_run: str
) -> None:
    # Runs are pooled only if they were measured alike.
    typed = {**measured(1, "007.50", of_run), "Cache State": "cold", "Instrument": "wall-clock"}
    write(database, [typed, cells(2)])
    session(database, record(2, 2.0, run=MIDDLE))
    joined(database)
    restored(database)
    assert (imported(database), row_of(database)[col.AVERAGE]) == ([], "007.50")
    if by == "combine":
        session(other, record(1, 1.0, run=NEW))
        joined(database, other)
    elif by == "session":
        session(database, record(1, 1.0, run=NEW))
    elif by == "restore":
        log.add(database, log.JournalHeader(NEW, "all", prune=False), [record(1, 1.0, run=NEW)])
        restored(database)
    else:
        records = [record(1, 1.0, run=run) for run in (NEW, "1", "2")]
        log.add(database, log.JournalHeader(NEW, "all", prune=False), records)
        joined(database, pooled=True)
    assert row_of(database)[col.AVERAGE] == "1.0000"
    (kept,) = imported(database)
    assert (kept[col.AVERAGE], kept.get(col.RUN_ID, "")) == ("007.50", of_run)
    restored(database)
    assert len(imported(database)) == 1
