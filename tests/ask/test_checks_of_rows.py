"""Checks that look at each row by itself: a planted defect is found with its line, and a clean row passes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from checked import RUN, findings, message, product, write_database
from hypothesis import given
from hypothesis import strategies as st

from opatlas.ask.checks import CHECKS
from opatlas.ask.checks.check import CheckedDatabase
from opatlas.data.cells import microseconds
from opatlas.row.columns import (
    AVERAGE,
    MICROBENCH_MEDIAN,
    MICROBENCH_MIN,
    MICROBENCH_SAMPLES,
    MICROBENCH_STD,
    QUALITY,
    QUALITY_REASON,
    RUN_ID,
    STAND_IN,
    STATUS,
    STATUS_REASON,
)
from opatlas.row.quality import judge, summarize, typical_mean

CLEAN = product(1, 9.0)


def found_in(folder: Path, check: str, *changes: dict[str, str]) -> list[str]:
    """What a check finds in a clean row and in changed ones, as `{line}: {value}`."""
    rows = [CLEAN, *({**product(2 + i, 9.0), **change} for i, change in enumerate(changes))]
    database = CheckedDatabase(write_database(folder, {"MatMulV2": rows}))
    return [f"{finding.line}: {finding.value}" for finding in findings(check, database)]


@pytest.mark.parametrize("check", [check.name for check in CHECKS])
def test_a_clean_table_passes(tmp_path: Path, check: str) -> None:
    tables = {"MatMulV2": [product(m, 9.0 + m) for m in (1, 2, 3)], "hcom_allReduce_": [message(1024, 9.0)]}
    assert not findings(check, CheckedDatabase(write_database(tmp_path, tables)))


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ({MICROBENCH_SAMPLES: "1"}, "MicroBench Std Duration(us) 0.1, MicroBench Samples 1"),
        ({MICROBENCH_MIN: "9.5"}, "MicroBench Min Duration(us) 9.5, MicroBench Median Duration(us) 9.0"),
        ({MICROBENCH_MEDIAN: "9.2"}, "MicroBench Median Duration(us) 9.2, MicroBench Std Duration(us) 0.1"),
        ({MICROBENCH_MIN: "5"}, "MicroBench Min Duration(us) 5, MicroBench Std Duration(us) 0.1"),
        ({AVERAGE: "-9"}, "Average Duration(us) -9"),
        ({AVERAGE: "fast"}, "Average Duration(us) fast"),
        ({MICROBENCH_SAMPLES: "0"}, "MicroBench Samples 0"),
        ({MICROBENCH_STD: "inf"}, "MicroBench Std Duration(us) inf"),
    ],
)
def test_impossible_numbers_are_found(tmp_path: Path, change: dict[str, str], value: str) -> None:
    assert f"3: {value}" in found_in(tmp_path, "impossible", change)


@given(st.lists(st.floats(0.5, 1e6), min_size=1, max_size=30))
def test_the_statistics_of_any_samples_are_possible(samples: list[float]) -> None:
    summary, verdict = summarize(samples), judge(samples)
    change = {
        AVERAGE: microseconds(typical_mean(samples)),
        QUALITY_REASON: verdict.reason,
        MICROBENCH_MEDIAN: microseconds(summary.median_us),
        MICROBENCH_MIN: microseconds(summary.min_us),
        MICROBENCH_STD: microseconds(summary.std_us) if summary.count > 1 else "",
        MICROBENCH_SAMPLES: str(summary.count),
    }
    with tempfile.TemporaryDirectory() as folder:
        assert not found_in(Path(folder), "impossible", change)


def test_a_row_that_stands_twice_is_found_with_the_line_of_the_first(tmp_path: Path) -> None:
    rows = [product(1, 9.0), product(2, 9.0), product(1, 12.0)]
    (finding,) = findings("duplicates", CheckedDatabase(write_database(tmp_path, {"MatMulV2": rows})))
    assert finding.line == 4
    assert all(of_first in finding.reason for of_first in ("line 2", "9 us"))
    assert finding.weight == pytest.approx(12 / 9)


@pytest.mark.parametrize(
    "change",
    [
        {STATUS: "failed"},
        {STATUS: "perhaps"},
        {STATUS: "measured", AVERAGE: "", MICROBENCH_MEDIAN: ""},
    ],
)
def test_statuses_that_say_too_little_are_found(tmp_path: Path, change: dict[str, str]) -> None:
    assert found_in(tmp_path, "statuses", change) == [f"3: {change[STATUS]}"]


def test_statuses_with_a_reason_pass(tmp_path: Path) -> None:
    failed = {STATUS: "failed", STATUS_REASON: "wrong result", AVERAGE: "", MICROBENCH_MEDIAN: ""}
    never_run = {STATUS: "", AVERAGE: "", MICROBENCH_MEDIAN: ""}
    assert not found_in(tmp_path, "statuses", failed, never_run)


@pytest.mark.parametrize("run_id", ["", "20261122T000000-bbbbbb"])
def test_a_duration_without_the_manifest_of_its_run_is_found(tmp_path: Path, run_id: str) -> None:
    assert found_in(tmp_path, "origins", {RUN_ID: run_id}, {RUN_ID: RUN}) == ["3: 9 us"]


@pytest.mark.parametrize(
    "change",
    [{MICROBENCH_STD: "1.0"}, {QUALITY: "drifting"}, {QUALITY: "bimodal"}, {QUALITY: "noisy"}, {QUALITY: "throttled"}],
)
def test_noisy_rows_are_found(tmp_path: Path, change: dict[str, str]) -> None:
    assert found_in(tmp_path, "noisy", change) == ["3: 9 us"]


@pytest.mark.parametrize("composed", [{QUALITY: "composition"}, {QUALITY: "noisy", STAND_IN: "composition of 4"}])
def test_a_composition_is_not_noisy(tmp_path: Path, composed: dict[str, str]) -> None:
    assert not found_in(tmp_path, "noisy", {MICROBENCH_STD: "1.0", **composed})


@pytest.mark.parametrize("quality", ["quiet", "unknown"])
def test_the_quality_of_the_samples_counts_before_their_deviation(tmp_path: Path, quality: str) -> None:
    assert not found_in(tmp_path, "noisy", {MICROBENCH_STD: "1.0", QUALITY: quality})


def test_a_noisy_row_without_a_spread_has_a_weight(tmp_path: Path) -> None:
    rows = [{**CLEAN, MICROBENCH_STD: "", QUALITY: "noisy"}]
    (finding,) = findings("noisy", CheckedDatabase(write_database(tmp_path, {"MatMulV2": rows})))
    assert finding.weight == 0.0


def test_a_noisy_message_is_found(tmp_path: Path) -> None:
    database = CheckedDatabase(write_database(tmp_path, {"hcom_allReduce_": [message(1024, 9.0, std=2.0)]}))
    (finding,) = findings("noisy", database)
    assert finding.weight == pytest.approx(2 / 9)
