"""Norms and activations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import flashinfer
import torch

from opatlas import Prepared, implements

from .._layouts import without_beta
from .common import HALF, SUPPORT, expect, expect_dtype

#: Elements of a row that fit into shared memory in float32, with room for partial sums.
_LARGEST_ROW = 56 << 10


@implements("RmsNorm")
def rms_norm(x: torch.Tensor, gamma: torch.Tensor, *, epsilon: float) -> Prepared:
    """Computes no rstd. Three axes up to a head size of 256 are heads with a warp each; other rows have a block."""
    expect_dtype(HALF, x=x)
    expect_dtype((x.dtype,), gamma=gamma)
    rows = x if x.dim() == 3 and x.shape[-1] <= 256 else x.reshape(-1, x.shape[-1])
    out = torch.empty_like(rows)

    def call() -> Any:
        flashinfer.rmsnorm(rows, gamma, epsilon, out=out, enable_pdl=False)
        return out.view(x.shape), None

    return Prepared(call)


@implements("AddRmsNorm")
def add_rms_norm(x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> Prepared:
    """Works in place: x1 becomes y, x2 becomes the sum. Computes no rstd."""
    expect_dtype(HALF, x1=x1)
    expect_dtype((x1.dtype,), x2=x2, gamma=gamma)
    width = x1.shape[-1]
    expect(width <= _LARGEST_ROW, f"last axis {width}", f"up to {_LARGEST_ROW}")
    rows, residual = x1.view(-1, width), x2.view(-1, width)

    def call() -> Any:
        flashinfer.fused_add_rmsnorm(rows, residual, gamma, epsilon, enable_pdl=False)
        return x1, None, x2

    return Prepared(call, changes=(x1, x2))


add_rms_norm_bias = implements("AddRmsNormBias")(without_beta(add_rms_norm, SUPPORT))


@implements("LayerNormV4")
def layer_norm(
    x: torch.Tensor, sizes: Sequence[int], gamma: torch.Tensor, beta: torch.Tensor, epsilon: float
) -> Prepared:
    """Computes no mean and no rstd."""
    expect_dtype((torch.bfloat16,), x=x)
    width = math.prod(sizes)
    rows, weight, bias = x.reshape(-1, width), gamma.reshape(-1).float(), beta.reshape(-1).float()
    return Prepared(
        lambda: (flashinfer.layernorm(rows, weight, bias, epsilon).view(x.shape), None, None),
        converted=() if gamma.dtype == beta.dtype == torch.float32 else ("gamma and beta to FLOAT",),
    )


@implements("SwiGlu")
def swiglu(x: torch.Tensor, dim: int) -> Prepared:
    expect(dim in (-1, x.dim() - 1), f"axis {dim}", "the last axis only")
    expect_dtype(HALF, x=x)
    half = x.shape[-1] // 2
    expect(half % 8 == 0, f"halves of {half} elements", "multiples of 8")
    return Prepared(lambda: flashinfer.silu_and_mul(x, enable_pdl=False))


@implements("SoftmaxV2")
def softmax(x: torch.Tensor, dim: int) -> Prepared:
    """FlashInfer's softmax of a sampler, at temperature 1."""
    expect(dim in (-1, x.dim() - 1), f"axis {dim}", "the last axis only")
    expect_dtype((torch.float32,), x=x)
    rows = x.reshape(-1, x.shape[-1])
    return Prepared(lambda: flashinfer.sampling.softmax(rows, enable_pdl=False).view(x.shape))
