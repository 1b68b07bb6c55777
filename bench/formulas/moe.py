"""Formulas of mixtures of experts, on one device and in an expert-parallel group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from opatlas.run.formula import At, each, elements, first_rows, per_element, per_row, to_float64
from opatlas.run.inputs.shape_rules import SCALE_BLOCK
from opatlas.run.result_check import Picks, Rounded

from ..implementations._calls import GroupedProduct, takes
from .matmul import FP8, dequantize, scaled, steps_of_product, sum_of_blocks, sum_of_products
from .norm import gate_halves, softmax_of


@per_row("x")
def moe_gating_top_k(
    x: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    **unused: Any,
) -> tuple[Any, ...]:
    """Returns the k experts with the largest norm + bias in the k_group best groups; norm = sigmoid(x) or softmax(x).

    The score of a group is its largest norm + bias, or the sum of its two largest. The weights are the norms of the
    experts, divided by their sum after a sigmoid. Source: aclnnMoeGatingTopK.
    """
    powers = (x - x.amax(dim=-1, keepdim=True)).exp()
    norm = 1 / (1 + (-x).exp()) if norm_type == 1 else powers / powers.sum(dim=-1, keepdim=True)
    score = norm if bias is None else norm + bias
    size = x.shape[-1] // group_count
    for i, row in enumerate(score.clone()):
        best = row.reshape(group_count, size).sort(dim=-1, descending=True).values
        of_groups = best[:, :2].sum(dim=-1) if group_select_mode == 1 else best[:, 0]
        for group in of_groups.argsort(descending=True)[k_group:].tolist():
            score[i, group * size : (group + 1) * size] = -torch.inf
    experts = score.argsort(dim=-1, descending=True)[:, :k]
    weights = norm.gather(-1, experts)
    if norm_type == 1:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    results = (weights, Picks(score, score.gather(-1, experts), distinct=True))
    return (*results, norm) if out_flag else results


@per_element(exact=True)
def _permute(at: At, tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None) -> Tensor:
    """Returns the tokens in the stable order of their experts."""
    copies = indices.shape[1] if indices.dim() == 2 else 1
    return tokens[_order(indices)[at[0]] // copies, at[1]]


@per_element(exact=True)
def _positions(at: At, tokens: Tensor, indices: Tensor, *_: Any, **__: Any) -> Tensor:
    """Returns argsort(argsort(indices))."""
    return _order(_order(indices))[at[0]]


#: Source: aclnnMoeTokenPermute.
moe_token_permute = each(_permute, _positions)


@per_row("x")
def _weights_by_softmax(x: Tensor, finished: None, k: int) -> Tensor:
    """Returns the k largest shares of a softmax."""
    return softmax_of(x).sort(dim=-1, descending=True).values[:, :k]


@per_row("x")
def _experts_by_softmax(x: Tensor, finished: None, k: int) -> Picks:
    return Picks(x, x.sort(dim=-1, descending=True).values[:, :k], distinct=True)


@per_element(exact=True)
def _numbers_of_copies(at: At, x: Tensor, finished: None, k: int) -> Tensor:
    """Returns j T + t for copy j of token t."""
    return at[1] * len(x) + at[0]


#: Source: aclnnMoeGatingTopKSoftmax.
moe_gating_top_k_softmax = each(_weights_by_softmax, _experts_by_softmax, _numbers_of_copies)


@per_element(terms=lambda x, *_, **__: x.shape[1])
def _routed_copies(at: At, x: Tensor, expert_idx: Tensor, *, quant_mode: int, **unused: Any) -> Tensor | Rounded:
    """Returns the tokens in the stable order of their experts, perhaps quantized by the largest number of a row."""
    token = _order(expert_idx)[at[0]] // expert_idx.shape[1]
    own = to_float64(x[token, at[1]])
    return own if quant_mode < 0 else Rounded(own / (to_float64(x[token]).abs().amax(dim=-1) / 127))


@per_element(exact=True)
def _copies_of_experts(at: At, x: Tensor, expert_idx: Tensor, **unused: Any) -> Tensor:
    return (expert_idx.reshape(1, -1) == at[0][:, None]).sum(dim=-1)


@per_element(terms=lambda x, *_, **__: x.shape[1])
def _scales_of_copies(at: At, x: Tensor, expert_idx: Tensor, **unused: Any) -> Tensor:
    return to_float64(x[_order(expert_idx)[at[0]] // expert_idx.shape[1]]).abs().amax(dim=-1) / 127


#: Source: aclnnMoeInitRoutingV3.
moe_init_routing = each(_routed_copies, _positions, _copies_of_experts, _scales_of_copies)


def _order(indices: Tensor) -> Tensor:
    order = numpy.argsort(indices.cpu().numpy().reshape(-1), kind="stable")
    return torch.from_numpy(order).to(indices.device)


def _copies(permuted_tokens: Tensor, sorted_indices: Tensor, probs: Tensor | None = None) -> int:
    return 1 if probs is None else probs.shape[1]


@per_element(terms=_copies)
def moe_token_unpermute(at: At, permuted_tokens: Tensor, sorted_indices: Tensor, probs: Tensor | None = None) -> Tensor:
    """Computes y[t, h] = sum over j of x[positions[t k + j], h] probs[t, j]: aclnnMoeTokenUnpermute."""
    t, h = at
    k = _copies(permuted_tokens, sorted_indices, probs)
    total = torch.zeros(len(t), dtype=torch.float64, device=t.device)
    for j in range(k):
        copy = to_float64(permuted_tokens[sorted_indices[t * k + j].long(), h])
        total += copy if probs is None else copy * to_float64(probs[t, j])
    return total


@per_element(terms=lambda x, *_, **__: x[0].shape[1], steps=steps_of_product)
@takes
def grouped_matmul(at: At, call: GroupedProduct) -> Tensor | Rounded:
    """Computes y[i, j] = `dequantize` of the sum over k of x[i, k] w[e, k, j]; e is the first group that ends after i.

    With scales of blocks: of the sum over k of x[i, k] token[i, k / 128] w[e, k, j] scale[e, k / 128, j / 128].
    A weight that alone has few bits is (w + offset) scale.

    Source: torch_npu.npu_grouped_matmul.
    """
    i, j = at
    scale, of_weights, offsets, token = call.scale, call.antiquant_scale, call.antiquant_offset, call.per_token_scale
    dtype = call.output_dtype or call.x[0].dtype
    e = torch.searchsorted(call.group_list, i, right=True)
    rows = elements(call.x[0], (i,))
    columns, offset = call.weight[0].mT, offsets[0] if offsets else None
    columns = scaled(columns, (e, j), of_weights[0], offset) if of_weights else elements(columns, (e, j))
    bias_of = None if call.bias is None else call.bias[0][e, j]
    if scale is not None and scale[0].dim() == 3:
        assert token is not None
        total = sum_of_blocks(rows, columns, token[0][i], scale[0].mT[e, j // SCALE_BLOCK])
        return dequantize(total, None, None, None, bias_of, dtype)
    scale_of = None if scale is None else scale[0][e, j]
    total = sum_of_products(rows, columns)
    if rows.is_floating_point() and rows.dtype not in FP8:
        return total if bias_of is None else total + to_float64(bias_of)
    of_row = None if token is None else token[0][i]
    return dequantize(total, scale_of, None, of_row, bias_of, dtype)


@per_row("x", "x_scale", least=3)
def grouped_matmul_swiglu_quant(
    x: Tensor, weight: Tensor, group_list: Tensor, weight_scale: Tensor, x_scale: Tensor, *, rows: Tensor | None = None
) -> tuple[Rounded, Tensor]:
    """Computes s = silu(first half of c) second half, quantized by the largest number of its row.

    Here c = (x w[e]) scale[e] token.

    Source: aclnnGroupedMatmulSwigluQuant.
    """
    assert rows is not None
    groups = torch.searchsorted(group_list, rows, right=True).tolist()
    # Sums of products of INT8 are below 2^53: float64 is exact.
    sums = [row.to(torch.float64) @ weight[e].to(torch.float64) for row, e in zip(x, groups, strict=True)]
    activated = gate_halves(torch.stack(sums) * weight_scale[groups] * x_scale)
    scale = activated.abs().amax(dim=-1, keepdim=True) / 127
    return Rounded(activated / scale), scale


@per_row("x", "topk_weight")
def swiglu_group_quant(
    x: Tensor, topk_weight: Tensor | None, group_index: None, dst_type: torch.dtype, *, quant_mode: int, group_size: int
) -> tuple[Rounded, Tensor | Rounded]:
    """Returns y = silu(first half of x) second half w, divided by scales, which are the largest of a group / 448.

    MX (mode 2) rounds a scale up to a power of two. Source: ops-nn, activation/swiglu_group_quant.
    """
    y = gate_halves(x) if topk_weight is None else gate_halves(x) * topk_weight
    groups = y.reshape(len(y), -1, group_size)
    scale = groups.abs().amax(dim=-1, keepdim=True) / torch.finfo(dst_type).max
    if quant_mode == 2:
        scale = 2 ** (torch.frexp(scale).exponent - (torch.frexp(scale).mantissa == 0.5).long()).double()
    return Rounded((groups / scale).flatten(1)), Rounded(scale.flatten(1)) if quant_mode == 2 else scale


@per_row("x", "expert_idx", "probs", least=3, steps=2)
def dispatch_ffn_combine(
    x: Tensor,
    weight1: Sequence[Tensor],
    weight2: Sequence[Tensor],
    expert_idx: Tensor,
    scale1: Sequence[Tensor],
    scale2: Sequence[Tensor],
    probs: Tensor,
    **unused: Any,
) -> Tensor:
    """Computes y = sum over the experts e of a token of p swiglu(x w1[e]) w2[e].

    With INT8 weights the left side of both products is quantized by its largest number; INT64 scales are the bits of
    float32 numbers. In a group, the weights of all ranks are given.
    """
    total = torch.zeros_like(x)
    for t, experts in enumerate(expert_idx.tolist()):
        for p, e in zip(probs[t], experts, strict=True):
            up, down = weight1[0][e].to(x.device), weight2[0][e].to(x.device)
            if up.is_floating_point():
                hidden = gate_halves(x[t] @ up.to(torch.float64))
                total[t] += p * (hidden @ down.to(torch.float64))
            else:
                hidden = gate_halves(_round_to_int8(x[t]) @ up.to(torch.float64) * _real(scale1[0][e]))
                total[t] += p * (_round_to_int8(hidden) @ down.to(torch.float64) * _real(scale2[0][e]))
    return total


@per_element(exact=True)
def _tokens_of_experts(at: At, *, expert_idx: Tensor, arriving: Sequence[Tensor] | None = None, **_: Any) -> Any:
    """Returns the number of tokens that chose expert e, of all ranks if `arriving` has their choices.

    The experts have the numbers of this rank.
    """
    chosen = torch.cat([ids.flatten() for ids in ([expert_idx] if arriving is None else arriving)])
    return torch.stack([(chosen == e).sum() for e in at[-1]])


dispatch_ffn_combine = each(dispatch_ffn_combine, _tokens_of_experts)


def _real(scale: Tensor) -> Tensor:
    """Returns a scale as real numbers. Source: vllm-ascend, vllm_ascend/quantization/methods/w8a8_dynamic.py."""
    return to_float64(scale.to(torch.int32).view(torch.float32) if scale.dtype is torch.int64 else scale)


def _round_to_int8(x: Tensor) -> Tensor:
    """Returns rows after quantization to INT8 by their largest number, and back."""
    scale = x.abs().max() / 127
    return (x / scale).round() * scale


def _arrivals(*, chosen: Sequence[Tensor], first: int, experts: int, **_: Any) -> Tensor:
    """Returns the tokens that arrive at the experts from `first` on, (n, 4): rank, token, choice, expert.

    The order is by expert, then rank, then token. Sources: op-plugin's tests of npu_moe_distribute_dispatch; the
    order of experts is that of the group_list of a grouped product.

    Args:
        chosen: for each rank the experts of its tokens (BS, k).
    """
    of_ranks = list(chosen)
    found = [
        (rank, token, choice, expert)
        for expert in range(first, first + experts)
        for rank, ids in enumerate(of_ranks)
        for token, choice in (ids == expert).nonzero().tolist()
    ]
    return torch.tensor(found, dtype=torch.int64, device=of_ranks[0].device).reshape(-1, 4)


def _sources(arrived: Tensor, tokens: Sequence[Tensor]) -> Tensor:
    """Returns the tokens (n, H) of rows of `arrivals`."""
    return torch.stack([tokens[rank][token].to(arrived.device) for rank, token, *_ in arrived.tolist()])


@per_element(exact=True)
def moe_distribute_dispatch(at: At, *, arrived: Tensor, tokens: Sequence[Tensor], **_: Any) -> Tensor:
    """Computes y[i, j] = x[token, j] of the rank that sent token i."""
    i, j = at
    rows, inverse = torch.unique(i, return_inverse=True)
    return _sources(arrived[rows], tokens)[inverse, j]


@per_row("arrived")
def moe_distribute_dispatch_quant(
    arrived: Tensor, *, tokens: Sequence[Tensor], scales: Tensor | None = None, **_: Any
) -> Rounded:
    """Returns round(127 v / max |v|) of v = x[token] scales[expert]."""
    values, scale = _scale_tokens(arrived, tokens, scales)
    return Rounded(values / scale)


@per_row("arrived")
def _scales_of_tokens(arrived: Tensor, *, tokens: Sequence[Tensor], scales: Tensor | None = None, **_: Any) -> Tensor:
    """Returns max |v| / 127."""
    return _scale_tokens(arrived, tokens, scales)[1]


def _scale_tokens(arrived: Tensor, tokens: Sequence[Tensor], scales: Tensor | None) -> tuple[Tensor, Tensor]:
    values = to_float64(_sources(arrived, tokens))
    if scales is not None:
        values = values * to_float64(scales[arrived[:, 3]])
    return values, values.abs().amax(dim=-1, keepdim=True) / 127


@per_element(exact=True)
def _arrival_counts(at: At, *, chosen: Sequence[Tensor], first: int, **_: Any) -> Tensor:
    """Returns the number of tokens of all ranks that go to expert first + e."""
    everybody = torch.cat([ids.flatten() for ids in chosen])
    return torch.stack([(everybody == first + e).sum() for e in at[-1]])


#: No formula: the output with the sources of tokens for a combine differs between versions. The combine checks it.
moe_distribute_dispatch = each(first_rows("arrived", _arrivals, moe_distribute_dispatch), _arrival_counts)
moe_distribute_dispatch_quant = each(
    first_rows("arrived", _arrivals, moe_distribute_dispatch_quant),
    first_rows("arrived", _arrivals, _scales_of_tokens),
    _arrival_counts,
)


@per_row("tokens", "expert_ids", "expert_scales")
def moe_distribute_combine(
    tokens: Tensor, expert_ids: Tensor, expert_scales: Tensor, *, factors: Tensor, **_: Any
) -> Tensor:
    """Computes y[t] = sum over j of p[t, j] f[e[t, j]] x[t], where expert e makes f[e] x of a token x."""
    return (expert_scales * factors[expert_ids]).sum(dim=-1, keepdim=True) * tokens


moe_distribute_combine = each(moe_distribute_combine)
