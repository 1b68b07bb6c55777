"""Mistakes in kernels of attention, of gates, experts and FP8, and some that only a part of a result shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from mistakes import replaced
from opatlas.bench.implementations import torch as impl
from sample_rows import E4M3, FP8_GROUPS, MASK, fia


def keywords(name: str, **changes: Callable[[Any], Any]) -> Callable[..., Any]:
    """Returns a function of torch's with keyword arguments that functions change."""
    right = getattr(impl, name)
    return lambda *own, **named: right(*own, **{**named, **{key: of(named[key]) for key, of in changes.items()}})


def call_with(name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., Any]:
    """Returns a function of torch's with keyword arguments that `change` makes of all of them."""
    right = getattr(impl, name)
    return lambda **call: right(**{**call, **change(call)})


def arguments(name: str, change: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """Returns a function of torch's with other positional arguments."""
    right = getattr(impl, name)
    return lambda *own, **named: right(*change(*own), **named)


def without(name: str, keyword: str) -> Callable[..., Any]:
    right = getattr(impl, name)
    return lambda *own, **named: right(*own, **{key: value for key, value in named.items() if key != keyword})


def ones(tensor):
    return torch.ones_like(tensor)


def rolled(name):
    """Returns a change of a call: an argument whose first axis is moved by one."""
    return lambda call: {name: call[name].roll(1, 0)}


def quantized_with(largest, dtype, scale_of=lambda scale: scale):
    """Returns DynamicQuant with another largest number, or scales that `scale_of` makes of the right ones."""

    def dynamic_quant(x, *, dst_type):
        scale = scale_of(x.float().abs().amax(-1, keepdim=True) / largest)
        return (x.float() / scale).to(dtype).to(dst_type), scale.squeeze(-1)

    return dynamic_quant


def truncated(x, *, dst_type):
    """Cuts the last bits of E4M3 off rather than rounding."""
    scale = x.float().abs().amax(-1, keepdim=True) / 448
    wide = x.float() / scale
    return ((wide.view(torch.int32) >> 20) << 20).view(torch.float32).to(dst_type), scale.squeeze(-1)


def blocks_of(size):
    """Quantizes blocks of another size, with as many scales."""

    def dynamic_block_quant(x, *, dst_type, row_block_size, col_block_size):
        y, scale = impl.dynamic_block_quant(x, dst_type=dst_type, row_block_size=row_block_size, col_block_size=size)
        return y, scale.repeat_interleave(-(-size // col_block_size), -1)[..., : -(-x.shape[-1] // col_block_size)]

    return dynamic_block_quant


FIA, RING = "FusedInferAttentionScore", "RINGMLAPrefillBF16Kernel"
FLASH, FLASH_GRAD = "FlashAttentionScore", "FlashAttentionScoreGrad"
INDEXER, SPARSE, BLOCKS = "LightningIndexer", "SparseFlashAttention", "SparseAttentionScore"
SELECTED, LAYER, PRODUCT = "NsaSelectedAttentionInfer", "DispatchFFNCombine", "QuantBatchMatmulV3"
_ATTENTION, _LAYER, _PRODUCT = "fused_infer_attention_score", "dispatch_ffn_combine", "quant_matmul"
GROUPED, _GROUPED = "GroupedMatmul", "grouped_matmul"
WEIGHTS, _WEIGHTS = "WeightQuantBatchMatmulV2", "weight_quant_batchmatmul"
DISPATCH, COMBINE = "MoeDistributeDispatchV3", "MoeDistributeCombineV3"
_DISPATCH, _COMBINE = "moe_distribute_dispatch", "moe_distribute_combine"
_BLOCKS, _SELECTED = "sparse_attention_score", "nsa_select_attention"
_FP8_PRODUCT = f"9,96;96,64;64;9 | {E4M3};FLOAT;FLOAT -> 9,64 | DT_BF16"
_FP8_GROUPED = f"19,96;5,96,64;;5,64;;;;5;19 | {FP8_GROUPS} -> 19,64 | DT_BF16"
_INT4 = "19,64;5,64,40;;;;5,2,40;5,2,40;5 | DT_BF16;INT4;;;;DT_BF16;DT_BF16;INT64 -> 19,40 | DT_BF16"
_MX = f"9,128;24,128;24,2,2;9,2,2 | {E4M3};FLOAT8_E8M0;FLOAT8_E8M0 -> 9,24 | DT_BF16"
_FP8_ROWS = "6,73 | DT_BF16 -> 6,73;6 | FLOAT8_{};FLOAT"
_FP8_BLOCKS = "6,{0} | DT_BF16 -> 6,{0};6,{1} | FLOAT8_E4M3FN;FLOAT"

KDA, MAMBA = "ChunkKdaFwd", "mamba_chunk_scan_combined_varlen"
CHOSEN = "_topk_index_kernel"
SCORES, SUMS = "_decode_index_score_kernel", "NsaCompressAttentionInfer"
TRAINED, STORED = "NsaSelectedAttention", "NsaCompressWithCache"
_TRAINED, _SUMS, _STORED = "nsa_train_attention", "nsa_compress_attention", "nsa_compress_infer"
EXPAND, PREPARE = "expand_kernel", "prepare_inputs_padded_kernel"
REJECT, RECOVER = "rejection_random_sample_kernel", "sample_recovered_tokens_kernel"
_REJECT, _RECOVER = "rejection_random_sample", "sample_recovered_tokens"

#: Kernel type, the mistake, the wrong function, and the number of the sample row, or a row.
MISTAKES: list[tuple[Any, ...]] = [
    ("HcPre", "one step", lambda *a: impl.hc_pre(*a[:5], 1, *a[6:])),
    ("HcPre", "weights up to 1", lambda *a: replaced(1, impl.hc_pre(*a)[1] / 2, impl.hc_pre(*a))),
    ("HcPre", "matrix transposed", lambda *a: replaced(2, impl.hc_pre(*a)[2].mT.contiguous(), impl.hc_pre(*a))),
    ("HcPost", "matrix not transposed", lambda x, streams, post, comb: impl.hc_post(x, streams, post, comb.mT)),
    ("HcPost", "result alone", lambda x, streams, post, comb: impl.hc_post(x, streams * 0, post, comb)),
    ("HcPost", "other streams", lambda x, streams, post, comb: impl.hc_post(x, streams.flip(-2), post, comb)),
    ("SwigluGroupQuant", "not weighed", lambda x, w, *a, **o: impl.swiglu_group_quant(x, None, *a, **o)),
    ("SwigluGroupQuant", "halves exchanged", lambda x, *a, **o: impl.swiglu_group_quant(x.roll(256, -1), *a, **o)),
    (
        "SwigluGroupQuant",
        "other groups",
        lambda x, w, i, dtype, **o: (
            y := impl.swiglu_group_quant(x, w, i, dtype, **o | {"group_size": 64}),
            (y[0], y[1][:, ::2].contiguous(), y[2]),
        )[1],
    ),
    (FIA, "no mask", keywords(_ATTENTION, sparse_mode=lambda mode: 0), 0),
    (FIA, "no mask, packed", keywords(_ATTENTION, sparse_mode=lambda mode: 0), 6),
    (FIA, "no scale", keywords(_ATTENTION, scale=lambda scale: 1.0), 0),
    (FIA, "pages in their order", keywords(_ATTENTION, block_table=lambda table: table.sort().values), 0),
    (FIA, "last key left out", keywords(_ATTENTION, actual_seq_lengths_kv=lambda own: [kv - 1 for kv in own]), 1),
    (FIA, "no rope part", keywords(_ATTENTION, query_rope=torch.zeros_like), 4),
    (FIA, "no window", keywords(_ATTENTION, sparse_mode=lambda mode: 3), 13),
    (FIA, "a window of one more", keywords(_ATTENTION, pre_tokens=lambda own: own + 1), 14),
    (FIA, "a window without sinks", keywords(_ATTENTION, learnable_sink=lambda sink: None), 14),
    (FIA, "a window without a mask", keywords(_ATTENTION, sparse_mode=lambda mode: 0), 15),
    (FIA, "no sinks", keywords(_ATTENTION, learnable_sink=lambda sink: None), 16),
    (FIA, "the sink of another head", keywords(_ATTENTION, learnable_sink=lambda sink: sink.roll(1, 0)), 16),
    (FIA, "a sink of 0", keywords(_ATTENTION, learnable_sink=torch.zeros_like), 16),
    (RING, "mask of a first step", keywords("ring_mla", mask_type=lambda mask: "no_mask"), 1),
    (RING, "earlier step forgotten", keywords("ring_mla", pre_out=lambda out: None), 0),
    (FLASH, "without its mask", keywords("flash_attention_score", atten_mask=lambda mask: None), 0),
    (FLASH_GRAD, "without its mask", keywords("flash_attention_grad", atten_mask=lambda mask: None), 0),
    (FLASH_GRAD, "without scale", keywords("flash_attention_grad", scale_value=lambda scale: 1.0), 0),
    (FLASH_GRAD, "result forgotten", keywords("flash_attention_grad", attention_in=torch.zeros_like), 0),
    (
        "QuantBatchMatmulV3",
        "scales of tokens exchanged",
        keywords(_PRODUCT, pertoken_scale=lambda own: own.float().flip(1)),
        _MX,
    ),
    (
        "QuantBatchMatmulV3",
        "scales of weights exchanged",
        arguments(_PRODUCT, lambda a, b, s: (a, b, s.float().flip(2))),
        _MX,
    ),
    ("QuantBatchMatmulV3", "x1 not scaled", keywords(_PRODUCT, pertoken_scale=lambda own: own.float() * 0 + 1), _MX),
    (WEIGHTS, "scales of other groups", arguments(_WEIGHTS, lambda x, w, s, o: (x, w, s.flip(0), o)), 0),
    (
        WEIGHTS,
        "offset after the scale",
        lambda x, w, s, o, **how: impl.weight_quant_batchmatmul(x, w, s, o / s, **how),
        0,
    ),
    (WEIGHTS, "other order in a word", arguments(_WEIGHTS, lambda x, w, s, o: (x, w << 16 | w >> 16 & 65535, s, o)), 0),
    (WEIGHTS, "other order in a byte", arguments(_WEIGHTS, lambda x, w, s: (x, w << 4 | w >> 4, s)), 2),
    (GROUPED, "scales of other groups", keywords(_GROUPED, antiquant_scale=lambda own: [own[0].flip(1)]), _INT4),
    (GROUPED, "no offset", keywords(_GROUPED, antiquant_offset=lambda own: None), _INT4),
    (GROUPED, "scales of other experts", keywords(_GROUPED, antiquant_scale=lambda own: [own[0].roll(1, 0)]), _INT4),
    (INDEXER, "other pages", keywords("lightning_indexer", block_table=lambda table: table.flip(0)), 0),
    (INDEXER, "sizes of weights", arguments("lightning_indexer", lambda q, k, w: (q, k, w.abs())), 0),
    (INDEXER, "no weights", arguments("lightning_indexer", lambda q, k, w: (q, k, ones(w))), 0),
    (INDEXER, "other sign", arguments("lightning_indexer", lambda q, k, w: (-q, k, w)), 0),
    (SPARSE, "no rope part", keywords("sparse_flash_attention", key_rope=torch.zeros_like), 0),
    (SPARSE, "other pages", keywords("sparse_flash_attention", block_table=lambda table: table.flip(0)), 0),
    (SPARSE, "next query", arguments("sparse_flash_attention", lambda q, k, v, at, s: (q, k, v, at.roll(1, 0), s)), 0),
    (BLOCKS, "blocks of the next query", arguments(_BLOCKS, lambda *own: (*own[:3], own[3].roll(1, 1), own[4])), 0),
    (BLOCKS, "other pages", arguments(_BLOCKS, lambda *own: (*own[:4], own[4].flip(0))), 0),
    (BLOCKS, "the last block whole", keywords(_BLOCKS, actual_seq_lengths_kv=lambda kv: kv + 3), 0),
    (SCORES, "other pages", lambda q, k, table, own: impl.index_block_scores(q, k, table.flip(-1), own), 0),
    (SCORES, "the smallest", lambda q, *own: impl.index_block_scores(-q, *own), 0),
    (SCORES, "a block less", lambda *own: impl.index_block_scores(*own[:3], own[3] - 8), 0),
    (CHOSEN, "the smallest", lambda scores, *own: impl.choose_blocks(-scores, *own), 0),
    (CHOSEN, "later blocks, too", lambda scores, kv, top: impl.choose_blocks(scores, kv + 4096, top), 0),
    (CHOSEN, "of another head", lambda scores, *own: impl.choose_blocks(scores.roll(1, 0), *own), 0),
    (SELECTED, "other blocks", arguments(_SELECTED, lambda *own: (*own[:3], own[3].roll(1, 0), *own[4:])), 0),
    (SELECTED, "blocks of half the size", keywords(_SELECTED, select_block_size=lambda size: size // 2), 0),
    (SELECTED, "one key more", keywords(_SELECTED, actual_seq_kvlen=lambda own: [kv + 1 for kv in own]), 0),
    (TRAINED, "other blocks", arguments(_TRAINED, lambda *own: (*own[:3], own[3].roll(1, 0), *own[4:])), 0),
    (TRAINED, "not scaled", arguments(_TRAINED, lambda *own: (*own[:4], 1.0, *own[5:])), 0),
    (TRAINED, "one sequence", keywords(_TRAINED, actual_seq_kvlen=lambda ends: [0] * len(ends)), 0),
    (SUMS, "not scaled", arguments(_SUMS, lambda *own: (*own[:3], 1.0, *own[4:])), 0),
    (SUMS, "other pages", keywords(_SUMS, block_table=lambda table: table.flip(0)), 0),
    (SUMS, "one sum less", keywords(_SUMS, actual_cmp_seq_kvlen=lambda own: [kv - 1 for kv in own]), 0),
    (STORED, "weights from the last", arguments(_STORED, lambda x, w, *own: (x, w.flip(0), *own)), 0),
    (STORED, "other places", arguments(_STORED, lambda x, w, at, *own: (x, w, at.flip(0), *own)), 0),
    (STORED, "a block too early", keywords(_STORED, actual_seq_len=lambda own: [n - 16 for n in own]), 0),
    ("NsaCompress", "weights from the last", lambda x, w, *a, **o: impl.nsa_compress(x, w.flip(0), *a, **o)),
    ("NsaCompress", "weights of other heads", lambda x, w, *a, **o: impl.nsa_compress(x, w.roll(1, 1), *a, **o)),
    ("NsaCompress", "begins a token late", lambda x, *a, **o: impl.nsa_compress(x.roll(-1, 0), *a, **o)),
    # Expert parallelism.
    (LAYER, "weights of experts left out", keywords(_LAYER, probs=ones), 0),
    (LAYER, "scales of another expert", call_with(_LAYER, lambda call: {"scale1": [call["scale1"][0].roll(1, 0)]}), 3),
    (LAYER, "scales of another column", call_with(_LAYER, lambda call: {"scale2": [call["scale2"][0].roll(1, 1)]}), 3),
    (LAYER, "scales are no bits", call_with(_LAYER, lambda call: {"scale2": [call["scale2"][0].float()]}), 3),
    (LAYER, "matrices of another expert", keywords(_LAYER, weight2=lambda own: own[::-1]), 6),
    ("MoeDistributeDispatch", "to the next expert", keywords(_DISPATCH, expert_ids=lambda ids: (ids + 1) % 5), 0),
    ("MoeDistributeDispatch", "the next token", call_with(_DISPATCH, rolled("x")), 0),
    ("MoeDistributeDispatch", "not scaled before", keywords(_DISPATCH, scales=lambda scales: None), 1),
    ("MoeDistributeDispatch", "scaled for another expert", call_with(_DISPATCH, rolled("scales")), 1),
    (
        "MoeDistributeDispatchV2",
        "a token left out",
        keywords(f"{_DISPATCH}_v2", x_active_mask=lambda mask: torch.arange(7) > 0),
        0,
    ),
    (DISPATCH, "to the next expert", keywords(f"{_DISPATCH}_v2", expert_ids=lambda ids: (ids + 1) % 5), 1),
    (DISPATCH, "scaled for another expert", call_with(f"{_DISPATCH}_v2", rolled("scales")), 0),
    (DISPATCH, "the next token", call_with(f"{_DISPATCH}_v2", rolled("x")), 1),
    ("MoeDistributeCombine", "the result of another expert", call_with(_COMBINE, rolled("expand_x")), 0),
    ("MoeDistributeCombine", "not weighted", keywords(_COMBINE, expert_scales=ones), 0),
    ("MoeDistributeCombineV2", "weights of another token", call_with(f"{_COMBINE}_v2", rolled("expert_scales")), 0),
    (
        "MoeDistributeCombineV2",
        "copies of another token",
        keywords(f"{_COMBINE}_v2", assist_info_for_combine=lambda info: info.roll(128)),
        0,
    ),
    (COMBINE, "weights of another token", call_with(f"{_COMBINE}_v2", rolled("expert_scales")), 0),
    (COMBINE, "not weighted", keywords(f"{_COMBINE}_v2", expert_scales=ones), 1),
    (COMBINE, "the result of another expert", call_with(f"{_COMBINE}_v2", rolled("expand_x")), 1),
    # FP8.
    (PRODUCT, "other blocks of the weight", arguments(_PRODUCT, lambda a, b, s: (a, b, s.flip(0))), 21),
    (
        PRODUCT,
        "blocks of N for those of K",
        arguments(_PRODUCT, lambda a, b, s: (a, b, s.flatten().view(3, 2).mT.contiguous())),
        21,
    ),
    (PRODUCT, "one scale for a token", keywords(_PRODUCT, pertoken_scale=lambda own: own[:, :1].expand(-1, 2)), 21),
    (PRODUCT, "no scale per token", without(_PRODUCT, "pertoken_scale"), _FP8_PRODUCT),
    (PRODUCT, "one scale for all columns", arguments(_PRODUCT, lambda a, b, s: (a, b, s[:1].expand(64))), _FP8_PRODUCT),
    (PRODUCT, "E5M2 for E4M3", arguments(_PRODUCT, lambda a, b, s: (a.view(torch.float8_e5m2), b, s)), _FP8_PRODUCT),
    (PRODUCT, "last terms left out", arguments(_PRODUCT, lambda a, b, s: (a[:, :-4], b[:-4], s)), _FP8_PRODUCT),
    (
        GROUPED,
        "blocks of the first group for all",
        keywords("grouped_matmul", scale=lambda scale: [scale[0][:1].expand(5, -1, -1)]),
        11,
    ),
    (
        GROUPED,
        "scales of the first group for all",
        keywords("grouped_matmul", scale=lambda scale: [scale[0][:1].expand(5, 64)]),
        _FP8_GROUPED,
    ),
    (GROUPED, "no scale per row", without("grouped_matmul", "per_token_scale"), _FP8_GROUPED),
    (
        GROUPED,
        "groups begin a row late",
        keywords("grouped_matmul", group_list=lambda ends: (ends + 1).clamp(max=19)),
        _FP8_GROUPED,
    ),
    ("DynamicBlockQuant", "blocks of 64", blocks_of(64), _FP8_BLOCKS.format(300, 3)),
    ("DynamicBlockQuant", "blocks of 256", blocks_of(256), _FP8_BLOCKS.format(256, 2)),
    ("DynamicQuant", "the range of E4M3FNUZ", quantized_with(240, torch.float8_e4m3fn), _FP8_ROWS.format("E4M3FN")),
    ("DynamicQuant", "the range of E4M3", quantized_with(448, torch.float8_e5m2), _FP8_ROWS.format("E5M2")),
    ("DynamicQuant", "two bits of three", quantized_with(448, torch.float8_e5m2), _FP8_ROWS.format("E4M3FN")),
    (
        "DynamicQuant",
        "scales as powers of two",
        quantized_with(448, torch.float8_e4m3fn, lambda scale: scale.log2().ceil().exp2()),
        _FP8_ROWS.format("E4M3FN"),
    ),
    ("DynamicQuant", "truncated to E4M3", truncated, _FP8_ROWS.format("E4M3FN")),
    ("SwiGlu", "halves exchanged", lambda x, dim: torch.nn.functional.silu(x.chunk(2, dim)[1]) * x.chunk(2, dim)[0]),
    ("GeGluV2", "without the other half", lambda x, dim, *_: (impl.geglu(x, dim, 1, True)[1],) * 2),
    ("GeGluV2", "GELU of the second half", lambda x, dim, *_: impl.geglu(x.roll(x.shape[-1] // 2, -1), dim, 1, True)),
    ("GeGluV2", "SwiGlu", lambda x, dim, *_: (impl.swiglu(x, dim), torch.nn.functional.silu(x.chunk(2, dim)[0]))),
    (
        "ClippedSwiglu",
        "halves",
        lambda x, **how: impl.clipped_swiglu(x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2), **how),
    ),
    ("ClippedSwiglu", "without limit", lambda x, **how: impl.clipped_swiglu(x, **{**how, "limit": 1e9})),
    ("ClippedSwiglu", "without bias", lambda x, **how: impl.clipped_swiglu(x, **{**how, "bias": 0.0})),
    ("RecurrentGatedDeltaRule", "no decay", lambda *a, g, **o: impl.recurrent_gated_delta_rule(*a, g=g * 0, **o)),
    (
        "RecurrentGatedDeltaRule",
        "not scaled",
        lambda *a, scale, **o: impl.recurrent_gated_delta_rule(*a, scale=1.0, **o),
    ),
    (
        "RecurrentGatedDeltaRule",
        "states not written",
        lambda *a, state, **o: impl.recurrent_gated_delta_rule(*a, state=state.clone(), **o),
    ),
    (
        "RecurrentGatedDeltaRule",
        "the whole value counts",
        lambda *a, beta, **o: impl.recurrent_gated_delta_rule(*a, beta=beta * 0 + 1, **o),
    ),
    ("ChunkGatedDeltaRule", "no decay", lambda *a, g, **o: impl.chunk_gated_delta_rule(*a, g=g * 0, **o)),
    (
        "ChunkGatedDeltaRule",
        "no state before",
        lambda *a, initial_state, **o: impl.chunk_gated_delta_rule(*a, initial_state=initial_state * 0, **o),
    ),
    (
        "ChunkGatedDeltaRule",
        "the whole value counts",
        lambda *a, beta, **o: impl.chunk_gated_delta_rule(*a, beta=beta * 0 + 1, **o),
    ),
    ("CausalConv1d", "no tokens before", lambda o, x, w, s, *a: impl.causal_conv1d(o, x, w, s * 0, *a)),
    ("CausalConv1d", "taps from the last", lambda o, x, w, *a: impl.causal_conv1d(o, x, w.flip(0), *a)),
    (
        "CausalConv1d",
        "the other sequences have states",
        lambda *a: impl.causal_conv1d(*a[:7], None if a[7] is None else 1 - a[7], *a[8:]),
    ),
    (
        "_layer_norm_fwd_1pass_kernel_npu",
        "gate before the norm",
        lambda x, w, z, eps: impl.rms_norm(x * torch.nn.functional.silu(z), w, epsilon=eps)[0],
    ),
    ("_layer_norm_fwd_1pass_kernel_npu", "no gate", lambda x, w, z, eps: impl.rms_norm(x, w, epsilon=eps)[0]),
    (
        "_layer_norm_fwd_1pass_kernel_npu",
        "sigmoid",
        lambda x, w, z, eps: impl.rms_norm(x, w, epsilon=eps)[0] * torch.sigmoid(z),
    ),
    ("kda_gate_fwd_kernel", "no bias", lambda a_log, f, bias: impl.kda_gate(a_log, f, bias * 0)),
    ("kda_gate_fwd_kernel", "other heads", lambda a_log, *own: impl.kda_gate(a_log.roll(1, 0), *own)),
    ("kda_gate_fwd_kernel", "A itself", lambda a_log, *own: impl.kda_gate(a_log.exp(), *own)),
    ("fused_gdn_gating_kernel", "no bias", lambda a_log, a, b, bias: impl.gdn_gating(a_log, a, b, bias * 0)),
    ("fused_gdn_gating_kernel", "exchanged", lambda a_log, a, b, bias: impl.gdn_gating(a_log, b, a, bias)),
    ("fused_gdn_gating_kernel", "A itself", lambda a_log, *a: impl.gdn_gating(a_log.exp(), *a)),
    (
        "_selective_scan_update_kernel",
        "no bias",
        lambda *a, **o: impl.selective_state_update(*a[:6], a[6] * 0, *a[7:], **o),
    ),
    (
        "_selective_scan_update_kernel",
        "B and C exchanged",
        lambda *a, **o: impl.selective_state_update(*a[:3], a[4], a[3], *a[5:], **o),
    ),
    (
        "_selective_scan_update_kernel",
        "states not written",
        lambda *a, state, **o: impl.selective_state_update(*a, state=state.clone(), **o),
    ),
    (KDA, "no decay", arguments("chunk_kda_fwd", lambda q, k, v, g, *a: (q, k, v, g * 0, *a))),
    (KDA, "a decay of heads", arguments("chunk_kda_fwd", lambda q, k, v, g, *a: (q, k, v, g[..., :1] + g * 0, *a))),
    (KDA, "the whole value counts", arguments("chunk_kda_fwd", lambda q, k, v, g, b, *a: (q, k, v, g, b * 0 + 1, *a))),
    (MAMBA, "no state before", arguments("mamba_chunk_scan", lambda *a: (*a[:7], a[7] * 0))),
    (MAMBA, "B and C exchanged", arguments("mamba_chunk_scan", lambda *a: (*a[:3], a[4], a[3], *a[5:]))),
    (MAMBA, "D left out", arguments("mamba_chunk_scan", lambda *a: (*a[:5], a[5] * 0, *a[6:]))),
    (EXPAND, "not replaced", arguments("expand_triton", lambda *a: (*a[:4], -1, *a[5:]))),
    (EXPAND, "the next sequence", arguments("expand_triton", lambda b, y, x, *a: (b, y, x.roll(-1), *a))),
    (EXPAND, "a token late", lambda b, y, *a: (impl.expand_triton(b, y, *a), y.copy_(y.roll(1)))[1]),
    (PREPARE, "drafts up to it", lambda ends, valid, starts: (starts[1:] + valid - ends - 2, ends + 1 - valid)),
    (PREPARE, "first tokens", arguments("prepare_inputs_padded", lambda e, v, starts: (e, v, starts.roll(1)))),
    (PREPARE, "without drafts", lambda e, v, starts: (starts[1:] - 5 + v, 4 - v)),
    (REJECT, "the draft's odds", arguments(_REJECT, lambda t, q, p, *a: (t, None, q, *a)), 1),
    (REJECT, "on behind a rejected one", lambda t, q, p, more, *a: torch.cat([t.view(len(more), -1), more], -1)),
    (REJECT, "not recovered", arguments(_REJECT, lambda t, q, p, more, r, u: (t, q, p, more, t, u))),
    (RECOVER, "noise multiplied", arguments(_RECOVER, lambda t, q, p, noise: (t, q, p, 1 / noise))),
    (RECOVER, "drafted tokens kept", lambda t, q, p, noise: (p.view_as(noise) / noise).argmax(-1).flatten()),
    (RECOVER, "probabilities exchanged", arguments(_RECOVER, lambda t, q, p, *a: (t, p, q, *a)), 1),
]


def one_line_of(other):
    """A table or a list of matrices whose fourth line is another's."""

    def change(lines):
        lines = lines.clone()
        lines[3] = lines[other]
        return lines

    return change


def every_query_sees_one_more(query, key, value, **keywords):
    """Of the keys of its sequence, in a packed call; the last one sees all anyway."""
    ends, outs = keywords["actual_seq_lengths"], []
    for start, end in zip([0, *ends], ends, strict=False):
        q, k, v = (x[start:end].transpose(0, 1) for x in (query, key, value))
        seen = torch.ones(end - start, end - start, dtype=torch.bool).tril(1)
        attention = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)
        outs.append(attention.transpose(0, 1))
    return torch.cat(outs), query.new_empty(0)


def wrong_in_the_middle(x, dim):
    y = torch.softmax(x, dim)
    y[100:180] *= 1.2
    return y


def without_the_last_token(key, value, key_cache, value_cache, places):
    impl.reshape_and_cache(key[:-1], value[:-1], key_cache, value_cache, places[:-1])


_PAGED = fia("96,4,64", query="96,4,64", key="96,64,128", mask=MASK, query_lengths="6", kv_lengths="6", table="6,16")
_PACKED = fia("1024,4,32", query="1024,4,32", key="1024,2,32", mask=MASK, query_lengths="3", kv_lengths="3")
_CACHE = "16,2,64;16,2,64;200,32,2,64;200,32,2,64;16 | BF16;BF16;BF16;BF16;INT32 -> 200,32,2,64;200,32,2,64 | BF16;BF16"

#: The same in rows whose results are too large to be checked in full.
LARGE_MISTAKES: list[tuple[str, str, Callable[..., Any], int | str]] = [
    (FIA, "one sequence's pages", keywords(_ATTENTION, block_table=one_line_of(2)), _PAGED),
    (
        FIA,
        "last page left out",
        keywords(_ATTENTION, actual_seq_lengths_kv=lambda own: [kv - 64 for kv in own]),
        _PAGED,
    ),
    (FIA, "a scale 5 % off", keywords(_ATTENTION, scale=lambda scale: scale * 1.05), _PAGED),
    (FIA, "a mask off by one", every_query_sees_one_more, _PACKED),
    ("SoftmaxV2", "rows in the middle", wrong_in_the_middle, "256,4096 | FLOAT -> 256,4096 | FLOAT"),
    ("ReshapeAndCacheNdKernel", "a token not written", without_the_last_token, _CACHE),
    # 102 rows of 4096: among 4096 elements of the whole, hardly one of them.
    ("ScatterNdUpdate", "a row not written", lambda x, at, new: impl.scatter_nd_update(x, at[:-1], new[:-1]), 1),
    (
        GROUPED,
        "one group's matrix",
        arguments("grouped_matmul", lambda x, weight: (x, [one_line_of(2)(weight[0])])),
        "256,64;8,64,96;;;;;;8 | FLOAT16;FLOAT16;;;;;;INT64 -> 256,96 | FLOAT16",
    ),
    (
        "MatMulV3",
        "no bias",
        lambda a, weight, bias: a @ weight.mT,
        "96,4096;96,4096;96 | DT_BF16;DT_BF16;FLOAT -> 96,96 | DT_BF16",
    ),
    (
        "Conv2D",
        "no bias, many channels",
        lambda image, weight, bias, *how: torch.conv2d(image, weight, None, *how),
        "1,256,16,16;32,256,3,3;32 | DT_BF16;DT_BF16;FLOAT | NCHW;NCHW;ND -> 1,32,16,16 | DT_BF16 | NCHW",
    ),
    (
        PRODUCT,
        "no bias of integers",
        keywords(_PRODUCT, bias=lambda bias: None),
        "96,4096;4096,96;96;96 | INT8;INT8;FLOAT;INT32 -> 96,96 | DT_BF16",
    ),
    (
        GROUPED,
        "no bias of a group",
        keywords("grouped_matmul", bias=lambda bias: None),
        "96,2048;4,2048,96;4,96;4,96;;;;4 | INT8;INT8;INT32;FLOAT;;;;INT64 -> 96,96 | DT_BF16",
    ),
]
