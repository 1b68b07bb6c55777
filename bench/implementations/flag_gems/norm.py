"""Norms and activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flag_gems
import torch

from opatlas import Prepared, implements

from .._layouts import without_beta
from .common import HALF, SUPPORT, expect, expect_dtype

_REAL = (*HALF, torch.float32)


@implements("RmsNorm")
def rms_norm(x: torch.Tensor, gamma: torch.Tensor, *, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    expect_dtype(_REAL, x=x)
    y, rstd = flag_gems.rms_norm_forward(x, [x.shape[-1]], gamma, epsilon)
    return y, rstd.view(*x.shape[:-1], 1)


@implements("AddRmsNorm")
def add_rms_norm(x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> Prepared:
    """Works in place: x1 becomes y, x2 becomes the sum. Computes no reciprocal root mean square."""
    expect_dtype(_REAL, x=x1)

    def call() -> Any:
        flag_gems.fused_add_rms_norm(x1, x2, [x1.shape[-1]], gamma, epsilon)
        return x1, None, x2

    return Prepared(call, changes=(x1, x2))


add_rms_norm_bias = implements("AddRmsNormBias")(without_beta(add_rms_norm, SUPPORT))


@implements("LayerNormV4", "LayerNormV3", "LayerNormV3WithImplMode")
def layer_norm(
    x: torch.Tensor, sizes: Sequence[int], gamma: torch.Tensor, beta: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor | None, ...]:
    """The statistics have the dtype of x. The row has them in FLOAT, so those in half precision are left out."""
    expect_dtype(_REAL, x=x)
    y, mean, rstd = flag_gems.layer_norm(x, sizes, gamma, beta, epsilon)
    if x.dtype is not torch.float32:
        return y, None, None
    shape = (*x.shape[: x.dim() - len(sizes)], *[1] * len(sizes))
    return y, mean.view(shape), rstd.view(shape)


@implements("SwiGlu")
def swiglu(x: torch.Tensor, dim: int) -> torch.Tensor:
    expect(dim in (-1, x.dim() - 1), f"axis {dim}", "the last axis")
    # FlagGems' kernel for both halves in one tensor takes CUDA only.
    result: torch.Tensor = flag_gems.swiglu(x) if x.is_cuda else flag_gems.silu_and_mul(*x.chunk(2, -1))
    return result


softmax = implements("SoftmaxV2", "SoftmaxAiCore")(flag_gems.softmax)
silu = implements("Swish")(flag_gems.silu)
