"""What a kernel has to do at least, by the shapes and dtypes of its row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opatlas.row.roofline import moved_bytes, operations, tensor_bytes
from opatlas.row.slots import Slot


def slot(*shape: int, dtype: str = "BF16", form: str = "ND") -> Slot:
    return Slot(shape, dtype, form)


def test_bytes_are_those_of_all_tensors() -> None:
    assert tensor_bytes([slot(4, 8), slot(3, dtype="FLOAT"), Slot((), "", ""), slot(dtype="INT64")]) == 64 + 12 + 8
    assert tensor_bytes([]) == 0


@pytest.mark.parametrize("dtype", ["FLOAT8_E4M3FN", "FLOAT8_E5M2", "DT_FLOAT8_E4M3FN"])
def test_an_element_of_fp8_is_a_byte(dtype: str) -> None:
    assert tensor_bytes([slot(4, 8, dtype=dtype)]) == 32


@pytest.mark.parametrize("dtype", ["INT4", "HIFLOAT8", ""])
def test_bytes_of_a_dtype_without_a_size_are_unknown(dtype: str) -> None:
    assert tensor_bytes([slot(4), slot(4, dtype=dtype)]) is None


@given(m=st.integers(1, 64), n=st.integers(1, 64), k=st.integers(1, 64), turn_a=st.booleans(), turn_b=st.booleans())
def test_a_product_takes_2mnk_whatever_is_transposed(m: int, n: int, k: int, turn_a: bool, turn_b: bool) -> None:
    left = slot(k, m) if turn_a else slot(m, k)
    right = slot(n, k) if turn_b else slot(k, n)
    assert operations("MatMulV2", [left, right], [slot(m, n)]) == 2 * m * n * k


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
    assert operations(kernel_type, [left, right], [product]) == expected


def test_arithmetic_is_an_operation_for_each_element_of_the_output() -> None:
    assert operations("AddAiCore", [slot(4, 8), slot(8)], [slot(4, 8)]) == 32
    assert operations("RmsNorm", [slot(4, 8), slot(8)], [slot(4, 8)]) is None
    assert operations("MatMulV2", [slot(4, 8)], [slot(4, 8)]) is None


def test_bytes_moved_are_known_of_kernels_that_touch_every_element() -> None:
    assert moved_bytes("Cast", [slot(4, 8)], [slot(4, 8, dtype="FLOAT")]) == 64 + 128
    assert moved_bytes("CastAicore", [slot(4, 8)], [slot(4, 8)]) == 128
    assert moved_bytes("GatherV2", [slot(1000, 8), slot(2, dtype="INT64")], [slot(2, 8)]) is None
    assert moved_bytes("Add", [slot(4)], []) is None
