"""Attention formulas: for query tokens and heads, over the keys that each sees.

softmax(q K^T / sqrt(D)) V (Vaswani et al. 2017), and sparse (DeepSeek-V3.2). The arguments are described in the
documentation of torch_npu.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from opatlas.run.formula import Draw, Part, each, parts, per_element, to_float64
from opatlas.run.result_check import Largest

from .matmul import FP8

#: A kernel may multiply in the dtype of the cache: two units in its last place are so many of BF16.
_STEPS_OF_FP8 = 16
#: An index tensor for each axis of some queries.
Places = tuple[Tensor, ...]


def attend(rows: Sequence[Sequence[int]], scale: float, read: Callable[..., Places]) -> tuple[Tensor, Tensor]:
    """Returns o = sum_j e^(s_j) v_j / sum_j e^(s_j), and ln sum_j e^(s_j); s_j = scale q . k_j: (P, Dv) and (P,).

    Args:
        rows: P queries, as some numbers each.
        read: gets the numbers of a query; returns it (D), and the keys (T, D) and values (T, Dv) that it sees.
    """
    outs, sums = [], []
    for row in rows:
        q, keys, values = (x.double() for x in read(*row))
        scores = keys @ q * scale
        sums.append(scores.logsumexp(dim=0))
        outs.append((scores - sums[-1]).exp() @ values)
    return torch.stack(outs), torch.stack(sums)


def index_of(rows: Sequence[Sequence[int]], device: torch.device) -> Places:
    """Returns elements of a tensor as an index tensor for each axis."""
    axes: Places = torch.tensor(rows, device=device).unbind(-1)
    return axes


@parts()
def fused_infer_attention_score(
    draw: Draw, query: Tensor, key: Tensor, value: Tensor, *, num_heads: int, scale: float, **call: Any
) -> tuple[Part, ...]:
    """Computes attention; query i of S sees all T keys of its sequence, with sparse_mode 3 the first T - S + i + 1.

    With sparse_mode 4 it sees the last pre_tokens + 1 of these. A sink is one more score of a head, without a value.
    Head n shares the keys of head n // (heads / key heads). In pages, key j of sequence b lies in
    block table[b, j // block size], at offset j % block size.
    """
    tnd, lengths, mode = call["input_layout"] == "TND", call["actual_seq_lengths_kv"], call.get("sparse_mode", 0)
    names = ("block_table", "query_rope", "key_rope", "learnable_sink", "actual_seq_lengths")
    block_table, query_rope, key_rope, sink, ends = (call.get(name) for name in names)
    block_size, kv_heads = call.get("block_size", 0), call["num_key_value_heads"]
    length = 0 if tnd else query.shape[2]
    tokens = query.shape[0] if tnd else query.shape[0] * length

    def place_of(row: int) -> tuple[int, ...]:
        """Returns token, head, sequence, position in the sequence, key head, first key, and number of keys seen."""
        token, n = divmod(row, num_heads)
        number, i, queries = _sequence(token, ends if tnd else None, length)
        first = lengths[number - 1] if number and block_table is None else 0
        kv = lengths[number] - first
        seen = kv - queries + i + 1 if mode else kv
        cut = max(seen - call["pre_tokens"] - 1, 0) if mode == 4 else 0
        return token, n, number, i, n // (num_heads // kv_heads), first + cut, seen - cut

    def read(token: int, n: int, number: int, i: int, head: int, first: int, seen: int) -> Places:
        j = torch.arange(first, first + seen, device=query.device)
        own: tuple[Any, ...] = (j, head)
        if block_table is not None:
            own = (block_table[number, j // block_size].long(), head, j % block_size)
        at = (token, n) if tnd else (number, n, i)
        q, keys = query[at], _stored(key, own, kv_heads)
        if query_rope is not None and key_rope is not None:
            rope = _stored(key_rope, own, kv_heads)
            q, keys = torch.cat([q, query_rope[at]], dim=-1), torch.cat([keys, rope], dim=-1)
        return q, keys, _stored(value, own, kv_heads)

    width = value.shape[-1] // (kv_heads if block_table is not None and value.dim() == 3 else 1)
    rows = list(map(place_of, draw(tokens * num_heads, elements=width, terms=max(lengths) * 2 * width)))
    out, sums = attend(rows, scale, read)
    token, n, number, i = index_of([row[:4] for row in rows], query.device)
    if sink is not None:
        out = out / (1 + (sink[n].double() - sums).exp())[:, None]
    where: Places = (token, n) if tnd else (n, number, i)
    found = Part(where, out, steps=_STEPS_OF_FP8 if key.dtype in FP8 else 1)
    if not call.get("softmax_lse_flag"):
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


def _stored(cache: Tensor, own: tuple[Any, ...], heads: int) -> Tensor:
    """Returns the vectors of keys, (T, D); `own` has token and head, or page, head and offset."""
    if len(own) == 3 and cache.dim() == 3:
        block, head, offset = own
        own, cache = (block, offset, head), cache.unflatten(-1, (heads, -1))
    return cache[own]


@parts()
def ring_mla(
    draw: Draw, q_nope: Tensor, q_rope: Tensor, *others: Any, qk_scale: float, mask_type: str, **call: Any
) -> tuple[Part, ...]:
    """Computes o and l, the attention to the keys of this step, and merges o' and l' of an earlier step.

    L = ln(e^l + e^l'), O = e^(l - L) o + e^(l' - L) o' (Liu et al. 2023, ring attention).
    """
    k_nope, k_rope, value, _, seqlen, head_num, kv_head_num = others
    pre_out, prev_lse = call.get("pre_out"), call.get("prev_lse")
    lengths = seqlen.reshape(-1, seqlen.shape[-1]).tolist()
    spans: list[tuple[int, int]] = []
    start = 0
    causal = mask_type == "mask_type_triu"
    for queries, kv in zip(lengths[0], lengths[-1], strict=True):
        spans += [(start, kv - queries + i + 1 if causal else kv) for i in range(queries)]
        start += kv

    def read(token: int, n: int, first: int, seen: int) -> Places:
        own = (slice(first, first + seen), n // (head_num // kv_head_num))
        keys = torch.cat([k_nope[own], k_rope[own]], dim=-1)
        return torch.cat([q_nope[token, n], q_rope[token, n]], dim=-1), keys, value[own]

    numbers = draw(len(q_nope) * head_num, elements=value.shape[-1], terms=len(k_nope) * 2 * value.shape[-1])
    rows = [(token, n, *spans[token]) for token, n in (divmod(number, head_num) for number in numbers)]
    out, lse = attend(rows, qk_scale, read)
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
def lightning_indexer(draw: Draw, query: Tensor, key: Tensor, weights: Tensor, **call: Any) -> tuple[Part, ...]:
    """Returns the largest of sum_n w_n max(q_n . k_j, 0) over the keys j that the query sees (causal)."""
    table, sparse_count = call["block_table"], call["sparse_count"]
    ends, lengths = (call[f"actual_seq_lengths_{name}"].tolist() for name in ("query", "key"))
    longest = max(lengths)
    tokens = draw(len(query), elements=sparse_count, terms=longest * query.shape[1] * query.shape[2])
    scores = torch.full((len(tokens), longest), -torch.inf, dtype=torch.float64, device=query.device)
    for line, token in zip(scores, tokens, strict=True):
        b = bisect_right(ends, token)
        seen = lengths[b] - (ends[b] - token) + 1
        j = torch.arange(seen, device=query.device)
        k = key[table[b, j // key.shape[1]].long(), j % key.shape[1], 0].double()
        line[:seen] = (k @ query[token].double().T).clamp(min=0) @ weights[token].double()
    best = scores.sort(dim=-1, descending=True).values[:, :sparse_count]
    missing = sparse_count - best.shape[-1]
    best = torch.nn.functional.pad(best, (0, missing), value=-torch.inf)
    where = (torch.tensor(tokens, device=query.device), 0)
    found = Part(where, Largest(scores, best))
    return (found, Part(where, best)) if call.get("return_value") else (found,)


@parts()
def sparse_flash_attention(
    draw: Draw, query: Tensor, key: Tensor, value: Tensor, sparse_indices: Tensor, scale_value: float, **call: Any
) -> tuple[Part, ...]:
    """Computes attention over the keys of `sparse_indices`; -1 means no key."""
    ends = call["actual_seq_lengths_query"].tolist()
    queries = [(bisect_right(ends, t), key.shape[:2].numel()) for t in range(len(query))]
    tensors = (torch.cat([query, call["query_rope"]], dim=-1), (key, call["key_rope"]), value)
    return _over_blocks(draw, tensors, (sparse_indices, 1), queries, call["block_table"], scale_value)


@parts()
def sparse_attention_score(draw: Draw, query: Tensor, *tensors: Tensor, **call: Any) -> tuple[Part, ...]:
    """Computes attention over blocks of keys, chosen for each key head, up to the query's own (Lai et al. 2026)."""
    key, value, chosen, table = tensors
    lengths = zip(call["actual_seq_lengths"].tolist(), call["actual_seq_lengths_kv"].tolist(), strict=True)
    queries = [(b, kv - own + i + 1) for b, (own, kv) in enumerate(lengths) for i in range(own)]
    blocks = (chosen.transpose(0, 1), call["block_size"])
    return _over_blocks(draw, (query, (key,), value), blocks, queries, table, call["scale_value"])


@parts()
def index_block_scores(draw: Draw, query: Tensor, key: Tensor, table: Tensor, lengths: Tensor) -> tuple[Part, ...]:
    """Computes max_j q . k_j over the keys of each block; the query's own has infinity (Lai et al. 2026)."""
    (tokens, heads, width), size, own = query.shape, key.shape[1], len(query) // len(table)
    found = torch.full((heads, tokens, table.shape[1]), -torch.inf, dtype=torch.float64, device=query.device)
    numbers = draw(heads * tokens, elements=table.shape[1], terms=2 * table.shape[1] * size * width)
    for h, t in (divmod(number, tokens) for number in numbers):
        b, j = t // own, torch.arange(int(lengths[t // own]) - own + t % own + 1, device=query.device)
        scores = (key[table[b, j // size].long(), j % size].double() * query[t, h].double()).sum(dim=-1)
        found[h, t].scatter_reduce_(0, j // size, scores, "amax")
        found[h, t, j[-1] // size] = torch.inf
    at = index_of([divmod(number, tokens) for number in numbers], query.device)
    return (Part(at, found[at]),)


@parts()
def nsa_select_attention(draw: Draw, query: Tensor, *others: Any, **call: Any) -> tuple[Part, ...]:
    """Computes attention of the last query of each sequence over chosen blocks of keys (Yuan et al. 2025)."""
    *caches, chosen, scale, _, heads, size, _, _ = others
    key, value = (cache.view(*cache.shape[:2], heads, -1) for cache in caches)
    queries = [*enumerate(call["actual_seq_kvlen"])]
    return _over_blocks(draw, (query, (key,), value), (chosen, size), queries, call["block_table"], scale)


def _over_blocks(
    draw: Draw, tensors: Any, blocks: tuple[Tensor, int], queries: Any, table: Tensor, scale: float
) -> tuple[Part]:
    """Computes attention over chosen blocks (T, H, K) of some size; `queries`: sequences and numbers of keys seen."""
    (query, keys, value), (chosen, size), (heads, width) = tensors, blocks, tensors[0].shape[1:]

    def read(t: int, n: int) -> Places:
        (b, seen), h = queries[t], n * chosen.shape[1] // heads
        begins = [block * size for block in chosen[t, h].tolist() if block >= 0]
        j = torch.tensor([j for i in begins for j in range(i, min(i + size, seen))], device=query.device)
        own = (table[b, j // value.shape[1]].long(), j % value.shape[1], h)
        return query[t, n], torch.cat([part[own] for part in keys], dim=-1), value[own]

    numbers = draw(len(query) * heads, elements=value.shape[-1], terms=chosen.shape[-1] * size * 2 * width)
    rows = [divmod(number, heads) for number in numbers]
    return (Part(index_of(rows, query.device), attend(rows, scale, read)[0]),)


@per_element(terms=lambda x, weight, *_, **__: len(weight))
def nsa_compress(at: Places, x: Tensor, weight: Tensor, size: int, stride: int, *, actual_seq_len: Any) -> Tensor:
    """Returns sum_l w_l x_(i + l) over the blocks of each sequence that begin at multiples i of `stride`."""
    ends = pairwise([0, *actual_seq_len])
    begins = torch.tensor([i for first, end in ends for i in range(first, end - size + 1, stride)], device=x.device)
    (block, n, d), found = at, torch.zeros(len(at[0]), dtype=torch.float64, device=x.device)
    for token in range(size):
        found += to_float64(x[begins[block] + token, n, d]) * to_float64(weight[token, n])
    return found
