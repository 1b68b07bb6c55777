"""Products of matrices in FP8 with one scale: FlashInfer's products with scales of rows are for Blackwell."""

from __future__ import annotations

from typing import Any

import flashinfer
import torch

from opatlas import Prepared, implements

from .common import HALF, expect, expect_dtype, words

_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
#: cuBLAS takes rows and columns in FP8 that are multiples of this.
_ALIGNED = 16


@implements("QuantBatchMatmulV3")
def quant_matmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    *,
    pertoken_scale: torch.Tensor | None = None,
    output_dtype: torch.dtype,
    **added: Any,
) -> Prepared:
    """Calls cuBLAS."""
    expect_dtype(_FP8, x1=x1, x2=x2)
    expect(torch.float8_e4m3fn in (x1.dtype, x2.dtype), "both operands in E5M2", "one operand in E4M3 at least")
    expect(scale.numel() == 1 and pertoken_scale is None, "scales of rows or columns", "one scale for all")
    expect(not added, words([*added]) if added else "", "products without an addend")
    expect(output_dtype in HALF, f"results in {output_dtype}", "BF16 and FLOAT16")
    expect(scale.dtype is torch.float32, f"a scale in {scale.dtype}", "float32")
    expect(x1.dim() == x2.dim() in (2, 3), f"{x1.dim()} and {x2.dim()} axes", "two or three axes of both")
    k, n = x2.shape[-2:]
    expect(k % _ALIGNED == n % _ALIGNED == 0, f"K {k}, N {n}", f"multiples of {_ALIGNED}")
    converted = ["a scale of one for x1"]
    if not x2.mT.is_contiguous():
        converted.append("weight to (N, K)")
    a, b = x1.contiguous(), x2.mT.contiguous().mT
    if x1.dim() == 2:
        a, b = a[None], b[None]
    expect(len(a) == len(b), f"batches of {len(a)} and {len(b)}", "equal batches")
    one = torch.ones(1, device=a.device)
    result = torch.empty(len(a), a.shape[1], n, dtype=output_dtype, device=a.device)
    return Prepared(
        lambda: flashinfer.bmm_fp8(a, b, one, scale, output_dtype, result),
        results=lambda found: found.view(*x1.shape[:-1], n),
        converted=converted,
    )
