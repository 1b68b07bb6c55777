"""Durations against those of the same kernel with another M, and against the peaks of the device."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from checked import findings, message, product, write_database
from hypothesis import given
from hypothesis import strategies as st

from opatlas.ask.checks.check import CheckedDatabase
from opatlas.ask.checks.duration_checks import families
from opatlas.row.columns import MICROBENCH_STD

#: As cuBLAS has them on an H200.
SPIKE = [(219, 25.648), (353, 62.416), (438, 38.704)]
GROWING = [(1, 9.0), (64, 9.1), (128, 9.0), (256, 17.0), (512, 33.0)]


def database_of(folder: Path, durations: list[tuple[int, float]], std: float = 0.1) -> CheckedDatabase:
    return CheckedDatabase(write_database(folder, {"MatMulV2": [product(m, us, std) for m, us in durations]}))


def test_a_spike_is_found_with_its_line_and_both_neighbours(tmp_path: Path) -> None:
    (finding,) = findings("spikes", database_of(tmp_path, SPIKE))
    assert finding.place == "MatMulV2.csv:3"
    assert finding.row == "353,512;1024,512"
    assert finding.value == "62.42 us"
    assert "25.65 us at M 219" in finding.reason
    assert "38.7 us at M 438" in finding.reason


def test_a_row_above_one_with_more_work_is_found(tmp_path: Path) -> None:
    (finding,) = findings("monotone", database_of(tmp_path, SPIKE))
    assert finding.line == 3
    assert finding.weight == pytest.approx(62.416 / 38.704)


@pytest.mark.parametrize("check", ["spikes", "monotone"])
def test_steps_pass(tmp_path: Path, check: str) -> None:
    assert not findings(check, database_of(tmp_path, GROWING))


@pytest.mark.parametrize("check", ["spikes", "monotone"])
def test_what_noise_explains_passes(tmp_path: Path, check: str) -> None:
    assert not findings(check, database_of(tmp_path, SPIKE, std=10.0))


def test_a_row_of_unknown_noise_counts_as_noisy(tmp_path: Path) -> None:
    """40 us is more than 1.25 times 30 us, and 36 us less than 1.25 times 33 us."""
    rows = [{**product(m, us), MICROBENCH_STD: ""} for m, us in ((1, 40.0), (2, 30.0))]
    assert not findings("monotone", CheckedDatabase(write_database(tmp_path, {"MatMulV2": rows})))
    assert findings("monotone", database_of(tmp_path / "known", [(1, 40.0), (2, 30.0)]))


@pytest.mark.parametrize(("column", "cell"), [("Cache_State", "warm"), ("Instrument", "kineto")])
def test_only_rows_taken_alike_are_compared(tmp_path: Path, column: str, cell: str) -> None:
    rows = [product(353, 62.4), product(438, 38.7, **{column: cell})]
    assert not findings("monotone", CheckedDatabase(write_database(tmp_path, {"MatMulV2": rows})))


def test_rows_of_other_weights_are_not_compared(tmp_path: Path) -> None:
    rows = [product(353, 62.4, n=2048), product(438, 38.7)]
    assert not findings("monotone", CheckedDatabase(write_database(tmp_path, {"MatMulV2": rows})))


def test_a_row_whose_m_equals_a_dimension_of_the_weights_is_compared(tmp_path: Path) -> None:
    database = database_of(tmp_path, [(512, 10.0), (1024, 20.0), (2048, 40.0)])
    (family,) = families(database.table("MatMulV2"), least=2)
    assert list(family.m) == [512, 1024, 2048]


def test_messages_are_compared_by_their_bytes(tmp_path: Path) -> None:
    rows = [message(size, us) for size, us in ((1024, 5.0), (2048, 20.0), (4096, 7.0))]
    database = CheckedDatabase(write_database(tmp_path, {"hcom_allReduce_": rows}))
    (finding,) = findings("spikes", database)
    assert finding.row == "2048 bytes, 2 devices, DT_BF16, tier 1"
    assert finding.line == 3


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(1.0, 1e6)), min_size=1, max_size=12))
def test_durations_that_grow_with_m_have_no_findings(pairs: list[tuple[int, float]]) -> None:
    durations = list(zip(sorted({m for m, _ in pairs}), sorted(us for _, us in pairs), strict=False))
    with tempfile.TemporaryDirectory() as folder:
        database = database_of(Path(folder), durations, std=0.0)
        assert not findings("monotone", database)
        assert not findings("spikes", database)


def test_a_duration_below_the_roofline_of_its_arithmetic_is_found(tmp_path: Path) -> None:
    """2 x 4096 x 512 x 1024 operations take 4.3 us at 989.5 TFLOP/s."""
    (finding,) = findings("below-roofline", database_of(tmp_path, [(4096, 1.0)]))
    assert finding.value == "1 us"


def test_a_cold_row_cannot_read_its_inputs_faster_than_memory(tmp_path: Path) -> None:
    """The weights of 16384 x 8192 BF16 are 268 MB: 56 us at 4.8 TB/s, and 0.3 us of arithmetic."""
    rows = [product(1, 20.0, k=8192, n=16384), product(1, 20.0, k=8192, n=16384, Cache_State="warm")]
    (finding,) = findings("below-roofline", CheckedDatabase(write_database(tmp_path, {"MatMulV2": rows})))
    assert finding.line == 2


def test_durations_that_the_peaks_allow_pass(tmp_path: Path) -> None:
    assert not findings("below-roofline", database_of(tmp_path, [(4096, 6.0)]))


def test_without_known_peaks_the_roofline_is_not_checked(tmp_path: Path) -> None:
    write_database(tmp_path, {"MatMulV2": [product(4096, 1.0)]}, name="Some_CPU")
    assert not findings("below-roofline", CheckedDatabase(tmp_path))
