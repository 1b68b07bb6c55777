"""The kernel types without a replay, by their share of the captured device time."""

from __future__ import annotations

import pandas as pd
import pytest
from printed import numbers_in

from opatlas.capture.summary import captured_time_us, missing_replay_lines
from opatlas.model.schema import PROFILING_AVERAGE, PROFILING_SAMPLES


def frame(*rows: tuple[str, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[PROFILING_AVERAGE, PROFILING_SAMPLES])


def lines(rows: dict[str, int], time_us: dict[str, float | None]) -> str:
    return " ".join(" ".join(missing_replay_lines(rows, time_us, ["MatMulV2", "Add"])).split())


def test_time_is_the_launches_times_their_average() -> None:
    assert captured_time_us(frame(("10.5", "4"), ("2", "1"), ("", ""), ("", "3"))) == pytest.approx(44.0)
    assert captured_time_us(pd.DataFrame({"Input Shapes": ["1"]})) == 0


def test_a_duration_of_an_unknown_number_of_launches_is_no_time() -> None:
    assert captured_time_us(frame(("10.5", "4"), ("2", ""))) is None
    assert captured_time_us(frame(("10.5", "4"))[[PROFILING_AVERAGE]]) is None


def test_the_largest_share_comes_first_and_the_rest_is_counted() -> None:
    rows = {f"Kernel{i}": 1 for i in range(12)} | {"Small": 9}
    said = lines(rows, {f"Kernel{i}": i * 10.0 for i in range(12)} | {"Small": 0.1, "Add": 1000.0})
    total, largest, names = said.partition("Kernel11 1 (6.6 %), ")
    assert largest
    assert numbers_in(total) == (21, 13, 39.8)
    assert names.startswith("Kernel10 1 ")
    assert "5 more" in names
    assert "docs/contributing.md" in names


def test_without_captured_durations_rows_alone_are_counted() -> None:
    assert "%" not in lines({"Exp": 2}, {"Exp": 0.0, "Add": 0.0})
    assert "%" not in lines({"Exp": 2}, {"Exp": None, "Add": 10.0})
    assert "Exp 2" in lines({"Exp": 2}, {"Exp": None})


def test_a_share_that_rounds_to_nothing_is_not_told_as_nothing() -> None:
    assert "Exp 2 (below 0.1 %)" in lines({"Exp": 2}, {"Exp": 1.0, "Add": 1e6})


def test_the_name_of_a_replay_that_may_be_the_same_kernel_is_told() -> None:
    assert "MatMulV2" in lines({"MatMul": 1}, {})


def test_nothing_is_told_where_all_have_one() -> None:
    assert missing_replay_lines({}, {"Add": 1.0}, ["Add"]) == []
