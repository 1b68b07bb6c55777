"""Quantization and products of quantized matrices."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from opatlas import Prepared

from .._calls import FP8, QuantizedProduct, takes
from .fp8 import block_scaled_product, scaled_product, unscaled_product
from .matmul import linear, may_prepare

#: The sum of so many products of INT8 numbers is below 2^24: float32 adds them exactly.
_EXACT_TERMS = 1024
#: Up to so many rows torch's own loop over INT8 is faster where the weights are contiguous along K, as in decoding:
#: (1, 7168) x (7168, 4096) took 59 ms on two cores, and 143 ms through float32; 8 rows took 349 and 448 ms, 16 rows
#: 500 and 207 ms.
_FEW_ROWS = 8
#: cuBLAS multiplies INT8 matrices of more rows than this.
_MOST_ROWS_WITHOUT_CUBLAS = 16

_RANGES: dict[torch.dtype, tuple[float, float]] = {
    torch.qint8: (-128, 127),
    torch.quint8: (0, 255),
    torch.quint4x2: (-8, 7),
    torch.int8: (-128, 127),
}
_RANGES |= {dtype: (-torch.finfo(dtype).max, torch.finfo(dtype).max) for dtype in FP8}


def quantized_dtype(name: str) -> torch.dtype:
    """Returns the dtype argument of npu_quantize for a dtype of the profiler. Raises KeyError for others."""
    return {"INT8": torch.qint8, "UINT8": torch.quint8, "INT4": torch.quint4x2}[name]


#: Numbers of FP4 (E2M1) without a sign, by their codes.
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def unpack(data: Tensor) -> Tensor:
    """Returns the numbers of INT4 in INT32, or FP4 in UINT8, packed along the axis of stride 1; else the data."""
    if data.dtype not in (torch.int32, torch.uint8):
        return data
    if data.stride(-1) != 1:
        return unpack(data.mT).mT
    shifts = torch.arange(0, 8 * data.element_size(), 4, device=data.device, dtype=data.dtype)
    codes = ((data.unsqueeze(-1) >> shifts) & 15).flatten(-2)
    if data.dtype is torch.int32:
        return (codes ^ 8) - 8
    table = torch.tensor([*_FP4, *(-number for number in _FP4)], device=data.device)
    return table[codes.int()]


def scale_data(data: Tensor, scale: Tensor, offset: Tensor | None = None) -> Tensor:
    """Returns (data + offset) scale in float32, (K, N); both are (1), (N), (1, N) or (K / size, N)."""
    numbers = unpack(data).float()
    for vectors, combine in ((offset, torch.add), (scale, torch.mul)):
        if vectors is not None:
            groups = vectors.float() if vectors.dim() == 2 else vectors.float().unsqueeze(0)
            numbers = combine(numbers, groups.repeat_interleave(len(numbers) // len(groups), dim=0))
    return numbers


def weight_quant_batchmatmul(
    x: Tensor, weight: Tensor, scale: Tensor, offset: Tensor | None = None, bias: Tensor | None = None, **of_npu: object
) -> Tensor:
    """Maps x (M, K) and a weight (K, N) of `scale_data` to (M, N): torch scales the weight, then multiplies."""
    return linear(x, scale_data(weight, scale, offset).to(x.dtype).mT, None if bias is None else bias.to(x.dtype))


def integer_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Maps INT8 (..., M, K) and (..., K, N) to INT32 (..., M, N), exact; batches broadcast.

    Integer instructions are timed where torch has a fast product with them: on CUDA, for the shapes of cuBLAS, and on
    CPUs with VNNI. Else pieces of K that float32 sums exactly are multiplied in float32, with conversions, and added in
    INT32. On a CPU without VNNI torch's INT8 product is a plain loop: 7.6 s for (256, 2048) x (2048, 2048), where this
    takes 0.18 s.
    """
    if a.dim() == b.dim() == 2 and _multiplies_integers(a, b):
        return torch._int_mm(a, b)
    total: Tensor | None = None
    for left, right in zip(a.split(_EXACT_TERMS, dim=-1), b.split(_EXACT_TERMS, dim=-2), strict=True):
        part = torch.matmul(left.float(), right.float()).to(torch.int32)
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


def _multiplies_integers(a: Tensor, b: Tensor) -> bool:
    if a.is_cuda:
        return a.shape[0] > _MOST_ROWS_WITHOUT_CUBLAS and _has_widths_of_cublas(a, b)
    if a.shape[1] == 1:
        # torch 2.13 gives garbage for one term and a column-major second operand, on CPUs with VNNI.
        return False
    return torch.cpu._is_vnni_supported() or (a.shape[0] <= _FEW_ROWS and b.stride(0) == 1)


def _has_widths_of_cublas(a: Tensor, b: Tensor) -> bool:
    return a.shape[1] % 8 == 0 and b.shape[1] % 8 == 0


@takes
def quant_matmul(call: QuantizedProduct) -> Tensor | Prepared:
    """Maps INT8 or FP8 (..., M, K) and (..., K, N) to (..., M, N) in output_dtype.

    On a GPU a few rows of INT8 are padded in set-up, because cuBLAS takes no fewer. FP8 is one kernel where torch and
    the GPU have one, else a product in float32.

    Args:
        scale: (1) or (N), real, or INT64 as npu_trans_quant_param packs it; (K / 128, N / 128) with group_sizes.
        offset: (1) or (N), added to an INT8 result.
        pertoken_scale: (M); (M, K / 128) with group_sizes.
        bias: (N); INT32 is added before the scales, real numbers after them.
        group_sizes: 1, 128 and 128 for scales of blocks; 1, 1 and 32 (MX) or 16 (NVFP4) for those of groups along K:
            (K / 64, N, 2) or (K / 16, N), and (M, K / 64, 2) or (M, K / 16).
    """
    x1, x2, scale, pertoken_scale, bias = call.x1, call.x2, call.scale, call.pertoken_scale, call.bias
    group_sizes, dtype = call.group_sizes, call.output_dtype
    if group_sizes is not None and group_sizes[1] == 1:
        assert pertoken_scale is not None
        if scale.dim() == 3:
            scale, pertoken_scale = scale.mT.flatten(0, 1), pertoken_scale.flatten(1)
        # BF16 holds each number times its scale.
        wide = torch.bfloat16 if dtype is torch.bfloat16 else torch.float32
        a, b = scale_data(x1.mT, pertoken_scale.mT).mT.to(wide), scale_data(x2, scale).to(wide)
        return dequantize(linear(a, b.mT), None, None, None, bias, dtype)
    if x1.dtype in FP8:
        converted: list[str] = []
        if group_sizes is not None:
            assert pertoken_scale is not None
            product = block_scaled_product(x1, x2, scale, pertoken_scale, bias, dtype, converted)
            if product is None:
                sums = unscaled_product(x1, x2, scale, pertoken_scale)
                return dequantize(sums, None, None, None, bias, dtype)
        else:
            product = scaled_product(call, converted)
        if product is None:
            sums = torch.matmul(x1.float(), x2.float())
            return dequantize(sums, scale, call.offset, pertoken_scale, bias, dtype)
        return Prepared(product, converted=converted) if may_prepare(x1) else product()
    rows = x1.shape[0]
    if (
        may_prepare(x1)
        and x1.dim() == x2.dim() == 2
        and rows <= _MOST_ROWS_WITHOUT_CUBLAS
        and _has_widths_of_cublas(x1, x2)
    ):
        padded = functional.pad(x1, (0, 0, 0, 2 * _MOST_ROWS_WITHOUT_CUBLAS - rows))
        return Prepared(
            lambda: dequantize(torch._int_mm(padded, x2)[:rows], scale, call.offset, pertoken_scale, bias, dtype),
            converted=(f"x1 to {len(padded)} rows",),
        )
    return dequantize(integer_matmul(x1, x2), scale, call.offset, pertoken_scale, bias, dtype)


def dequantize(
    product: Tensor,
    scale: Tensor | None,
    offset: Tensor | None,
    pertoken_scale: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Returns the result of a quantized product from its sums (..., M, N), INT32 or float32, which are overwritten."""
    if bias is not None and not bias.is_floating_point():
        product.add_(bias)
    if dtype is torch.int32:
        # INT32 results are the sums, without a scale.
        return product
    if scale is not None and not scale.is_floating_point():
        # The lower half of a packed scale is the scale in float32.
        scale = scale.view(torch.float32)[..., ::2]
    if scale is not None and offset is None and dtype not in _RANGES and may_prepare(product):
        return _dequantize_on_gpu(product, scale, pertoken_scale, bias, dtype)
    result = product.float()
    if scale is not None:
        result.mul_(scale)
    if pertoken_scale is not None:
        result.mul_(pertoken_scale.unsqueeze(-1))
    if bias is not None and bias.is_floating_point():
        result.add_(bias)
    if offset is not None:
        result.add_(offset)
    return _round(result, dtype) if dtype in _RANGES else result.to(dtype)


def _dequantize_on_gpu(
    product: Tensor, scale: Tensor, pertoken_scale: Tensor | None, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Does the same in one or two operators, which compute in float32 and convert as they read and write."""
    result = torch.empty(product.shape, dtype=dtype, device=product.device)
    scale = scale.float()
    scaled = product if pertoken_scale is None else product * pertoken_scale.float().unsqueeze(-1)
    if bias is None or not bias.is_floating_point():
        return torch.mul(scaled, scale, out=result)
    return torch.addcmul(bias.float(), scaled, scale, out=result)


def quantize(
    input: Tensor,  # noqa: A002 (the NPU call's name)
    scales: Tensor,
    zero_points: Tensor | None,
    dtype: torch.dtype,
    axis: int,
    div_mode: bool,
) -> Tensor:
    """Returns input * scales + zero_points (input / scales with div_mode), rounded, along the last axis.

    Returns:
        INT8 or UINT8 for qint8 and quint8; for quint4x2 INT32 that hold eight numbers each.
    """
    assert axis == -1
    wide = input.float() / scales if div_mode else input.float() * scales
    if zero_points is not None:
        wide = wide.add_(zero_points)
    return _round(wide, dtype)


def dynamic_quant(
    input: Tensor,  # noqa: A002 (the NPU call's name)
    *,
    smooth_scales: Tensor | None = None,
    dst_type: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor]:
    """Maps (..., D) to INT8, INT4 or FP8, and the scale (...) of each row, by its largest number."""
    wide = input.float()
    if smooth_scales is not None:
        wide = wide * smooth_scales
    scale = wide.abs().amax(dim=-1, keepdim=True).div_(_RANGES[dst_type][1])
    return _round(wide / scale, dst_type), scale.squeeze(-1)


def dynamic_block_quant(
    x: Tensor, *, dst_type: torch.dtype, row_block_size: int, col_block_size: int
) -> tuple[Tensor, Tensor]:
    """Maps (..., D) to INT8 or FP8, and the scale of each `col_block_size` columns of a row."""
    assert row_block_size == 1
    missing = -x.shape[-1] % col_block_size
    padded = functional.pad(x, (0, missing)) if missing else x
    quantized, scale = dynamic_quant(padded.unflatten(-1, (-1, col_block_size)), dst_type=dst_type)
    return quantized.flatten(-2)[..., : x.shape[-1]], scale


def add_rms_norm_dynamic_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    *,
    smooth_scale1: Tensor | None = None,
    smooth_scale2: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Maps (..., D) twice to INT8 y1 and y2, the sum x of x1's dtype, and the scales (...) of y1 and y2.

    y2 and its scale have no elements without smooth_scale2.
    """
    x = x1.float() + x2
    normed = functional.rms_norm(x, x.shape[-1:], gamma.float(), epsilon)
    if beta is not None:
        normed = normed.add_(beta)
    y1, scale1 = dynamic_quant(normed, smooth_scales=smooth_scale1)
    if smooth_scale2 is None:
        return y1, y1.new_empty(0), x.to(x1.dtype), scale1, scale1.new_empty(0)
    y2, scale2 = dynamic_quant(normed, smooth_scales=smooth_scale2)
    return y1, y2, x.to(x1.dtype), scale1, scale2


def _round(wide: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the nearest numbers of a quantized dtype. Overwrites `wide`."""
    if dtype in FP8:
        # Without the limits some versions of torch round large numbers to NaN.
        return wide.clamp_(*_RANGES[dtype]).to(dtype)
    whole = wide.round_().clamp_(*_RANGES[dtype])
    if dtype is not torch.quint4x2:
        return whole.to(torch.uint8 if dtype is torch.quint8 else torch.int8)
    nibbles = whole.to(torch.int32).bitwise_and_(15).reshape(*whole.shape[:-1], -1, 8)
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=wide.device)
    # The numbers share no bit, so their sum, which may wrap into the sign, packs them.
    return (nibbles << shifts).sum(dim=-1, dtype=torch.int32)
