"""Kernels of expert parallelism: the ranks of a group share the experts, and send tokens to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import distributed

from bench.impl.activations import swiglu
from bench.impl.matmuls import matmul
from bench.impl.moe import groups_of, moe_token_permute, moe_token_unpermute
from bench.impl.quantized import dequantized, dynamic_quant, integer_matmul

__all__ = ["dispatch_ffn_combine"]


def dispatch_ffn_combine(
    x: torch.Tensor,
    weight1: Sequence[torch.Tensor],
    weight2: Sequence[torch.Tensor],
    expert_idx: torch.Tensor,
    scale1: Sequence[torch.Tensor],
    scale2: Sequence[torch.Tensor],
    probs: torch.Tensor,
    group: str,
    max_output_size: int,
    out: torch.Tensor,
    expert_token_nums: torch.Tensor,
    bias1: Sequence[torch.Tensor] = (),
    bias2: Sequence[torch.Tensor] = (),
    x_active_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A whole layer of experts, shared out among the ranks of a group; out and expert_token_nums are written.

    Args:
        x: (M, H), this rank's tokens.
        weight1, weight2: (E, H, N) and (E, N / 2, H), of this rank's experts, or lists of a matrix for each; where
            they are INT8, x and what SwiGLU gives are quantized dynamically.
        expert_idx, probs: (M, k), experts by their number in the group: rank r has those from r E on.
        scale1, scale2: (E, N) and (E, H), of INT8 weights, or lists; INT64 holds the bits of float32 numbers.
        group: name of the process group; "" where this rank has all experts.
        expert_token_nums: (E) or (1, E), INT32: tokens of all ranks that this rank's experts get.
        x_active_mask: (M), the tokens that take part; the others become zeros.
    """
    own = _Experts(*map(_by_expert, (weight1, weight2, scale1, scale2)))
    if x_active_mask is not None:
        active = x_active_mask.nonzero().squeeze(1)
        x, expert_idx, probs = x[active], expert_idx[active], probs[active]
    copies, place = moe_token_permute(x, expert_idx)
    if group:
        computed = _computed_by_owners(copies, expert_idx, own, expert_token_nums)
    else:
        counts = torch.bincount(expert_idx.flatten(), minlength=len(own.up))
        expert_token_nums.copy_(counts)
        computed = own.compute(copies, counts)
    combined = moe_token_unpermute(computed, place, probs)
    if x_active_mask is None:
        out.copy_(combined)
    else:
        out.zero_().index_copy_(0, active, combined)
    return out, expert_token_nums


@dataclass(frozen=True)
class _Experts:
    """Those of one rank.

    Attributes:
        up, down: (H, N) and (N / 2, H) of each expert.
        up_scale, down_scale: (N) and (H) of each expert, of INT8 weights.
    """

    up: Sequence[torch.Tensor]
    down: Sequence[torch.Tensor]
    up_scale: Sequence[torch.Tensor]
    down_scale: Sequence[torch.Tensor]

    def compute(self, copies: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """What they make of tokens that stand in their order, `counts` for each."""
        computed = torch.empty_like(copies)
        for expert, own in groups_of(counts.cumsum(0)):
            up, down = self.up[expert], self.down[expert]
            if up.is_floating_point():
                hidden = matmul(copies[own], up.mT).float()
                computed[own] = matmul(swiglu(hidden, -1).to(copies.dtype), down.mT)
                continue
            hidden = _quantized_product(copies[own], up, self.up_scale[expert], torch.float32)
            computed[own] = _quantized_product(swiglu(hidden, -1), down, self.down_scale[expert], copies.dtype)
        return computed


def _computed_by_owners(
    copies: torch.Tensor, expert_idx: torch.Tensor, own: _Experts, expert_token_nums: torch.Tensor
) -> torch.Tensor:
    """Sends each token, by expert, to the rank that has the expert, which sends back what it computes."""
    experts, ranks = len(own.up), distributed.get_world_size()
    sent = torch.bincount(expert_idx.flatten(), minlength=experts * ranks).reshape(ranks, experts)
    received = torch.empty_like(sent)
    distributed.all_to_all_single(received, sent)
    there, back = sent.sum(1).tolist(), received.sum(1).tolist()
    arrived = copies.new_empty(sum(back), copies.shape[1])
    _all_to_all(arrived, copies, back, there)
    # They come by rank, and by expert from each.
    expert = torch.arange(experts, device=copies.device).repeat(ranks).repeat_interleave(received.flatten())
    order = expert.argsort(stable=True)
    counts = received.sum(0)
    expert_token_nums.copy_(counts)
    computed = torch.empty_like(arrived)
    computed[order] = own.compute(arrived[order], counts)
    returned = torch.empty_like(copies)
    _all_to_all(returned, computed, there, back)
    return returned


def _all_to_all(received: torch.Tensor, sent: torch.Tensor, received_rows: list[int], sent_rows: list[int]) -> None:
    # As bytes: not every backend knows every dtype.
    distributed.all_to_all_single(received.view(torch.uint8), sent.view(torch.uint8), received_rows, sent_rows)


def _by_expert(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """The tensor of each expert, from a list of them or from a list of one for all."""
    return list(tensors[0]) if len(tensors) == 1 else tensors


def _quantized_product(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    quantized, token = dynamic_quant(x)
    if scale.dtype is torch.int64:
        scale = scale.to(torch.int32).view(torch.float32)
    return dequantized(integer_matmul(quantized, weight), scale, None, token, None, dtype)
