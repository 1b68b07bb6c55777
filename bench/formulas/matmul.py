"""Formulas of matrix products, as sums, of quantization and of products of quantized matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opatlas.run.formula import At, elements, per_element, per_row, to_float64
from opatlas.run.inputs.shape_rules import SCALE_BLOCK
from opatlas.run.result_check import Rounded

from ..implementations._calls import QuantizedProduct, takes

_Ints = Sequence[int]


def _common_length(a: Tensor, *_: object, **__: object) -> int:
    return a.shape[-1]


@per_element(terms=_common_length)
def linear(at: tuple[Tensor, ...], a: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes c[i, j] = sum over k of a[i, k] weight[j, k], plus bias[j]."""
    i, j = at
    total = (to_float64(a[i, :]) * to_float64(weight[j, :])).sum(dim=-1)
    return total if bias is None else total + to_float64(bias[j])


@per_element(terms=_common_length)
def batch_matmul(at: tuple[Tensor, ...], a: Tensor, b: Tensor) -> Tensor:
    """Computes c[..., i, j] = sum over k of a[..., i, k] b[..., k, j]; a batch axis of size 1 is broadcast."""
    *batch, i, j = at
    of_row, of_column = (*batch_places(batch, a), i), (*batch_places(batch, b), j)
    return (to_float64(a[of_row]) * to_float64(b.mT[of_column])).sum(dim=-1)


@per_element(terms=lambda x, *_: x.shape[-1])
def batch_matmul_transpose(at: tuple[Tensor, ...], x: Tensor, weight: Tensor, result: Tensor) -> Tensor:
    """Computes y[t, h, n] = sum over k of x[t, h, k] w[h, k, n] (vllm-ascend, csrc/batch_matmul_transpose)."""
    t, h, n = at
    return sum_of_products(x[t, h], weight.mT[h, n])


@per_element(terms=_common_length)
def transpose_batch_matmul(
    at: At, x1: Tensor, x2: Tensor, *, perm_x1: _Ints, perm_x2: _Ints, perm_y: _Ints, batch_split_factor: int = 1
) -> Tensor:
    """Computes y[m, b, n] = sum over k of x1[b, m, k] x2[b, k, n], of the permuted operands: aclnnTransposeBatchMatMul.

    batch_split_factor S cuts the product (M, B N) into S parts: (S, M, B N / S).
    """
    x1, x2 = x1.permute(*perm_x1), x2.permute(*perm_x2)
    if batch_split_factor > 1:
        part, m, column = at
        column = column + part * (x2.shape[0] * x2.shape[2] // batch_split_factor)
        b, n = column // x2.shape[2], column % x2.shape[2]
    else:
        m, b, n = at
    return (to_float64(x1[b, m]) * to_float64(x2.mT[b, n])).sum(dim=-1)


def batch_places(batch: list[Tensor], operand: Tensor) -> list[Tensor]:
    """Returns the coordinates of the batch of the result in an operand whose batch is broadcast."""
    own = operand.shape[:-2]
    last = batch[len(batch) - len(own) :]
    return [coordinate * (size != 1) for coordinate, size in zip(last, own, strict=True)]


FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


_LIMITS: dict[torch.dtype, tuple[float, float]] = {
    torch.qint8: (-128, 127),
    torch.quint8: (0, 255),
    torch.quint4x2: (-8, 7),
    torch.int8: (-128, 127),
}
_LIMITS |= {dtype: (-torch.finfo(dtype).max, torch.finfo(dtype).max) for dtype in FP8}


#: Tensor cores of Hopper add products of FP8 with 14 bits (DeepSeek-V3 technical report, 3.3.2). A sum of 7,168 of them
#: that stays in the tensor core has an error of 3e-3 on an H200. So many tolerances of float32 are 5e-3.
_STEPS_OF_TENSOR_CORES = 50


def steps_of_product(x: Tensor | Sequence[Tensor], *_: Any, output_dtype: torch.dtype | None = None, **__: Any) -> int:
    """Returns the steps of a Comparison for a product, of FP8 or of other numbers."""
    first = x if isinstance(x, Tensor) else x[0]
    return _STEPS_OF_TENSOR_CORES if first.dtype in FP8 and output_dtype is torch.float32 else 1


@per_element(terms=_common_length, steps=steps_of_product)
@takes
def quant_matmul(at: At, call: QuantizedProduct) -> Tensor | Rounded:
    """Computes y[..., i, j] = `dequantize` of the sum over k of x1[..., i, k] x2[..., k, j], of INT8 or FP8.

    With scales of blocks: of the sum over k of x1[i, k] token[i, k / 128] x2[k, j] scale[k / 128, j / 128]. With scales
    of 32 (MX) or 16 numbers (NVFP4) along k: of x1[i, k] token[i, k / 32] x2[k, j] scale[k / 32, j].
    """
    *batch, i, j = at
    x1, x2, scale, pertoken_scale, group_sizes = call.x1, call.x2, call.scale, call.pertoken_scale, call.group_sizes
    bias, dtype = _elements(call.bias, j), call.output_dtype
    of_row, of_column = (*batch_places(batch, x1), i), (*batch_places(batch, x2), j)
    if group_sizes is not None and group_sizes[1] == 1:
        assert pertoken_scale is not None
        if scale.dim() == 3:
            scale, pertoken_scale = scale.mT.flatten(0, 1), pertoken_scale.flatten(1)
        total = (scaled(x1, (i,), pertoken_scale.mT) * scaled(x2.mT, (j,), scale)).sum(dim=-1)
        return dequantize(total, None, None, None, bias, dtype)
    if group_sizes is not None:
        assert pertoken_scale is not None
        factors = pertoken_scale[i], scale.mT[j // SCALE_BLOCK]
        total = sum_of_blocks(elements(x1, of_row), elements(x2.mT, of_column), *factors)
        return dequantize(total, None, None, None, bias, dtype)
    total = sum_of_products(elements(x1, of_row), elements(x2.mT, of_column))
    token = None if pertoken_scale is None else pertoken_scale[i]
    return dequantize(total, _elements(scale, j), _elements(call.offset, j), token, bias, dtype)


@per_element(terms=_common_length)
def weight_quant_batchmatmul(
    at: At, x: Tensor, weight: Tensor, scale: Tensor, offset: Tensor | None = None, bias: Tensor | None = None, **_: Any
) -> Tensor:
    """Computes y[i, j] = bias[j] + sum over k of x[i, k] (w[k, j] + offset) scale (aclnnWeightQuantBatchMatmulV2)."""
    i, j = at
    total = (to_float64(x[i]) * scaled(weight.mT, (j,), scale, offset)).sum(dim=-1)
    return total if bias is None else total + to_float64(bias[j])


def scaled(data: Tensor, line: At, scale: Tensor, offset: Tensor | None = None) -> Tensor:
    """Returns lines (n, K) of data (..., lines, K): (number + offset) scale.

    Both are (1), (..., lines), or (..., K / size, lines), of groups of that size.
    """
    numbers = _numbers(data, line)
    for vectors, combine in ((offset, torch.add), (scale, torch.mul)):
        if vectors is not None:
            table = vectors.mT if vectors.dim() > len(line) else vectors.unsqueeze(-1)
            own = to_float64(elements(table, (*line[:-1], line[-1] * (table.shape[-2] > 1))))
            numbers = combine(numbers, own.repeat_interleave(numbers.shape[-1] // own.shape[-1], dim=-1))
    return numbers


def _numbers(data: Tensor, line: At) -> Tensor:
    """Returns lines of data in float64. Numbers of four bits are packed along the axis of stride 1.

    Two's complement in INT32; in UINT8 a sign, two bits of exponent and one of mantissa (OCP Microscaling Formats 1.0).
    """
    if data.dtype not in (torch.int32, torch.uint8):
        return elements(data, line).to(torch.float64)
    whole = 2 * data.element_size()
    if data.stride(-1) == 1:
        places = 4 * torch.arange(whole, device=data.device)
        codes = (data[line].long().unsqueeze(-1) >> places & 15).flatten(-2)
    else:
        word = (*line[:-1], line[-1] // whole)
        codes = data[word].long() >> (4 * (line[-1] % whole)).unsqueeze(-1) & 15
    if data.dtype is torch.int32:
        return (codes - 16 * (codes > 7)).double()
    exponent, mantissa = (codes >> 1) & 3, (codes & 1) / 2
    size = torch.where(exponent > 0, (1 + mantissa) * 2.0 ** (exponent - 1), mantissa)
    return torch.where(codes > 7, -size, size).double()


def sum_of_products(a: Tensor, b: Tensor) -> Tensor:
    """Returns the sums of products along the last axis: INT64 of integers, float64 of FP8."""
    if a.is_floating_point():
        return (to_float64(a) * to_float64(b)).sum(dim=-1)
    return (a.long() * b.long()).sum(dim=-1)


def sum_of_blocks(a: Tensor, b: Tensor, token: Tensor, scale: Tensor) -> Tensor:
    """Returns the sums of products of FP8 along the last axis; `token` and `scale` have a factor of each 128 terms."""
    factors = (to_float64(token) * to_float64(scale)).repeat_interleave(SCALE_BLOCK, dim=-1)
    return (to_float64(a) * to_float64(b) * factors[..., : a.shape[-1]]).sum(dim=-1)


def dequantize(
    total: Tensor,
    scale: Tensor | None,
    offset: Tensor | None,
    token: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor | Rounded:
    """Returns (total + bias) scale token + offset for an INT32 bias, and total scale token + bias for a real bias.

    The arguments are cut to the sampled elements. An INT32 result is total + bias. INT8 and FP8 results are cut to the
    range of their dtype. Source: formulas 2-1, 2-2, 3-1 and
    3-2 of torch_npu.npu_grouped_matmul, which hold for npu_quant_matmul too.
    """
    if bias is not None and not bias.is_floating_point():
        total = total + bias
    if dtype is torch.int32:
        return total
    result = total.to(torch.float64)
    for factor in (_unpack(scale), token):
        result = result if factor is None else result * to_float64(factor)
    if bias is not None and bias.is_floating_point():
        result = result + to_float64(bias)
    if offset is not None:
        result = result + to_float64(offset)
    if dtype in _LIMITS:
        result = result.clamp(*_LIMITS[dtype])
    return Rounded(result) if dtype is torch.int8 else result


@per_row("input")
def quantize(
    input: Tensor,  # noqa: A002 (the call's name)
    scales: Tensor,
    zero_points: Tensor | None,
    dtype: torch.dtype,
    axis: int,
    div_mode: bool,
) -> Rounded:
    """Returns round(x scale + zero point), or round(x / scale + zero point): torch_npu.npu_quantize."""
    scaled = input / scales if div_mode else input * scales
    if zero_points is not None:
        scaled = scaled + zero_points
    return Rounded(scaled.clamp(*_LIMITS[dtype]), packed=dtype is torch.quint4x2)


@per_row("input")
def dynamic_quant(
    input: Tensor,  # noqa: A002 (the call's name)
    *,
    smooth_scales: Tensor | None = None,
    dst_type: torch.dtype = torch.int8,
) -> tuple[Rounded, Tensor]:
    """Computes scale = max |x| / 127, y = round(x / scale).

    In place of 127: 7 for four bits, 448 for FP8 in E4M3, and 57,344 in E5M2 (aclnnDynamicQuant).
    """
    return _quantize_rows(input, smooth_scales, dst_type)


@per_row("x")
def dynamic_block_quant(
    x: Tensor, *, dst_type: torch.dtype, row_block_size: int, col_block_size: int
) -> tuple[Rounded, Tensor]:
    """Computes `dynamic_quant` of each `col_block_size` columns of a row, of which the last may be fewer.

    Source: aclnnDynamicBlockQuantV2, with a least scale of 0.
    """
    assert row_block_size == 1
    parts = [_quantize_rows(part, None, dst_type) for part in x.split(col_block_size, dim=-1)]
    return Rounded(torch.cat([y.values for y, _ in parts], -1)), torch.cat([scale for _, scale in parts], -1)


@per_row("x1", "x2")
def add_rms_norm_dynamic_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    *,
    smooth_scale1: Tensor | None = None,
    smooth_scale2: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
) -> tuple[Any, ...]:
    """Returns x = x1 + x2; z = x / sqrt(mean(x^2) + epsilon) gamma + beta; y1 and y2 are z, smoothed and quantized.

    Source: aclnnAddRmsNormDynamicQuant. Without a second smooth scale y2 is not defined.
    """
    x = x1 + x2
    z = x / ((x * x).mean(dim=-1, keepdim=True) + epsilon).sqrt() * gamma
    if beta is not None:
        z = z + beta
    y1, scale1 = _quantize_rows(z, smooth_scale1, torch.int8)
    nothing = x.new_empty(len(x), 0)
    y2, scale2 = (Rounded(nothing), nothing) if smooth_scale2 is None else _quantize_rows(z, smooth_scale2, torch.int8)
    return y1, y2, x, scale1, scale2


def _quantize_rows(x: Tensor, smooth: Tensor | None, dtype: torch.dtype) -> tuple[Rounded, Tensor]:
    x = x if smooth is None else x * smooth
    scale = x.abs().amax(dim=-1, keepdim=True) / _LIMITS[dtype][1]
    return Rounded(x / scale, packed=dtype is torch.quint4x2), scale


def _unpack(scale: Tensor | None) -> Tensor | None:
    """Returns the float32 in the lower 32 bits of a scale of npu_trans_quant_param (aclnnTransQuantParamV2)."""
    if scale is None or scale.is_floating_point():
        return scale
    return (scale & 0x7FFFFFFF).to(torch.int32).view(torch.float32)


def _elements(vector: Tensor | None, j: Tensor) -> Tensor | None:
    """Returns the elements of a vector for the columns j; a vector of one element holds for all."""
    return vector if vector is None or vector.numel() == 1 else vector[j]
