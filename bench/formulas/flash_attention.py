"""Formulas of attention in training (Dao et al. 2022, algorithms 1 and 4), one query or key and head at a time.

The arguments are described in the documentation of npu_fusion_attention (torch_npu).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opatlas.run.formula import Draw, Part, parts

from .attention import attention_of, index_of

#: The axes of batch b, head n and token s in each layout.
Places = tuple[Tensor, ...]


def _sum_of_powers(out: Tensor, highest: Tensor, total: Tensor) -> tuple[Tensor, ...]:
    """Returns the log-sum-exp m + ln sum of any number m and the sum of exp(score - m)."""
    lse = highest + total.log()
    return out, lse, lse


@parts(view=_sum_of_powers)
def flash_attention_score(
    draw: Draw,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    head_num: int,
    input_layout: str,
    atten_mask: Tensor | None = None,
    scale: float,
    **unused: Any,
) -> tuple[Part, ...]:
    """Computes attention as in inference; with a mask, which is causal, query i sees keys 0 ... i."""
    batches, queries, keys = _sizes(query, key, input_layout)
    width = query.shape[-1] if "D" in input_layout else query.shape[-1] // head_num
    group = query.numel() * keys // (key.numel() * queries)
    rows, outs, sums = [], [], []
    for row in draw(batches * head_num * queries, elements=width, terms=keys * 2 * width):
        b, n, i = row // (head_num * queries), row // queries % head_num, row % queries
        seen = i + 1 if atten_mask is not None else keys
        every_k, every_v = (_tokens(x, input_layout, b, n // group, width)[:seen] for x in (key, value))
        out, lse = attention_of(_tokens(query, input_layout, b, n, width)[i], every_k, every_v, scale)
        rows.append((b, n, i))
        outs.append(out)
        sums.append(lse)
    at = index_of(rows, query.device)
    statistics = Part(at, torch.stack(sums)[:, None])
    return Part(_where(at, input_layout, width), torch.stack(outs)), statistics, statistics


@parts()
def flash_attention_grad(
    draw: Draw,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    *,
    head_num: int,
    input_layout: str,
    atten_mask: Tensor | None = None,
    softmax_max: Tensor,
    softmax_sum: Tensor,
    attention_in: Tensor,
    scale_value: float,
    **unused: Any,
) -> tuple[Part, ...]:
    """Computes the gradients of queries, keys and values.

    With P_ij = e^(s_ij - max_i) / sum_i and dS_ij = P_ij (dy_i . v_j - dy_i . o_i):
    dq_i = scale sum_j dS_ij k_j, dk_j = scale sum_i dS_ij q_i, dv_j = sum_i P_ij dy_i, the last two
    over all heads that share the key.
    """
    batches, queries, keys = _sizes(query, key, input_layout)
    width = query.shape[-1] if "D" in input_layout else query.shape[-1] // head_num
    group = query.numel() * keys // (key.numel() * queries)
    causal = atten_mask is not None

    def shares_and_slopes(b: int, n: int, i: slice, j: slice) -> tuple[Tensor, Tensor]:
        """Returns P and dS of some queries and keys of a head."""
        q, grad, out = (_tokens(x, input_layout, b, n, width)[i].double() for x in (query, dy, attention_in))
        k, v = (_tokens(x, input_layout, b, n // group, width)[j].double() for x in (key, value))
        scores = torch.einsum("id,jd->ij", q, k) * scale_value
        highest, total = (x[b, n, i, 0, None].double() for x in (softmax_max, softmax_sum))
        shares = (scores - highest).exp() / total
        return shares, shares * (torch.einsum("id,jd->ij", grad, v) - (grad * out).sum(dim=-1, keepdim=True))

    rows, dq = [], []
    for row in draw(batches * head_num * queries, elements=width, terms=keys * 2 * width):
        b, n, i = row // (head_num * queries), row // queries % head_num, row % queries
        seen = slice(0, i + 1 if causal else keys)
        _, slopes = shares_and_slopes(b, n, slice(i, i + 1), seen)
        k = _tokens(key, input_layout, b, n // group, width)[seen].double()
        rows.append((b, n, i))
        dq.append((slopes.T * k).sum(dim=0) * scale_value)
    kv_rows, dk, dv = [], [], []
    kv_heads = head_num // group
    for row in draw(batches * kv_heads * keys, elements=width, terms=queries * group * 3 * width):
        b, h, j = row // (kv_heads * keys), row // keys % kv_heads, row % keys
        seeing = slice(j if causal else 0, queries)
        of_key = torch.zeros(width, dtype=torch.float64, device=query.device)
        of_value = torch.zeros_like(of_key)
        for n in range(h * group, (h + 1) * group):
            shares, slopes = shares_and_slopes(b, n, seeing, slice(j, j + 1))
            q, grad = (_tokens(x, input_layout, b, n, width)[seeing].double() for x in (query, dy))
            of_key += (slopes * q).sum(dim=0) * scale_value
            of_value += (shares * grad).sum(dim=0)
        kv_rows.append((b, h, j))
        dk.append(of_key)
        dv.append(of_value)
    written = _where(index_of(kv_rows, query.device), input_layout, width)
    return (
        Part(_where(index_of(rows, query.device), input_layout, width), torch.stack(dq)),
        Part(written, torch.stack(dk)),
        Part(written, torch.stack(dv)),
    )


def _sizes(query: Tensor, key: Tensor, layout: str) -> tuple[int, int, int]:
    """Returns the sizes of batch, queries and keys."""
    of_tokens = layout.index("S")
    return query.shape[layout.index("B")], query.shape[of_tokens], key.shape[of_tokens]


def _tokens(x: Tensor, layout: str, batch: int, head: int, width: int) -> Tensor:
    """Returns all tokens of a head, (S, D)."""
    if layout == "BNSD":
        return x[batch, head]
    if layout == "BSND":
        return x[batch, :, head]
    tokens = x[:, batch] if layout == "SBH" else x[batch]
    return tokens[:, head * width : (head + 1) * width]


def _where(at: Places, layout: str, width: int) -> Places:
    """Returns the index of vectors (b, n, s) of a tensor."""
    b, n, s = at
    if layout == "BNSD":
        return b, n, s
    if layout == "BSND":
        return b, s, n
    first, second = (s, b) if layout == "SBH" else (b, s)
    return first[:, None], second[:, None], n[:, None] * width + torch.arange(width, device=b.device)
