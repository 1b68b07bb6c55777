"""Attention formulas: for query tokens and heads, over the keys that each sees.

softmax(q K^T / sqrt(D)) V (Vaswani et al. 2017). The arguments are described in the documentation of
npu_fused_infer_attention_score and npu_ring_mla (torch_npu).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from opatlas.run.formula import Draw, Part, each, parts, per_element, to_float64

#: Most inputs that are read at once, and converted to float64: 64 MiB.
_MOST_READ = 1 << 23


def attention_of(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Returns o = sum_j e^(s_j) v_j / sum_j e^(s_j), and ln sum_j e^(s_j); s_j = scale q . k_j.

    Shapes: (D,), (T, D) and (T, Dv).
    """
    scores = keys.double() @ q.double() * scale
    highest = scores.max()
    powers = (scores - highest).exp()
    total = powers.sum()
    return powers @ values.double() / total, highest + total.log()


def attention_of_each(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Returns the results of `attention_of` for P queries, of which each sees its first `seen` keys.

    Shapes: (P, D), (P, T, D), (P, T, Dv) and (P,); results (P, Dv) and (P,).
    """
    scores = torch.bmm(keys.double(), q.double().unsqueeze(-1)).squeeze(-1) * scale
    scores = scores.masked_fill(torch.arange(keys.shape[1], device=q.device) >= seen.unsqueeze(-1), -torch.inf)
    highest = scores.amax(dim=-1, keepdim=True)
    powers = (scores - highest).exp()
    total = powers.sum(dim=-1, keepdim=True)
    out = torch.bmm(powers.unsqueeze(1), values.double()).squeeze(1) / total
    return out, (highest + total.log()).squeeze(-1)


def batches(seen: Sequence[int], width: int) -> Iterator[tuple[slice, int]]:
    """Yields consecutive parts, as many as read `_MOST_READ` numbers, and the most keys that one of them sees.

    Args:
        seen: number of keys that each part sees.
        width: number of inputs for each key.
    """
    start = 0
    while start < len(seen):
        end, longest = start + 1, seen[start]
        while end < len(seen) and (end + 1 - start) * max(longest, seen[end]) * width <= _MOST_READ:
            longest = max(longest, seen[end])
            end += 1
        yield slice(start, end), longest
        start = end


@parts()
def fused_infer_attention_score(
    draw: Draw,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int],
    block_table: Tensor | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    num_heads: int,
    scale: float,
    input_layout: str,
    num_key_value_heads: int,
    sparse_mode: int = 0,
    block_size: int = 0,
    softmax_lse_flag: bool = False,
    **unused: Any,
) -> tuple[Part, ...]:
    """Computes attention; query i of S sees all T keys of its sequence, with sparse_mode 3 the first T - S + i + 1.

    Head n shares the keys of head n // (heads / key heads). In pages, key j of sequence b lies in
    block table[b, j // block size], at offset j % block size.
    """
    tnd = input_layout == "TND"
    length = 0 if tnd else query.shape[2]
    tokens = query.shape[0] if tnd else query.shape[0] * length

    def sequence(token: int) -> tuple[int, int, int]:
        """Returns the sequence of a query, the position of the query in it, and its number of queries."""
        if not tnd or actual_seq_lengths is None:
            return token // length, token % length, length
        number = bisect_right(actual_seq_lengths, token)
        start = actual_seq_lengths[number - 1] if number else 0
        return number, token - start, actual_seq_lengths[number] - start

    def place_of(row: int) -> tuple[int, ...]:
        """Returns token, head, sequence, position in the sequence, key head, first key, and number of keys seen."""
        token, n = divmod(row, num_heads)
        number, i, queries = sequence(token)
        first = actual_seq_lengths_kv[number - 1] if number and block_table is None else 0
        kv = actual_seq_lengths_kv[number] - first
        seen = kv - queries + i + 1 if sparse_mode == 3 else kv
        return token, n, number, i, n // (num_heads // num_key_value_heads), first, seen

    def read(cache: Tensor, own: tuple[Tensor, ...]) -> Tensor:
        """Returns the vectors of keys, (P, T, D); `own` has token and head, or page, head and offset."""
        if block_table is not None and cache.dim() == 3:
            block, head, offset = own
            own, cache = (block, offset, head), cache.unflatten(-1, (num_key_value_heads, -1))
        return cache[own]

    longest = max(actual_seq_lengths_kv)
    width = value.shape[-1] // (num_key_value_heads if block_table is not None and value.dim() == 3 else 1)
    rows = list(map(place_of, draw(tokens * num_heads, elements=width, terms=longest * 2 * width)))
    outs, sums = [], []
    for batch, most in batches([row[-1] for row in rows], 2 * query.shape[-1]):
        token, n, number, i, head, first, seen = index_of(rows[batch], query.device)
        # Values behind the keys that a query sees are not read.
        j = torch.arange(most, device=query.device).minimum(seen.unsqueeze(-1) - 1)
        own: tuple[Tensor, ...] = (first.unsqueeze(-1) + j, head.unsqueeze(-1))
        if block_table is not None:
            own = (block_table[number.unsqueeze(-1), j // block_size].long(), head.unsqueeze(-1), j % block_size)
        at = (token, n) if tnd else (number, n, i)
        q, keys = query[at], read(key, own)
        if query_rope is not None and key_rope is not None:
            q, keys = torch.cat([q, query_rope[at]], dim=-1), torch.cat([keys, read(key_rope, own)], dim=-1)
        out, lse = attention_of_each(q, keys, read(value, own), seen, scale)
        outs.append(out)
        sums.append(lse)
    token, n, number, i = index_of([row[:4] for row in rows], query.device)
    where: tuple[Tensor, ...] = (token, n) if tnd else (n, number, i)
    found = Part(where, torch.cat(outs))
    if not softmax_lse_flag:
        return (found,)
    return found, Part(where if tnd else (where[1], where[0], where[2]), torch.cat(sums)[:, None])


@parts()
def ring_mla(
    draw: Draw,
    q_nope: Tensor,
    q_rope: Tensor,
    k_nope: Tensor,
    k_rope: Tensor,
    value: Tensor,
    mask: Tensor,
    seqlen: Tensor,
    head_num: int,
    kv_head_num: int,
    *,
    pre_out: Tensor | None = None,
    prev_lse: Tensor | None = None,
    qk_scale: float,
    mask_type: str,
    **unused: Any,
) -> tuple[Part, ...]:
    """Computes o and l, the attention to the keys of this step, and merges o' and l' of an earlier step.

    L = ln(e^l + e^l'), O = e^(l - L) o + e^(l' - L) o' (Liu et al. 2023, ring attention).
    """
    lengths = seqlen.reshape(-1, seqlen.shape[-1]).tolist()
    spans: list[tuple[int, int]] = []
    start = 0
    causal = mask_type == "mask_type_triu"
    for queries, kv in zip(lengths[0], lengths[-1], strict=True):
        spans += [(start, start + (kv - queries + i + 1 if causal else kv)) for i in range(queries)]
        start += kv

    def place_of(row: int) -> tuple[int, ...]:
        """Returns token, head, key head, first key, and number of keys seen."""
        token, n = divmod(row, head_num)
        first, end = spans[token]
        return token, n, n // (head_num // kv_head_num), first, end - first

    numbers = draw(len(q_nope) * head_num, elements=value.shape[-1], terms=len(k_nope) * 2 * value.shape[-1])
    rows = list(map(place_of, numbers))
    outs, sums = [], []
    for batch, most in batches([row[-1] for row in rows], q_nope.shape[-1] + q_rope.shape[-1] + value.shape[-1]):
        tokens, n, head, first, seen = index_of(rows[batch], q_nope.device)
        j = torch.arange(most, device=q_nope.device).minimum(seen.unsqueeze(-1) - 1)
        own = (first.unsqueeze(-1) + j, head.unsqueeze(-1))
        q = torch.cat([q_nope[tokens, n], q_rope[tokens, n]], dim=-1)
        keys = torch.cat([k_nope[own], k_rope[own]], dim=-1)
        out, lse = attention_of_each(q, keys, value[own], seen, qk_scale)
        if pre_out is not None and prev_lse is not None:
            before = prev_lse[n, tokens].double()
            both = (lse.exp() + before.exp()).log()
            out = (lse - both).exp()[:, None] * out + (before - both).exp()[:, None] * pre_out[tokens, n].double()
            lse = both
        outs.append(out)
        sums.append(lse)
    tokens, heads = index_of([row[:2] for row in rows], q_nope.device)
    return Part((tokens, heads), torch.cat(outs)), Part((heads, tokens), torch.cat(sums))


def index_of(rows: Sequence[tuple[int, ...]], device: torch.device) -> tuple[Tensor, ...]:
    """Returns elements of a tensor as an index tensor for each axis."""
    axes: tuple[Tensor, ...] = torch.tensor(rows, device=device).unbind(-1)
    return axes


@per_element()
def _merge_results(at: tuple[Tensor, ...], lse: Sequence[Tensor], local_out: Sequence[Tensor], *_: int) -> Tensor:
    """Returns sum over parts of exp(lse) out, divided by the sum of exp(lse)."""
    shares = torch.stack([to_float64(own[at[:-1]]).exp() for own in lse])
    return (shares * torch.stack([to_float64(own[at]) for own in local_out])).sum(dim=0) / shares.sum(dim=0)


@per_element()
def _merge_sums(at: tuple[Tensor, ...], lse: Sequence[Tensor], *_: object) -> Tensor:
    """Returns ln(sum over parts of exp(lse))."""
    return torch.stack([to_float64(own[at]).exp() for own in lse]).sum(dim=0).log()


attention_update = each(_merge_results, _merge_sums)
