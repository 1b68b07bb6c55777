"""Norms and activations, products of matrices and routing.

Products in FP8 have one scale: FlashInfer's products with scales of rows are for Blackwell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import flashinfer
import torch
from flashinfer.dsv3_ops import NoAuxTc
from torch import Tensor

from opatlas import Prepared, Unsupported, implements

from .._calls import FP8, HALF, REAL, Gating, QuantizedProduct, launched, takes, without_beta
from . import SUPPORT, expect, expect_dtype

#: Elements of a row that fit into shared memory in float32, with room for partial sums.
_LARGEST_ROW = 56 << 10
#: cuBLAS takes rows and columns in FP8 that are multiples of this.
_ALIGNED = 16


@implements("RmsNorm")
def rms_norm(x: Tensor, gamma: Tensor, *, epsilon: float) -> Prepared:
    """Computes no rstd. Three axes up to a head size of 256 are heads with a warp each; other rows have a block."""
    expect_dtype(HALF, x=x)
    expect_dtype((x.dtype,), gamma=gamma)
    rows = x if x.dim() == 3 and x.shape[-1] <= 256 else x.reshape(-1, x.shape[-1])
    out = torch.empty_like(rows)
    return launched(
        lambda: flashinfer.rmsnorm(rows, gamma, epsilon, out=out, enable_pdl=False), (out.view(x.shape), None)
    )


@implements("AddRmsNorm")
def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> Prepared:
    """Works in place: x1 becomes y, x2 becomes the sum. Computes no rstd."""
    expect_dtype(HALF, x1=x1)
    expect_dtype((x1.dtype,), x2=x2, gamma=gamma)
    width = x1.shape[-1]
    expect(width <= _LARGEST_ROW, f"last axis {width}", f"up to {_LARGEST_ROW}")
    rows, residual = x1.view(-1, width), x2.view(-1, width)
    return launched(
        lambda: flashinfer.fused_add_rmsnorm(rows, residual, gamma, epsilon, enable_pdl=False),
        (x1, None, x2),
        changes=(x1, x2),
    )


add_rms_norm_bias = implements("AddRmsNormBias")(without_beta(add_rms_norm, SUPPORT))


@implements("LayerNormV4")
def layer_norm(x: Tensor, sizes: Sequence[int], gamma: Tensor, beta: Tensor, epsilon: float) -> Prepared:
    """Computes no mean and no rstd."""
    expect_dtype((torch.bfloat16,), x=x)
    width = math.prod(sizes)
    rows, weight, bias = x.reshape(-1, width), gamma.reshape(-1).float(), beta.reshape(-1).float()
    return Prepared(
        lambda: (flashinfer.layernorm(rows, weight, bias, epsilon).view(x.shape), None, None),
        converted=() if gamma.dtype == beta.dtype == torch.float32 else ("gamma and beta to FLOAT",),
    )


@implements("SwiGlu")
def swiglu(x: Tensor, dim: int) -> Prepared:
    expect(dim in (-1, x.dim() - 1), f"axis {dim}", "the last axis only")
    expect_dtype(HALF, x=x)
    half = x.shape[-1] // 2
    expect(half % 8 == 0, f"halves of {half} elements", "multiples of 8")
    return Prepared(lambda: flashinfer.silu_and_mul(x, enable_pdl=False))


@implements("GeGluV2")
def geglu(x: Tensor, dim: int, approximate: int, activate_left: bool) -> Prepared:
    """Without the GELU alone."""
    expect(dim in (-1, x.dim() - 1), f"axis {dim}", "the last axis only")
    expect_dtype(HALF, x=x)
    expect(x.shape[-1] % 16 == 0, f"halves of {x.shape[-1] // 2} elements", "multiples of 8")
    return Prepared(lambda: (flashinfer.gelu_tanh_and_mul(x, enable_pdl=False), None))


@implements("SoftmaxV2")
def softmax(x: Tensor, dim: int) -> Prepared:
    """FlashInfer's softmax of a sampler, at temperature 1."""
    expect(dim in (-1, x.dim() - 1), f"axis {dim}", "the last axis only")
    expect_dtype((torch.float32,), x=x)
    rows = x.reshape(-1, x.shape[-1])
    return Prepared(lambda: flashinfer.sampling.softmax(rows, enable_pdl=False).view(x.shape))


@implements("QuantBatchMatmulV3")
@takes
def quant_matmul(call: QuantizedProduct) -> Prepared:
    """Calls cuBLAS."""
    x1, x2, scale, dtype = call.x1, call.x2, call.scale, call.output_dtype
    expect_dtype(FP8, x1=x1, x2=x2)
    expect(torch.float8_e4m3fn in (x1.dtype, x2.dtype), "both operands in E5M2", "one operand in E4M3 at least")
    expect(scale.numel() == 1 and call.pertoken_scale is None, "scales of rows or columns", "one scale for all")
    expect(call.bias is None and call.offset is None, "a bias or an offset", "products without an addend")
    expect(dtype in HALF, f"results in {dtype}", "BF16 and FLOAT16")
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
    result = torch.empty(len(a), a.shape[1], n, dtype=dtype, device=a.device)
    return Prepared(
        lambda: flashinfer.bmm_fp8(a, b, one, scale, dtype, result),
        results=lambda found: found.view(*x1.shape[:-1], n),
        converted=converted,
    )


@implements("MoeGatingTopK")
@takes
def moe_gating_top_k(call: Gating) -> Prepared:
    """DeepSeek-V3's choice of experts. Computes no sigmoids of all logits."""
    x, k, bias, groups, chosen_groups = call.x, call.k, call.bias, call.group_count, call.k_group
    if bias is None or call.norm_type != 1:
        raise Unsupported("experts by softmax: FlashInfer has DeepSeek-V3's choice by sigmoid and bias")
    expect_dtype(REAL, x=x, bias=bias)
    # FlashInfer's own check takes no more experts of a token than this, even where a group has more.
    most = min(8, groups * chosen_groups)
    expect(k <= most, f"{k} experts for a token, of {groups} x {chosen_groups} groups", f"up to {most}")
    call.expect_groups_by_best_two(SUPPORT)
    own = x.shape[1] // groups
    fits = groups == 1 or (groups <= 8 and chosen_groups <= 4 and x.shape[1] % groups == 0 and own <= 32)
    limits = "up to 8 groups of up to 32, and 4 chosen groups"
    expect(fits, f"{groups} groups of {own} experts, {chosen_groups} chosen", limits)
    weights = x.new_empty(len(x), k)
    chosen = torch.empty(len(x), k, dtype=torch.int32, device=x.device)
    return launched(
        lambda: NoAuxTc(x, bias, groups, chosen_groups, k, 1.0, weights, chosen, launch_with_pdl=False),
        (weights, chosen, None),
    )
