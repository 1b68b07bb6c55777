"""Kernels of expert parallelism: the ranks of a group share the experts, and send tokens to each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed

from .matmul import linear
from .moe import groups_of, moe_token_permute, moe_token_unpermute
from .norm import swiglu
from .quantized import dequantize, dynamic_quant, integer_matmul

#: Numbers for each token from a second version's dispatch to its combine; three are used: rank, token, choice.
_INFO_SIZE = 128
#: No ranks of shared experts, and no other dimension of parallelism.
_SUPPORTED = ((0, 0), (0, 1))


def dispatch_ffn_combine(
    x: Tensor,
    weight1: Sequence[Tensor],
    weight2: Sequence[Tensor],
    expert_idx: Tensor,
    scale1: Sequence[Tensor],
    scale2: Sequence[Tensor],
    probs: Tensor,
    group: str,
    max_output_size: int,
    out: Tensor,
    expert_token_nums: Tensor,
    bias1: Sequence[Tensor] = (),
    bias2: Sequence[Tensor] = (),
    x_active_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes a layer of experts, distributed among the ranks of a group; writes out and expert_token_nums.

    Args:
        x: (M, H), this rank's tokens.
        weight1, weight2: (E, H, N) and (E, N / 2, H) of this rank's experts, or a list of matrices; INT8 weights take x
            and the result of SwiGLU dynamically quantized.
        expert_idx, probs: (M, k), experts by number in the group: those of rank r begin with r E.
        scale1, scale2: (E, N) and (E, H), of INT8 weights, or lists; INT64 holds the bits of float32 numbers.
        group: name of the process group; "" if this rank has all experts.
        expert_token_nums: (E) or (1, E), INT32: tokens of all ranks for each expert of this rank.
        x_active_mask: (M), the active tokens; the results of the others are zeros.
    """
    own = _Experts(*map(_by_expert, (weight1, weight2, scale1, scale2)))
    if x_active_mask is not None:
        active = x_active_mask.nonzero().squeeze(1)
        x, expert_idx, probs = x[active], expert_idx[active], probs[active]
    copies, position = moe_token_permute(x, expert_idx)
    if group:
        ranks = distributed.get_world_size()
        sent = _TokenCopies(expert_idx, group_ep=group, ep_world_size=ranks, moe_expert_num=len(own.up) * ranks)
        received, arrived = sent.sender_to_experts()
        counts = received.sum(1)
        computed = sent.send_back(own.compute(arrived(copies), counts), received.flatten().cumsum(0))
    else:
        counts = torch.bincount(expert_idx.flatten(), minlength=len(own.up))
        computed = own.compute(copies, counts)
    expert_token_nums.copy_(counts)
    combined = moe_token_unpermute(computed, position, probs)
    if x_active_mask is None:
        out.copy_(combined)
    else:
        out.zero_().index_copy_(0, active, combined)
    return out, expert_token_nums


@dataclass(frozen=True)
class _Experts:
    """The experts of a rank.

    Attributes:
        up, down: (H, N) and (N / 2, H) of each expert.
        up_scale, down_scale: (N) and (H) of each expert, of INT8 weights.
    """

    up: Sequence[Tensor]
    down: Sequence[Tensor]
    up_scale: Sequence[Tensor]
    down_scale: Sequence[Tensor]

    def compute(self, copies: Tensor, counts: Tensor) -> Tensor:
        """Returns the results of the experts for tokens in their order, `counts` for each expert."""
        computed = torch.empty_like(copies)
        for expert, own in groups_of(counts.cumsum(0)):
            up, down = self.up[expert], self.down[expert]
            if up.is_floating_point():
                hidden = linear(copies[own], up.mT).float()
                computed[own] = linear(swiglu(hidden, -1).to(copies.dtype), down.mT)
                continue
            hidden = _quantized_product(copies[own], up, self.up_scale[expert], torch.float32)
            computed[own] = _quantized_product(swiglu(hidden, -1), down, self.down_scale[expert], copies.dtype)
        return computed


def _all_to_all(received: Tensor, sent: Tensor, received_rows: list[int], sent_rows: list[int]) -> None:
    # As bytes, because not every backend knows every dtype.
    distributed.all_to_all_single(received.view(torch.uint8), sent.view(torch.uint8), received_rows, sent_rows)


def _by_expert(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Returns the tensor of each expert, from a list of them or a list of one tensor for all."""
    return list(tensors[0]) if len(tensors) == 1 else tensors


def _quantized_product(x: Tensor, weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    quantized, token = dynamic_quant(x)
    if scale.dtype is torch.int64:
        scale = scale.to(torch.int32).view(torch.float32)
    return dequantize(integer_matmul(quantized, weight), scale, None, token, None, dtype)


def moe_distribute_dispatch(x: Tensor, expert_ids: Tensor, **how: Any) -> tuple[Tensor, ...]:
    """Sends tokens to the ranks of their experts.

    Args:
        x: (BS, H), this rank's tokens.
        expert_ids: (BS, k), numbers in the group: those of rank r of R begin with r E, E = moe_expert_num / R.
        how: see `_TokenCopies` and `_dispatch`.

    Returns:
        Arriving tokens (A, H), A = global_bs min(E, k), by expert, rank, position, then zeros; their scales (A), zeros
        without quantization; number of earlier copies for the same expert (BS k); tokens of each expert (E), INT64; end
        of the tokens of each expert and rank (E R); zeros (tp_world_size); arriving weights (A), or (0).
    """
    return _dispatch(x, _TokenCopies(expert_ids, **how), **how)[:7]


def moe_distribute_dispatch_v2(x: Tensor, expert_ids: Tensor, **how: Any) -> tuple[Tensor, ...]:
    """Sends tokens like `moe_distribute_dispatch`; the third result, (max(BS k, 128 A)), has rank, token, choice."""
    sent = _TokenCopies(expert_ids, **how)
    expand_x, dynamic_scales, _, *rest, arrived = _dispatch(x, sent, **how)
    k = expert_ids.shape[1]
    rank = torch.full_like(sent.copies, how["ep_rank_id"])
    info = arrived(torch.stack([rank, sent.copies // k, sent.copies % k], dim=1).to(torch.int32))
    assist = info.new_zeros(max(expert_ids.numel(), len(expand_x) * _INFO_SIZE))
    assist[: len(info) * _INFO_SIZE].unflatten(0, (-1, _INFO_SIZE))[:, :3] = info
    return expand_x, dynamic_scales, assist, *rest


def moe_distribute_combine(
    expand_x: Tensor, expert_ids: Tensor, expand_idx: Tensor, ep_send_counts: Tensor, expert_scales: Tensor, **how: Any
) -> Tensor:
    """Sends the results of experts back and returns the weighted sum over the experts of each token, (BS, H).

    Args:
        expand_x: (A, H), in the order of the dispatch.
        expand_idx, ep_send_counts: the third and the fifth result of `moe_distribute_dispatch`.
        expert_scales: (BS, k), the weights.
        how: see `_TokenCopies`.
    """
    sent = _TokenCopies(expert_ids, **how)
    returned = sent.send_back(expand_x, ep_send_counts)
    start = sent.expert_counts.cumsum(0) - sent.expert_counts
    position = start[expert_ids.flatten()] + expand_idx[: expert_ids.numel()]
    copies = expand_x.new_zeros(expert_ids.numel(), expand_x.shape[1])
    copies[sent.copies] = returned[position[sent.copies]]
    return _weighted_sum(copies, expert_scales)


def moe_distribute_combine_v2(
    expand_x: Tensor,
    expert_ids: Tensor,
    assist_info_for_combine: Tensor,
    ep_send_counts: Tensor,
    expert_scales: Tensor,
    **how: Any,
) -> Tensor:
    """Combines tokens like `moe_distribute_combine`, with the third result of `moe_distribute_dispatch_v2`."""
    sent = _TokenCopies(expert_ids, **how)
    info = assist_info_for_combine[: len(expand_x) * _INFO_SIZE].unflatten(0, (-1, _INFO_SIZE))[:, :3].contiguous()
    _, token, choice = sent.send_back(info, ep_send_counts).long().unbind(1)
    copies = expand_x.new_zeros(expert_ids.numel(), expand_x.shape[1])
    copies[token * expert_ids.shape[1] + choice] = sent.send_back(expand_x, ep_send_counts)
    return _weighted_sum(copies, expert_scales)


def expert_factors(experts: int, device: torch.device) -> Tensor:
    """Returns the factor of each expert, (experts): 1/4 ... 4, so that products are exact."""
    return 2.0 ** (torch.arange(experts, device=device) % 5 - 2)


def scale_by_experts(tokens: Tensor, factors: Tensor, counts: Tensor) -> Tensor:
    """Multiplies dispatched tokens (A, H), `counts` (E) for each expert, by the factors (E) of the experts."""
    position = torch.arange(len(tokens), device=tokens.device).unsqueeze(1)
    # Padding may have any value.
    expert = (position >= counts.cumsum(0)).sum(1).clamp(max=len(factors) - 1)
    return tokens * factors[expert].unsqueeze(1).to(tokens.dtype)


class _TokenCopies:
    """The copies of a rank's tokens, one for each of their experts, and their targets.

    Attributes:
        copies: numbers of the copies, by expert; copy j of token t is t k + j.
        experts: number of experts of a rank.
        expert_counts: number of this rank's copies for each expert of the group.
    """

    def __init__(
        self,
        expert_ids: Tensor,
        *,
        ep_world_size: int,
        group_ep: str = "",
        moe_expert_num: int,
        x_active_mask: Tensor | None = None,
        shared_expert_rank_num: int = 0,
        tp_world_size: int = 0,
        **_: Any,
    ) -> None:
        """`group_ep`: "" if this rank has all experts; `x_active_mask`: active tokens (BS) or copies (BS, k)."""
        assert (shared_expert_rank_num, tp_world_size) in _SUPPORTED
        chosen = expert_ids.flatten()
        copies = torch.arange(len(chosen), device=chosen.device)
        if x_active_mask is not None:
            copies = copies[x_active_mask.reshape(len(x_active_mask), -1).expand_as(expert_ids).flatten()]
        self.copies = copies[chosen[copies].argsort(stable=True)]
        self.expert_ids = expert_ids
        self.experts = moe_expert_num // ep_world_size
        self.expert_counts = torch.bincount(chosen[copies], minlength=moe_expert_num)
        self._ranks = ep_world_size
        self._group = group_ep

    def sender_to_experts(self) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Returns the number of copies for each expert from each rank, (E, R), and a function that sends their rows.

        The rows arrive by expert, rank and position.
        """
        sent = self.expert_counts.reshape(self._ranks, self.experts)
        received = self._exchange(sent, [1] * self._ranks, [1] * self._ranks)
        there, back = sent.sum(1).tolist(), received.sum(1).tolist()
        expert = torch.arange(self.experts, device=sent.device).repeat(self._ranks)
        order = expert.repeat_interleave(received.flatten()).argsort(stable=True)
        return received.T, lambda rows: self._exchange(rows, back, there)[order]

    def send_back(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Sends rows back and returns those of this rank's copies, in their order.

        Args:
            rows: by expert, rank and position; padding at the end does not count.
            ends: end of the rows of each expert and rank, (E R) and perhaps more.
        """
        ends = ends[: self.experts * self._ranks].long()
        held = ends.diff(prepend=ends.new_zeros(1)).reshape(self.experts, -1)
        rank = torch.arange(self._ranks, device=ends.device).repeat(self.experts).repeat_interleave(held.flatten())
        there = self.expert_counts.reshape(self._ranks, self.experts).sum(1).tolist()
        return self._exchange(rows[rank.argsort(stable=True)], there, held.sum(0).tolist())

    def _exchange(self, rows: Tensor, received_rows: list[int], sent_rows: list[int]) -> Tensor:
        if not self._group:
            return rows
        if rows.dim() == 1:
            return self._exchange(rows.unsqueeze(1), received_rows, sent_rows).squeeze(1)
        received = rows.new_empty(sum(received_rows), *rows.shape[1:])
        _all_to_all(received, rows.contiguous(), received_rows, sent_rows)
        return received


def _dispatch(
    x: Tensor,
    sent: _TokenCopies,
    *,
    scales: Tensor | None = None,
    expert_scales: Tensor | None = None,
    quant_mode: int = 0,
    global_bs: int = 0,
    tp_world_size: int = 0,
    **_: Any,
) -> tuple[Any, ...]:
    """Returns the results of a dispatch, and a function that sends further rows the same way, without padding.

    Args:
        scales: (R E, H), factors of the tokens of an expert before quantization.
        expert_scales: (BS, k), weights to dispatch with the tokens.
        quant_mode: 0: none; 2: INT8 with a scale for each token, by its largest number.
        global_bs: the most tokens of all ranks together; 0: R BS.
    """
    assert quant_mode in (0, 2)
    k, ranks = sent.expert_ids.shape[1], len(sent.expert_counts) // sent.experts
    most = global_bs or len(x) * ranks
    room = most * min(sent.experts, k)
    counts, arrived = sent.sender_to_experts()
    tokens = x[sent.copies // k]
    expert = sent.expert_ids.flatten()[sent.copies]
    token_scales = torch.zeros(len(tokens), device=x.device)
    if quant_mode == 2:
        smooth = None if scales is None else scales[expert]
        tokens, token_scales = dynamic_quant(tokens, smooth_scales=smooth)
    expand_idx = torch.zeros_like(sent.expert_ids).flatten()
    start = sent.expert_counts.cumsum(0) - sent.expert_counts
    expand_idx[sent.copies] = (torch.arange(len(sent.copies), device=x.device) - start[expert]).to(expand_idx.dtype)
    ends = counts.flatten().cumsum(0).to(torch.int32)
    expand_scales = token_scales.new_zeros(0)
    if expert_scales is not None:
        # The kernel keeps its sums within a node in this space.
        ends = torch.cat([ends, ends.new_zeros(2 * k * most * (ranks // 8))])
        expand_scales = _pad(arrived(expert_scales.flatten()[sent.copies]), room)
    return (
        _pad(arrived(tokens), room),
        _pad(arrived(token_scales), room),
        expand_idx,
        counts.sum(1),
        ends,
        ends.new_zeros(tp_world_size),
        expand_scales,
        arrived,
    )


def _pad(rows: Tensor, room: int) -> Tensor:
    whole = rows.new_zeros(room, *rows.shape[1:])
    whole[: len(rows)] = rows
    return whole


def _weighted_sum(copies: Tensor, weights: Tensor) -> Tensor:
    """Returns the sum of the copies of each token (BS k, H), weighted by (BS, k): (BS, H)."""
    together = copies.unflatten(0, weights.shape)
    return torch.bmm(weights.float().unsqueeze(1), together.float()).squeeze(1).to(copies.dtype)
