"""Products in FP8 on the tensor cores of a GPU, with the scales in the same kernel. Written for torch 2.6 to 2.13.

Scales are those of rows and columns, or one for all. torch has scales of blocks of 128 for some GPUs only.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
#: The tensor cores multiply matrices of so many rows and columns, or multiples.
_ALIGNED = 16
_ADA, _HOPPER = (8, 9), (9, 0)
#: Grouped products are compiled for Hopper and data-center Blackwell (10.x).
_AFTER_BLACKWELL = (11, 0)


def scaled_product(
    a: torch.Tensor,
    b: torch.Tensor,
    scale: torch.Tensor,
    token: torch.Tensor | None,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    converted: list[str],
) -> Callable[[], torch.Tensor] | None:
    """Returns a call of `torch._scaled_mm` for (M, K) and (K, N); None if torch or the GPU does not take the operands.

    Args:
        scale: (1) or (N), real, or INT64 as npu_trans_quant_param packs it.
        token: (M).
        converted: gets a phrase for each converted argument.
    """
    one_scale = scale.numel() == 1 and token is None
    if one_scale:
        real = dtype in (torch.bfloat16, torch.float16) or (dtype is torch.float32 and bias is None)
        taken = real and torch.float8_e4m3fn in (a.dtype, b.dtype)
    else:
        taken = dtype is torch.bfloat16 and b.dtype is torch.float8_e4m3fn
    if not (taken and a.dim() == b.dim() == 2 and _fits(a, b, _ADA if one_scale else _HOPPER)):
        return None
    a, weight, of_columns = _by_rows(a, converted), _by_columns(b, converted), _real(scale, converted)
    if bias is not None:
        if bias.dtype is not dtype:
            converted.append("bias to the result's dtype")
        bias = bias.to(dtype).reshape(-1)
    if token is None:
        converted.append("a scale of one for x1")
        token = torch.ones(1 if one_scale else len(a), device=a.device)
    else:
        token = _real(token, converted)
    if not one_scale:
        token, of_columns = token.unsqueeze(1), of_columns.expand(b.shape[1]).contiguous().unsqueeze(0)
    return lambda: torch._scaled_mm(a, weight, token, of_columns, bias=bias, out_dtype=dtype, use_fast_accum=False)


def scaled_groups(
    rows: torch.Tensor,
    matrices: torch.Tensor,
    scale: torch.Tensor | None,
    token: torch.Tensor | None,
    ends: torch.Tensor,
    dtype: torch.dtype,
    converted: list[str],
) -> Callable[[], torch.Tensor] | None:
    """Returns a call of `torch._scaled_grouped_mm`, which came with torch 2.7; None as for `scaled_product`.

    The call launches two kernels: one computes the addresses of the groups, the other multiplies.

    Args:
        rows, matrices: (M, K) and (E, K, N).
        scale: (E, N).
        token: (M).
        ends: the end of each group of rows.
    """
    taken = dtype is torch.bfloat16 and rows.dtype is matrices.dtype is torch.float8_e4m3fn and scale is not None
    if not (taken and hasattr(torch, "_scaled_grouped_mm") and _fits(rows, matrices, _HOPPER, below=_AFTER_BLACKWELL)):
        return None
    assert scale is not None
    a, weight, of_columns = _by_rows(rows, converted), _by_columns(matrices, converted), _real(scale, converted)
    converted.append("ends of groups to int32")
    offs = ends.to(torch.int32)
    if token is None:
        converted.append("a scale of one for each row")
    of_rows = torch.ones(len(rows), device=rows.device) if token is None else _real(token, converted)
    return lambda: torch._scaled_grouped_mm(
        a, weight, of_rows, of_columns, offs=offs, out_dtype=dtype, use_fast_accum=False
    )


def _fits(a: torch.Tensor, b: torch.Tensor, least: tuple[int, int], below: tuple[int, int] = (99, 0)) -> bool:
    k, n = b.shape[-2:]
    if not a.is_cuda or k % _ALIGNED or n % _ALIGNED:
        return False
    gpu = torch.cuda.get_device_properties(a.device)
    return least <= (gpu.major, gpu.minor) < below


def _by_rows(matrix: torch.Tensor, converted: list[str]) -> torch.Tensor:
    if matrix.is_contiguous():
        return matrix
    converted.append("x1 stored by rows")
    return matrix.contiguous()


def _by_columns(matrices: torch.Tensor, converted: list[str]) -> torch.Tensor:
    """Returns matrices (..., K, N) that are stored as (..., N, K): the tensor cores take no others in FP8."""
    if matrices.mT.is_contiguous():
        return matrices
    converted.append("weight stored by columns")
    return matrices.mT.contiguous().mT


def _real(scale: torch.Tensor, converted: list[str]) -> torch.Tensor:
    """Returns a scale in float32. A packed scale (INT64) has it in its lower half."""
    if scale.dtype is torch.float32:
        return scale
    converted.append("scale to FLOAT")
    return scale.float() if scale.is_floating_point() else scale.view(torch.float32)[..., ::2].contiguous()
