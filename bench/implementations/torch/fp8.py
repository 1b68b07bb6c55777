"""Products in FP8 on the tensor cores of a GPU, with the scales in the same kernel. Written for torch 2.6 to 2.13.

Scales are those of rows and columns, one for all, or those of blocks of 128.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from opatlas.run.inputs.shape_rules import SCALE_BLOCK, blocks

from .._calls import GroupedProduct, QuantizedProduct

#: The tensor cores multiply matrices of so many rows and columns, or multiples.
_ALIGNED = 16
_ADA, _HOPPER = (8, 9), (9, 0)
#: Grouped products are compiled for Hopper and data-center Blackwell (10.x).
_AFTER_BLACKWELL = (11, 0)
#: The scales of so many rows are 16 bytes, which the TMA of a GPU takes at least.
_ROWS_OF_BLOCKS = 4


def scaled_product(call: QuantizedProduct, converted: list[str]) -> Callable[[], Tensor] | None:
    """Returns a call of `torch._scaled_mm` for (M, K) and (K, N); None if torch or the GPU does not take the operands.

    Args:
        call: without scales of blocks.
        converted: gets a phrase for each converted argument.
    """
    a, b, token, bias, dtype = call.x1, call.x2, call.pertoken_scale, call.bias, call.output_dtype
    one_scale = call.scale.numel() == 1 and token is None
    real = dtype in (torch.bfloat16, torch.float16) or (dtype is torch.float32 and bias is None)
    if one_scale:
        taken = real and torch.float8_e4m3fn in (a.dtype, b.dtype)
    else:
        taken = b.dtype is torch.float8_e4m3fn and (dtype is torch.bfloat16 or (real and _cublas_has_scales(a)))
    if not (taken and a.dim() == b.dim() == 2 and _fits(a, b, _ADA if one_scale else _HOPPER)):
        return None
    a, weight, of_columns = _by_rows(a, converted), by_columns(b, converted), real_scale(call.scale, converted)
    if bias is not None:
        if bias.dtype is not dtype:
            converted.append("bias to the result's dtype")
        bias = bias.to(dtype).reshape(-1)
    if token is None:
        converted.append("a scale of one for x1")
        token = torch.ones(1 if one_scale else len(a), device=a.device)
    else:
        token = real_scale(token, converted)
    if not one_scale:
        token, of_columns = token.unsqueeze(1), of_columns.expand(b.shape[1]).contiguous().unsqueeze(0)
    # Engines let the tensor cores add up products with one scale ("fast accumulation").
    return lambda: torch._scaled_mm(a, weight, token, of_columns, bias=bias, out_dtype=dtype, use_fast_accum=one_scale)


def block_scaled_product(
    a: Tensor, b: Tensor, scale: Tensor, token: Tensor, bias: Tensor | None, dtype: torch.dtype, converted: list[str]
) -> Callable[[], Tensor] | None:
    """Returns a call of `scaled_mm`, which came with torch 2.10; None as for `scaled_product`.

    Args:
        scale: (K / 128, N / 128).
        token: (M, K / 128).
    """
    taken = dtype in (torch.bfloat16, torch.float32) and a.dtype is b.dtype is torch.float8_e4m3fn and bias is None
    if not (taken and hasattr(functional, "scaled_mm") and _cublas_has_scales(a) and _fits(a, b, _HOPPER)):
        return None
    m, k = a.shape
    missing = -m % _ROWS_OF_BLOCKS
    if missing:
        converted.append(f"x1 to {m + missing} rows")
        a = functional.pad(a.view(torch.uint8), (0, 0, 0, missing)).view(a.dtype)
    converted.append("scales to the order of cuBLAS")
    # Both are stored by columns; those of the weight have a multiple of four rows.
    of_rows = functional.pad(token.mT, (0, missing)).contiguous()
    of_blocks = functional.pad(scale.mT, (0, -blocks(k) % 4)).contiguous()
    a, weight = _by_rows(a, converted), by_columns(b, converted)
    one, square = functional.ScalingType.BlockWise1x128, functional.ScalingType.BlockWise128x128
    return lambda: functional.scaled_mm(a, weight, of_rows.mT, one, of_blocks.mT, square, output_dtype=dtype)[:m]


def unscaled_product(a: Tensor, b: Tensor, scale: Tensor, token: Tensor) -> Tensor:
    """Returns a product (M, N) in float32 of operands that are multiplied by the scales of their blocks before it."""
    k, n = b.shape
    of_rows = token.repeat_interleave(SCALE_BLOCK, dim=1)[:, :k]
    of_blocks = scale.repeat_interleave(SCALE_BLOCK, dim=0)[:k].repeat_interleave(SCALE_BLOCK, dim=1)[:, :n]
    return torch.matmul(a.float() * of_rows, b.float() * of_blocks)


def scaled_groups(call: GroupedProduct, converted: list[str]) -> Callable[[], Tensor] | None:
    """Returns a call of `torch._scaled_grouped_mm`, which came with torch 2.7; None as for `scaled_product`.

    The call launches two kernels: one computes the addresses of the groups, the other multiplies.
    """
    (rows,), (matrices,), dtype = call.x, call.weight, call.output_dtype or call.x[0].dtype
    scale, token = (given[0] if given else None for given in (call.scale, call.per_token_scale))
    taken = dtype is torch.bfloat16 and rows.dtype is matrices.dtype is torch.float8_e4m3fn and scale is not None
    if not (taken and hasattr(torch, "_scaled_grouped_mm") and _fits(rows, matrices, _HOPPER, below=_AFTER_BLACKWELL)):
        return None
    assert scale is not None
    a, weight, of_columns = _by_rows(rows, converted), by_columns(matrices, converted), real_scale(scale, converted)
    converted.append("ends of groups to int32")
    offs = call.group_list.to(torch.int32)
    if token is None:
        converted.append("a scale of one for each row")
    of_rows = torch.ones(len(rows), device=rows.device) if token is None else real_scale(token, converted)
    return lambda: torch._scaled_grouped_mm(
        a, weight, of_rows, of_columns, offs=offs, out_dtype=dtype, use_fast_accum=False
    )


def _cublas_has_scales(a: Tensor) -> bool:
    """Returns whether cuBLAS has products with scales of rows and of blocks: from CUDA 12.9, for Hopper alone."""
    cuda = tuple(map(int, (torch.version.cuda or "0.0").split(".")))
    return a.is_cuda and cuda >= (12, 9) and torch.cuda.get_device_properties(a.device).major == 9


def _fits(a: Tensor, b: Tensor, least: tuple[int, int], below: tuple[int, int] = (99, 0)) -> bool:
    k, n = b.shape[-2:]
    if not a.is_cuda or k % _ALIGNED or n % _ALIGNED:
        return False
    gpu = torch.cuda.get_device_properties(a.device)
    return least <= (gpu.major, gpu.minor) < below


def _by_rows(matrix: Tensor, converted: list[str]) -> Tensor:
    if matrix.is_contiguous():
        return matrix
    converted.append("x1 stored by rows")
    return matrix.contiguous()


def real_scale(scale: Tensor, converted: list[str]) -> Tensor:
    """Returns a scale in float32, contiguous, and notes a conversion. A packed scale (INT64) is in its lower half."""
    if scale.dtype is torch.float32:
        return scale.contiguous()
    converted.append("scale to FLOAT")
    return scale.float() if scale.is_floating_point() else scale.view(torch.float32)[..., ::2].contiguous()


def by_columns(weight: Tensor, converted: list[str], told: str = "weight stored by columns") -> Tensor:
    """Returns a weight (..., K, N) that is stored as (..., N, K), and notes a conversion as it is `told`.

    The tensor cores take no others in FP8.
    """
    if weight.mT.is_contiguous():
        return weight
    converted.append(told)
    return weight.mT.contiguous().mT
