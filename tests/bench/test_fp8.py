"""FP8: random inputs, products with scales, and quantization."""

from __future__ import annotations

import pytest
import torch
from opatlas.bench.implementations import torch as impl
from replaying import assert_mistake_is_caught
from sample_rows_moe import FP8_GROUPS
from sample_rows_quantized import E4M3

from opatlas.row.columns import INPUT_DTYPES, INPUT_SHAPES
from opatlas.run.inputs.replay_row import ReplayRow

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


PRODUCT = f"9,96;96,64;64;9 | {E4M3};FLOAT;FLOAT -> 9,64 | DT_BF16"
BLOCKS = f"9,256;256,384;2,3;9,2 | {E4M3};FLOAT;FLOAT -> 9,384 | DT_BF16"
GROUPED_BLOCKS = f"19,256;5,256,384;;5,2,3;;;;5;19,2 | {FP8_GROUPS} -> 19,384 | DT_BF16"
DYNAMIC_BLOCKS = "6,300 | DT_BF16 -> 6,300;6,3 | FLOAT8_E4M3FN;FLOAT"
GROUPED = f"19,96;5,96,64;;5,64;;;;5;19 | {FP8_GROUPS} -> 19,64 | DT_BF16"
DYNAMIC = "6,73 | DT_BF16 -> 6,73;6 | FLOAT8_E4M3FN;FLOAT"
DYNAMIC_E5M2 = "6,73 | DT_BF16 -> 6,73;6 | FLOAT8_E5M2;FLOAT"


KERNEL_TYPES = {
    "quant_matmul": "QuantBatchMatmulV3",
    "grouped_matmul": "GroupedMatmul",
    "dynamic_quant": "DynamicQuant",
    "dynamic_block_quant": "DynamicBlockQuant",
}


def quantized_with(largest, dtype, scale_of=None):
    """Returns DynamicQuant with another largest number, or scales that `scale_of` makes of the right ones."""

    def dynamic_quant(x, *, dst_type):
        scale = x.float().abs().amax(-1, keepdim=True) / largest
        scale = scale if scale_of is None else scale_of(scale)
        return (x.float() / scale).to(dtype).to(dst_type), scale.squeeze(-1)

    return dynamic_quant


def truncated(x, *, dst_type):
    """Cuts the last bits of E4M3 off rather than rounding."""
    scale = x.float().abs().amax(-1, keepdim=True) / 448
    wide = x.float() / scale
    return ((wide.view(torch.int32) >> 20) << 20).view(torch.float32).to(dst_type), scale.squeeze(-1)


def product_with(change):
    right = impl.quant_matmul
    return lambda x1, x2, scale, **given: right(*change(x1, x2, scale, given), **given)


def without_token_scale(x1, x2, scale, *, pertoken_scale, output_dtype):
    return impl.quantized.quant_matmul(x1, x2, scale, output_dtype=output_dtype)


def reread(x, dtype):
    """Takes the bits of numbers for those of another dtype."""
    return x.view(dtype)


def blocks_of(size):
    """Quantizes blocks of another size, with as many scales."""

    def dynamic_block_quant(x, *, dst_type, row_block_size, col_block_size):
        y, scale = impl.quantized.dynamic_block_quant(
            x, dst_type=dst_type, row_block_size=row_block_size, col_block_size=size
        )
        return y, scale.repeat_interleave(-(-size // col_block_size), -1)[..., : -(-x.shape[-1] // col_block_size)]

    return dynamic_block_quant


MISTAKES = {
    "the scales of other blocks of the weight": (
        "quant_matmul",
        BLOCKS,
        product_with(lambda a, b, s, _: (a, b, s.flip(0))),
    ),
    "scales of blocks of N for those of K": (
        "quant_matmul",
        BLOCKS,
        product_with(lambda a, b, s, _: (a, b, s.flatten().view(3, 2).mT.contiguous())),
    ),
    "one scale for a token": (
        "quant_matmul",
        BLOCKS,
        lambda x1, x2, scale, *, pertoken_scale, **how: impl.quantized.quant_matmul(
            x1, x2, scale, pertoken_scale=pertoken_scale[:, :1].expand(-1, 2), **how
        ),
    ),
    "the scales of the first group for all": (
        "grouped_matmul",
        GROUPED_BLOCKS,
        lambda x, w, *, scale, **how: impl.moe.grouped_matmul(x, w, scale=[scale[0][:1].expand(5, -1, -1)], **how),
    ),
    "blocks of 64": ("dynamic_block_quant", DYNAMIC_BLOCKS, blocks_of(64)),
    "blocks of 256": ("dynamic_block_quant", "6,256 | DT_BF16 -> 6,256;6,2 | FLOAT8_E4M3FN;FLOAT", blocks_of(256)),
    "no scale per token": ("quant_matmul", PRODUCT, without_token_scale),
    "one scale for all columns": ("quant_matmul", PRODUCT, product_with(lambda a, b, s, _: (a, b, s[:1].expand(64)))),
    "E5M2 for E4M3": ("quant_matmul", PRODUCT, product_with(lambda a, b, s, _: (reread(a, torch.float8_e5m2), b, s))),
    "last terms left out": ("quant_matmul", PRODUCT, product_with(lambda a, b, s, _: (a[:, :-4], b[:-4], s))),
    "a group's own scales for all": (
        "grouped_matmul",
        GROUPED,
        lambda x, w, *, scale, **how: impl.moe.grouped_matmul(x, w, scale=[scale[0][:1].expand(5, 64)], **how),
    ),
    "no scale per row": (
        "grouped_matmul",
        GROUPED,
        lambda x, w, *, per_token_scale, **how: impl.moe.grouped_matmul(x, w, **how),
    ),
    "groups begin a row late": (
        "grouped_matmul",
        GROUPED,
        lambda x, w, *, group_list, **how: impl.moe.grouped_matmul(
            x, w, group_list=(group_list + 1).clamp(max=19), **how
        ),
    ),
    "the range of E4M3FNUZ": ("dynamic_quant", DYNAMIC, quantized_with(240, torch.float8_e4m3fn)),
    "the range of E4M3 for E5M2": ("dynamic_quant", DYNAMIC_E5M2, quantized_with(448, torch.float8_e5m2)),
    "two bits of three": ("dynamic_quant", DYNAMIC, quantized_with(448, torch.float8_e5m2)),
    "scales as powers of two": (
        "dynamic_quant",
        DYNAMIC,
        quantized_with(448, torch.float8_e4m3fn, lambda scale: scale.log2().ceil().exp2()),
    ),
    "truncated": ("dynamic_quant", DYNAMIC, truncated),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_a_kernel_is_caught(monkeypatch, mistake):
    name, row, wrong = MISTAKES[mistake]
    kernel_type = KERNEL_TYPES[name]
    assert_mistake_is_caught(monkeypatch, name, wrong, kernel_type, row)
