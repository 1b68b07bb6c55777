"""Matrix products."""

from __future__ import annotations

from functools import cache

import torch
from torch.nn import functional

__all__ = ["batch_matmul", "matmul"]


def matmul(a: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """(M, K) and (N, K), perhaps plus (N,), to (M, N). Operands may be transposed views."""
    if _through_float32(a):
        bias = None if bias is None else bias.float()
        return functional.linear(a.float(), weight.float(), bias).to(a.dtype)
    if bias is not None and bias.dtype != a.dtype:
        # The NPU's kernel takes a FLOAT bias beside half-precision matrices; torch wants one dtype.
        bias = bias.to(a.dtype)
    return functional.linear(a, weight, bias)


def batch_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(..., M, K) and (..., K, N) to (..., M, N), batches broadcast. Operands may be transposed views."""
    if _through_float32(a):
        return torch.matmul(a.float(), b.float()).to(a.dtype)
    return torch.matmul(a, b)


def _through_float32(a: torch.Tensor) -> bool:
    """Whether to multiply in float32 and round the product.

    A CPU without bf16 or fp16 instructions multiplies these dtypes in a plain loop: a bf16
    (512, 1024) x (1024, 768) product took 838 ms there, and 6.5 ms through float32.
    """
    return a.dtype in (torch.bfloat16, torch.float16) and a.device.type == "cpu" and not _cpu_multiplies(a.dtype)


@cache
def _cpu_multiplies(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    mkldnn = torch.ops.mkldnn
    supported = mkldnn._is_mkldnn_bf16_supported if dtype is torch.bfloat16 else mkldnn._is_mkldnn_fp16_supported
    return bool(supported())
