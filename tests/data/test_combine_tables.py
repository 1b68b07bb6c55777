"""Combining tables: the newest valid run wins, groups move whole, and nothing measured is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import hypothesis.strategies as st
import pytest
from abs_rows import NEW, OLD, cells, failed, measured
from hypothesis import given, settings

from opatlas.data.combine import CombineResult, combine_table
from opatlas.data.csv_files import text_table
from opatlas.data.database import Database
from opatlas.data.fold import TableFold
from opatlas.data.manifest import RunOrder
from opatlas.row.columns import AVERAGE, PROFILING_AVERAGE as PROFILED, RUN_ID
from opatlas.row.quality import valid_duration
from opatlas.row.status import Status
from opatlas.row.table import RowTable

Row = Mapping[str, str]
Rows = Sequence[Row]


@dataclass
class Combined(CombineResult):
    rows: Rows = ()


class MemoryOnly(Database):
    def write(self, table: RowTable) -> None:
        pass


def combined(target: Rows, *sources: Rows) -> Combined:
    first, *others = (
        RowTable("Abs", Path("Abs.csv"), text_table(dict.fromkeys(name for row in rows for name in row), rows))
        for rows in (target, *sources)
    )
    fold, result = TableFold(first, RunOrder()), Combined()
    combine_table(fold, others, MemoryOnly("nowhere"), result)
    result.rows = list(fold.rows.table().rows())
    return result


VALID, FAILED = measured(1, 5.0, OLD), failed(1, NEW, **{"Crashes In A Row": "2"})
COUNTED = measured(1, 5.0, OLD, **{"MicroBench aic_mac_ratio": "0.5"})
NEWER, SAME_RUN = measured(1, 10.0, NEW), measured(1, 5.0, NEW)
FOREIGN = {**cells(1), AVERAGE: "3.0"}
CAPTURED = {**cells(1), PROFILED: "4.0", "Profiling Samples": "3"}
BARE = {**cells(1), PROFILED: "0", "Profiling Samples": "7"}
MARKED = {**VALID, "Status": "crashed", "Status Reason": "signal 11", "Status Run ID": NEW, "Crashes In A Row": "2"}
QUOTED = {
    name: f'"{cell}"' if "Shapes" in name else f"DT_{cell}" if "Types" in name else cell
    for name, cell in cells(1).items()
}


@pytest.mark.parametrize(
    ("target", "source", "expected"),
    [
        pytest.param(COUNTED, NEWER, {**NEWER, "MicroBench aic_mac_ratio": ""}, id="newer"),
        pytest.param(NEWER, COUNTED, NEWER, id="older"),
        pytest.param(FOREIGN, VALID, VALID, id="of no run"),
        pytest.param(VALID, FOREIGN, VALID, id="from no run"),
        pytest.param(FOREIGN, {**FOREIGN, AVERAGE: "4.0"}, FOREIGN, id="both of no run"),
        pytest.param(FOREIGN, {**FOREIGN, AVERAGE: "3.00"}, FOREIGN, id="another spelling of the number"),
        pytest.param(cells(1), {**QUOTED, AVERAGE: "5.0"}, {**cells(1), AVERAGE: "5.0"}, id="spelling of slots"),
        pytest.param(VALID, FAILED, MARKED, id="newer failure"),
        pytest.param(FAILED, VALID, MARKED, id="duration older than a failure"),
        pytest.param(failed(1, NEW), SAME_RUN, SAME_RUN, id="measured at last"),
        pytest.param(SAME_RUN, failed(1, NEW), SAME_RUN, id="failed before"),
        pytest.param({**cells(1), "Mine": "x"}, CAPTURED, {**CAPTURED, "Mine": "x"}, id="captured"),
        pytest.param(
            *(CAPTURED, {**CAPTURED, PROFILED: "5.0", "Profiling Samples": "9"}, CAPTURED), id="captured in both"
        ),
        pytest.param(CAPTURED, {**CAPTURED, PROFILED: "4.00"}, CAPTURED, id="the same captured"),
        pytest.param(BARE, CAPTURED, CAPTURED, id="captured over samples alone"),
        pytest.param(CAPTURED, BARE, CAPTURED, id="samples alone"),
        pytest.param(*(CAPTURED, {**CAPTURED, "Profiling Samples": "9"}, CAPTURED), id="captured counts"),
    ],
)
def test_the_groups_of_a_row_move_whole(target: Row, source: Row, expected: Row) -> None:
    result = combined([target], [source])
    (row,) = result.rows
    assert {name: cell for name, cell in row.items() if cell} == {name: cell for name, cell in expected.items() if cell}


@pytest.mark.parametrize("cell", ["", "0", "nan", "-1", "inf", "none"])
def test_what_is_no_duration_neither_wins_nor_is_defended(cell: str) -> None:
    for rows in ((VALID, measured(1, cell, NEW)), ({**failed(1, NEW), AVERAGE: cell}, VALID)):
        result = combined(*([row] for row in rows))
        assert result.rows[0][AVERAGE] == "5.0"


def test_rows_that_are_missing_follow_in_the_order_of_the_source_and_empty_cells_are_filled() -> None:
    target = [{**cells(1), "Note": "mine", "Mine": "x"}, {**cells(2), "Note": "", "Mine": "x"}]
    source = [measured(n, n, OLD, Note="theirs", Extra=f"{n}", Empty="") for n in (9, 2, 7, 1)]
    result = combined(target, source)
    assert [(row["Input Shapes"], row["Note"], row["Extra"], row["Mine"]) for row in result.rows] == [
        *(("1,4", "mine", "1", "x"), ("2,4", "theirs", "2", "x")),
        *(("9,4", "theirs", "9", ""), ("7,4", "theirs", "7", "")),
    ]
    assert "Empty" not in result.rows[0]
    assert (result.added, result.taken, result.changed) == (2, 2, 0)


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


BARE_TABLE = [dict.fromkeys(measured(0, "", ""), "") | cells(0)]


def durations_of(rows: Rows) -> set[tuple[str, str, str]]:
    return {(row["Input Shapes"], row[RUN_ID], row[AVERAGE]) for row in rows if valid_duration(row[AVERAGE])}


@settings(max_examples=40, deadline=None)
@given(st.lists(any_rows(), min_size=1, max_size=4), st.randoms())
def test_no_valid_duration_is_lost_in_any_order(tables, random) -> None:
    tables = [*filter(None, tables)]
    in_turn: Rows = BARE_TABLE
    for rows in tables:
        in_turn = combined(in_turn, rows).rows
    shuffled = combined(BARE_TABLE, *random.sample(tables, len(tables)))
    for after in (in_turn, shuffled.rows):
        assert {shapes: us for shapes, _, us in durations_of(after)} == newest(tables)
        assert all(row["Cache State"] == row[RUN_ID] for row in after if row[AVERAGE]), "groups move whole"
        assert len({row["Input Shapes"] for row in after}) == len(after), "no row twice"
