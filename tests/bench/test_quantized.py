"""Quantized kernels: integer products are exact, and numbers are packed in order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl
from opatlas.bench.implementations.torch.quantized import integer_matmul
from replaying import replay_row

from opatlas.row.columns import INPUT_DTYPES, INPUT_SHAPES
from opatlas.row.status import Status
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.result_check import check

#: The shape of a square weight does not tell its order: that of its scales does.
_SQUARE = [
    ("GroupedMatmul", "24,64;8,64,64;;;;8,64,2;;8 | BF16;FLOAT4_E2M1;;;;FLOAT8_E8M0;;INT64 -> 24,64 | BF16"),
    ("GroupedMatmul", "24,64;8,64,64;;;;8,2,64;;8 | BF16;INT4;;;;BF16;;INT64 -> 24,64 | BF16"),
    ("WeightQuantBatchMatmulV2", "9,128;128,128;128,4 | BF16;FLOAT4_E2M1;FLOAT8_E8M0 -> 9,128 | BF16"),
    ("WeightQuantBatchMatmulV2", "9,128;128,128;4,128 | BF16;INT4;BF16 -> 9,128 | BF16"),
]

relaxed = settings(deadline=None, max_examples=40)


@relaxed
@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 2600), st.integers(1, 9)),
    transposed=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_integer_products_are_exact(shape, transposed, seed):
    (m, k, n), generator = shape, torch.Generator().manual_seed(seed)
    a = torch.randint(-128, 128, (m, k), dtype=torch.int8, generator=generator)
    b = torch.randint(-128, 128, (n, k) if transposed else (k, n), dtype=torch.int8, generator=generator)
    b = b.T if transposed else b
    assert torch.equal(integer_matmul(a, b).long(), a.long() @ b.long())


@pytest.mark.parametrize("k", [1023, 1024, 1025, 7168])
def test_integer_products_are_exact_at_their_largest(k):
    """Sums of odd numbers beyond 2^24, which float32 does not hold."""
    a, b = torch.full((16, k), -127, dtype=torch.int8), torch.full((2, k, 16), -127, dtype=torch.int8)
    a[:, ::2] = -126
    product = integer_matmul(a.expand(2, 16, k), b)
    assert bool((product == 127 * (127 * (k // 2) + 126 * ((k + 1) // 2))).all())


@relaxed
@given(st.lists(st.integers(-8, 7), min_size=8, max_size=8), st.integers(1, 3))
def test_four_bit_numbers_are_packed_in_order(numbers, rows):
    x = torch.tensor([numbers] * rows, dtype=torch.float32)
    arguments = [x, torch.ones(8), None, torch.quint4x2, -1, False]
    packed = impl.quantize(*arguments)
    assert packed.dtype is torch.int32
    unpacked = [(int(packed[-1, 0]) >> 4 * i & 15 ^ 8) - 8 for i in range(8)]
    assert unpacked == numbers
    check(formulas.quantize, arguments, {}, [packed], 0)


def test_a_packed_scale_is_that_of_trans_quant_param():
    """The upper 19 bits of the float32, and bit 46."""
    cells = {INPUT_SHAPES: "64", INPUT_DTYPES: "UINT64"}
    packed = ReplayRow("Any", cells, torch.device("cpu")).scale(0, 0.5, 2.0)
    assert packed.dtype is torch.int64
    for number in packed.tolist():
        assert number >> 32 == 1 << 14
        assert number & 0x1FFF == 0
    real = torch.tensor([number & 0xFFFFFFFF for number in packed.tolist()]).to(torch.int32).view(torch.float32)
    assert bool(((real >= 0.499) & (real < 2.0)).all())


DTYPES = {"FLOAT8_E4M3FN": torch.float8_e4m3fn, "FLOAT8_E5M2": torch.float8_e5m2}


def input_row(shape: str, name: str) -> ReplayRow:
    return ReplayRow("Any", {INPUT_SHAPES: shape, INPUT_DTYPES: name}, torch.device("cpu"))


@pytest.mark.parametrize("name", [*DTYPES, "DT_FLOAT8_E4M3FN"])
def test_random_numbers_are_those_of_the_dtype_in_their_range(name):
    drawn = input_row("64,96", name).tensor(0, -16.0, 16.0)
    assert drawn.dtype is DTYPES[name.removeprefix("DT_")]
    numbers = drawn.float()
    assert float(numbers.abs().max()) <= 16.0
    # Many of the numbers of several binades, both signs, and about the deviation of uniform numbers.
    assert len(numbers.unique()) > 40
    assert 8.5 < float(numbers.std()) < 10.0
    assert torch.equal(input_row("64,96", name).tensor(0, -16.0, 16.0).float(), numbers)


def test_large_tensors_are_drawn_in_pieces(monkeypatch):
    monkeypatch.setattr("opatlas.run.inputs.replay_row.FP8_PIECE", 100)
    numbers = input_row("7,93", "FLOAT8_E4M3FN").tensor(0).float()
    assert numbers.shape == (7, 93)
    assert not torch.equal(numbers.flatten()[:100], numbers.flatten()[100:200])


@pytest.mark.parametrize(("kernel_type", "row"), _SQUARE)
def test_scales_tell_the_order_of_a_square_weight(kernel_type, row):
    outcome = replay_row(kernel_type, row)
    if "FLOAT8_E8M0" in row and not hasattr(torch, "float8_e8m0fnu"):
        assert outcome.status is Status.UNSUPPORTED
    else:
        assert outcome.status is Status.MEASURED, outcome
