"""Layouts: unpacking undoes packing; calls that launch other kernels on an NPU are unsupported there."""

from __future__ import annotations

import pytest
import torch
from captures import cells
from hypothesis import given, strategies as st
from opatlas.bench import formulas, test_movement
from opatlas.bench.implementations import torch as impl
from opatlas.bench.test_elementwise import test_muls as replay_muls
from replaying import cells_of

from opatlas.row.errors import Unsupported
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.result_check import check

SIZES = st.integers(1, 40)
BLOCKS = st.sampled_from([8, 16, 32])


def up(size, block):
    return -(-size // block)


@given(st.tuples(st.integers(1, 3), SIZES, st.integers(1, 5), st.integers(1, 5)), BLOCKS)
def test_feature_maps_come_back(shape, block):
    n, c, h, w = shape
    come_back(torch.rand(shape), torch.empty(n, up(c, block), h, w, block))


@given(st.tuples(SIZES, SIZES, st.integers(1, 5), st.integers(1, 5)), BLOCKS)
def test_weights_come_back(shape, block):
    o, c, h, w = shape
    come_back(torch.rand(shape), torch.empty(up(c, block) * h * w, up(o, 16), 16, block))


@given(st.lists(st.integers(1, 3), max_size=2), SIZES, SIZES, BLOCKS)
def test_matrices_come_back(batch, m, k, block):
    come_back(torch.rand(*batch, m, k), torch.empty(*batch, up(k, block), up(m, 16), 16, block))


def come_back(plain, blocked):
    packed = impl.format_cast(plain, blocked)
    assert packed.shape == blocked.shape
    assert packed.sum().item() == pytest.approx(plain.sum().item(), rel=1e-4)  # nothing but zeros is added
    assert torch.equal(impl.format_cast(packed, plain), plain)
    check(formulas.format_cast, [plain, blocked], {}, [packed], seed=1)
    check(formulas.format_cast, [packed, plain], {}, [plain], seed=1)


def test_a_weight_in_its_blocks():
    """By hand: 1 x 1 kernels, so that block (c1, o1) is a matrix of 16 outputs by 8 channels."""
    weight = torch.arange(32 * 16.0).reshape(32, 16, 1, 1)
    stored = impl.format_cast(weight, torch.empty(2, 2, 16, 8))
    assert torch.equal(stored[1, 0], weight[:16, 8:, 0, 0])
    assert torch.equal(stored[0, 1], weight[16:, :8, 0, 0])


#: Kernel type, shapes of the inputs, shape of the output, whether an NPU's contiguous copy launches that type.
COPIES = [
    ("Slice", "4096,8,512;3;3", "4096,8,128", True),
    ("Slice", "6,8;2;2", "4,8", False),
    ("Slice", "6,8;2;2", "6,8", False),
    ("AsStrided", "15360;3;3;1", "5,16,64", True),
    ("AsStrided", "9600;3;3;1", "5,16,60", False),
    ("AsStrided", "5120;3;3;1", "5,16,64", False),
    ("AsStrided", "15360;3;3;1", "1,80,64", False),
]


@pytest.mark.parametrize(("kernel_type", "inputs", "output", "launches"), COPIES)
def test_views_whose_copy_launches_another_type_are_unsupported_on_an_npu(kernel_type, inputs, output, launches):
    """Rules of CANN's contiguous copy (ops-math, contiguous.cpp)."""
    dtypes = "DT_BF16" + ";INT64" * inputs.count(";")
    on_npu = ReplayRow(kernel_type, cells_of(f"{inputs} | {dtypes} -> {output} | DT_BF16"), torch.device("meta"))
    replay = {"Slice": test_movement.test_slice, "AsStrided": test_movement.test_as_strided}[kernel_type]
    calls = []

    def record(kernel, *arguments, expected):
        calls.append(kernel(*arguments))

    if launches:
        replay(on_npu, record)
        assert [tuple(call.shape) for call in calls] == [on_npu.output_shape()]
    else:
        with pytest.raises(Unsupported, match=kernel_type):
            replay(on_npu, record)


def test_strides_of_a_view_that_is_cut_and_transposed():
    """Of (heads, tokens, 192), as latent attention has its queries, 64 columns, the tokens first."""
    row = ReplayRow(
        "AsStrided", cells_of("15360;3;3;1 | FLOAT;INT64;INT64;INT64 -> 5,16,64 | FLOAT"), torch.device("cpu")
    )
    calls = []
    test_movement.test_as_strided(row, lambda kernel, *arguments, expected: calls.append(arguments))
    ((_, sizes, strides, offset),) = calls
    assert (sizes, strides, offset) == ([5, 16, 64], [192, 960, 1], 0)


def arguments(dtype: str, device: str, shapes: str = "2,3") -> tuple[torch.Tensor, object]:
    """The arguments of a row of Muls."""
    seen: list[tuple[torch.Tensor, object]] = []
    row = ReplayRow("Muls", cells(shapes, "2,3", dtype), torch.device(device))
    replay_muls(row, lambda impl, *values, expected: seen.append(values))
    (values,) = seen
    return values


@pytest.mark.parametrize("dtype", ["DT_BF16", "FLOAT16"])
def test_muls_multiplies_by_a_float_since_cann_launches_mul_for_whole_numbers(dtype: str) -> None:
    """aclnnMuls takes the kernel Muls for BF16 and a scalar of type double: a Python float."""
    tensor, number = arguments(dtype, "meta")
    assert tensor.shape == (2, 3)
    assert type(number) is float


def test_a_scalar_in_the_row_changes_nothing() -> None:
    assert type(arguments("DT_BF16", "meta", "2,3;")[1]) is float


def test_muls_of_dtypes_without_a_launch_on_an_npu_has_a_note() -> None:
    with pytest.raises(Unsupported, match=r"\bMul\b.*\bMuls\b.* FLOAT"):
        arguments("FLOAT", "meta")
    assert arguments("FLOAT", "cpu")[0].dtype == torch.float32
