"""Combining any tables loses no valid duration, in any order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import hypothesis.strategies as st
import pandas as pd
from abs_rows import cells, measured
from hypothesis import given, settings
from test_combine_tables import combine_tables, frame

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
            row["Status Reason"] = "why"
            row["Status Run ID"] = later if row[AVERAGE] else ""
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
