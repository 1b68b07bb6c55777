"""Properties of combining any tables: no valid duration is lost, twice is once, and the source never changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import hypothesis.strategies as st
import pandas as pd
from abs_rows import cells, contents, measured, write
from combining import apply
from hypothesis import given, settings
from test_combine_tables import combine_tables, combined, frame, rows_of

from opatlas.data.database import Database
from opatlas.data.manifest import RunOrder
from opatlas.row.columns import AVERAGE, RUN_ID
from opatlas.row.columns import PROFILING_AVERAGE as PROFILED
from opatlas.row.quality import valid_duration
from opatlas.row.status import Status

RUNS = st.sampled_from(["", *(f"2025112{day}T12000{second}-aaaaaa" for day in (1, 2) for second in range(4))])
STATUSES = st.sampled_from(["", *(status.value for status in Status)])


@st.composite
def any_rows(draw: st.DrawFn) -> list[dict[str, str]]:
    """Rows of a database. The duration of a run is a function of run and row, as it is of one measurement."""
    rows = []
    for size in draw(st.lists(st.integers(1, 6), max_size=6)):
        run, later = draw(RUNS), draw(RUNS)
        row = {
            **cells(size),
            RUN_ID: run,
            AVERAGE: "",
            "Cache State": run,
            "Status": draw(STATUSES),
            "Status Reason": "",
        }
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
        if age(row[RUN_ID]) > age(other[RUN_ID]):
            best[row["Input Shapes"]] = row
    return {shapes: row[AVERAGE] for shapes, row in best.items()}


def combine_all(tables: Sequence[Sequence[Mapping[str, str]]]) -> pd.DataFrame:
    result = frame([cells(0)]).reindex(columns=list(measured(0, "", "")), fill_value="")
    for rows in tables:
        if rows:
            result = combine_tables("Abs", result, frame(rows)).frame
    return result


@settings(max_examples=60, deadline=None)
@given(st.lists(any_rows(), min_size=1, max_size=4), st.randoms())
def test_no_valid_duration_is_lost_in_any_order(tables, random) -> None:
    shuffled = random.sample(tables, len(tables))
    for order in (tables, shuffled):
        result = combine_all(order)
        there = {row["Input Shapes"]: row for row in result.to_dict("records")}
        assert {shapes: row[AVERAGE] for shapes, row in there.items() if valid_duration(row[AVERAGE])} == newest(tables)
        assert all(row["Cache State"] == row[RUN_ID] for row in there.values() if row[AVERAGE]), "groups move whole"
        assert len(there) == len(result), "no row twice"


@settings(deadline=None)
@given(any_rows(), any_rows())
def test_combining_twice_is_combining_once(target, source) -> None:
    if not target or not source:
        return
    once = combined(target, source)
    twice = combine_tables("Abs", once.frame, frame(source))
    assert twice.frame.equals(once.frame)
    assert not twice.tally.changed


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
