"""Shares of the captured device time."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from opatlas.capture.time_shares import captured_time_us, without_replay
from opatlas.row.columns import PROFILING_AVERAGE, PROFILING_SAMPLES
from opatlas.row.table import RowTable


def frame(*rows: tuple[str, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[PROFILING_AVERAGE, PROFILING_SAMPLES])


@pytest.mark.parametrize(
    ("table", "time_us"),
    [
        (frame(("10.5", "4"), ("2", "1"), ("", ""), ("", "3")), pytest.approx(44.0)),
        (pd.DataFrame({"Input Shapes": ["1"]}), 0),
        # The number of launches is unknown.
        (frame(("10.5", "4"), ("2", "")), None),
        (frame(("10.5", "4"))[[PROFILING_AVERAGE]], None),
    ],
)
def test_time_is_the_launches_times_their_average(table: pd.DataFrame, time_us: float | None) -> None:
    assert captured_time_us(RowTable("Mul", Path("Mul.csv"), table)) == time_us


def test_the_largest_share_comes_first() -> None:
    found = without_replay({"Small": 9, "A": 1, "B": 2}, {"Small": 0.1, "A": 30.0, "B": 69.9, "Add": 900.0})
    assert [(each.kernel_type, each.count) for each in found] == [("B", 2), ("A", 1), ("Small", 9)]
    assert [each.share for each in found] == pytest.approx([0.0699, 0.03, 0.0001])
    assert without_replay({}, {"Add": 1.0}) == []


@pytest.mark.parametrize("time_us", [{"Exp": 0.0}, {"Exp": None, "Add": 10.0}, {}])
def test_without_captured_times_rows_alone_are_counted(time_us: dict[str, float | None]) -> None:
    (found,) = without_replay({"Exp": 2}, time_us)
    assert (found.count, found.share) == (2, None)
