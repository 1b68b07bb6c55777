"""Routing, order, gathers and scatters, and moves of data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flag_gems
import torch

from opatlas import Prepared, implements

from .._layouts import chosen_experts
from .common import HALF, SUPPORT, expect, expect_dtype

#: grouped_topk and topk_softmax choose no more experts, grouped_topk a power of two.
_MOST_EXPERTS = 32


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
    """FlagGems computes sigmoid scores in the dtype of the logits: in 16 bits it chooses other experts (5.0.2)."""
    expect_dtype((*HALF, torch.float32) if norm_type == 0 else (torch.float32,), x=x)
    expect(k <= _MOST_EXPERTS, f"{k} experts of a token", f"up to {_MOST_EXPERTS}")
    expect(norm_type == 0 or k & (k - 1) == 0, f"{k} experts of a token", "powers of two")
    return chosen_experts(flag_gems, x, k, norm_type, bias, (k_group, group_count, group_select_mode), SUPPORT)


@implements("Sort", "SortAiCore")
def sort(x: torch.Tensor, *, dim: int, descending: bool) -> Any:
    return flag_gems.sort(x, dim, descending)


top_k = implements("TopKV2", "TopKV2AiCore")(flag_gems.topk)


@implements("ArgMaxV2", "ArgMaxV2AiCore")
def argmax(x: torch.Tensor, dim: int) -> Any:
    expect(x.dim() > 0, "no axes", "one axis or more")
    return flag_gems.argmax(x, dim)


@implements("ArgMaxWithValue")
def largest(x: torch.Tensor, dim: int, keepdim: bool) -> Any:
    return tuple(flag_gems.max_dim(x, dim, keepdim))


@implements("GatherV2", "GatherV2AiCore")
def embedding(table: torch.Tensor, indices: torch.Tensor) -> Any:
    expect(isinstance(indices, torch.Tensor), "an axis that is chosen by a scalar", "rows of a table")
    return flag_gems.embedding(table, indices)


# FlagGems gathers along the last axis; for another axis, kernels that transpose are in the time.
index_select = implements("GatherV3", "GatherV3AiCore", "Gather")(flag_gems.index_select)
gather = implements("GatherElements", "GatherElementsV2")(flag_gems.gather)
index = implements("Index", "IndexAiCore")(flag_gems.index)
index_put = implements("IndexPutV2", "IndexPutV2AiCore")(flag_gems.index_put_)


@implements("ScatterNdUpdate", "ScatterNdUpdateAiCore")
def scatter_nd_update(x: torch.Tensor, places: torch.Tensor, updates: torch.Tensor) -> Any:
    return flag_gems.index_put_(x, places.unbind(-1), updates)


@implements("ConcatD")
def concatenate(parts: Sequence[torch.Tensor], dim: int) -> Any:
    expect(len(parts) > 1, "one tensor", "a kernel for two tensors or more")
    return flag_gems.cat(parts, dim)


stack = implements("Pack", "PackAiCore")(flag_gems.stack)
pad = implements("PadV3", "PadV3AiCore")(flag_gems.pad)
tile = implements("Tile", "TileAiCore")(flag_gems.tile)
copy_ = implements("TensorMove", "TensorMoveAiCore")(flag_gems.copy_)


@implements("Transpose", "TransposeAiCore")
def transpose(x: torch.Tensor, permutation: Sequence[int]) -> Any:
    return _copied(x.permute(*permutation))


@implements("BroadcastTo", "BroadcastToAiCore")
def broadcast_to(x: torch.Tensor, shape: Sequence[int]) -> Any:
    return _copied(x.expand(*shape))


@implements("Slice", "SliceAiCore")
def slice_copy(x: torch.Tensor, offsets: Sequence[int], sizes: Sequence[int]) -> Any:
    return _copied(x[tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))])


def _copied(view: torch.Tensor) -> Any:
    expect(not view.is_contiguous(), "a view that is contiguous", "a copy of other views")
    return flag_gems.contiguous(view)
