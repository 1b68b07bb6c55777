"""What a device's peaks allow: figures worked out by hand."""

from __future__ import annotations

import pytest

from opatlas.row.roofline import Peak, achieved_rates, bound_us, device_peak, row_work

#: (64, 1024) x (2048, 1024): 0.125 MiB + 4 MiB in, 0.25 MiB out, 2 * 64 * 2048 * 1024 operations.
PRODUCT = {
    "Input Shapes": "64,1024;2048,1024",
    "Input Data Types": "DT_BF16;DT_BF16",
    "Input Formats": "ND;ND",
    "Output Shapes": "64,2048",
    "Output Data Types": "DT_BF16",
    "Output Formats": "ND",
}
PEAK = Peak(1000.0, {"BF16": 100.0})


def test_the_work_of_a_product() -> None:
    work = row_work("MatMulV2", PRODUCT)
    assert work is not None
    assert (work.read_bytes, work.moved_bytes) == (4_325_376, 4_587_520)
    assert (work.operations, work.dtype) == (268_435_456, "BF16")


def test_memory_bounds_a_cold_row_and_arithmetic_a_warm_one() -> None:
    work = row_work("MatMulV2", PRODUCT)
    assert work is not None
    assert bound_us(work, PEAK, cold=True) == pytest.approx(4.325376)
    assert bound_us(work, PEAK, cold=False) == pytest.approx(2.68435456)
    assert bound_us(work, Peak(), cold=True) is None


def test_shares_of_the_peaks() -> None:
    work = row_work("MatMulV2", PRODUCT)
    assert work is not None
    rates = achieved_rates(work, PEAK, 10.0)
    assert (rates.gbps, rates.tera_ops) == (pytest.approx(458.752), pytest.approx(26.8435456))
    assert (rates.bandwidth_share, rates.arithmetic_share) == (pytest.approx(0.458752), pytest.approx(0.268435456))
    assert (rates.share, rates.bound_by_arithmetic) == (rates.bandwidth_share, False)
    assert achieved_rates(work, Peak(), 10.0).share is None


@pytest.mark.parametrize("dtype", ["FLOAT8_E4M3FN", "FLOAT8_E5M2"])
def test_a_product_in_fp8_reads_bytes_and_has_the_peak_of_its_data_sheet(dtype: str) -> None:
    cells = {**PRODUCT, "Input Data Types": f"{dtype};{dtype}"}
    work = row_work("QuantBatchMatmulV3", cells)
    assert work is not None
    assert (work.read_bytes, work.dtype) == (64 * 1024 + 2048 * 1024, dtype)
    # 268,435,456 operations at 1,979 TFLOP/s, the dense rate.
    assert bound_us(work, device_peak("NVIDIA_H200"), cold=False) == pytest.approx(0.135642, rel=1e-5)
    assert bound_us(work, device_peak("NVIDIA_A100-SXM4-80GB"), cold=False) is None
