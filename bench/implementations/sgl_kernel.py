"""SGLang's CUDA kernels, with the interface of sgl_kernel 0.3.21. Not run by us.

Calls run without programmatic dependent launch: with it a kernel starts before the previous kernel ends, and the sum of
the durations counts that time twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sgl_kernel
import torch

from opatlas import Prepared, Unsupported, implements
from opatlas.run.implementation import Support

from ._layouts import contiguous_tokens_by_heads, rows_of_tokens, table_of_pairs, weight_by_columns, without_beta

DISTRIBUTIONS = ("sgl_kernel",)
DEVICES = ("cuda",)
_SUPPORT = Support("sgl_kernel")
_expect, _expect_dtype = _SUPPORT.expect, _SUPPORT.expect_dtype

_HALF = (torch.bfloat16, torch.float16)
#: The kernels read and write so many bytes at a time.
_ALIGNED_BYTES = 16
#: int8_scaled_mm and fp8_scaled_mm take a K that is a multiple of 16, and an N that is a multiple of 8 or 16.
_K = 16
_PRODUCTS = {torch.int8: ("int8_scaled_mm", 8), torch.float8_e4m3fn: ("fp8_scaled_mm", 16)}
#: moe_fused_gate holds a group of experts in a row of a warp.
_GROUP = 32


@implements("RmsNorm")
def rms_norm(x: torch.Tensor, gamma: torch.Tensor, *, epsilon: float) -> Prepared:
    """Computes no reciprocal root mean square."""
    _expect_norm(x, gamma)
    rows, y = x.view(-1, x.shape[-1]), torch.empty_like(x)
    out = y.view_as(rows)

    def call() -> Any:
        sgl_kernel.rmsnorm(rows, gamma, epsilon, out, enable_pdl=False)
        return y, None

    return Prepared(call)


@implements("AddRmsNorm")
def add_rms_norm(x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> Prepared:
    """Works in place: x1 becomes y, x2 becomes the sum. Computes no reciprocal root mean square."""
    _expect_norm(x1, gamma)
    rows, residual = (x.view(-1, x.shape[-1]) for x in (x1, x2))

    def call() -> Any:
        sgl_kernel.fused_add_rmsnorm(rows, residual, gamma, epsilon, enable_pdl=False)
        return x1, None, x2

    return Prepared(call, changes=(x1, x2))


add_rms_norm_bias = implements("AddRmsNormBias")(without_beta(add_rms_norm, _SUPPORT))


@implements("SwiGlu")
def swiglu(x: torch.Tensor, dim: int) -> Any:
    _expect_dtype(_HALF, x=x)
    _expect(dim in (-1, x.dim() - 1), f"axis {dim}", "the last axis")
    _expect_aligned(x, x.shape[-1] // 2)
    return sgl_kernel.silu_and_mul(x)


@implements("DynamicQuant", "DynamicQuantAiCore")
def dynamic_quant(
    x: torch.Tensor, *, smooth_scales: torch.Tensor | None = None, dst_type: torch.dtype = torch.int8
) -> Prepared:
    """Quantizes each row: to INT8 as one group."""
    _expect_dtype((*_HALF, torch.float32), x=x)
    _expect(smooth_scales is None, "smooth scales", "quantization without them")
    _expect_dtype(tuple(_PRODUCTS), result=dst_type)
    _expect_aligned(x, x.shape[-1])
    rows = x.view(-1, x.shape[-1])
    quantized = torch.empty(rows.shape, dtype=dst_type, device=x.device)
    scales = torch.empty(len(rows), 1, device=x.device)

    def call() -> Any:
        if dst_type is torch.int8:
            sgl_kernel.sgl_per_token_group_quant_8bit(
                rows, quantized, scales, rows.shape[-1], 1e-10, -128.0, 127.0, enable_v2=False
            )
        else:
            sgl_kernel.sgl_per_token_quant_fp8(rows, quantized, scales)
        return quantized.view(x.shape), scales.view(x.shape[:-1])

    return Prepared(call)


@implements("ApplyRotaryPosEmb")
def apply_rotary_pos_emb(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, layout: str
) -> Prepared:
    heads = 2 if layout == "BSND" else 1
    q, k = (contiguous_tokens_by_heads(x, heads, _SUPPORT) for x in (query, key))
    rows = rows_of_tokens(query, cos, heads, _SUPPORT)
    table = table_of_pairs(cos, sin, torch.float32)
    return _rotated(rows, q, k, table, True, ["cos and sin to a table in FLOAT"])


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
    """The table has the row's dtype on an NPU, and FLOAT here: twice as many bytes are read for an angle."""
    converted = [] if positions.dtype is torch.int64 else ["positions to INT64"]
    if cos_sin_cache.dtype is not torch.float32:
        converted.append("table of cos and sin to FLOAT")
    return _rotated(positions.long(), query, key, cos_sin_cache.float(), is_neox_style, converted)


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
    _expect_dtype(tuple(_PRODUCTS), x1=x1)
    _expect_dtype(_HALF, result=output_dtype)
    _expect(offset is None, "an offset", "no offsets")
    if bias is not None:
        _expect_dtype((output_dtype,), bias=bias)
    name, multiple = _PRODUCTS[x1.dtype]
    (m, k), n = x1.shape, x2.shape[1]
    _expect(k % _K == n % multiple == 0, f"K {k}, N {n}", f"multiples of {_K} and {multiple}")
    converted: list[str] = []
    x2 = weight_by_columns(x2, converted)
    # A packed scale (INT64) has the scale in float32 in its lower half.
    real = scale if scale.is_floating_point() else scale.view(torch.float32)[..., ::2]
    if scale.dtype is not torch.float32 or len(scale) != n:
        converted.append("scale to FLOAT of each column")
    if pertoken_scale is None:
        converted.append("a scale of one for each row")
    of_columns = real.float().expand(n).contiguous()
    of_rows = torch.ones(m, device=x1.device) if pertoken_scale is None else pertoken_scale
    added, product = None if bias is None else bias.reshape(-1), getattr(sgl_kernel, name)
    return Prepared(lambda: product(x1, x2, of_rows, of_columns, output_dtype, added), converted=converted)


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
    _expect_dtype((*_HALF, torch.float32), x=x)
    experts = x.shape[-1]
    if norm_type == 0 or bias is None:
        raise Unsupported("softmax, or no bias: sgl_kernel's moe_fused_gate has sigmoid with a bias")
    _expect(group_count == 1 or group_select_mode == 1, "groups by their best expert", "groups by their best two")
    _expect(experts & (experts - 1) == 0, f"{experts} experts", "powers of two")
    _expect(experts // group_count <= _GROUP, f"{experts // group_count} experts of a group", f"up to {_GROUP}")
    own = bias.to(x.dtype)
    converted = () if x.dtype is torch.float32 else ("weights to the dtype of the logits",)
    return Prepared(
        lambda: sgl_kernel.moe_fused_gate(x, own, group_count, k_group, k, routed_scaling_factor=1.0),
        results=lambda found: (found[0].to(x.dtype), found[1], None),
        converted=converted,
    )


def _rotated(
    positions: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    table: torch.Tensor,
    is_neox: bool,
    converted: Sequence[str],
) -> Prepared:
    """Returns the call that rotates views (tokens, heads, D) of queries and keys in place."""
    _expect_dtype(_HALF, query=q)
    size = q.shape[-1]
    _expect(size in (64, 128, 256, 512), f"head size {size}", "64, 128, 256 and 512")
    query, key = q.flatten(1), k.flatten(1)
    return Prepared(
        lambda: sgl_kernel.apply_rope_with_cos_sin_cache_inplace(
            positions, query, key, size, table, is_neox, enable_pdl=False
        ),
        converted=converted,
    )


def _expect_norm(x: torch.Tensor, gamma: torch.Tensor) -> None:
    _expect_dtype(_HALF, x=x)
    _expect_dtype((x.dtype,), gamma=gamma)


def _expect_aligned(x: torch.Tensor, size: int) -> None:
    count = size * x.element_size()
    _expect(count % _ALIGNED_BYTES == 0, f"lines of {count} bytes", f"multiples of {_ALIGNED_BYTES}")
