"""Attention formulas: for query tokens and heads, over the keys that each sees.

softmax(q K^T / sqrt(D)) V (Vaswani et al. 2017), sparse (DeepSeek-V3.2), and in training (Dao et al. 2022, algorithms 1
and 4). The arguments are described in the documentation of torch_npu.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from opatlas.run.formula import Draw, Part, each, parts, per_element, to_float64
from opatlas.run.result_check import Largest

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


def _sort_scores(indices: Tensor, *scores: Tensor) -> tuple[Tensor, ...]:
    """Returns the scores in descending order; a kernel may give any order."""
    return (indices, *(values.sort(dim=-1, descending=True).values for values in scores))


@parts(view=_sort_scores)
def lightning_indexer(
    draw: Draw,
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    *,
    actual_seq_lengths_query: Tensor,
    actual_seq_lengths_key: Tensor,
    block_table: Tensor,
    sparse_count: int,
    return_value: bool = False,
    **unused: Any,
) -> tuple[Part, ...]:
    """Returns the largest of sum_n w_n max(q_n . k_j, 0) over the keys j that the query sees (causal)."""
    ends, lengths = actual_seq_lengths_query.tolist(), actual_seq_lengths_key.tolist()
    longest = max(lengths)
    tokens = draw(len(query), elements=sparse_count, terms=longest * query.shape[1] * query.shape[2])
    scores = torch.full((len(tokens), longest), -torch.inf, dtype=torch.float64, device=query.device)
    for line, token in zip(scores, tokens, strict=True):
        b = bisect_right(ends, token)
        seen = lengths[b] - (ends[b] - token) + 1
        k = _read_pages(key, block_table[b], torch.arange(seen, device=query.device)).double()
        line[:seen] = (k @ query[token].double().T).clamp(min=0) @ weights[token].double()
    best = scores.sort(dim=-1, descending=True).values[:, :sparse_count]
    missing = sparse_count - best.shape[-1]
    best = torch.nn.functional.pad(best, (0, missing), value=-torch.inf)
    where = (torch.tensor(tokens, device=query.device), 0)
    found = Part(where, Largest(scores, best))
    return (found, Part(where, best)) if return_value else (found,)


@parts()
def sparse_flash_attention(
    draw: Draw,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    scale_value: float,
    *,
    block_table: Tensor,
    actual_seq_lengths_query: Tensor,
    query_rope: Tensor,
    key_rope: Tensor,
    **unused: Any,
) -> tuple[Part, ...]:
    """Computes attention over the keys of `sparse_indices`; -1 means no key."""
    ends = actual_seq_lengths_query.tolist()
    heads, width = query.shape[1:]
    rows, outs = [], []
    for row in draw(len(query) * heads, elements=width, terms=sparse_indices.shape[-1] * 2 * width):
        token, n = divmod(row, heads)
        j = sparse_indices[token, 0]
        j = j[j >= 0].long()
        table = block_table[bisect_right(ends, token)]
        keys = torch.cat([_read_pages(key, table, j), _read_pages(key_rope, table, j)], dim=-1)
        q = torch.cat([query[token, n], query_rope[token, n]])
        out, _ = attention_of(q, keys, _read_pages(value, table, j), scale_value)
        rows.append((token, n))
        outs.append(out)
    return (Part(index_of(rows, query.device), torch.stack(outs)),)


def _read_pages(cache: Tensor, table: Tensor, j: Tensor) -> Tensor:
    """Returns tokens j of a sequence whose pages are in `table`: (len(j), D)."""
    size = cache.shape[1]
    return cache[table[j // size].long(), j % size, 0]


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
