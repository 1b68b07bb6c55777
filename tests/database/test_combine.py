"""Joining databases: the newest valid run wins, groups move whole, and nothing measured is lost."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import hypothesis.strategies as st
import pandas as pd
import pytest
from hypothesis import given, settings
from test_merge import cells, read, record, write

from opatlas.combine.apply import CombineResult, CombineSource, combine
from opatlas.combine.table import CombinedTable, combine_tables
from opatlas.model.quality import valid_duration
from opatlas.model.schema import Status
from opatlas.model.signature import signature
from opatlas.store import csv_files as store
from opatlas.store import history
from opatlas.store.csv_files import read_frame
from opatlas.store.database import Database
from opatlas.store.journal import JournalHeader
from opatlas.store.manifest import RunOrder, read_manifests
from opatlas.store.update_mode import UpdateMode
from opatlas.store.write_back import write_back

AVERAGE, RUN = "Average Duration(us)", "Run ID"
PROFILED = "Profiling Average Duration(us)"
#: Runs of these ids began in this order.
OLD, MIDDLE, NEW = (f"2025112{day}T120000-aaaaaa" for day in (1, 2, 3))


def measured(size: int, duration: float | str, run: str, **more: str) -> dict[str, str]:
    """A row as a session leaves it, with everything about its duration telling the run."""
    about = {"Cache State": f"cache of {run}", "MicroBench Samples": f"samples of {run}"}
    return {**cells(size), AVERAGE: str(duration), **about, "Status": "measured", "Status Reason": "", RUN: run, **more}


def failed(size: int, run: str, **more: str) -> dict[str, str]:
    """A row without a duration that a session could not measure."""
    return {**cells(size), AVERAGE: "", "Status": "crashed", "Status Reason": "signal 11", RUN: run, **more}


def frame(rows: Sequence[Mapping[str, str]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), dtype=str).fillna("")


def combined(
    target: Sequence[Mapping[str, str]], source: Sequence[Mapping[str, str]], kernel_type: str = "Abs"
) -> CombinedTable:
    return combine_tables(kernel_type, frame(target), frame(source), RunOrder(), "elsewhere")


def rows_of(result: CombinedTable) -> list[dict[str, str]]:
    return result.frame.to_dict("records")


def only_row(result: CombinedTable) -> dict[str, str]:
    (row,) = rows_of(result)
    return row


def test_the_newer_duration_wins_with_everything_that_belongs_to_it() -> None:
    older, newer = measured(1, 5.0, OLD, **{"MicroBench aic_mac_ratio": "0.5"}), measured(1, 7.0, NEW)
    taken = combined([older], [newer])
    assert only_row(taken) == {**newer, "MicroBench aic_mac_ratio": ""}, "a counter of the older run is not of this one"
    kept = combined([newer], [older])
    assert only_row(kept) == newer
    assert (taken.tally.taken, taken.tally.kept, kept.tally.taken, kept.tally.kept) == ({0}, set(), set(), {0})


def test_two_durations_are_a_conflict_that_names_both() -> None:
    for target, source in ((OLD, NEW), (NEW, OLD)):
        durations = {OLD: "5.0", NEW: "10.0"}
        result = combined([measured(1, durations[target], target)], [measured(1, durations[source], source)])
        (conflict,) = result.tally.conflicts
        assert (conflict.what, conflict.source, conflict.input_shapes) == (AVERAGE, "elsewhere", "1,4")
        assert (conflict.kept, conflict.kept_run) == ("10.0", NEW)
        assert (conflict.dropped, conflict.dropped_run) == ("5.0", OLD)
        assert (conflict.ratio, conflict.distance) == (2.0, 2.0)
        assert conflict.signature == signature("Abs", cells(1))


def test_one_run_is_one_measurement() -> None:
    result = combined([measured(1, 5.0, OLD)], [measured(1, "5.00", OLD)])
    assert only_row(result)[AVERAGE] == "5.0"
    assert not result.tally.conflicts


@pytest.mark.parametrize("cell", ["", "0", "nan", "-1", "inf", "none"])
def test_what_is_no_duration_neither_wins_nor_is_defended(cell: str) -> None:
    valid = measured(1, 5.0, OLD)
    assert only_row(combined([valid], [measured(1, cell, NEW)]))[AVERAGE] == "5.0"
    taken = combined([{**failed(1, NEW), AVERAGE: cell}], [valid])
    assert only_row(taken)[AVERAGE] == "5.0"
    assert not taken.tally.conflicts


def test_a_duration_of_no_run_is_older_than_any() -> None:
    foreign = {**cells(1), AVERAGE: "3.0"}
    assert only_row(combined([foreign], [measured(1, 5.0, OLD)]))[AVERAGE] == "5.0"
    assert only_row(combined([measured(1, 5.0, OLD)], [foreign]))[AVERAGE] == "5.0"
    other = combined([foreign], [{**foreign, AVERAGE: "4.0"}])
    assert only_row(other)[AVERAGE] == "3.0"
    assert [(c.kept, c.dropped) for c in other.tally.conflicts] == [("3.0", "4.0")]
    assert not combined([foreign], [{**foreign, AVERAGE: "3.00"}]).tally.conflicts


def test_a_newer_failure_marks_the_row_and_keeps_its_duration() -> None:
    valid = measured(1, 5.0, OLD)
    result = combined([valid], [failed(1, NEW, **{"Crashes In A Row": "2"})])
    assert only_row(result) == {
        **valid,
        "Status": "crashed",
        "Status Reason": f"signal 11 [run {NEW}]",
        "Crashes In A Row": "2",
    }
    assert result.tally.statuses == {0: "crashed"}
    assert only_row(combined([failed(1, NEW)], [valid])) == only_row(combined([valid], [failed(1, NEW)]))


def test_a_newer_measurement_beats_an_older_failure() -> None:
    valid = measured(1, 5.0, NEW, **{"Crashes In A Row": ""})
    failure = failed(1, OLD, **{"Crashes In A Row": "1"})
    assert only_row(combined([failure], [valid])) == valid
    assert only_row(combined([valid], [failure])) == valid


def test_a_failure_between_two_measurements_is_read_from_the_reason() -> None:
    marked = {**measured(1, 5.0, OLD), "Status": "oom", "Status Reason": f"out of memory [run {MIDDLE}]"}
    assert only_row(combined([marked], [measured(1, 6.0, NEW)]))["Status"] == "measured"
    late = {**marked, "Status Reason": f"out of memory [run {NEW}]"}
    row = only_row(combined([late], [measured(1, 6.0, MIDDLE)]))
    assert (row[AVERAGE], row[RUN]) == ("6.0", MIDDLE)
    assert (row["Status"], row["Status Reason"]) == ("oom", f"out of memory [run {NEW}]")


def test_what_one_run_measured_at_last_counts() -> None:
    valid = measured(1, 5.0, NEW)
    assert only_row(combined([failed(1, NEW)], [valid])) == valid
    assert only_row(combined([valid], [failed(1, NEW)])) == valid


def test_measured_says_nothing_of_a_row_without_its_duration() -> None:
    emptied = measured(1, "", NEW)
    row = only_row(combined([emptied], [failed(1, OLD)]))
    assert (row["Status"], row[RUN]) == ("crashed", OLD)
    assert only_row(combined([failed(1, OLD)], [emptied]))["Status"] == "crashed"


def test_a_failure_without_a_duration_has_its_run_in_its_own_column() -> None:
    marked = {**measured(1, 5.0, OLD), "Status": "oom", "Status Reason": f"out of memory [run {NEW}]"}
    gone = {**marked, AVERAGE: ""}
    row = only_row(combined([failed(1, OLD)], [gone]))
    assert (row["Status"], row["Status Reason"], row[RUN]) == ("oom", "out of memory", NEW)


def test_reasons_are_as_the_merge_of_a_session_writes_them(tmp_path: Path) -> None:
    """Joining what two sessions left apart gives what they would have left one after the other."""
    together, first, second = (Database(tmp_path / name) for name in ("together", "first", "second"))
    earlier, later = [record(1, 5.0, run=OLD), record(2, run=OLD)], [record(n, run=NEW) for n in (1, 2)]
    for database, records in ((together, earlier), (together, later), (first, earlier), (second, later)):
        if not database.path.exists():
            write(database, [cells(1), cells(2)])
        write_back(database, records, UpdateMode.ALL, prune=False)
    apply(first, second)
    assert read(first) == read(together)


def test_a_captured_duration_fills_and_never_replaces() -> None:
    captured = {**cells(1), PROFILED: "4.0", "Profiling Samples": "3"}
    empty = {**cells(1), PROFILED: "", "Mine": "x"}
    filled = combined([empty], [captured])
    assert only_row(filled) == {**captured, "Mine": "x"}
    assert filled.tally.profiled == {0}
    other = combined([captured], [{**captured, PROFILED: "5.0", "Profiling Samples": "9"}])
    assert only_row(other) == captured
    assert [(c.what, c.kept, c.dropped, c.ratio) for c in other.tally.conflicts] == [(PROFILED, "4.0", "5.0", 0.8)]
    assert not combined([captured], [{**captured, PROFILED: "4.00"}]).tally.conflicts
    counters_only = {**cells(1), PROFILED: "0", "Profiling Samples": "7"}
    assert only_row(combined([counters_only], [captured])) == captured
    assert only_row(combined([captured], [counters_only])) == captured
    counters = combined([captured], [{**captured, "Profiling Samples": "9"}])
    assert [(c.what, c.ratio) for c in counters.tally.conflicts] == [("Profiling Samples", None)]


def test_other_columns_are_filled_where_they_are_empty() -> None:
    target = [{**cells(1), "Note": "mine", "Runtime num_heads": ""}, {**cells(2), "Note": "", "Runtime num_heads": ""}]
    source = [{**cells(n), "Note": "theirs", "Extra": f"{n}", "Accelerator Core": "AIV"} for n in (2, 1)]
    result = combined(target, source)
    assert [(row["Note"], row["Extra"], row["Accelerator Core"]) for row in rows_of(result)] == [
        ("mine", "1", "AIV"),
        ("theirs", "2", "AIV"),
    ]
    assert [(c.what, c.kept, c.dropped, c.ratio) for c in result.tally.conflicts] == [("Note", "mine", "theirs", None)]
    assert result.tally.filled == 5
    assert next(iter(result.frame.columns)) == "Accelerator Core", "a column goes where its group is"


def test_two_spellings_of_a_row_are_no_conflict() -> None:
    quoted = {
        name: f'"{cell}"' if "Shapes" in name else f"DT_{cell}" if "Types" in name else cell
        for name, cell in cells(1).items()
    }
    result = combined([cells(1)], [{**quoted, AVERAGE: "5.0"}])
    assert only_row(result) == {**cells(1), AVERAGE: "5.0"}
    assert not result.tally.conflicts


def test_rows_that_are_missing_follow_in_the_order_of_the_source_with_all_that_they_hold() -> None:
    source = [measured(n, n, OLD, Extra=f"{n}", Empty="") for n in (9, 2, 7)]
    result = combined([{"Mine": "x", **cells(2)}], source)
    assert [row["Input Shapes"] for row in rows_of(result)] == ["2,4", "9,4", "7,4"]
    assert [row["Extra"] for row in rows_of(result)] == ["2", "9", "7"]
    assert [row["Mine"] for row in rows_of(result)] == ["x", "", ""]
    assert "Empty" not in result.frame.columns
    assert result.tally.added == 2


def test_of_rows_that_stand_twice() -> None:
    twice = [measured(1, 3.0, OLD), failed(1, MIDDLE)]
    source = [failed(1, NEW), measured(1, 8.0, NEW), measured(1, 7.0, MIDDLE)]
    result = combined(twice, source)
    assert [row[AVERAGE] for row in rows_of(result)] == ["8.0", "8.0"]
    assert [row[AVERAGE] for row in rows_of(combined([cells(2)], source))] == ["", "8.0"]


def test_sequence_lengths_make_another_row() -> None:
    lengths = [{**measured(1, n, OLD), "Runtime actual_seq_lengths_values": f"{n}"} for n in (1, 2)]
    result = combined([lengths[0]], [lengths[1]], "FusedInferAttentionScore")
    assert [row[AVERAGE] for row in rows_of(result)] == ["1", "2"]


def manifest(
    database: Database, run_id: str, started_at: float, device: str = "CPU", torch: str = "2.13.0+cpu"
) -> Path:
    database.runs_dir.mkdir(parents=True, exist_ok=True)
    path = database.runs_dir / f"{run_id}.json"
    values = {"started_at": started_at, "device": {"name": device}, "packages": {"torch": torch}}
    path.write_text(json.dumps(values))
    return path


# Whole databases


def apply(target: Database, *sources: Database) -> CombineResult:
    problems: list[str] = []
    every = [one for each in (target, *sources) for one in read_manifests(each, problems).values()]
    assert not problems
    named = [
        CombineSource(
            str(each.path),
            each,
            {each.runs_dir / f"{run_id}.json": one for run_id, one in read_manifests(each, problems).items()},
        )
        for each in sources
    ]
    return combine(target, named, every, lambda: None)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a database, but its locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_manifests_tell_which_run_is_newer_and_come_along(target: Database, source: Database) -> None:
    write(target, [measured(1, 5.0, NEW)])
    write(source, [measured(1, 6.0, OLD)])
    manifest(source, OLD, started_at=1.78e9)
    assert apply(target, source).manifests == 1
    assert read(target)[0][AVERAGE] == "6.0", "the clock of its machine was wrong, says its manifest"
    assert (target.runs_dir / f"{OLD}.json").read_bytes() == (source.runs_dir / f"{OLD}.json").read_bytes()
    assert apply(target, source).manifests == 0


def test_a_target_that_is_not_there_is_made(target: Database, source: Database) -> None:
    write(source, [{"Mine": "1", "Empty": "", **measured(1, 5.0, OLD)}])
    write(source, [measured(2, 5.0, OLD)], "Neg")
    before = contents(source.path)
    outcome = apply(target, source)
    assert outcome.new == ["Abs", "Neg"]
    assert contents(target.path) == before
    assert contents(source.path) == before


def test_a_file_in_which_nothing_changes_is_left_as_it_is(target: Database, source: Database) -> None:
    path = write(target, [measured(1, 5.0, NEW)])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    before = path.read_bytes()
    write(source, [measured(1, 6.0, OLD)])
    apply(target, source)
    assert path.read_bytes() == before


def test_a_duration_that_is_not_in_the_table_stays_in_the_history(target: Database, source: Database) -> None:
    write(target, [measured(1, 5.0, NEW), measured(2, 5.0, OLD)])
    write(source, [measured(1, 6.0, OLD), measured(2, 6.0, NEW)])
    apply(target, source)
    (kept,) = history.replaced_tables(target)
    durations = sorted((row["Input Shapes"], row[AVERAGE], row[RUN]) for row in read_frame(kept).to_dict("records"))
    assert durations == [("1,4", "6.0", OLD), ("2,4", "5.0", OLD)]
    before = contents(target.path)
    apply(target, source)
    assert contents(target.path) == before, "a row is kept once"


def test_histories_come_along_and_their_durations_are_kept_there_only(target: Database, source: Database) -> None:
    write(target, [measured(1, 5.0, NEW)])
    write(source, [cells(1)])
    header = JournalHeader(OLD, "all", prune=False)
    write_back(source, [record(1, 6.0, run=OLD)], UpdateMode.ALL, prune=False)
    history.add(source, header, [record(1, 6.0, run=OLD)])
    apply(target, source)
    assert history.read(target, OLD).records == history.read(source, OLD).records
    assert not history.replaced_tables(target)
    assert read(target)[0][AVERAGE] == "5.0"


def test_each_table_of_a_source_is_read_once(
    target: Database, source: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(source, [measured(1, 6.0, OLD)])
    history.add(source, JournalHeader(OLD, "all", prune=False), [record(1, 6.0, run=OLD)])
    reads: list[Path] = []
    read_text_csv = store.read_text_csv

    def counted(path: Path) -> pd.DataFrame:
        reads.append(path)
        return read_text_csv(path)

    monkeypatch.setattr(store, "read_text_csv", counted)
    apply(target, source)
    assert [path for path in reads if path.is_relative_to(source.path)] == [source.path / "Abs.csv"]


def test_a_file_that_cannot_be_read_keeps_only_itself_out(target: Database, source: Database) -> None:
    for kernel_type in ("Abs", "Neg", "Exp"):
        write(source, [measured(1, 5.0, OLD)], kernel_type)
    (source.path / "Neg.csv").write_text("nonsense\n")
    write(target, [cells(1)], "Exp").write_text("version https://git-lfs.github.com/spec/v1\n")
    outcome = apply(target, source)
    assert [problem.partition(": ")[0] for problem in outcome.problems] == [
        str(target.path / "Exp.csv"),
        f"{source.path / 'Neg.csv'}:1",
    ]
    assert read(target)[0][AVERAGE] == "5.0"
    assert not (target.path / "Neg.csv").exists()


def test_pruned_rows_are_combined_once(target: Database, source: Database) -> None:
    def prune(database: Database, *rows: dict[str, str]) -> None:
        database.pruned_dir.mkdir(parents=True)
        write(Database(database.pruned_dir), list(rows))

    reason = {"Pruned Reason": "crashed"}
    prune(target, {**cells(1), **reason}, {**cells(1), **reason})
    prune(
        source,
        {**cells(1), **reason, "Extra": ""},
        {**cells(2), **reason, "Extra": "x"},
        {**cells(2), **reason, "Extra": "x"},
    )
    assert apply(target, source).pruned == 1
    pruned = read(Database(target.pruned_dir))
    assert [row["Input Shapes"] for row in pruned] == ["1,4", "1,4", "2,4"]
    assert apply(target, source).pruned == 0


def test_collectives_are_left_alone(target: Database, source: Database) -> None:
    write(source, [{"message_bytes": "1"}], "hcom_allReduce_")
    write(source, [cells(1)])
    apply(target, source)
    assert list(contents(target.path)) == ["Abs.csv"]


RUNS = st.sampled_from(["", *(f"2025112{day}T12000{second}-aaaaaa" for day in (1, 2) for second in range(4))])
STATUSES = st.sampled_from(["", *(status.value for status in Status)])


@st.composite
def any_rows(draw: st.DrawFn) -> list[dict[str, str]]:
    """Rows of a database. The duration of a run is a function of run and row, as it is of one measurement."""
    rows = []
    for size in draw(st.lists(st.integers(1, 6), max_size=6)):
        run, later = draw(RUNS), draw(RUNS)
        row = {**cells(size), RUN: run, AVERAGE: "", "Cache State": run, "Status": draw(STATUSES), "Status Reason": ""}
        if draw(st.booleans()):
            row |= {AVERAGE: str(size + len(run) + int(run[7:8] or 0) + int(run[14:15] or 0))}
        if row["Status"] not in ("", "measured"):
            row["Status Reason"] = f"why [run {later}]" if row[AVERAGE] and later else "why"
        for name in (PROFILED, "Mine"):
            row[name] = draw(st.sampled_from(["", "1.5", "2.5"]))
        rows.append(row)
    return rows


def newest(tables: Sequence[Sequence[Mapping[str, str]]]) -> dict[str, str]:
    """The duration of the newest run of each row, by its shapes."""
    age = RunOrder().age
    best: dict[str, Mapping[str, str]] = {}
    for row in (row for table in tables for row in table if valid_duration(row[AVERAGE])):
        other = best.setdefault(row["Input Shapes"], row)
        if age(row[RUN]) > age(other[RUN]):
            best[row["Input Shapes"]] = row
    return {shapes: row[AVERAGE] for shapes, row in best.items()}


def combine_all(tables: Sequence[Sequence[Mapping[str, str]]]) -> pd.DataFrame:
    result = frame([cells(0)]).reindex(columns=list(measured(0, "", "")), fill_value="")
    for rows in tables:
        if rows:
            result = combine_tables("Abs", result, frame(rows), RunOrder(), "elsewhere").frame
    return result


@settings(max_examples=60, deadline=None)
@given(st.lists(any_rows(), min_size=1, max_size=4), st.randoms())
def test_no_valid_duration_is_lost_in_any_order(tables, random) -> None:
    shuffled = random.sample(tables, len(tables))
    for order in (tables, shuffled):
        result = combine_all(order)
        there = {row["Input Shapes"]: row for row in result.to_dict("records")}
        assert {shapes: row[AVERAGE] for shapes, row in there.items() if valid_duration(row[AVERAGE])} == newest(tables)
        assert all(row["Cache State"] == row[RUN] for row in there.values() if row[AVERAGE]), "groups move whole"
        assert len(there) == len(result), "no row twice"


@settings(deadline=None)
@given(any_rows(), any_rows())
def test_combining_twice_is_combining_once(target, source) -> None:
    if not target or not source:
        return
    once = combined(target, source)
    twice = combine_tables("Abs", once.frame, frame(source), RunOrder(), "elsewhere")
    assert twice.frame.equals(once.frame)
    assert not twice.tally.edited
    assert not twice.tally.added


@settings(deadline=None)
@given(any_rows(), any_rows())
def test_rows_of_the_target_keep_their_places_and_their_own_columns(target, source) -> None:
    if not target or not source:
        return
    result = rows_of(combined([{"Place": f"{i}", **row} for i, row in enumerate(target)], source))
    assert [row["Place"] for row in result] == [*map(str, range(len(target))), *[""] * (len(result) - len(target))]
    for before, after in zip(target, result, strict=False):
        assert {
            name: after[name] for name in (*cells(1), *(n for n in (PROFILED, "Mine") if before[n]))
        }.items() <= before.items()
        assert bool(valid_duration(after[AVERAGE])) >= bool(valid_duration(before[AVERAGE]))


@settings(max_examples=40, deadline=None)
@given(any_rows(), any_rows())
def test_files_are_the_same_after_the_second_time_and_the_source_always(tmp_path_factory, ours, theirs) -> None:
    folder = tmp_path_factory.mktemp("join")
    target, source = Database(folder / "target"), Database(folder / "source")
    for database, rows in ((target, ours), (source, theirs)):
        database.path.mkdir()
        if rows:
            write(database, rows)
    before = contents(source.path)
    apply(target, source)
    after = contents(target.path)
    assert apply(target, source).problems == []
    assert contents(target.path) == after
    assert contents(source.path) == before
