"""Attention over keys that lie together, with gradients (Dao et al. 2022, algorithms 1 and 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from opatlas.run.formula import Draw, Part, parts

from ..implementations._calls import DenseAttention, FlashAttention, FlashAttentionGrad, takes
from .attention import Places, attend, index_of, sum_of_powers


@parts(view=sum_of_powers)
@takes
def flash_attention_score(draw: Draw, call: FlashAttention) -> tuple[Part, ...]:
    """Computes attention as in inference; with a mask, which is causal, query i sees keys 0 ... i."""
    found, at, sums = _dense(draw, call, call.head_num, call.scale, call.atten_mask is not None)
    statistics = Part(at, sums[:, None])
    return found, statistics, statistics


@parts()
@takes
def dense_attention(draw: Draw, call: DenseAttention) -> tuple[Part, ...]:
    """Computes attention; with the mask of several queries, which is causal, the last query sees all keys."""
    causal = call.atten_mask is not None and call.query.shape[call.input_layout.index("S")] > 1
    return _dense(draw, call, call.num_heads, call.scale_value, causal)[:1]


def _dense(
    draw: Draw, call: FlashAttention | DenseAttention, heads: int, scale: float, causal: bool
) -> tuple[Part, Places, Tensor]:
    """Returns the results of some queries of sequences of one length, where they are, and their log-sum-exps."""
    layout = call.input_layout
    (batches, heads, queries, width), (kv_heads, keys) = _sizes(call.query, call.key, heads, layout)
    q, k, v = (_by_heads(x, layout, width) for x in (call.query, call.key, call.value))

    def read(b: int, n: int, i: int, seen: int) -> Places:
        own = (b, n // (heads // kv_heads), slice(seen))
        return q[b, n, i], k[own], v[own]

    numbers = draw(batches * heads * queries, elements=width, terms=keys * 2 * width)
    hidden = queries - 1 if causal else 0
    rows = [(*_coordinates(row, heads, queries), keys - hidden + (row % queries if causal else 0)) for row in numbers]
    out, sums = attend(rows, scale, read)
    at = index_of([row[:3] for row in rows], q.device)
    return Part(_where(at, layout, width), out), at, sums


@parts()
@takes
def flash_attention_grad(draw: Draw, call: FlashAttentionGrad) -> tuple[Part, ...]:
    """Computes the gradients of queries, keys and values.

    With P_ij = e^(s_ij - max_i) / sum_i and dS_ij = P_ij (dy_i . v_j - dy_i . o_i): dq_i = scale sum_j dS_ij k_j,
    dk_j = scale sum_i dS_ij q_i, dv_j = sum_i P_ij dy_i, the last two over all heads that share the key.
    """
    layout, scale = call.input_layout, call.scale_value
    (batches, heads, queries, width), (kv_heads, keys) = _sizes(call.query, call.key, call.head_num, layout)
    tensors = (call.query, call.key, call.value, call.dy, call.attention_in)
    q, k, v, grad, out = (_by_heads(x, layout, width) for x in tensors)
    causal, group, device = call.atten_mask is not None, heads // kv_heads, q.device

    def shares_and_slopes(b: int, n: int, i: slice, j: slice) -> tuple[Tensor, Tensor]:
        """Returns P and dS of some queries and keys of a head."""
        own_q, own_grad, own_out = (x[b, n, i].double() for x in (q, grad, out))
        own_k, own_v = (x[b, n // group, j].double() for x in (k, v))
        scores = torch.einsum("id,jd->ij", own_q, own_k) * scale
        highest, total = (x[b, n, i, 0, None].double() for x in (call.softmax_max, call.softmax_sum))
        shares = (scores - highest).exp() / total
        slopes = torch.einsum("id,jd->ij", own_grad, own_v) - (own_grad * own_out).sum(dim=-1, keepdim=True)
        return shares, shares * slopes

    rows, dq = [], []
    for row in draw(batches * heads * queries, elements=width, terms=keys * 2 * width):
        b, n, i = _coordinates(row, heads, queries)
        seen = slice(0, i + 1 if causal else keys)
        _, slopes = shares_and_slopes(b, n, slice(i, i + 1), seen)
        rows.append((b, n, i))
        dq.append((slopes.T * k[b, n // group, seen].double()).sum(dim=0) * scale)
    kv_rows, dk, dv = [], [], []
    for row in draw(batches * kv_heads * keys, elements=width, terms=queries * group * 3 * width):
        b, h, j = _coordinates(row, kv_heads, keys)
        seeing = slice(j if causal else 0, queries)
        of_key, of_value = torch.zeros(2, width, dtype=torch.float64, device=device)
        for n in range(h * group, (h + 1) * group):
            shares, slopes = shares_and_slopes(b, n, seeing, slice(j, j + 1))
            of_key += (slopes * q[b, n, seeing].double()).sum(dim=0) * scale
            of_value += (shares * grad[b, n, seeing].double()).sum(dim=0)
        kv_rows.append((b, h, j))
        dk.append(of_key)
        dv.append(of_value)
    written = _where(index_of(kv_rows, device), layout, width)
    return (
        Part(_where(index_of(rows, device), layout, width), torch.stack(dq)),
        Part(written, torch.stack(dk)),
        Part(written, torch.stack(dv)),
    )


def _coordinates(row: int, heads: int, tokens: int) -> tuple[int, int, int]:
    """Returns batch, head and token of a row."""
    return row // (heads * tokens), row // tokens % heads, row % tokens


def _sizes(query: Tensor, key: Tensor, heads: int, layout: str) -> tuple[tuple[int, int, int, int], tuple[int, int]]:
    """Returns batch, heads, queries and width; heads and number of the keys."""
    queries, keys = (x.shape[layout.index("S")] for x in (query, key))
    width = query.shape[-1] if "D" in layout else query.shape[-1] // heads
    batches = query.shape[layout.index("B")]
    return (batches, heads, queries, width), (key.numel() // (batches * keys * width), keys)


def _by_heads(x: Tensor, layout: str, width: int) -> Tensor:
    """Returns a view (B, N, S, D)."""
    if "D" not in layout:
        x = x.unflatten(-1, (-1, width))
    return x.permute({"BNSD": (0, 1, 2, 3), "SBH": (1, 2, 0, 3)}.get(layout, (0, 2, 1, 3)))


def _where(at: Places, layout: str, width: int) -> Places:
    """Returns the index of vectors (b, n, s) of a tensor."""
    b, n, s = at
    if layout == "BNSD":
        return b, n, s
    if layout == "BSND":
        return b, s, n
    first, second = (s, b) if layout == "SBH" else (b, s)
    return first[:, None], second[:, None], n[:, None] * width + torch.arange(width, device=b.device)
