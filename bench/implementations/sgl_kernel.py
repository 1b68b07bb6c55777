"""SGLang's CUDA kernels, with the interface of sgl_kernel 0.3.21. Not run by us.

Calls run without programmatic dependent launch: with it a kernel starts before the previous kernel ends, and the sum of
the durations counts that time twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sgl_kernel
import torch
from torch import Tensor

from opatlas import Prepared, Unsupported, implements
from opatlas.run.implementation import Support

from ._calls import HALF, REAL, Gating, QuantizedProduct, launched, takes, without_beta
from ._layouts import HEADS, contiguous_tokens_by_heads, rows_of_tokens, table_of_pairs, weight_by_columns

DISTRIBUTIONS = ("sgl_kernel",)
DEVICES = ("cuda",)
_SUPPORT = Support("sgl_kernel")
_expect, _expect_dtype = _SUPPORT.expect, _SUPPORT.expect_dtype

#: The kernels read and write so many bytes at a time.
_ALIGNED_BYTES = 16
#: int8_scaled_mm and fp8_scaled_mm take a K that is a multiple of 16, and an N that is a multiple of 8 or 16.
_K = 16
_PRODUCTS = {torch.int8: ("int8_scaled_mm", 8), torch.float8_e4m3fn: ("fp8_scaled_mm", 16)}
#: moe_fused_gate holds a group of experts in a row of a warp.
_GROUP = 32


@implements("RmsNorm")
def rms_norm(x: Tensor, gamma: Tensor, *, epsilon: float) -> Prepared:
    """Computes no reciprocal root mean square."""
    _expect_norm(x, gamma)
    rows, y = x.view(-1, x.shape[-1]), torch.empty_like(x)
    out = y.view_as(rows)
    return launched(lambda: sgl_kernel.rmsnorm(rows, gamma, epsilon, out, enable_pdl=False), (y, None))


@implements("AddRmsNorm")
def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> Prepared:
    """Works in place: x1 becomes y, x2 becomes the sum. Computes no reciprocal root mean square."""
    _expect_norm(x1, gamma)
    rows, residual = (x.view(-1, x.shape[-1]) for x in (x1, x2))
    return launched(
        lambda: sgl_kernel.fused_add_rmsnorm(rows, residual, gamma, epsilon, enable_pdl=False),
        (x1, None, x2),
        changes=(x1, x2),
    )


add_rms_norm_bias = implements("AddRmsNormBias")(without_beta(add_rms_norm, _SUPPORT))


@implements("SwiGlu")
def swiglu(x: Tensor, dim: int) -> Any:
    _expect_dtype(HALF, x=x)
    _expect(dim in (-1, x.dim() - 1), f"axis {dim}", "the last axis")
    _expect_aligned(x, x.shape[-1] // 2)
    return sgl_kernel.silu_and_mul(x)


@implements("DynamicQuant", "DynamicQuantAiCore")
def dynamic_quant(x: Tensor, *, smooth_scales: Tensor | None = None, dst_type: torch.dtype = torch.int8) -> Prepared:
    """Quantizes each row: to INT8 as one group."""
    _expect_dtype(REAL, x=x)
    _expect(smooth_scales is None, "smooth scales", "quantization without them")
    _expect_dtype(tuple(_PRODUCTS), result=dst_type)
    _expect_aligned(x, x.shape[-1])
    rows = x.view(-1, x.shape[-1])
    quantized = torch.empty(rows.shape, dtype=dst_type, device=x.device)
    scales = torch.empty(len(rows), 1, device=x.device)

    def launch() -> None:
        if dst_type is torch.int8:
            sgl_kernel.sgl_per_token_group_quant_8bit(
                rows, quantized, scales, rows.shape[-1], 1e-10, -128.0, 127.0, enable_v2=False
            )
        else:
            sgl_kernel.sgl_per_token_quant_fp8(rows, quantized, scales)

    return launched(launch, (quantized.view(x.shape), scales.view(x.shape[:-1])))


@implements("ApplyRotaryPosEmb")
def apply_rotary_pos_emb(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *, layout: str) -> Prepared:
    heads = HEADS[layout]
    q, k = (contiguous_tokens_by_heads(x, heads, _SUPPORT) for x in (query, key))
    rows = rows_of_tokens(query, cos, heads, _SUPPORT)
    table = table_of_pairs(cos, sin, torch.float32)
    return _rotated(rows, q, k, table, True, ["cos and sin to a table in FLOAT"])


@implements("_triton_rope")
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, table: Tensor, head_size: int, rotary_size: int, is_neox: bool
) -> Prepared:
    """The table has the row's dtype on an NPU, and FLOAT here: twice as many bytes are read for an angle."""
    converted = [] if positions.dtype is torch.int64 else ["positions to INT64"]
    if table.dtype is not torch.float32:
        converted.append("table of cos and sin to FLOAT")
    return _rotated(positions.long(), query, key, table.float(), is_neox, converted)


@implements("QuantBatchMatmulV3")
@takes(QuantizedProduct)
def quant_matmul(call: QuantizedProduct) -> Prepared:
    call.expect_scales_of_lines(_SUPPORT)
    _expect_dtype(tuple(_PRODUCTS), x1=call.x1)
    name, multiple = _PRODUCTS[call.x1.dtype]
    call.expect_matrices(_SUPPORT, {"result": HALF}, k=_K, n=multiple)
    (m, n), converted = (len(call.x1), call.x2.shape[1]), list[str]()
    x2, scale = weight_by_columns(call.x2, converted), call.scale
    # A packed scale (INT64) has the scale in float32 in its lower half.
    real = scale if scale.is_floating_point() else scale.view(torch.float32)[..., ::2]
    if scale.dtype is not torch.float32 or len(scale) != n:
        converted.append("scale to FLOAT of each column")
    if call.pertoken_scale is None:
        converted.append("a scale of one for each row")
    of_columns = real.float().expand(n).contiguous()
    of_rows = torch.ones(m, device=x2.device) if call.pertoken_scale is None else call.pertoken_scale
    product, bias = getattr(sgl_kernel, name), call.flat_bias
    return Prepared(
        lambda: product(call.x1, x2, of_rows, of_columns, call.output_dtype, bias),
        converted=converted,
    )


@implements("MoeGatingTopK")
@takes(Gating)
def moe_gating_top_k(call: Gating) -> Prepared:
    """Computes no normalized logits."""
    x, experts, groups = call.x, call.x.shape[-1], call.group_count
    _expect_dtype(REAL, x=x)
    if call.norm_type == 0 or call.bias is None:
        raise Unsupported("softmax, or no bias: sgl_kernel's moe_fused_gate has sigmoid with a bias")
    call.expect_groups_by_best_two(_SUPPORT)
    _expect(experts & (experts - 1) == 0, f"{experts} experts", "powers of two")
    _expect(experts // groups <= _GROUP, f"{experts // groups} experts of a group", f"up to {_GROUP}")
    own = call.bias.to(x.dtype)
    return Prepared(
        lambda: sgl_kernel.moe_fused_gate(x, own, groups, call.k_group, call.k, routed_scaling_factor=1.0),
        results=call.results,
        converted=call.converted,
    )


def _rotated(
    positions: Tensor, q: Tensor, k: Tensor, table: Tensor, is_neox: bool, converted: Sequence[str]
) -> Prepared:
    """Returns the call that rotates views (tokens, heads, D) of queries and keys in place."""
    _expect_dtype(HALF, query=q)
    size = q.shape[-1]
    _expect(size in (64, 128, 256, 512), f"head size {size}", "64, 128, 256 and 512")
    query, key = q.flatten(1), k.flatten(1)
    return Prepared(
        lambda: sgl_kernel.apply_rope_with_cos_sin_cache_inplace(
            positions, query, key, size, table, is_neox, enable_pdl=False
        ),
        converted=converted,
    )


def _expect_norm(x: Tensor, gamma: Tensor) -> None:
    _expect_dtype(HALF, x=x)
    _expect_dtype((x.dtype,), gamma=gamma)


def _expect_aligned(x: Tensor, size: int) -> None:
    count = size * x.element_size()
    _expect(count % _ALIGNED_BYTES == 0, f"lines of {count} bytes", f"multiples of {_ALIGNED_BYTES}")
