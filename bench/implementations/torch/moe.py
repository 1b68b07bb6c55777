"""Mixtures of experts on one device: routing and grouped products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from opatlas import Prepared

from .._calls import FP8, Gating, GroupedProduct, takes
from .fp8 import block_scaled_product, scaled_groups, unscaled_product
from .matmul import linear, may_prepare
from .norm import swiglu
from .quantized import dequantize, dynamic_quant, integer_matmul, weight_quant_batchmatmul


@takes
def moe_gating_top_k(call: Gating) -> tuple[Tensor, Tensor, Tensor]:
    """Maps logits (T, E) to the weights of k experts, their numbers, and all normalized logits in float32.

    Experts are chosen by normalized logit plus bias, among the k_group groups that score best.
    """
    x, sigmoid, count = call.x, call.norm_type == 1, call.group_count
    norm = x.float().sigmoid() if sigmoid else x.float().softmax(dim=-1)
    score = norm if call.bias is None else norm + call.bias
    if count > 1:
        groups = score.unflatten(-1, (count, -1))
        best = groups.topk(2, dim=-1).values.sum(dim=-1) if call.group_select_mode == 1 else groups.amax(dim=-1)
        kept = torch.zeros_like(best, dtype=torch.bool).scatter_(-1, best.topk(call.k_group, dim=-1).indices, True)
        score = groups.masked_fill(~kept.unsqueeze(-1), -torch.inf).flatten(-2)
    experts = score.topk(call.k, dim=-1).indices
    weights = norm.gather(-1, experts)
    if sigmoid:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return weights.to(x.dtype), experts.to(torch.int32), norm


def moe_gating_top_k_softmax(x: Tensor, finished: None, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Maps logits (T, E) to the weights and numbers of k experts; copy j of token t has the number j T + t."""
    weights, experts, _ = moe_gating_top_k(x, k)
    copies = torch.arange(k * len(x), dtype=torch.int32, device=x.device).view(k, -1).T.contiguous()
    return weights, experts, copies


def moe_init_routing(
    x: Tensor, expert_idx: Tensor, *, expert_num: int, quant_mode: int, **unused: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns `moe_token_permute`, the tokens of each expert (E), and the scales of INT8 copies (T k), else none."""
    copies, position = moe_token_permute(x, expert_idx)
    experts = expert_idx.flatten().long()
    counts = torch.zeros(expert_num, dtype=torch.int64, device=x.device).scatter_add_(
        0, experts, torch.ones_like(experts)
    )
    if quant_mode < 0:
        return copies, position, counts, x.new_empty(0, dtype=torch.float32)
    quantized, scales = dynamic_quant(copies)
    return quantized, position, counts, scales


def moe_token_permute(tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None) -> tuple[Tensor, Tensor]:
    """Copies tokens (T, H) for each of their experts (T, k) or (T), by expert; also returns each copy's position."""
    experts = indices.flatten()
    order = experts.argsort(stable=True)
    position = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    copies = max(len(order) // max(len(tokens), 1), 1)
    return tokens.index_select(0, order[:num_out_tokens] // copies), position.to(torch.int32)


def moe_token_unpermute(permuted_tokens: Tensor, sorted_indices: Tensor, probs: Tensor | None = None) -> Tensor:
    """Maps (T k, H) back to (T, H): the sum of the copies of each token, weighted by probs (T, k)."""
    copies = permuted_tokens.index_select(0, sorted_indices)
    if probs is None:
        return copies
    copies = copies.unflatten(0, probs.shape)
    return torch.bmm(probs.float().unsqueeze(1), copies.float()).squeeze(1).to(permuted_tokens.dtype)


@takes
def grouped_matmul(call: GroupedProduct) -> list[Tensor] | Prepared:
    """Multiplies rows of x (M, K) by the matrix of their group, of weight (E, K, N): (M, N), in lists of one.

    Args:
        bias, scale: (E, N); scale may be (E, K / 128, N / 128) for FP8.
        per_token_scale: (M); (M, K / 128) with a scale for FP8.
        antiquant_scale, antiquant_offset: of a weight that alone has few bits, (E, N) or (E, K / size, N).
        group_list: the end of each group of rows.
    """
    (rows,), (matrices,), converted = call.x, call.weight, list[str]()
    bias, scale, token, of_weights = call.bias, call.scale, call.per_token_scale, call.antiquant_scale
    dtype, ends = call.output_dtype or rows.dtype, call.group_list
    if dtype is rows.dtype and may_prepare(rows) and (grouped := _grouped_operator(rows, matrices)):
        ends = ends.to(torch.int32)
        converted.append("ends of groups to int32")
        if not bias:
            return Prepared(lambda: [grouped(rows, matrices, offs=ends)], converted=converted)
        converted.append("bias to the result's dtype, and the group of each row")
        group_of, of_groups = torch.searchsorted(ends, torch.arange(len(rows)).to(ends), right=True), bias[0].to(dtype)
        return Prepared(
            lambda: [grouped(rows, matrices, offs=ends).add_(of_groups.index_select(0, group_of))], converted=converted
        )
    if scale and token and scale[0].dim() == 3:
        own_bias = bias[0] if bias else None
        return _block_scaled_groups(rows, matrices, scale[0], token[0], own_bias, ends, dtype)
    if rows.dtype in FP8 and not bias:
        product = scaled_groups(call, converted)
        if product is not None:
            return Prepared(lambda: [product()], converted=converted) if may_prepare(rows) else [product()]
    width = (of_weights[0] if of_weights else matrices).shape[-1]
    result = torch.empty(len(rows), width, dtype=dtype, device=rows.device)
    for group, own in groups_of(ends):
        bias_of = bias[0][group] if bias else None
        if of_weights:
            offset = call.antiquant_offset[0][group] if call.antiquant_offset else None
            result[own] = weight_quant_batchmatmul(rows[own], matrices[group], of_weights[0][group], offset, bias_of)
            continue
        if rows.is_floating_point() and rows.dtype not in FP8:
            result[own] = linear(rows[own], matrices[group].mT, None if bias_of is None else bias_of.to(rows.dtype))
            continue
        scale_of, token_of = scale[0][group] if scale else None, token[0][own] if token else None
        if rows.dtype in FP8:
            sums = torch.matmul(rows[own].float(), matrices[group].float())
        else:
            sums = integer_matmul(rows[own], matrices[group])
        result[own] = dequantize(sums, scale_of, None, token_of, bias_of, dtype)
    return [result]


def _block_scaled_groups(
    rows: Tensor, matrices: Tensor, scale: Tensor, token: Tensor, bias: Tensor | None, ends: Tensor, dtype: torch.dtype
) -> list[Tensor] | Prepared:
    """Multiplies the groups one after the other: torch has no grouped product with scales of blocks."""
    groups = list(groups_of(ends))
    converted: list[str] = []
    if may_prepare(rows) and groups and bias is None:
        products = [
            block_scaled_product(rows[own], matrices[group], scale[group], token[own], None, dtype, converted)
            for group, own in groups
        ]
        calls = [product for product in products if product is not None]
        if len(calls) == len(products):
            return Prepared(lambda: [torch.cat([call() for call in calls])], converted=tuple(dict.fromkeys(converted)))
    result = torch.empty(len(rows), matrices.shape[-1], dtype=dtype, device=rows.device)
    for group, own in groups:
        sums = unscaled_product(rows[own], matrices[group], scale[group], token[own])
        result[own] = dequantize(sums, None, None, None, None if bias is None else bias[group], dtype)
    return [result]


def _grouped_operator(rows: Tensor, matrices: Tensor) -> Callable[..., Tensor] | None:
    """Returns torch's grouped product if it takes these operands: BF16, with lines of a multiple of 16 bytes."""
    if rows.dtype is not torch.bfloat16 or matrices.dtype is not torch.bfloat16:
        return None
    if rows.shape[-1] % 8 or matrices.shape[-1] % 8 or rows.stride(-1) != 1:
        return None
    least = (8, 0) if hasattr(functional, "grouped_mm") else (9, 0)
    if rows.is_cuda and torch.cuda.get_device_capability(rows.device) < least:
        return None
    return getattr(functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


def grouped_matmul_swiglu_quant(
    x: Tensor, weight: Tensor, group_list: Tensor, weight_scale: Tensor, x_scale: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns `grouped_matmul` of INT8, SwiGLU, and `dynamic_quant`: INT8 (M, N / 2), and the scales (M).

    The third result, for offsets, is empty.
    """
    quantized = torch.empty(len(x), weight.shape[-1] // 2, dtype=torch.int8, device=x.device)
    scales = torch.empty_like(x_scale)
    for group, own in groups_of(group_list):
        product = integer_matmul(x[own], weight[group])
        activated = swiglu(dequantize(product, weight_scale[group], None, x_scale[own], None, torch.float32), -1)
        quantized[own], scales[own] = dynamic_quant(activated)
    return quantized, scales, x_scale.new_empty(0)


def swiglu_group_quant(
    x: Tensor, topk_weight: Tensor | None, group_index: None, dst_type: torch.dtype, *, quant_mode: int, group_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Maps (..., 2 D) to SwiGLU times topk_weight (...), (..., D) in FP8, and FLOAT scales, or MX (..., D / 64, 2).

    The third result, for SwiGLU alone, is empty.
    """
    y = swiglu(x.float(), -1) if topk_weight is None else swiglu(x.float(), -1) * topk_weight.unsqueeze(-1)
    groups = y.unflatten(-1, (-1, group_size))
    scale = groups.abs().amax(-1, keepdim=True) / torch.finfo(dst_type).max
    scale = scale.log2().ceil().exp2() if quant_mode == 2 else scale
    of_group = scale.squeeze(-1)
    stored = of_group.unflatten(-1, (-1, 2)).to(torch.float8_e8m0fnu) if quant_mode == 2 else of_group
    return (groups / scale).to(dst_type).flatten(-2), stored, x.new_empty(0)


def groups_of(ends: Tensor) -> Iterator[tuple[int, slice]]:
    """Yields each group with rows, and its rows. The host reads the list once, before the loop over groups."""
    start = 0
    for group, end in enumerate(ends.tolist()):
        if end > start:
            yield group, slice(start, end)
        start = end
