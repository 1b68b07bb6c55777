"""Verdicts of calibration on planted durations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from opatlas.calibration.fit import FitVerdict, MachineFit, compare, median_interval
from opatlas.calibration.rows import CalibrationRow, choose, stored_durations
from opatlas.store.manifest import Manifest
from tests.query.tables import RUN, product_rows, write_table

SIZES = [(2**m, 512, 1024) for m in range(5)]
US = [50.0, 60.0, 80.0, 120.0, 200.0]


def manifest(device: str, torch: str, driver: str) -> Manifest:
    facts = {"torch": torch, "driver": driver}
    return Manifest(RUN, 0.0, {}, "", {"name": device, "kind": "cuda", "facts": facts}, packages={"torch": torch})


def fit(
    tmp_path: Path,
    ratios: Sequence[float],
    *,
    here: Manifest | None = None,
    stored: dict[str, str] | None = None,
    measured: dict[str, str] | None = None,
    kernel_type: str = "MatMulV2",
) -> MachineFit:
    """Compares five products with what they take here: `ratios` times as long."""
    conditions = {"Cache State": "cold", "Instrument": "cupti"}
    write_table(tmp_path / "db", kernel_type, product_rows(SIZES, US).assign(**conditions, **(stored or {})))
    ours = [us * ratio for us, ratio in zip(US, ratios, strict=True)]
    rows = product_rows(SIZES, ours).assign(**conditions, **(measured or {}))
    rows["MicroBench Median Duration(us)"] = rows["Average Duration(us)"]
    write_table(tmp_path / "here", kernel_type, rows)
    chosen = [CalibrationRow("products", row.kernel_type, row.case_id) for row in choose(tmp_path / "db")]
    there = manifest("NVIDIA_H200", "2.11.0", "580.1")
    found = stored_durations(tmp_path / "db", chosen)
    return compare(tmp_path / "db", found, tmp_path / "here", {RUN: there}, [here or there])


def test_the_same_within_the_differences_of_machines(tmp_path: Path) -> None:
    found = fit(tmp_path, [1.01, 0.98, 1.03, 1.02, 0.99])
    (family,) = found.families
    assert (family.verdict, found.verdict) == (FitVerdict.SAME, FitVerdict.SAME)
    assert family.ratio == pytest.approx(1.01)
    assert family.interval == pytest.approx((0.98, 1.03))
    assert all(row.is_within for row in found.rows)
    assert not found.differences


def test_a_steady_factor(tmp_path: Path) -> None:
    found = fit(tmp_path, [1.30, 1.31, 1.29, 1.32, 1.28])
    assert found.verdict is FitVerdict.SCALED
    assert found.factors == pytest.approx((1.30, 1.30))
    assert not any(row.is_within for row in found.rows)


def test_no_steady_factor(tmp_path: Path) -> None:
    found = fit(tmp_path, [1.0, 2.0, 1.4, 0.7, 1.1])
    assert found.verdict is FitVerdict.UNUSABLE
    assert found.families[0].unusable
    assert found.factors is None


def test_one_outlier_does_not_decide(tmp_path: Path) -> None:
    found = fit(tmp_path, [1.01, 1.0, 3.0, 1.02, 0.99])
    assert found.verdict is FitVerdict.SAME
    assert [row.is_within for row in found.rows].count(False) == 1


def test_the_spread_of_the_machines_decides_what_is_the_same(tmp_path: Path) -> None:
    ratios = [1.04, 1.05, 1.04, 1.03, 1.04]
    assert fit(tmp_path, ratios).verdict is FitVerdict.SAME
    close = {"Pooled Machines": "4", "Pooled Machine Spread(%)": "1.00", "Pooled Run Durations(us)": f"{RUN} 1.0"}
    assert fit(tmp_path, ratios, stored=close).verdict is FitVerdict.SCALED
    wide = {**close, "Pooled Machine Spread(%)": "4.00"}
    assert fit(tmp_path, ratios, stored=wide).verdict is FitVerdict.SAME


@pytest.mark.parametrize(
    "measured",
    [{"Status": "failed", "Status Reason": "no kernel"}, {"Stand-In": "composition of 2 torch operators (mm, add)"}],
)
def test_rows_without_a_comparable_duration_do_not_count(tmp_path: Path, measured: dict[str, str]) -> None:
    found = fit(tmp_path, [1.0] * 5, measured=measured)
    assert found.verdict is FitVerdict.UNUSABLE
    assert [row.ratio for row in found.rows] == [None] * 5
    assert all(row.reason for row in found.rows)


def test_a_composition_compares_where_the_database_does_not_tell(tmp_path: Path) -> None:
    measured = {"Stand-In": "composition of 2 torch operators (mm, add)"}
    of_older = {"Quality": ""}
    found = fit(tmp_path, [1.0] * 5, stored=of_older, measured=measured, kernel_type="QuantBatchMatmulV3")
    assert found.verdict is FitVerdict.SAME


def test_what_differs_is_named(tmp_path: Path) -> None:
    found = fit(tmp_path, [1.0] * 5, here=manifest("NVIDIA_H200", "2.12.0", "590.2"))
    assert not found.is_other_device
    told = " ".join(found.differences)
    assert all(version in told for version in ("2.11.0", "2.12.0", "580.1", "590.2"))
    assert fit(tmp_path, [1.0] * 5, here=manifest("NVIDIA_H100", "2.11.0", "580.1")).is_other_device


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, (0, 0)), (4, (0, 3)), (5, (0, 4)), (7, (0, 6)), (8, (1, 6)), (11, (2, 8))],
)
def test_the_interval_of_a_median(count: int, expected: tuple[int, int]) -> None:
    assert median_interval([float(value) for value in range(count)]) == expected
