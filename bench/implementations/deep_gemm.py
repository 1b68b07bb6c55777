"""DeepGEMM's products in FP8 with scales of blocks, which SGLang and vLLM run on Hopper: sgl-deep-gemm 0.1.3.

nvcc compiles a kernel for the widths of a weight, when a row first needs it.
"""

from __future__ import annotations

import deep_gemm
import torch
from torch.nn import functional

from opatlas import Prepared, implements
from opatlas.run.implementation import Support
from opatlas.run.inputs.shape_rules import SCALE_BLOCK

from ._calls import QuantizedProduct, launched, takes
from .torch.fp8 import by_columns

DISTRIBUTIONS = ("sgl-deep-gemm",)
DEVICES = ("cuda",)
_SUPPORT = Support("DeepGEMM")
_expect, _expect_dtype = _SUPPORT.expect, _SUPPORT.expect_dtype
#: The TMA of a GPU takes columns of scales of a multiple of so many numbers.
_ALIGNED = 4


@implements("QuantBatchMatmulV3")
@takes
def quant_matmul(call: QuantizedProduct) -> Prepared:
    scale, token = call.scale, call.pertoken_scale
    _expect_dtype((torch.float8_e4m3fn,), x1=call.x1, x2=call.x2)
    _expect_dtype((torch.bfloat16,), result=call.output_dtype)
    blocks = [1, SCALE_BLOCK, SCALE_BLOCK]
    _expect(call.group_sizes == blocks, "scales of columns or of groups", f"scales of blocks of {SCALE_BLOCK}")
    _expect(call.bias is None, "a bias", "products without one")
    assert token is not None
    (m, k), n = call.x1.shape, call.x2.shape[1]
    halves = SCALE_BLOCK // 2
    _expect(k % SCALE_BLOCK == n % halves == 0, f"K {k}, N {n}", "K of whole blocks, and N of halves of them")
    converted = ["scales of x1 by columns"]
    weight = by_columns(call.x2, converted, "weight to (N, K)").mT
    of_rows = functional.pad(token.mT, (0, -m % _ALIGNED)).contiguous().mT[:m]
    out = torch.empty(m, n, dtype=call.output_dtype, device=call.x1.device)
    a, b = (call.x1.contiguous(), of_rows), (weight, scale.mT.contiguous())
    return launched(lambda: deep_gemm.fp8_gemm_nt(a, b, out, recipe=tuple(blocks)), out, converted=converted)
