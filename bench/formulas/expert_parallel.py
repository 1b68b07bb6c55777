"""Formulas of kernels that the ranks of an expert-parallel group run together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opatlas.run.formula import At, each, first_rows, per_element, per_row, to_float64
from opatlas.run.result_check import Rounded

from .activation import gate_halves


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
