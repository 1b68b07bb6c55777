"""Attention formulas: for query tokens and heads, over the keys that each sees.

softmax(q K^T / sqrt(D)) V (Vaswani et al. 2017), and sparse (DeepSeek-V3.2). The arguments are described in the
documentation of torch_npu.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from opatlas.run.formula import Draw, Part, each, parts, per_element, to_float64
from opatlas.run.result_check import Largest

from .matmul import FP8

#: Most inputs that are read at once, and converted to float64: 64 MiB.
_MOST_READ = 1 << 23
#: A kernel may multiply in the dtype of the cache: two units in its last place are so many of BF16.
_STEPS_OF_FP8 = 16
#: Coordinates of a query of the result, and the number of keys that it sees.
Row = tuple[int, ...]
#: An index tensor for each axis of some queries, and the keys that each sees, (P, T): the last key is repeated.
Places = tuple[Tensor, ...]


def attend(
    rows: Sequence[Row], width: int, device: torch.device, scale: float, read: Callable[[Places, Tensor], Places]
) -> tuple[Tensor, Tensor]:
    """Returns o = sum_j e^(s_j) v_j / sum_j e^(s_j), and ln sum_j e^(s_j); s_j = scale q . k_j: (P, Dv) and (P,).

    Args:
        rows: P queries; the last number is how many keys the query sees.
        width: number of inputs for each key.
        read: gets the numbers of some rows and the keys that each sees, and returns queries (P, D), keys (P, T, D) and
            values (P, T, Dv).
    """
    outs, sums = [], []
    for batch, most in _batches([row[-1] for row in rows], width):
        *places, seen = index_of(rows[batch], device)
        # Values behind the keys that a query sees are not read.
        j = torch.arange(most, device=device).minimum(seen.unsqueeze(-1) - 1)
        q, keys, values = read(tuple(places), j)
        scores = torch.bmm(keys.double(), q.double().unsqueeze(-1)).squeeze(-1) * scale
        scores = scores.masked_fill(torch.arange(most, device=device) >= seen.unsqueeze(-1), -torch.inf)
        highest = scores.amax(dim=-1, keepdim=True)
        powers = (scores - highest).exp()
        total = powers.sum(dim=-1, keepdim=True)
        outs.append(torch.bmm(powers.unsqueeze(1), values.double()).squeeze(1) / total)
        sums.append((highest + total.log()).squeeze(-1))
    return torch.cat(outs), torch.cat(sums)


def _batches(seen: Sequence[int], width: int) -> Iterator[tuple[slice, int]]:
    """Yields consecutive parts, as many as read `_MOST_READ` numbers, and the most keys that one of them sees."""
    start = 0
    while start < len(seen):
        end, longest = start + 1, seen[start]
        while end < len(seen) and (end + 1 - start) * max(longest, seen[end]) * width <= _MOST_READ:
            longest = max(longest, seen[end])
            end += 1
        yield slice(start, end), longest
        start = end


def index_of(rows: Sequence[Row], device: torch.device) -> Places:
    """Returns elements of a tensor as an index tensor for each axis."""
    axes: Places = torch.tensor(rows, device=device).unbind(-1)
    return axes


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
    pre_tokens: int = 0,
    learnable_sink: Tensor | None = None,
    **unused: Any,
) -> tuple[Part, ...]:
    """Computes attention; query i of S sees all T keys of its sequence, with sparse_mode 3 the first T - S + i + 1.

    With sparse_mode 4 it sees the last pre_tokens + 1 of these. A sink is one more score of a head, without a value.
    Head n shares the keys of head n // (heads / key heads). In pages, key j of sequence b lies in
    block table[b, j // block size], at offset j % block size.
    """
    tnd = input_layout == "TND"
    length = 0 if tnd else query.shape[2]
    tokens = query.shape[0] if tnd else query.shape[0] * length

    def place_of(row: int) -> Row:
        """Returns token, head, sequence, position in the sequence, key head, first key, and number of keys seen."""
        token, n = divmod(row, num_heads)
        number, i, queries = _sequence(token, actual_seq_lengths if tnd else None, length)
        first = actual_seq_lengths_kv[number - 1] if number and block_table is None else 0
        kv = actual_seq_lengths_kv[number] - first
        seen = kv - queries + i + 1 if sparse_mode else kv
        cut = max(seen - pre_tokens - 1, 0) if sparse_mode == 4 else 0
        return token, n, number, i, n // (num_heads // num_key_value_heads), first + cut, seen - cut

    def read(places: Places, j: Tensor) -> Places:
        token, n, number, i, head, first = places
        j = first.unsqueeze(-1) + j
        own: Places = (j, head.unsqueeze(-1))
        if block_table is not None:
            own = (block_table[number.unsqueeze(-1), j // block_size].long(), head.unsqueeze(-1), j % block_size)
        at = (token, n) if tnd else (number, n, i)
        q, keys = query[at], _stored(key, own, num_key_value_heads)
        if query_rope is not None and key_rope is not None:
            rope = _stored(key_rope, own, num_key_value_heads)
            q, keys = torch.cat([q, query_rope[at]], dim=-1), torch.cat([keys, rope], dim=-1)
        return q, keys, _stored(value, own, num_key_value_heads)

    width = value.shape[-1] // (num_key_value_heads if block_table is not None and value.dim() == 3 else 1)
    rows = list(map(place_of, draw(tokens * num_heads, elements=width, terms=max(actual_seq_lengths_kv) * 2 * width)))
    out, sums = attend(rows, 2 * query.shape[-1], query.device, scale, read)
    token, n, number, i = index_of([row[:4] for row in rows], query.device)
    if learnable_sink is not None:
        out = out / (1 + (learnable_sink[n].double() - sums).exp())[:, None]
    where: Places = (token, n) if tnd else (n, number, i)
    found = Part(where, out, steps=_STEPS_OF_FP8 if key.dtype in FP8 else 1)
    if not softmax_lse_flag:
        return (found,)
    return found, Part(where if tnd else (number, n, i), sums[:, None])


def _sequence(token: int, ends: Sequence[int] | None, length: int) -> tuple[int, int, int]:
    """Returns the sequence of a query, the position of the query in it, and its number of queries.

    `ends` are those of the sequences; None: each has `length` queries.
    """
    if ends is None:
        return token // length, token % length, length
    number = bisect_right(ends, token)
    start = ends[number - 1] if number else 0
    return number, token - start, ends[number] - start


def _stored(cache: Tensor, own: Places, heads: int) -> Tensor:
    """Returns the vectors of keys, (P, T, D); `own` has token and head, or page, head and offset."""
    if len(own) == 3 and cache.dim() == 3:
        block, head, offset = own
        own, cache = (block, offset, head), cache.unflatten(-1, (heads, -1))
    return cache[own]


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
        spans += [(start, kv - queries + i + 1 if causal else kv) for i in range(queries)]
        start += kv

    def read(places: Places, j: Tensor) -> Places:
        token, n, first = places
        own = (first.unsqueeze(-1) + j, (n // (head_num // kv_head_num)).unsqueeze(-1))
        keys = torch.cat([k_nope[own], k_rope[own]], dim=-1)
        return torch.cat([q_nope[token, n], q_rope[token, n]], dim=-1), keys, value[own]

    numbers = draw(len(q_nope) * head_num, elements=value.shape[-1], terms=len(k_nope) * 2 * value.shape[-1])
    rows = [(token, n, *spans[token]) for token, n in (divmod(number, head_num) for number in numbers)]
    width = q_nope.shape[-1] + q_rope.shape[-1] + value.shape[-1]
    out, lse = attend(rows, width, q_nope.device, qk_scale, read)
    tokens, heads = index_of([row[:2] for row in rows], q_nope.device)
    if pre_out is not None and prev_lse is not None:
        before = prev_lse[heads, tokens].double()
        both = (lse.exp() + before.exp()).log()
        out = (lse - both).exp()[:, None] * out + (before - both).exp()[:, None] * pre_out[tokens, heads].double()
        lse = both
    return Part((tokens, heads), out), Part((heads, tokens), lse)


@per_element()
def _merge_results(at: Places, lse: Sequence[Tensor], local_out: Sequence[Tensor], *_: int) -> Tensor:
    """Returns sum over parts of exp(lse) out, divided by the sum of exp(lse)."""
    shares = torch.stack([to_float64(own[at[:-1]]).exp() for own in lse])
    return (shares * torch.stack([to_float64(own[at]) for own in local_out])).sum(dim=0) / shares.sum(dim=0)


@per_element()
def _merge_sums(at: Places, lse: Sequence[Tensor], *_: object) -> Tensor:
    """Returns ln(sum over parts of exp(lse))."""
    return torch.stack([to_float64(own[at]).exp() for own in lse]).sum(dim=0).log()


attention_update = each(_merge_results, _merge_sums)


def _sort_scores(indices: Tensor, *scores: Tensor) -> Places:
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
    ends, (heads, width) = actual_seq_lengths_query.tolist(), query.shape[1:]
    # The keys of a query before the places without a key.
    chosen = sparse_indices[:, 0].sort(dim=-1, descending=True).values.long()
    counts = (chosen >= 0).sum(dim=-1).tolist()

    def read(places: Places, j: Tensor) -> Places:
        token, n, b = places
        table, keys = block_table[b], chosen[token].gather(1, j)
        own = (table.gather(1, keys // key.shape[1]).long(), keys % key.shape[1], 0)
        q = torch.cat([query[token, n], query_rope[token, n]], dim=-1)
        return q, torch.cat([key[own], key_rope[own]], dim=-1), value[own]

    numbers = draw(len(query) * heads, elements=width, terms=sparse_indices.shape[-1] * 2 * width)
    rows = [(t, n, bisect_right(ends, t), counts[t]) for t, n in (divmod(number, heads) for number in numbers)]
    out, _ = attend(rows, 2 * width + key_rope.shape[-1], query.device, scale_value, read)
    return (Part(index_of([row[:2] for row in rows], query.device), out),)


def _read_pages(cache: Tensor, table: Tensor, j: Tensor) -> Tensor:
    """Returns tokens j of a sequence whose pages are in `table`: (len(j), D)."""
    size = cache.shape[1]
    return cache[table[j // size].long(), j % size, 0]
