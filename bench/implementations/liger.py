"""Liger's Triton kernels, with the interface of liger_kernel 0.8.5. On an NPU it is not run by us.

The forward functions of the modules of `liger_kernel.ops` are called: `liger_kernel.functional` may choose others by
itself. Casting is that of Gemma, where the norm and its product with gamma are in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from liger_kernel.ops.fused_add_rms_norm import fused_add_rms_norm_forward
from liger_kernel.ops.layer_norm import layer_norm_forward
from liger_kernel.ops.rms_norm import rms_norm_forward
from liger_kernel.ops.rope import rope_forward
from liger_kernel.ops.softmax import _softmax_forward
from liger_kernel.ops.swiglu import swiglu_fused_gate_up_forward
from torch import Tensor

from opatlas import Prepared, implements
from opatlas.run.implementation import Support

from ._calls import without_beta

DISTRIBUTIONS = ("liger_kernel",)
DEVICES = ("cuda", "npu")
_SUPPORT = Support("Liger")
_expect = _SUPPORT.expect

_CASTING = "gemma"
#: A program holds a whole row of so many elements.
_LONGEST_ROW = 65536


@implements("RmsNorm")
def rms_norm(x: Tensor, gamma: Tensor, *, epsilon: float) -> tuple[Tensor, Tensor]:
    _expect_row(x.shape[-1])
    y, _, rstd, *_ = rms_norm_forward(x, gamma, epsilon, 0.0, _CASTING, None)
    return y, rstd.view(*x.shape[:-1], 1)


@implements("AddRmsNorm")
def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor | None, Tensor]:
    """Gives no rstd for half types: Liger's is that of the rounded sum, and the row's that of the sum itself."""
    _expect_row(x1.shape[-1])
    y, total, rstd, *_ = fused_add_rms_norm_forward(x1, x2, gamma, epsilon, 0.0, _CASTING)
    return y, rstd.view(*x1.shape[:-1], 1) if x1.dtype is torch.float32 else None, total


add_rms_norm_bias = implements("AddRmsNormBias")(without_beta(add_rms_norm, _SUPPORT))


@implements("LayerNormV4", "LayerNormV3", "LayerNormV3WithImplMode")
def layer_norm(
    x: Tensor, sizes: Sequence[int], gamma: Tensor, beta: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    _expect(len(sizes) == 1, f"a norm over {len(sizes)} axes", "norms over the last axis")
    _expect_row(sizes[0])
    y, _, mean, rstd, *_ = layer_norm_forward(x, gamma, beta, epsilon)
    shape = (*x.shape[:-1], 1)
    return y, mean.view(shape), rstd.view(shape)


@implements("SwiGlu")
def swiglu(x: Tensor, dim: int) -> Any:
    _expect(dim in (-1, x.dim() - 1), f"axis {dim}", "the last axis")
    _expect_row(x.shape[-1] // 2)
    return swiglu_fused_gate_up_forward(x)[1]


@implements("SoftmaxV2", "SoftmaxAiCore")
def softmax(x: Tensor, dim: int) -> Any:
    _expect(x.dim() > 0 and dim in (-1, x.dim() - 1), f"axis {dim} of {x.dim()}", "the last axis")
    _expect_row(x.shape[-1])
    return _softmax_forward(x)[0]


@implements("ApplyRotaryPosEmb")
def apply_rotary_pos_emb(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *, layout: str) -> Prepared:
    """Works in place on (batch, tokens, heads, D). rope_forward takes views with heads first, which it turns back."""
    if layout == "TND":
        q, k, c, s = (x.unsqueeze(0) for x in (query, key, cos, sin))
    else:
        q, k, c, s = (x if layout == "BSND" else x.transpose(1, 2) for x in (query, key, cos, sin))
    # A tensor that is not contiguous is copied, and the copy is turned instead.
    _expect(q.is_contiguous() and k.is_contiguous(), "heads before tokens", "tokens before heads")
    _expect(c.shape[2] == 1, f"angles {tuple(cos.shape)}", "angles for all heads of a token")
    _expect(c.shape[1] == q.shape[1], f"angles of {c.shape[1]} tokens for {q.shape[1]}", "angles for each token")
    angles = [x[:, :, 0] for x in (c, s)]

    def call() -> Any:
        rope_forward(q.transpose(1, 2), k.transpose(1, 2), *angles)
        return query, key

    return Prepared(call)


def _expect_row(size: int) -> None:
    _expect(size <= _LONGEST_ROW, f"rows of {size}", f"rows of up to {_LONGEST_ROW}")
