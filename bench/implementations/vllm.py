"""vLLM's CUDA kernels, with the interface of vllm 0.33. Not run by us.

moe_permute is vLLM's function around its kernel, so the time has the indices that it makes with torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm import _custom_ops as ops
from vllm.model_executor.layers.fused_moe.moe_permute_unpermute import moe_permute as permute
from vllm.model_executor.layers.fused_moe.moe_permute_unpermute import moe_unpermute as unpermute

from opatlas import Prepared, Unsupported, implements
from opatlas.run.implementation import Support

from ._layouts import (
    chosen_experts,
    contiguous_tokens_by_heads,
    real_scale,
    rows_of_tokens,
    table_of_pairs,
    weight_by_columns,
    without_beta,
    written_to_cache,
)

DISTRIBUTIONS = ("vllm",)
DEVICES = ("cuda",)
_SUPPORT = Support("vLLM")
_expect, _expect_dtype = _SUPPORT.expect, _SUPPORT.expect_dtype

_HALF = (torch.bfloat16, torch.float16)
_REAL = (*_HALF, torch.float32)
_QUANTIZED = (torch.int8, torch.float8_e4m3fn)
#: CUTLASS takes rows and columns that are multiples of this; permutations take lines of as many bytes.
_ALIGNED = 16


@implements("RmsNorm")
def rms_norm(x: torch.Tensor, gamma: torch.Tensor, *, epsilon: float) -> Prepared:
    """Computes no reciprocal root mean square."""
    _expect_dtype(_REAL, x=x)
    _expect_dtype((x.dtype,), gamma=gamma)
    y = torch.empty_like(x)

    def call() -> Any:
        ops.rms_norm(y, x, gamma, epsilon)
        return y, None

    return Prepared(call)


@implements("AddRmsNorm")
def add_rms_norm(x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> Prepared:
    """Works in place: x1 becomes y, x2 becomes the sum. Computes no reciprocal root mean square."""
    _expect_dtype(_REAL, x=x1)
    _expect_dtype((x1.dtype,), gamma=gamma)

    def call() -> Any:
        ops.fused_add_rms_norm(x1, x2, gamma, epsilon)
        return x1, None, x2

    return Prepared(call, changes=(x1, x2))


add_rms_norm_bias = implements("AddRmsNormBias")(without_beta(add_rms_norm, _SUPPORT))


@implements("AddRmsNormDynamicQuant", "AddRmsNormDynamicQuantAiCore")
def add_rms_norm_dynamic_quant(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    *,
    smooth_scale1: torch.Tensor | None = None,
    smooth_scale2: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    epsilon: float,
) -> Prepared:
    """Works in place on x2, which becomes the sum."""
    _expect_dtype(_REAL, x=x1)
    _expect_dtype((x1.dtype,), gamma=gamma)
    # Multiplied into gamma, which has the dtype of x, a smooth scale would be rounded.
    for name, given in (("smooth scales", smooth_scale1), ("a second smooth scale", smooth_scale2), ("a beta", beta)):
        _expect(given is None, name, "rms_norm_dynamic_per_token_quant without")

    def call() -> Any:
        y, scales = ops.rms_norm_dynamic_per_token_quant(x1, gamma, epsilon, torch.int8, None, x2)
        return y, None, x2, scales.view(x1.shape[:-1]), None

    return Prepared(call, changes=(x2,))


@implements("DynamicQuant", "DynamicQuantAiCore")
def dynamic_quant(
    x: torch.Tensor, *, smooth_scales: torch.Tensor | None = None, dst_type: torch.dtype = torch.int8
) -> tuple[torch.Tensor, torch.Tensor]:
    _expect_dtype(_REAL, x=x)
    _expect(smooth_scales is None, "smooth scales", "quantization without them")
    _expect_dtype(_QUANTIZED, result=dst_type)
    if dst_type is torch.int8:
        quantized, scales, _ = ops.scaled_int8_quant(x)
    else:
        quantized, scales = ops.scaled_fp8_quant(x.view(-1, x.shape[-1]), use_per_token_if_dynamic=True)
    return quantized.view(x.shape), scales.view(x.shape[:-1])


@implements("SwiGlu")
def swiglu(x: torch.Tensor, dim: int) -> Prepared:
    _expect_dtype(_REAL, x=x)
    _expect(dim in (-1, x.dim() - 1), f"axis {dim}", "the last axis")
    y = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)

    def call() -> Any:
        torch.ops._C.silu_and_mul(y, x)
        return y

    return Prepared(call)


@implements("ApplyRotaryPosEmb")
def apply_rotary_pos_emb(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, layout: str
) -> Prepared:
    heads = 2 if layout == "BSND" else 1
    q, k = (contiguous_tokens_by_heads(x, heads, _SUPPORT) for x in (query, key))
    table, positions = _angles(query, cos, sin, heads)

    def call() -> Any:
        ops.rotary_embedding(positions, q, k, q.shape[-1], table, True)
        return query, key

    return Prepared(call, changes=(query, key), converted=("cos and sin to a table",))


@implements("RotaryPositionEmbedding")
def rotary_mul(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Prepared:
    """Works in place."""
    heads = next((axis for axis in range(x.dim() - 2, 0, -1) if cos.shape[axis] == 1), None)
    if heads is None:
        raise Unsupported(f"angles {tuple(cos.shape)} for {tuple(x.shape)}: vLLM has angles for all heads of a token")
    tokens = contiguous_tokens_by_heads(x, heads, _SUPPORT)
    table, positions = _angles(x, cos, sin, heads)

    def call() -> Any:
        ops.rotary_embedding(positions, tokens, None, x.shape[-1], table, True)
        return x

    return Prepared(call, changes=(x,), converted=("cos and sin to a table",))


@implements("_triton_rope")
def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_size: int,
    rotary_dim: int,
    is_neox_style: bool,
) -> Prepared:
    """The kernel reads the width of the rotation from the table, which has the dtype of the query."""
    places, table = positions.long(), cos_sin_cache.to(query.dtype)
    converted = [] if positions.dtype is torch.int64 else ["positions to INT64"]
    if cos_sin_cache.dtype is not query.dtype:
        converted.append("table to the dtype of the query")

    def call() -> Any:
        ops.rotary_embedding(places, query, key, head_size, table, is_neox_style)
        return query, key

    return Prepared(call, changes=(query, key), converted=converted)


@implements("ReshapeAndCacheNdKernel")
def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> Prepared:
    _expect(key.shape == value.shape, f"keys {tuple(key.shape)}, values {tuple(value.shape)}", "equal shapes")
    _expect_dtype(_REAL, key=key)
    _expect_dtype((key.dtype,), value=value)
    return written_to_cache(ops, key, value, key_cache, value_cache, slot_indices)


@implements("QuantBatchMatmulV3")
def quant_matmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    *,
    offset: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    pertoken_scale: torch.Tensor | None = None,
    group_sizes: Sequence[int] | None = None,
    output_dtype: torch.dtype,
) -> Prepared:
    _expect(group_sizes is None, "scales of blocks", "scales of rows and columns here")
    _expect(x1.dim() == x2.dim() == 2, f"{x1.dim()} axes", "matrices of two axes")
    _expect_dtype(_QUANTIZED, x1=x1, x2=x2)
    _expect_dtype(_HALF, result=output_dtype)
    _expect(offset is None, "an offset", "no offsets")
    if bias is not None:
        _expect_dtype((output_dtype,), bias=bias)
    k, n = x2.shape
    _expect(k % _ALIGNED == n % _ALIGNED == 0, f"K {k}, N {n}", f"multiples of {_ALIGNED}")
    converted: list[str] = []
    x2 = weight_by_columns(x2, converted)
    own_scale, own_bias = real_scale(scale, converted), None if bias is None else bias.reshape(-1)
    if pertoken_scale is None:
        converted.append("a scale of one for x1")
    of_rows = torch.ones(1, 1, device=x1.device) if pertoken_scale is None else pertoken_scale[:, None]
    of_columns = own_scale[None]
    return Prepared(
        lambda: ops.cutlass_scaled_mm(x1, x2, of_rows, of_columns, output_dtype, own_bias), converted=converted
    )


@implements("MoeGatingTopK")
def moe_gating_top_k(
    x: torch.Tensor,
    k: int,
    *,
    norm_type: int,
    out_flag: bool,
    bias: torch.Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
) -> Prepared:
    """Computes no normalized logits."""
    _expect_dtype(_REAL, x=x)
    return chosen_experts(ops, x, k, norm_type, bias, (k_group, group_count, group_select_mode), _SUPPORT)


@implements("MoeTokenPermute")
def moe_token_permute(tokens: torch.Tensor, indices: torch.Tensor, num_out_tokens: int | None = None) -> Prepared:
    _expect(num_out_tokens is None, f"{num_out_tokens} copies kept", "all copies")
    _expect_line(tokens)
    experts = indices.int().view(len(tokens), -1)
    count = int(experts.max()) + 1

    def call() -> Any:
        permuted, _, _, places, *_ = permute(tokens, None, experts, count)
        return permuted, places

    converted = () if indices.dtype is torch.int32 else ("experts to INT32",)
    return Prepared(call, converted=converted)


@implements("MoeTokenUnpermute")
def moe_token_unpermute(
    permuted_tokens: torch.Tensor, sorted_indices: torch.Tensor, probs: torch.Tensor | None = None
) -> Prepared:
    _expect_line(permuted_tokens)
    count, device = len(permuted_tokens), permuted_tokens.device
    weights = torch.ones(count, 1, device=device) if probs is None else probs.float()
    places, out = sorted_indices.int(), permuted_tokens.new_empty(len(weights), permuted_tokens.shape[-1])
    converted = ["a weight of one for each row"] if probs is None else []
    if probs is not None and probs.dtype is not torch.float32:
        converted.append("weights to FLOAT")
    if sorted_indices.dtype is not torch.int32:
        converted.append("places to INT32")

    def call() -> Any:
        unpermute(out, permuted_tokens, weights, places)
        return out

    return Prepared(call, converted=converted)


def _expect_line(tokens: torch.Tensor) -> None:
    size = tokens.shape[-1] * tokens.element_size()
    _expect(size % _ALIGNED == 0, f"tokens of {size} bytes", f"multiples of {_ALIGNED} bytes")


def _angles(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a table (rows, D) of cosines and sines of the pairs, and the row of each token of x."""
    return table_of_pairs(cos, sin, x.dtype), rows_of_tokens(x, cos, heads, _SUPPORT)
