"""Mixtures of experts on one device: routing and grouped products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flashinfer
import torch
from flashinfer.dsv3_ops import NoAuxTc

from opatlas import Prepared, Unsupported, implements

from .common import HALF, expect, expect_dtype, workspace


@implements("GroupedMatmul")
def grouped_matmul(
    x: Sequence[torch.Tensor],
    weight: Sequence[torch.Tensor],
    *,
    bias: Sequence[torch.Tensor] | None = None,
    group_list: torch.Tensor,
    **_: Any,
) -> Prepared:
    """A kernel that writes the addresses of the groups runs before the product; it is a part of the call."""
    (rows,), (matrices,) = x, weight
    expect_dtype(HALF, x=rows)
    expect_dtype((rows.dtype,), weight=matrices)
    expect(bias is None, "bias", "grouped products without a bias only")
    experts, k, n = matrices.shape
    expect(k % 8 == n % 8 == 0, f"matrices {k} x {n}", "multiples of 8")
    # (E, N, K) of which the row has a transposed view is FlashInfer's column-major form.
    column_major = matrices.mT.is_contiguous() and not matrices.is_contiguous()
    weights = matrices.mT if column_major else matrices.contiguous()
    copied = not column_major and not matrices.is_contiguous()
    starts = torch.nn.functional.pad(group_list.long(), (1, 0))
    out = rows.new_empty(len(rows), n)
    wrapper = flashinfer.SegmentGEMMWrapper(workspace(rows.device))
    return Prepared(
        lambda: [wrapper.run(rows, weights, experts, column_major, out=out, seg_indptr=starts)],
        converted=("weight to (E, K, N)",) if copied else (),
    )


@implements("MoeGatingTopK")
def moe_gating_top_k(
    x: torch.Tensor,
    k: int,
    *,
    bias: torch.Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
) -> Prepared:
    """DeepSeek-V3's choice of experts. Computes no sigmoids of all logits."""
    if bias is None or norm_type != 1:
        raise Unsupported("experts by softmax: FlashInfer has DeepSeek-V3's choice by sigmoid and bias")
    expect_dtype((*HALF, torch.float32), x=x, bias=bias)
    experts, groups = x.shape[1], group_count
    # FlashInfer's own check takes no more experts of a token than this, even where a group has more.
    most = min(8, groups * k_group)
    expect(k <= most, f"{k} experts for a token, of {groups} x {k_group} groups", f"up to {most}")
    if groups > 1:
        expect(group_select_mode == 1, "groups by their best expert", "groups by their two best experts")
        own = experts // groups
        fits = groups <= 8 and k_group <= 4 and experts % groups == 0 and own <= 32
        limits = "up to 8 groups of up to 32, and 4 chosen groups"
        expect(fits, f"{groups} groups of {own} experts, {k_group} chosen", limits)
    weights = x.new_empty(len(x), k)
    chosen = torch.empty(len(x), k, dtype=torch.int32, device=x.device)

    def call() -> Any:
        NoAuxTc(x, bias, groups, k_group, k, routed_scaling_factor, weights, chosen, launch_with_pdl=False)
        return weights, chosen, None

    return Prepared(call)
