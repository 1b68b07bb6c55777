"""Matrix products; convolutions and poolings of feature maps (N, C, H, W) and volumes, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_FEW_ROWS = 8


def linear(a: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Maps (M, K) and (N, K), perhaps plus (N,), to (M, N). Operands may be transposed views."""
    if needs_float32(a) and not _has_few_dot_products(a, weight):
        bias = None if bias is None else bias.float()
        return functional.linear(a.float(), weight.float(), bias).to(a.dtype)
    return functional.linear(a, weight, bias)


def batch_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Maps (..., M, K) and (..., K, N) to (..., M, N), batches broadcast. Operands may be transposed views."""
    if needs_float32(a):
        return torch.matmul(a.float(), b.float()).to(a.dtype)
    return torch.matmul(a, b)


def batch_matmul_transpose(x: Tensor, weight: Tensor, result: Tensor) -> None:
    """Writes the products of (T, heads, K) and (heads, K, N) into (T, heads, N)."""
    torch.bmm(x.transpose(0, 1), weight, out=result.transpose(0, 1))


def transpose_batch_matmul(
    input: Tensor,  # noqa: A002 (the NPU call's name)
    weight: Tensor,
    *,
    perm_x1: Sequence[int],
    perm_x2: Sequence[int],
    perm_y: Sequence[int],
    batch_split_factor: int = 1,
) -> Tensor:
    """Multiplies the operands, permuted to (B, M, K) and (B, K, N), to (M, B, N), or (S, M, B N / S)."""
    a, b = input.permute(*perm_x1), weight.permute(*perm_x2)
    if may_prepare(a) and batch_split_factor == 1 and list(perm_y) == [1, 0, 2]:
        # cuBLAS writes the transposed result.
        result = a.new_empty(a.shape[1], a.shape[0], b.shape[2])
        torch.bmm(a, b, out=result.transpose(0, 1))
        return result
    product = batch_matmul(a, b).permute(*perm_y)
    if batch_split_factor > 1:
        product = product.reshape(len(product), batch_split_factor, -1).transpose(0, 1)
    return product.contiguous()


def needs_float32(a: Tensor) -> bool:
    """Returns whether to multiply in float32 and round the product.

    A CPU without bf16 or fp16 instructions multiplies these dtypes in a plain loop: a bf16 (512, 1024) x (1024, 768)
    product took 838 ms, and 6.5 ms through float32.
    """
    return a.dtype in (torch.bfloat16, torch.float16) and a.device.type == "cpu" and not _cpu_multiplies(a.dtype)


def _has_few_dot_products(a: Tensor, weight: Tensor) -> bool:
    """Returns whether torch's own loop is faster than float32.

    It is for operands that are contiguous along K and few rows, as in decoding: a bf16 (1, 5120) x (3200, 5120) product
    took 6 ms, and 37 ms with the weights converted first; at 16 rows both take as long.
    """
    return a.shape[0] <= _FEW_ROWS and a.stride(-1) == 1 and weight.stride(-1) == 1


@cache
def _cpu_multiplies(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    mkldnn = torch.ops.mkldnn
    supported = mkldnn._is_mkldnn_bf16_supported if dtype is torch.bfloat16 else mkldnn._is_mkldnn_fp16_supported
    return bool(supported())


def conv2d(image: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any) -> Tensor:
    """Calls torch.conv2d, in float32 where that is faster."""
    if needs_float32(image):
        bias = None if bias is None else bias.float()
        return torch.conv2d(image.float(), weight.float(), bias, *arguments).to(image.dtype)
    return torch.conv2d(image, weight, bias, *arguments)


def convolution_backward(gradient: Tensor, image: Tensor, weight: Tensor, *arguments: Any) -> Tensor:
    """Calls aten's convolution_backward for one gradient, and returns the gradient."""
    dtype = gradient.dtype
    if needs_float32(gradient):
        gradient, image, weight = gradient.float(), image.float(), weight.float()
    results = torch.ops.aten.convolution_backward(gradient, image, weight, *arguments)
    wanted: Tensor
    (wanted,) = (result for result in results if result is not None)
    return wanted.to(dtype)


adaptive_average_pool3d = torch.ops.aten._adaptive_avg_pool3d
adaptive_average_pool3d_backward = torch.ops.aten._adaptive_avg_pool3d_backward
max_pool2d = torch.ops.aten.max_pool2d_with_indices
max_pool2d_backward = torch.ops.aten.max_pool2d_with_indices_backward


def may_prepare(tensor: Tensor) -> bool:
    """Returns whether to take the form of a kernel for a GPU, which may return `Prepared`.

    torch.compile traces the other form: it cannot trace set-up, and fuses by itself.
    """
    return tensor.is_cuda and not torch.compiler.is_compiling()
