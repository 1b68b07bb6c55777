"""What a kernel has to do at least, by its shapes and dtypes, and what a device's peaks allow."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from opatlas.row import roofline
from opatlas.row.slots import Slot

#: (64, 1024) x (2048, 1024): 0.125 MiB + 4 MiB in, 0.25 MiB out, 2 * 64 * 2048 * 1024 operations.
PRODUCT = {
    "Input Shapes": "64,1024;2048,1024",
    "Input Data Types": "DT_BF16;DT_BF16",
    "Input Formats": "ND;ND",
    "Output Shapes": "64,2048",
    "Output Data Types": "DT_BF16",
    "Output Formats": "ND",
}
PEAK = roofline.Peak(1000.0, {"BF16": 100.0})


def test_the_work_of_a_product() -> None:
    work = roofline.row_work("MatMulV2", PRODUCT)
    assert work is not None
    assert (work.read_bytes, work.moved_bytes) == (4_325_376, 4_587_520)
    assert (work.operations, work.dtype) == (268_435_456, "BF16")


def test_memory_bounds_a_cold_row_and_arithmetic_a_warm_one() -> None:
    work = roofline.row_work("MatMulV2", PRODUCT)
    assert work is not None
    assert roofline.bound_us(work, PEAK, cold=True) == pytest.approx(4.325376)
    assert roofline.bound_us(work, PEAK, cold=False) == pytest.approx(2.68435456)
    assert roofline.bound_us(work, roofline.Peak(), cold=True) is None


def test_shares_of_the_peaks() -> None:
    work = roofline.row_work("MatMulV2", PRODUCT)
    assert work is not None
    rates = roofline.achieved_rates(work, PEAK, 10.0)
    assert (rates.gbps, rates.tera_ops) == (pytest.approx(458.752), pytest.approx(26.8435456))
    assert (rates.share, rates.bound_by_arithmetic) == (pytest.approx(0.458752), False)
    assert roofline.achieved_rates(work, roofline.Peak(), 10.0).share is None


@pytest.mark.parametrize("dtype", ["FLOAT8_E4M3FN", "FLOAT8_E5M2"])
def test_a_product_in_fp8_reads_bytes_and_has_the_peak_of_its_data_sheet(dtype: str) -> None:
    cells = {**PRODUCT, "Input Data Types": f"{dtype};{dtype}"}
    work = roofline.row_work("QuantBatchMatmulV3", cells)
    assert work is not None
    assert (work.read_bytes, work.dtype) == (64 * 1024 + 2048 * 1024, dtype)
    # 268,435,456 operations at 1,979 TFLOP/s, the dense rate.
    assert roofline.bound_us(work, roofline.device_peak("NVIDIA_H200"), cold=False) == pytest.approx(0.135642, rel=1e-5)
    assert roofline.bound_us(work, roofline.device_peak("NVIDIA_A100-SXM4-80GB"), cold=False) is None


def slot(*shape: int, dtype: str = "BF16", form: str = "ND") -> Slot:
    return Slot(shape, dtype, form)


def test_bytes_are_those_of_all_tensors() -> None:
    assert (
        roofline.tensor_bytes([slot(4, 8), slot(3, dtype="FLOAT"), Slot((), "", ""), slot(dtype="INT64")])
        == 64 + 12 + 8
    )
    assert roofline.tensor_bytes([]) == 0


@pytest.mark.parametrize("dtype", ["INT4", "FLOAT4_E2M1", "HIFLOAT8", ""])
def test_bytes_of_a_dtype_without_a_size_are_unknown(dtype: str) -> None:
    assert roofline.tensor_bytes([slot(4), slot(4, dtype=dtype)]) is None


@given(m=st.integers(1, 64), n=st.integers(1, 64), k=st.integers(1, 64), turn_a=st.booleans(), turn_b=st.booleans())
def test_a_product_takes_2mnk_whatever_is_transposed(m: int, n: int, k: int, turn_a: bool, turn_b: bool) -> None:
    left = slot(k, m) if turn_a else slot(m, k)
    right = slot(n, k) if turn_b else slot(k, n)
    assert roofline.operations("MatMulV2", [left, right], [slot(m, n)]) == 2 * m * n * k


@pytest.mark.parametrize(
    ("kernel_type", "left", "right", "product", "expected"),
    [
        ("BatchMatMulV2", slot(5, 2, 3), slot(5, 3, 7), slot(5, 2, 7), 2 * 5 * 2 * 3 * 7),
        ("TransposeBatchMatMul", slot(5, 2, 3), slot(5, 3, 7), slot(2, 5, 7), 2 * 5 * 2 * 3 * 7),
        # (64, 32) in FRACTAL_NZ: (b c, a d) of (a, b, c, d).
        ("MatMulV3", slot(8, 64), slot(2, 4, 16, 16, form="FRACTAL_NZ"), slot(8, 32), 2 * 8 * 64 * 32),
        # 33 columns are stored as 48.
        ("MatMulV3", slot(8, 64), slot(3, 4, 16, 16, form="FRACTAL_NZ"), slot(8, 33), None),
        # The batch of the right operand is broadcast.
        ("BatchMatMulV2", slot(5, 2, 3), slot(1, 3, 7), slot(5, 2, 7), None),
        ("MatMulV2", slot(8, 64), slot(8, 64), slot(8, 8), 2 * 8 * 8 * 64),
        ("MatMulV2", slot(8, 64), slot(32, 16), slot(8, 8), None),
        ("MatMulV2", slot(0, 64), slot(32, 64), slot(0, 32), None),
    ],
)
def test_products(kernel_type: str, left: Slot, right: Slot, product: Slot, expected: int | None) -> None:
    assert roofline.operations(kernel_type, [left, right], [product]) == expected


def test_arithmetic_is_an_operation_for_each_element_of_the_output() -> None:
    assert roofline.operations("AddAiCore", [slot(4, 8), slot(8)], [slot(4, 8)]) == 32
    assert roofline.operations("RmsNorm", [slot(4, 8), slot(8)], [slot(4, 8)]) is None
    assert roofline.operations("MatMulV2", [slot(4, 8)], [slot(4, 8)]) is None


def test_bytes_moved_are_known_of_kernels_that_touch_every_element() -> None:
    assert roofline.moved_bytes("Cast", [slot(4, 8)], [slot(4, 8, dtype="FLOAT")]) == 64 + 128
    assert roofline.moved_bytes("CastAicore", [slot(4, 8)], [slot(4, 8)]) == 128
    assert roofline.moved_bytes("GatherV2", [slot(1000, 8), slot(2, dtype="INT64")], [slot(2, 8)]) is None
    assert roofline.moved_bytes("Add", [slot(4)], []) is None
