"""vLLM's CUDA kernels, with the interface of vllm 0.33. Not run by us.

moe_permute is vLLM's function around its kernel, so the time has the indices that it makes with torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm import _custom_ops as ops
from vllm.model_executor.layers.fused_moe.moe_permute_unpermute import moe_permute as permute
from vllm.model_executor.layers.fused_moe.moe_permute_unpermute import moe_unpermute as unpermute

from opatlas import Prepared, Unsupported, implements
from opatlas.run.implementation import Support

from ._calls import (
    HALF,
    REAL,
    Gating,
    QuantizedProduct,
    chosen_experts,
    launched,
    takes,
    without_beta,
    written_to_cache,
)
from ._layouts import (
    HEADS,
    contiguous_tokens_by_heads,
    real_scale,
    rows_of_tokens,
    table_of_pairs,
    weight_by_columns,
)

DISTRIBUTIONS = ("vllm",)
DEVICES = ("cuda",)
_SUPPORT = Support("vLLM")
_expect, _expect_dtype = _SUPPORT.expect, _SUPPORT.expect_dtype

_QUANTIZED = (torch.int8, torch.float8_e4m3fn)
#: CUTLASS takes rows and columns that are multiples of this; permutations take lines of as many bytes.
_ALIGNED = 16


@implements("RmsNorm")
def rms_norm(x: Tensor, gamma: Tensor, *, epsilon: float) -> Prepared:
    """Computes no reciprocal root mean square."""
    _expect_norm(x, gamma)
    y = torch.empty_like(x)
    return launched(lambda: ops.rms_norm(y, x, gamma, epsilon), (y, None))


@implements("AddRmsNorm")
def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> Prepared:
    """Works in place: x1 becomes y, x2 becomes the sum. Computes no reciprocal root mean square."""
    _expect_norm(x1, gamma)
    return launched(lambda: ops.fused_add_rms_norm(x1, x2, gamma, epsilon), (x1, None, x2), changes=(x1, x2))


add_rms_norm_bias = implements("AddRmsNormBias")(without_beta(add_rms_norm, _SUPPORT))


@implements("AddRmsNormDynamicQuant", "AddRmsNormDynamicQuantAiCore")
def add_rms_norm_dynamic_quant(x1: Tensor, x2: Tensor, gamma: Tensor, *, epsilon: float, **added: Any) -> Prepared:
    """Works in place on x2, which becomes the sum."""
    _expect_norm(x1, gamma)
    # Multiplied into gamma, which has the dtype of x, a smooth scale would be rounded.
    for name in added:
        _expect(False, name, "rms_norm_dynamic_per_token_quant without")

    def call() -> Any:
        y, scales = ops.rms_norm_dynamic_per_token_quant(x1, gamma, epsilon, torch.int8, None, x2)
        return y, None, x2, scales.view(x1.shape[:-1]), None

    return Prepared(call, changes=(x2,))


@implements("DynamicQuant", "DynamicQuantAiCore")
def dynamic_quant(
    x: Tensor, *, smooth_scales: Tensor | None = None, dst_type: torch.dtype = torch.int8
) -> tuple[Tensor, Tensor]:
    _expect_dtype(REAL, x=x)
    _expect(smooth_scales is None, "smooth scales", "quantization without them")
    _expect_dtype(_QUANTIZED, result=dst_type)
    if dst_type is torch.int8:
        quantized, scales, _ = ops.scaled_int8_quant(x)
    else:
        quantized, scales = ops.scaled_fp8_quant(x.view(-1, x.shape[-1]), use_per_token_if_dynamic=True)
    return quantized.view(x.shape), scales.view(x.shape[:-1])


@implements("SwiGlu")
def swiglu(x: Tensor, dim: int) -> Prepared:
    _expect_dtype(REAL, x=x)
    _expect(dim in (-1, x.dim() - 1), f"axis {dim}", "the last axis")
    y = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
    return launched(lambda: torch.ops._C.silu_and_mul(y, x), y)


@implements("ApplyRotaryPosEmb")
def apply_rotary_pos_emb(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *, layout: str) -> Prepared:
    heads = HEADS[layout]
    q, k = (contiguous_tokens_by_heads(x, heads, _SUPPORT) for x in (query, key))
    table, positions = table_of_pairs(cos, sin, query.dtype), rows_of_tokens(query, cos, heads, _SUPPORT)
    return launched(
        lambda: ops.rotary_embedding(positions, q, k, q.shape[-1], table, True),
        (query, key),
        changes=(query, key),
        converted=("cos and sin to a table",),
    )


@implements("RotaryPositionEmbedding")
def rotary_mul(x: Tensor, cos: Tensor, sin: Tensor) -> Prepared:
    """Works in place."""
    heads = next((axis for axis in range(x.dim() - 2, 0, -1) if cos.shape[axis] == 1), None)
    if heads is None:
        raise Unsupported(f"angles {tuple(cos.shape)} for {tuple(x.shape)}: vLLM has angles for all heads of a token")
    tokens = contiguous_tokens_by_heads(x, heads, _SUPPORT)
    table, positions = table_of_pairs(cos, sin, x.dtype), rows_of_tokens(x, cos, heads, _SUPPORT)
    return launched(
        lambda: ops.rotary_embedding(positions, tokens, None, x.shape[-1], table, True),
        x,
        changes=(x,),
        converted=("cos and sin to a table",),
    )


@implements("_triton_rope")
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, table: Tensor, head_size: int, rotary_size: int, is_neox: bool
) -> Prepared:
    """The kernel reads the width of the rotation from the table, which has the dtype of the query."""
    places, own = positions.long(), table.to(query.dtype)
    converted = [] if positions.dtype is torch.int64 else ["positions to INT64"]
    if table.dtype is not query.dtype:
        converted.append("table to the dtype of the query")
    return launched(
        lambda: ops.rotary_embedding(places, query, key, head_size, own, is_neox),
        (query, key),
        changes=(query, key),
        converted=converted,
    )


@implements("ReshapeAndCacheNdKernel")
def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_indices: Tensor
) -> Prepared:
    _expect(key.shape == value.shape, f"keys {tuple(key.shape)}, values {tuple(value.shape)}", "equal shapes")
    _expect_dtype(REAL, key=key)
    _expect_dtype((key.dtype,), value=value)
    return written_to_cache(ops, key, value, key_cache, value_cache, slot_indices)


@implements("QuantBatchMatmulV3")
@takes(QuantizedProduct)
def quant_matmul(call: QuantizedProduct) -> Prepared:
    call.expect_scales_of_lines(_SUPPORT)
    call.expect_matrices(_SUPPORT, {"x1": _QUANTIZED, "x2": _QUANTIZED, "result": HALF}, k=_ALIGNED, n=_ALIGNED)
    x1, bias, converted = call.x1, call.flat_bias, list[str]()
    x2, of_columns = weight_by_columns(call.x2, converted), real_scale(call.scale, converted)[None]
    if call.pertoken_scale is None:
        converted.append("a scale of one for x1")
        of_rows = torch.ones(1, 1, device=x1.device)
    else:
        of_rows = call.pertoken_scale[:, None]
    return Prepared(
        lambda: ops.cutlass_scaled_mm(x1, x2, of_rows, of_columns, call.output_dtype, bias), converted=converted
    )


@implements("MoeGatingTopK")
@takes(Gating)
def moe_gating_top_k(call: Gating) -> Prepared:
    """Computes no normalized logits."""
    _expect_dtype(REAL, x=call.x)
    return chosen_experts(ops, call, _SUPPORT)


@implements("MoeTokenPermute")
def moe_token_permute(tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None) -> Prepared:
    _expect(num_out_tokens is None, f"{num_out_tokens} copies kept", "all copies")
    _expect_line(tokens)
    experts = indices.int().view(len(tokens), -1)
    count = int(experts.max()) + 1

    def call() -> Any:
        permuted, _, _, places, *_ = permute(tokens, None, experts, count)
        return permuted, places

    return Prepared(call, converted=() if indices.dtype is torch.int32 else ("experts to INT32",))


@implements("MoeTokenUnpermute")
def moe_token_unpermute(permuted_tokens: Tensor, sorted_indices: Tensor, probs: Tensor | None = None) -> Prepared:
    _expect_line(permuted_tokens)
    count, device = len(permuted_tokens), permuted_tokens.device
    weights = torch.ones(count, 1, device=device) if probs is None else probs.float()
    places, out = sorted_indices.int(), permuted_tokens.new_empty(len(weights), permuted_tokens.shape[-1])
    converted = ["a weight of one for each row"] if probs is None else []
    if probs is not None and probs.dtype is not torch.float32:
        converted.append("weights to FLOAT")
    if sorted_indices.dtype is not torch.int32:
        converted.append("places to INT32")
    return launched(lambda: unpermute(out, permuted_tokens, weights, places), out, converted=converted)


def _expect_norm(x: Tensor, gamma: Tensor) -> None:
    _expect_dtype(REAL, x=x)
    _expect_dtype((x.dtype,), gamma=gamma)


def _expect_line(tokens: Tensor) -> None:
    size = tokens.shape[-1] * tokens.element_size()
    _expect(size % _ALIGNED == 0, f"tokens of {size} bytes", f"multiples of {_ALIGNED} bytes")
