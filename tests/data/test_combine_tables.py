"""Combining tables: the newest valid run wins, groups move whole, and nothing measured is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import hypothesis.strategies as st
import pandas as pd
import pytest
from abs_rows import NEW, OLD, cells, failed, measured
from hypothesis import given, settings

from opatlas.data.combine_table import TableChanges, combine_table
from opatlas.data.database import Database
from opatlas.data.fold import TableFold
from opatlas.data.manifest import RunOrder
from opatlas.row.columns import AVERAGE, RUN_ID
from opatlas.row.columns import PROFILING_AVERAGE as PROFILED
from opatlas.row.quality import valid_duration
from opatlas.row.signature import signature
from opatlas.row.status import Status
from opatlas.row.table import RowTable

Rows = Sequence[Mapping[str, str]]


def frame(rows: Sequence[Mapping[str, str]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), dtype=str).fillna("")


@dataclass
class Combined(TableChanges):
    table: RowTable | None = None


class MemoryOnly(Database):
    def write(self, table: RowTable) -> None:
        pass


def combined(target: Rows, *sources: Rows) -> Combined:
    tables = [RowTable("Abs", Path("Abs.csv"), frame(rows)) for rows in (target, *sources)]
    named = zip(("elsewhere", "further"), tables[1:], strict=False)
    fold, result = TableFold(tables[0], RunOrder()), Combined()
    combine_table(fold, list(named), MemoryOnly("nowhere"), result)
    result.table = fold.rows.table()
    return result


def rows_of(result: Combined) -> list[dict[str, str]]:
    return list(result.table.rows())


def only_row(result: Combined) -> dict[str, str]:
    (row,) = rows_of(result)
    return row


def test_the_newer_duration_wins_with_everything_that_belongs_to_it() -> None:
    older, newer = measured(1, 5.0, OLD, **{"MicroBench aic_mac_ratio": "0.5"}), measured(1, 7.0, NEW)
    taken = combined([older], [newer])
    assert only_row(taken) == {**newer, "MicroBench aic_mac_ratio": ""}, "a counter of the older run is not of this one"
    kept = combined([newer], [older])
    assert only_row(kept) == newer
    assert (taken.taken, taken.kept, kept.taken, kept.kept) == (1, 0, 0, 1)


def test_two_durations_are_a_conflict_that_names_both() -> None:
    for target, source in ((OLD, NEW), (NEW, OLD)):
        durations = {OLD: "5.0", NEW: "10.0"}
        result = combined([measured(1, durations[target], target)], [measured(1, durations[source], source)])
        (conflict,) = result.conflicts
        assert (conflict.what, conflict.source, conflict.input_shapes) == (AVERAGE, "elsewhere", "1,4")
        assert (conflict.kept, conflict.kept_run) == ("10.0", NEW)
        assert (conflict.dropped, conflict.dropped_run) == ("5.0", OLD)
        assert (conflict.ratio, conflict.distance) == (2.0, 2.0)
        assert conflict.signature == signature("Abs", cells(1))


@pytest.mark.parametrize("cell", ["", "0", "nan", "-1", "inf", "none"])
def test_what_is_no_duration_neither_wins_nor_is_defended(cell: str) -> None:
    valid = measured(1, 5.0, OLD)
    assert only_row(combined([valid], [measured(1, cell, NEW)]))[AVERAGE] == "5.0"
    taken = combined([{**failed(1, NEW), AVERAGE: cell}], [valid])
    assert only_row(taken)[AVERAGE] == "5.0"
    assert not taken.conflicts


def test_a_duration_of_no_run_is_older_than_any() -> None:
    foreign = {**cells(1), AVERAGE: "3.0"}
    assert only_row(combined([foreign], [measured(1, 5.0, OLD)]))[AVERAGE] == "5.0"
    assert only_row(combined([measured(1, 5.0, OLD)], [foreign]))[AVERAGE] == "5.0"
    other = combined([foreign], [{**foreign, AVERAGE: "4.0"}])
    assert only_row(other)[AVERAGE] == "3.0"
    assert [(c.kept, c.dropped) for c in other.conflicts] == [("3.0", "4.0")]
    assert not combined([foreign], [{**foreign, AVERAGE: "3.00"}]).conflicts


def test_a_newer_failure_marks_the_row_and_keeps_its_duration() -> None:
    valid = measured(1, 5.0, OLD)
    result = combined([valid], [failed(1, NEW, **{"Crashes In A Row": "2"})])
    assert only_row(result) == {
        **valid,
        "Status": "crashed",
        "Status Reason": "signal 11",
        "Status Run ID": NEW,
        "Crashes In A Row": "2",
    }
    assert result.statuses == {"crashed": 1}
    counted = failed(1, NEW, **{"Crashes In A Row": "1"})
    both = [
        {name: cell for name, cell in only_row(combined(*rows)).items() if cell}
        for rows in (([counted], [valid]), ([valid], [counted]))
    ]
    assert both[0] == both[1]


def test_what_one_run_measured_at_last_counts() -> None:
    valid = measured(1, 5.0, NEW)
    assert only_row(combined([failed(1, NEW)], [valid])) == valid
    assert only_row(combined([valid], [failed(1, NEW)])) == valid


def test_a_captured_duration_fills_and_never_replaces() -> None:
    captured = {**cells(1), PROFILED: "4.0", "Profiling Samples": "3"}
    empty = {**cells(1), PROFILED: "", "Mine": "x"}
    filled = combined([empty], [captured])
    assert only_row(filled) == {**captured, "Mine": "x"}
    assert filled.profiled == 1
    other = combined([captured], [{**captured, PROFILED: "5.0", "Profiling Samples": "9"}])
    assert only_row(other) == captured
    assert [(c.what, c.kept, c.dropped, c.ratio) for c in other.conflicts] == [(PROFILED, "4.0", "5.0", 0.8)]
    assert not combined([captured], [{**captured, PROFILED: "4.00"}]).conflicts
    counters_only = {**cells(1), PROFILED: "0", "Profiling Samples": "7"}
    assert only_row(combined([counters_only], [captured])) == captured
    assert only_row(combined([captured], [counters_only])) == captured
    counters = combined([captured], [{**captured, "Profiling Samples": "9"}])
    assert [(c.what, c.ratio) for c in counters.conflicts] == [("Profiling Samples", None)]


def test_other_columns_are_filled_where_they_are_empty() -> None:
    target = [{**cells(1), "Note": "mine", "Runtime num_heads": ""}, {**cells(2), "Note": "", "Runtime num_heads": ""}]
    source = [{**cells(n), "Note": "theirs", "Extra": f"{n}", "Accelerator Core": "AIV"} for n in (2, 1)]
    result = combined(target, source)
    assert [(row["Note"], row["Extra"], row["Accelerator Core"]) for row in rows_of(result)] == [
        ("mine", "1", "AIV"),
        ("theirs", "2", "AIV"),
    ]
    assert [(c.what, c.kept, c.dropped, c.ratio) for c in result.conflicts] == [("Note", "mine", "theirs", None)]
    assert result.filled == 5
    assert result.table.columns[0] == "Accelerator Core", "a column goes where its group is"


def test_two_spellings_of_a_row_are_no_conflict() -> None:
    quoted = {
        name: f'"{cell}"' if "Shapes" in name else f"DT_{cell}" if "Types" in name else cell
        for name, cell in cells(1).items()
    }
    result = combined([cells(1)], [{**quoted, AVERAGE: "5.0"}])
    assert only_row(result) == {**cells(1), AVERAGE: "5.0"}
    assert not result.conflicts


def test_rows_that_are_missing_follow_in_the_order_of_the_source_with_all_that_they_hold() -> None:
    source = [measured(n, n, OLD, Extra=f"{n}", Empty="") for n in (9, 2, 7)]
    result = combined([{"Mine": "x", **cells(2)}], source)
    assert [row["Input Shapes"] for row in rows_of(result)] == ["2,4", "9,4", "7,4"]
    assert [row["Extra"] for row in rows_of(result)] == ["2", "9", "7"]
    assert [row["Mine"] for row in rows_of(result)] == ["x", "", ""]
    assert "Empty" not in result.table.columns


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
            row["Status Reason"] = "why"
            row["Status Run ID"] = later if row[AVERAGE] else ""
        for name in (PROFILED, "Mine"):
            row[name] = draw(st.sampled_from(["", "1.5", "2.5"]))
        rows.append(row)
    return rows


def newest(tables: Sequence[Rows]) -> dict[str, str]:
    """The duration of the newest run of each row, by its shapes."""
    age = RunOrder().age
    best: dict[str, Mapping[str, str]] = {}
    for row in (row for table in tables for row in table if valid_duration(row[AVERAGE])):
        other = best.setdefault(row["Input Shapes"], row)
        if age(row[RUN_ID]) > age(other[RUN_ID]):
            best[row["Input Shapes"]] = row
    return {shapes: row[AVERAGE] for shapes, row in best.items()}


def combine_all(tables: Sequence[Rows]) -> Rows:
    result: Rows = [dict.fromkeys(measured(0, "", ""), "") | cells(0)]
    for rows in filter(None, tables):
        result = rows_of(combined(result, rows))
    return result


@settings(max_examples=40, deadline=None)
@given(st.lists(any_rows(), min_size=1, max_size=4), st.randoms())
def test_no_valid_duration_is_lost_in_any_order(tables, random) -> None:
    shuffled = random.sample(tables, len(tables))
    for order in (tables, shuffled):
        result = combine_all(order)
        there = {row["Input Shapes"]: row for row in result}
        assert {shapes: row[AVERAGE] for shapes, row in there.items() if valid_duration(row[AVERAGE])} == newest(tables)
        assert all(row["Cache State"] == row[RUN_ID] for row in there.values() if row[AVERAGE]), "groups move whole"
        assert len(there) == len(result), "no row twice"
