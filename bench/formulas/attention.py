"""Attention formulas: one query token and head at a time, over the keys that it sees.

softmax(q K^T / sqrt(D)) V (Vaswani et al. 2017). The arguments are described in the documentation of
npu_fused_infer_attention_score and npu_ring_mla (torch_npu).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import torch

from opatlas.engine.formula import Draw, Part, each, parts, per_element, to_float64


def attention_of(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns o = sum_j e^(s_j) v_j / sum_j e^(s_j), and ln sum_j e^(s_j); s_j = scale q . k_j.

    Shapes: (D,), (T, D) and (T, Dv).
    """
    scores = keys.double() @ q.double() * scale
    highest = scores.max()
    powers = (scores - highest).exp()
    total = powers.sum()
    return powers @ values.double() / total, highest + total.log()


@parts()
def fused_infer_attention_score(
    draw: Draw,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int],
    block_table: torch.Tensor | None = None,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
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

    def read_tokens(cache: torch.Tensor, number: int, head: int, seen: int) -> torch.Tensor:
        """Returns the first `seen` vectors of a sequence, (seen, D)."""
        if block_table is None:
            start = actual_seq_lengths_kv[number - 1] if number else 0
            return cache[start : start + seen, head]
        j = torch.arange(seen, device=cache.device)
        block, offset = block_table[number][j // block_size].long(), j % block_size
        if cache.dim() == 4:
            return cache[block, head, offset]
        width = cache.shape[-1] // num_key_value_heads
        return cache[block, offset][:, head * width : (head + 1) * width]

    longest = max(actual_seq_lengths_kv)
    rows, outs, sums = [], [], []
    width = value.shape[-1] // (num_key_value_heads if block_table is not None and value.dim() == 3 else 1)
    for row in draw(tokens * num_heads, elements=width, terms=longest * 2 * width):
        token, n = divmod(row, num_heads)
        number, i, queries = sequence(token)
        kv = actual_seq_lengths_kv[number]
        if block_table is None and number:
            kv -= actual_seq_lengths_kv[number - 1]
        seen = kv - queries + i + 1 if sparse_mode == 3 else kv
        head = n // (num_heads // num_key_value_heads)
        at = (token, n) if tnd else (number, n, i)
        q, keys = query[at], read_tokens(key, number, head, seen)
        if query_rope is not None and key_rope is not None:
            q = torch.cat([q, query_rope[at]])
            keys = torch.cat([keys, read_tokens(key_rope, number, head, seen)], dim=-1)
        out, lse = attention_of(q, keys, read_tokens(value, number, head, seen), scale)
        rows.append((token, n) if tnd else (n, number, i))
        outs.append(out)
        sums.append(lse)
    where = index_of(rows, query.device)
    found = Part(where, torch.stack(outs))
    if not softmax_lse_flag:
        return (found,)
    return found, Part(where if tnd else (where[1], where[0], where[2]), torch.stack(sums)[:, None])


@parts()
def ring_mla(
    draw: Draw,
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    k_nope: torch.Tensor,
    k_rope: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    seqlen: torch.Tensor,
    head_num: int,
    kv_head_num: int,
    *,
    pre_out: torch.Tensor | None = None,
    prev_lse: torch.Tensor | None = None,
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
    rows, outs, sums = [], [], []
    for row in draw(len(q_nope) * head_num, elements=value.shape[-1], terms=len(k_nope) * 2 * value.shape[-1]):
        token, n = divmod(row, head_num)
        head = n // (head_num // kv_head_num)
        own = slice(*spans[token])
        q = torch.cat([q_nope[token, n], q_rope[token, n]])
        keys = torch.cat([k_nope[own, head], k_rope[own, head]], dim=-1)
        out, lse = attention_of(q, keys, value[own, head], qk_scale)
        if pre_out is not None and prev_lse is not None:
            before = prev_lse[n, token].double()
            both = (lse.exp() + before.exp()).log()
            out = (lse - both).exp() * out + (before - both).exp() * pre_out[token, n].double()
            lse = both
        rows.append((token, n))
        outs.append(out)
        sums.append(lse)
    tokens, heads = index_of(rows, q_nope.device)
    return Part((tokens, heads), torch.stack(outs)), Part((heads, tokens), torch.stack(sums))


def index_of(rows: Sequence[tuple[int, ...]], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Returns elements of a tensor as an index tensor for each axis."""
    return tuple(torch.tensor(axis, device=device) for axis in zip(*rows, strict=True))


@per_element()
def _merge_results(
    at: tuple[torch.Tensor, ...], lse: Sequence[torch.Tensor], local_out: Sequence[torch.Tensor], *_: int
) -> torch.Tensor:
    """Returns sum over parts of exp(lse) out, divided by the sum of exp(lse)."""
    shares = torch.stack([to_float64(own[at[:-1]]).exp() for own in lse])
    return (shares * torch.stack([to_float64(own[at]) for own in local_out])).sum(dim=0) / shares.sum(dim=0)


@per_element()
def _merge_sums(at: tuple[torch.Tensor, ...], lse: Sequence[torch.Tensor], *_: object) -> torch.Tensor:
    """Returns ln(sum over parts of exp(lse))."""
    return torch.stack([to_float64(own[at]).exp() for own in lse]).sum(dim=0).log()


attention_update = each(_merge_results, _merge_sums)
