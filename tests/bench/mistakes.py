"""Mistakes that are easy to make in kernels: functions that are timed in place of the right one, and must be caught."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from opatlas.bench.implementations import torch as impl
from opatlas.bench.implementations.torch.quantized import integer_matmul

aten = torch.ops.aten


def truncate(x, scales, zero_points, dtype, axis, div_mode):
    return ((x.float() * scales) + zero_points).clamp(-128, 127).to(torch.int8)


def to_adjacent_pairs(x):
    """Moves the features of a pair, half a vector apart, next to each other."""
    return torch.stack(x.chunk(2, -1), -1).flatten(-2)


def replaced(place, value, results):
    """Returns the results, with another value in one place."""
    return (*results[:place], value, *results[place + 1 :])


def scaled_first(results):
    """Returns the results, the rows of the first one divided by their sums."""
    return results[0] / results[0].sum(-1, keepdim=True), *results[1:]


def adamw_with(**changes):
    def wrong(*arguments, **options):
        torch._fused_adamw_(*arguments[:5], [arguments[5][0].float()], **options | changes)

    return wrong


def adamw_without_correction(*arguments, **options):
    torch._fused_adamw_(*arguments[:5], [torch.tensor([1e6])], **options)


def adam_with_decay_in_the_gradient(*arguments, **options):
    torch._fused_adam_(*arguments[:5], [arguments[5][0].float()], **options)


def apply_adamw_with(change):
    """`change` gets the powers of both betas, the rate, the decay, both betas and epsilon."""
    return lambda *arguments, out: impl.apply_adamw(*change(*arguments[:7]), *arguments[7:], out=out)


#: Kernel type, the mistake, the wrong function.
MISTAKES: list[tuple[str, str, Callable[..., Any]]] = [
    ("FloorDiv", "towards zero", lambda x, y: torch.div(x, y, rounding_mode="trunc")),
    ("FloorMod", "sign of the dividend", torch.fmod),
    ("Sort", "other direction", lambda x, dim, descending: torch.sort(x, dim, descending=not descending)),
    ("ArgMaxV2", "smallest", torch.argmin),
    ("SoftmaxV2", "other axis", lambda x, dim: torch.softmax(x, 0)),
    ("Cumsum", "without the own element", lambda x, dim, dtype: torch.cumsum(x, dim, dtype=dtype) - x),
    ("ReduceSum", "mean", lambda x, axes, keepdim, dtype: torch.mean(x, axes, keepdim)),
    ("RmsNorm", "not normalized", lambda x, gamma, epsilon: (x * gamma, x[..., :1].float())),
    ("muls_add_kernel", "other term scaled", lambda x, y, scale: x + y * scale),
    ("muls_add_kernel", "not scaled", lambda x, y, scale: x + y),
    ("muls_add_kernel", "sum scaled", lambda x, y, scale: (x + y) * scale),
    ("batch_matmul_transpose", "other heads", lambda x, w, y: impl.batch_matmul_transpose(x, w.flip(0), y)),
    ("batch_matmul_transpose", "other tokens", lambda x, w, y: impl.batch_matmul_transpose(x.flip(0), w, y)),
    ("batch_matmul_transpose", "term left out", lambda x, w, y: impl.batch_matmul_transpose(x[..., 1:], w[:, 1:], y)),
    ("MatMulV2", "first term left out", lambda a, weight: torch.mm(a[:, 1:], weight.T[1:])),
    ("BatchMatMulV2", "other batch", lambda a, b: torch.matmul(a.flip(0), b)),
    ("Transpose", "other axes", lambda x, permutation: x.permute(0, 4, 1, 3, 2).contiguous()),
    ("Slice", "other end", lambda x, offsets, sizes: x[:, :, -sizes[-1] :].clone()),
    ("SplitVD", "equal parts", lambda x, sizes, axis: [x.narrow(axis, 0, size).clone() for size in sizes]),
    ("SplitVD", "next element", lambda x, sizes, axis: torch.split_with_sizes_copy(x.roll(-1, axis), sizes, axis)),
    ("SplitVD", "other end", lambda x, sizes, axis: torch.split_with_sizes_copy(x.flip(axis), sizes, axis)),
    ("ConcatD", "other order", lambda parts, axis: torch.cat([parts[0], parts[2], parts[1]], axis)),
    ("Tile", "elements repeated", lambda x, repeats: x.repeat_interleave(2, 0).repeat_interleave(3, 1)),
    ("PadV3", "padding of ones", lambda x, padding: torch.nn.functional.pad(x, padding, value=1.0)),
    ("BroadcastTo", "zeros", lambda x, shape: torch.zeros(shape, dtype=x.dtype)),
    ("GatherV2", "first row", lambda table, indices: table[indices * 0]),
    ("MaskedFill", "inverted mask", lambda x, mask, value: x.masked_fill_(~mask, value)),
    ("TensorMove", "not copied", lambda destination, source: destination),
    ("Fill", "not filled", lambda destination, value: destination),
    ("Cast", "whole part", lambda x, dtype, copy: x.to(torch.float16).floor().to(dtype)),
    ("ClipByValueV2", "no least value", lambda x, least, largest: torch.clamp(x, max=largest)),
    ("Rsqrt", "root", torch.sqrt),
    ("FastGelu", "gelu", torch.nn.functional.gelu),
    ("Gelu", "without approximation", lambda x, approximate: torch.nn.functional.gelu(x)),
    ("GeluV2", "approximation", lambda x, approximate: torch.nn.functional.gelu(x, approximate="tanh")),
    ("Sigmoid", "hardsigmoid", torch.nn.functional.hardsigmoid),
    ("Tanh", "hardtanh", torch.nn.functional.hardtanh),
    ("Sqrt", "reciprocal", torch.rsqrt),
    ("Maximum", "smallest", torch.minimum),
    ("Minimum", "largest", torch.maximum),
    ("LessEqual", "less", torch.lt),
    ("Swish", "hardswish", torch.nn.functional.hardswish),
    (
        "ScaledMaskedSoftmax",
        "inverted mask",
        lambda x, mask, scale, fixed: torch.softmax((x * scale).masked_fill_(~mask, -10000.0), -1),
    ),
    ("ReduceMean", "sum", lambda x, axes, keepdim, dtype: torch.sum(x, axes, keepdim)),
    ("ArgMaxWithValue", "smallest", torch.min),
    ("IndexFill", "other axis", lambda x, dim, indices, value: torch.index_fill(x, 1, indices % x.shape[1], value)),
    ("Triu", "lower triangle", torch.tril),
    (
        "StridedSlice",
        "without steps",
        lambda x, begin, end, strides: x[tuple(slice(last // step) for last, step in zip(end, strides, strict=True))],
    ),
    ("Pack", "other order", lambda parts, axis: torch.stack(parts[::-1], axis)),
    (
        "RepeatInterleave",
        "whole repeated",
        lambda x, repeats, dim, output_size: x.repeat(-(-output_size // len(x)))[:output_size],
    ),
    ("AttentionUpdate", "mean", lambda lse, outs, update_type: (torch.stack(outs).mean(0), lse[0])),
    ("SelectV2", "exchanged", lambda condition, x, y: torch.where(condition, y, x)),
    # Norms.
    ("InplaceAddRmsNorm", "sum not written", lambda x2, **o: impl.inplace_add_rms_norm(x2=x2.clone(), **o)),
    ("InplaceAddRmsNorm", "norm not written", lambda x1, **o: impl.inplace_add_rms_norm(x1=x1.clone(), **o)),
    ("InplaceAddRmsNorm", "no weight", lambda gamma, **o: impl.inplace_add_rms_norm(gamma=gamma * 0 + 1, **o)),
    ("ReduceAll", "any", lambda x, axes, keepdim: torch.any(x, axes, keepdim)),
    ("ReduceAll", "first element", lambda x, axes, keepdim: x[0, :, 0]),
    ("ReduceAll", "one axis", lambda x, axes, keepdim: x.all(0)[:, -1]),
    ("ReduceAny", "all", lambda x, axes, keepdim: torch.all(x, axes, keepdim)),
    ("ReduceAny", "last element", lambda x, axes, keepdim: x[-1, :, -1]),
    ("ReduceAny", "one axis", lambda x, axes, keepdim: x.any(0)[:, -1]),
    ("RmsNormGrad", "no part of rstd", lambda dy, x, gamma, rstd: (dy * gamma * rstd, (dy * x * rstd).sum((0, 1, 2)))),
    ("RmsNormGrad", "mean for gamma", lambda *a: (impl.rms_norm_backward(*a)[0], (a[0] * a[1] * a[3]).mean((0, 1, 2)))),
    ("AddRmsNorm", "first term", lambda x1, x2, gamma, eps: (*impl.rms_norm(x1 + x2, gamma, epsilon=eps), x1)),
    ("AddRmsNormBias", "no bias", lambda x1, x2, gamma, beta, eps: impl.add_rms_norm_bias(x1, x2, gamma, None, eps)),
    ("AddRmsNormBias", "no sum", lambda x1, x2, gamma, beta, eps: impl.add_rms_norm_bias(x1, x2 * 0, gamma, beta, eps)),
    ("LayerNormV4", "mean of 0", lambda x, *rest: impl.layer_norm(x - x.mean(-1, keepdim=True), *rest)),
    (
        "LayerNormV4",
        "vectors exchanged",
        lambda x, sizes, gamma, beta, eps: impl.layer_norm(x, sizes, beta, gamma, eps),
    ),
    ("LayerNormV4", "deviation of a sample", lambda *a: (*impl.layer_norm(*a)[:2], 1 / a[0].std(-1, keepdim=True))),
    (
        "LayerNormV4",
        "mean kept",
        lambda *a: (impl.rms_norm(a[0], a[2], epsilon=1e-5)[0] + a[3], *impl.layer_norm(*a)[1:]),
    ),
    ("LpNormV2", "sum of sizes", lambda x, order, axes, keepdim, dtype: x.abs().sum(axes, keepdim)),
    # Quantization.
    (
        "QuantBatchMatmulV3",
        "no scale per token",
        lambda x1, x2, scale, *, pertoken_scale, output_dtype: (integer_matmul(x1, x2).float() * scale).to(
            output_dtype
        ),
    ),
    ("AscendQuantV2", "truncated", truncate),
    (
        "DynamicQuant",
        "one scale for all rows",
        lambda x: ((x / x.abs().max() * 127).round().to(torch.int8), (x.abs().max() / 127).float().expand(len(x))),
    ),
    (
        "DynamicQuant",
        "range of 128",
        lambda x: (
            (x.float() * (128 / x.abs().amax(-1, keepdim=True).float())).round().clamp(-128, 127).to(torch.int8),
            x.abs().amax(-1).float() / 127,
        ),
    ),
    ("TransposeBatchMatMul", "batch not transposed", lambda x, w, **_: (x @ w).reshape(x.shape[1], x.shape[0], -1)),
    # Mixtures of experts.
    (
        "MoeGatingTopK",
        "groups by their largest",
        lambda x, k, **how: impl.moe_gating_top_k(x, k, **{**how, "group_select_mode": 0}),
    ),
    (
        "MoeGatingTopK",
        "no groups",
        lambda x, k, **how: impl.moe_gating_top_k(x, k, **{**how, "group_count": 1, "k_group": 1}),
    ),
    ("MoeGatingTopK", "no bias", lambda x, k, bias, **how: impl.moe_gating_top_k(x, k, **how)),
    (
        "MoeGatingTopKSoftmax",
        "weights add up to 1",
        lambda x, _, k: scaled_first(impl.moe_gating_top_k_softmax(x, _, k)),
    ),
    ("HistogramV2", "of the rest", lambda x, *a: x.numel() - impl.histc(x, *a)),
    ("HistogramV2", "next expert", lambda *a: impl.histc(*a).roll(1)),
    ("HistogramV2", "of twice the range", lambda x, bins, least, last: impl.histc(x, bins, least, last * 2)),
    ("LinearIndex", "first axis", lambda x, axis, i, updates: x.scatter_(0, i, updates)),
    ("LinearIndex", "next index", lambda x, axis, i, updates: x.scatter_(axis, (i + 1) % x.shape[axis], updates)),
    ("LinearIndex", "gathered", lambda x, axis, i, updates: x.copy_(updates.gather(axis, i))),
    ("ResizeBilinearV2", "nearest", lambda x, size, mode: torch.nn.functional.interpolate(x, size)),
    (
        "ResizeBilinearV2",
        "corners aligned",
        lambda x, size, mode: torch.nn.functional.interpolate(x, size, mode=mode, align_corners=True),
    ),
    ("ResizeBilinearV2", "areas", lambda x, size, mode: torch.nn.functional.interpolate(x, size, mode="area")),
    ("MoeGatingTopKSoftmax", "smallest", lambda x, _, k: impl.moe_gating_top_k_softmax(-x, _, k)),
    (
        "MoeGatingTopKSoftmax",
        "copies by token",
        lambda x, _, k: (*impl.moe_gating_top_k_softmax(x, _, k)[:2], torch.arange(len(x) * k).view(-1, k).int()),
    ),
    (
        "MoeInitRoutingV3",
        "by token",
        lambda x, e, **o: (x.repeat_interleave(4, 0), *impl.moe_init_routing(x, e, **o)[1:]),
    ),
    (
        "MoeInitRoutingV3",
        "order instead of places",
        lambda x, e, **o: replaced(1, e.flatten().argsort(stable=True).int(), impl.moe_init_routing(x, e, **o)),
    ),
    (
        "MoeInitRoutingV3",
        "sums of counts",
        lambda x, e, **o: replaced(2, impl.moe_init_routing(x, e, **o)[2].cumsum(0), impl.moe_init_routing(x, e, **o)),
    ),
    (
        "MoeTokenPermute",
        "by token",
        lambda x, i: (x.repeat_interleave(i.shape[1], 0), torch.arange(i.numel(), dtype=torch.int32)),
    ),
    (
        "MoeTokenPermute",
        "order instead of places",
        lambda x, i: (
            x[i.flatten().argsort(stable=True) // i.shape[1]],
            i.flatten().argsort(stable=True).to(torch.int32),
        ),
    ),
    (
        "GroupedMatmul",
        "matrix of the group before",
        lambda x, w, **how: impl.grouped_matmul(x, [w[0].roll(1, 0)], **how),
    ),
    ("GroupedMatmul", "no scale per token", lambda x, w, per_token_scale, **how: impl.grouped_matmul(x, w, **how)),
    (
        "ApplyTopKTopPCustom",
        "no top-p",
        lambda logits, p, k: logits.masked_fill(
            logits < logits.sort().values.gather(1, logits.shape[1] - k.long()[:, None]), -math.inf
        ),
    ),
    ("ApplyTopKTopPCustom", "no top-k", lambda logits, p, k: logits),
    ("TopKV2", "smallest", lambda x, k, dim: torch.topk(x, k, dim, largest=False)),
    # Attention over sequences of one length.
    (
        "IncreFlashAttention",
        "last key left out",
        lambda q, k, v, **o: impl.dense_attention(q, k[:, :, :-1], v[:, :, :-1], **o),
    ),
    ("IncreFlashAttention", "heads of others", lambda q, k, v, **o: impl.dense_attention(q, k.roll(1, 1), v, **o)),
    (
        "IncreFlashAttention",
        "not scaled",
        lambda q, k, v, **o: impl.dense_attention(q, k, v, **o | {"scale_value": 1.0}),
    ),
    ("PromptFlashAttention", "not causal", lambda *a, atten_mask, **o: impl.dense_attention(*a, **o)),
    ("PromptFlashAttention", "heads of others", lambda q, k, v, **o: impl.dense_attention(q, k, v.roll(1, 1), **o)),
    (
        "PromptFlashAttention",
        "next key seen",
        lambda q, k, v, **o: impl.dense_attention(q, k.roll(-1, 2), v.roll(-1, 2), **o),
    ),
    # Rotary embeddings.
    ("RotaryPositionEmbedding", "other direction", lambda x, cos, sin: impl.rotary_mul(x, cos, -sin)),
    ("RotaryPositionEmbedding", "adjacent pairs", lambda x, cos, sin: impl.rotary_mul(x, cos, sin, "interleave")),
    ("RotaryPositionEmbedding", "angles exchanged", lambda x, cos, sin: impl.rotary_mul(x, sin, cos)),
    ("RotaryPositionEmbeddingGrad", "forward", lambda g, x, cos, sin: impl.rotary_mul_backward(g, x, cos, -sin)),
    (
        "RotaryPositionEmbeddingGrad",
        "halves of the angles exchanged",
        lambda g, x, cos, sin: (impl.rotary_mul(g, cos, -sin), *impl.rotary_mul_backward(g, x, cos, sin)[1:]),
    ),
    ("InterleaveRope", "pairs kept", lambda x, cos, sin: impl.rotary_mul(x, cos, sin, "interleave")),
    ("InterleaveRope", "adjacent pairs", lambda x, cos, sin: to_adjacent_pairs(impl.interleave_rope(x, cos, sin))),
    ("ApplyRotaryPosEmb", "key only", lambda q, k, cos, sin, layout: (q, impl.rotary_mul(k, cos, sin))),
    (
        "_triton_rope_siso",
        "other token",
        lambda x, _, __, table, p, width: impl.rope_siso(x, _, __, table, p.flip(0), width),
    ),
    (
        "_triton_rope_siso",
        "other pairs",
        lambda x, _, __, table, p, w: impl.rotary_embedding(p, x, x[:, :0], table, 12, w, False)[0],
    ),
    (
        "_triton_rope_siso",
        "sines first",
        lambda x, _, __, table, p, w: impl.rope_siso(x, _, __, table.roll(4, -1), p, w),
    ),
    ("_triton_rope", "next position", lambda positions, *rest: impl.rotary_embedding(positions + 1, *rest)),
    ("_triton_rope", "other pairs", lambda *arguments: impl.rotary_embedding(*arguments[:-1], False)),
    (
        "split_qkv_rmsnorm_rope_kernel",
        "weights exchanged",
        lambda x, table, p, q, k, *rest: impl.qkv_rmsnorm_rope(x, table, p, k, q, *rest),
    ),
    (
        "split_qkv_rmsnorm_rope_kernel",
        "first position",
        lambda x, table, p, *rest: impl.qkv_rmsnorm_rope(x, table, p * 0, *rest),
    ),
    (
        "split_qkv_rmsnorm_rope_kernel",
        "features shifted",
        lambda x, table, *rest: impl.qkv_rmsnorm_rope(x.roll(1, -1), table, *rest),
    ),
    # Paged caches.
    (
        "ReshapeAndCacheNdKernel",
        "key and value exchanged",
        lambda key, value, *rest: impl.reshape_and_cache(value, key, *rest),
    ),
    ("ReshapeAndCacheNdKernel", "places of other tokens", lambda *a: impl.reshape_and_cache(*a[:-1], a[-1].flip(0))),
    (
        "ReshapeAndCacheNdKernel",
        "cache cleared",
        lambda key, value, keys, values, slots: impl.reshape_and_cache(key, value, keys, values.zero_(), slots),
    ),
    (
        "ReshapeAndCacheNdKernel",
        "values not written",
        lambda key, value, keys, values, slots: impl.reshape_and_cache(key, value, keys, values.clone(), slots),
    ),
    (
        "KvRmsNormRopeCache",
        "parts exchanged",
        lambda kv, *rest, **o: impl.kv_rmsnorm_rope_cache(kv.roll(6, -1), *rest, **o),
    ),
    (
        "KvRmsNormRopeCache",
        "other direction",
        lambda kv, g, cos, sin, *rest, **o: impl.kv_rmsnorm_rope_cache(kv, g, cos, -sin, *rest, **o),
    ),
    (
        "KvRmsNormRopeCache",
        "next places",
        lambda *a, **o: impl.kv_rmsnorm_rope_cache(*a[:4], (a[4] + 1) % 28, *a[5:], **o),
    ),
    (
        "KvRmsNormRopeCache",
        "latent part not written",
        lambda *a, **o: [
            a[6] if i == 1 else x for i, x in enumerate(impl.kv_rmsnorm_rope_cache(*a[:6], a[6].clone(), **o))
        ],
    ),
    (
        "PagedCacheLoadNdKernel",
        "pages in another order",
        lambda keys, values, table, *rest, **o: impl.paged_cache_load(keys, values, table.flip(1), *rest, **o),
    ),
    (
        "PagedCacheLoadNdKernel",
        "pages of another sequence",
        lambda keys, values, table, *rest, **o: impl.paged_cache_load(keys, values, table.flip(0), *rest, **o),
    ),
    (
        "PagedCacheLoadNdKernel",
        "next token",
        lambda keys, values, *rest, **o: impl.paged_cache_load(keys, values.roll(1, 1), *rest, **o),
    ),
    # Gathers and scatters.
    ("GatherV3", "other order", lambda x, axis, indices: torch.index_select(x, axis, indices.flip(0))),
    ("GatherElements", "other order", lambda x, axis, indices: torch.gather(x, axis, indices.flip(0))),
    ("GatherElements", "first elements", lambda x, axis, indices: x.narrow(axis, 0, indices.shape[axis]).clone()),
    ("ScatterElementsV2", "added", lambda x, axis, indices, new: x.scatter_add_(axis, indices, new)),
    ("ScatterElementsV2", "other order", lambda x, axis, indices, new: x.scatter_(axis, indices, new.flip(0))),
    ("ScatterElementsV2", "cleared", lambda x, axis, indices, new: x.zero_().scatter_(axis, indices, new)),
    ("ScatterUpdate", "added", lambda x, axis, indices, new: x.index_add_(axis, indices, new)),
    ("ScatterUpdate", "other order", lambda x, axis, indices, new: x.index_copy_(axis, indices, new.flip(0))),
    ("ScatterUpdate", "not written", lambda x, axis, indices, new: x),
    ("Scatter", "next position", lambda x, first, new, axis: impl.scatter_update(x, first + 1, new, axis)),
    ("Scatter", "first sequence for all", lambda x, first, new, axis: impl.scatter_update(x, first * 0, new, axis)),
    ("Scatter", "cleared", lambda x, first, new, axis: impl.scatter_update(x.zero_(), first, new, axis)),
    ("ScatterNdUpdate", "other order", lambda x, indices, new: impl.scatter_nd_update(x, indices, new.flip(0))),
    ("ScatterNdUpdate", "not written", lambda x, indices, new: x),
    ("ScatterNdUpdate", "cleared", lambda x, indices, new: impl.scatter_nd_update(x.zero_(), indices, new)),
    ("IndexPutV2", "added", lambda x, indices, new: impl.index_put(x, indices, new, True)),
    ("IndexPutV2", "other order", lambda x, indices, new: impl.index_put(x, [index.flip(0) for index in indices], new)),
    # Images.
    ("Conv2D", "other padding", lambda x, w, b, s, p, *rest: torch.conv2d(x.roll(1, 3), w, b, s, p, *rest)),
    ("Conv2D", "transposed kernels", lambda x, w, *rest: torch.conv2d(x, w.mT.contiguous(), *rest)),
    ("Conv2D", "no bias", lambda x, w, b, *rest: torch.conv2d(x, w, None, *rest)),
    ("DepthwiseConv2D", "kernels of other channels", lambda x, w, *rest: torch.conv2d(x, w.roll(1, 0), *rest)),
    ("DepthwiseConv2D", "flipped kernels", lambda x, w, *rest: torch.conv2d(x, w.flip(2, 3).contiguous(), *rest)),
    ("DepthwiseConv2D", "other padding", lambda x, w, *rest: torch.conv2d(x.roll(1, 3), w, *rest)),
    (
        "Conv2DBackpropInput",
        "flipped kernels",
        lambda g, x, w, *rest: aten.convolution_backward(g, x, w.flip(2, 3), *rest)[0],
    ),
    (
        "Conv2DBackpropFilter",
        "images in another order",
        lambda g, x, w, *rest: aten.convolution_backward(g.flip(0), x, w, *rest)[1],
    ),
    ("MaxPoolWithArgmaxV1", "averages", lambda x, *rest: (torch.nn.functional.avg_pool2d(x, *rest[:3]), x)),
    (
        "MaxPoolWithArgmaxV1",
        "places of the smallest",
        lambda x, *rest: (aten.max_pool2d_with_indices(x, *rest)[0], aten.max_pool2d_with_indices(-x, *rest)[1]),
    ),
    (
        "MaxPoolGradWithArgmaxV1",
        "other places",
        lambda g, x, *rest: aten.max_pool2d_with_indices_backward(g, x, *rest[:-1], rest[-1].flip(3)),
    ),
    ("AdaptiveAvgPool3dGrad", "gradient of a sum", lambda g, x: 2 * aten._adaptive_avg_pool3d_backward(g, x)),
    # Training.
    ("SwiGluGrad", "halves exchanged", lambda g, x, d: impl.swiglu_backward(g, x.roll(x.shape[-1] // 2, -1), d)),
    (
        "SwiGluGrad",
        "no derivative of the sigmoid",
        lambda g, x, d: torch.cat([g * x.chunk(2, -1)[1], g * torch.nn.functional.silu(x.chunk(2, -1)[0])], -1),
    ),
    ("ReluGrad", "threshold above 0", lambda g, x, t: aten.threshold_backward(g, x, 0.1)),
    ("LogSoftmaxV2", "no logarithm", lambda x, d: torch.softmax(x, d)),
    ("LogSoftmaxGrad", "no sum", lambda g, y, d, t: g - y.exp()),
    ("NLLLoss", "weights of all classes", lambda x, t, w, r, i: aten.nll_loss_forward(x, t, torch.ones_like(w), r, i)),
    ("NLLLoss", "sum", lambda x, t, w, r, i: aten.nll_loss_forward(x, t, w, 2, i)),
    ("NLLLossGrad", "gradient of a sum", lambda g, x, t, w, r, *rest: aten.nll_loss_backward(g, x, t, w, 2, *rest)),
    ("EmbeddingDenseGradV2", "by frequency", lambda g, i, n, p, s: aten.embedding_dense_backward(g, i, n, p, True)),
    ("DropOutDoMask", "other bits", lambda x, m, p: impl.dropout_by_mask(x, m // 16 + m % 16 * 16, p)),
    ("DropOutDoMask", "not scaled", lambda x, m, p: impl.dropout_by_mask(x, m, 0.0)),
    ("ApplyAdamWV2", "no bias correction", adamw_without_correction),
    ("ApplyAdamWV2", "decay in the gradient", adam_with_decay_in_the_gradient),
    ("ApplyAdamWV2", "no decay", adamw_with(weight_decay=0.0)),
    ("ApplyAdamWV2", "uphill", adamw_with(maximize=True)),
    ("ApplyAdamWV2", "betas exchanged", adamw_with(beta1=0.9, beta2=0.8)),
    ("ApplyAdamW", "powers of this step", apply_adamw_with(lambda b1, b2, *rest: (b1 * rest[2], b2 * rest[3], *rest))),
    ("ApplyAdamW", "no decay", apply_adamw_with(lambda b1, b2, rate, _, *rest: (b1, b2, rate, 0.0, *rest))),
    ("ApplyAdamW", "powers exchanged", apply_adamw_with(lambda b1, b2, *rest: (b2, b1, *rest))),
    ("ForeachAddList", "not multiplied", lambda x, y, alpha: torch._foreach_add(x, y)),
    ("ForeachMulScalar", "first tensor only", lambda x, s: [x[0] * s, *x[1:]]),
]
