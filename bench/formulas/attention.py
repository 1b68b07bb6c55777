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

from ..implementations import _calls as calls
from .matmul import FP8

#: A kernel may multiply in the dtype of the cache: two units in its last place are so many of BF16.
_STEPS_OF_FP8 = 16
#: An index tensor for each axis of some queries.
Places = tuple[Tensor, ...]


def sum_of_powers(out: Tensor, highest: Tensor, total: Tensor) -> Places:
    """Returns the log-sum-exp m + ln sum of any number m and the sum of exp(score - m)."""
    lse = highest + total.log()
    return out, lse, lse


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
@calls.takes
def fused_infer_attention_score(draw: Draw, call: calls.Attention) -> tuple[Part, ...]:
    """Computes attention; query i of S sees all T keys of its sequence, with sparse_mode 3 the first T - S + i + 1.

    With sparse_mode 4 it sees the last pre_tokens + 1 of these. A sink is one more score of a head, without a value.
    Head n shares the keys of head n // (heads / key heads). In pages, key j of sequence b lies in
    block table[b, j // block size], at offset j % block size.
    """
    query, value, heads, kv_heads = call.query, call.value, call.num_heads, call.num_key_value_heads
    tnd, lengths, table = call.input_layout == "TND", call.actual_seq_lengths_kv, call.block_table
    length = 0 if tnd else query.shape[2]
    tokens = query.shape[0] if tnd else query.shape[0] * length

    def place_of(row: int) -> tuple[int, ...]:
        """Returns token, head, sequence, position in the sequence, key head, first key, and number of keys seen."""
        token, n = divmod(row, heads)
        number, i, queries = _sequence(token, call.actual_seq_lengths if tnd else None, length)
        first = lengths[number - 1] if number and table is None else 0
        kv = lengths[number] - first
        seen = kv - queries + i + 1 if call.sparse_mode else kv
        cut = max(seen - call.pre_tokens - 1, 0) if call.sparse_mode == 4 else 0
        return token, n, number, i, n // (heads // kv_heads), first + cut, seen - cut

    def read(token: int, n: int, number: int, i: int, head: int, first: int, seen: int) -> Places:
        j = torch.arange(first, first + seen, device=query.device)
        own: tuple[Any, ...] = (j, head)
        if table is not None:
            own = (table[number, j // call.block_size].long(), head, j % call.block_size)
        at = (token, n) if tnd else (number, n, i)
        q, keys = query[at], _stored(call.key, own, kv_heads)
        if call.query_rope is not None and call.key_rope is not None:
            rope = _stored(call.key_rope, own, kv_heads)
            q, keys = torch.cat([q, call.query_rope[at]], dim=-1), torch.cat([keys, rope], dim=-1)
        return q, keys, _stored(value, own, kv_heads)

    width = value.shape[-1] // (kv_heads if table is not None and value.dim() == 3 else 1)
    rows = list(map(place_of, draw(tokens * heads, elements=width, terms=max(lengths) * 2 * width)))
    out, sums = attend(rows, call.scale, read)
    token, n, number, i = index_of([row[:4] for row in rows], query.device)
    if call.learnable_sink is not None:
        out = out / (1 + (call.learnable_sink[n].double() - sums).exp())[:, None]
    where: Places = (token, n) if tnd else (n, number, i)
    found = Part(where, out, steps=_STEPS_OF_FP8 if call.key.dtype in FP8 else 1)
    statistics = Part(where if tnd else (number, n, i), sums[:, None])
    return (found, statistics) if call.softmax_lse_flag else (found,)


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
@calls.takes
def ring_mla(draw: Draw, call: calls.RingMla) -> tuple[Part, ...]:
    """Computes o and l, the attention to the keys of this step, and merges o' and l' of an earlier step.

    L = ln(e^l + e^l'), O = e^(l - L) o + e^(l' - L) o' (Liu et al. 2023, ring attention).
    """
    value, heads, pre_out, prev_lse = call.value, call.head_num, call.pre_out, call.prev_lse
    lengths = call.seqlen.reshape(-1, call.seqlen.shape[-1]).tolist()
    spans: list[tuple[int, int]] = []
    start = 0
    causal = call.mask_type == "mask_type_triu"
    for queries, kv in zip(lengths[0], lengths[-1], strict=True):
        spans += [(start, kv - queries + i + 1 if causal else kv) for i in range(queries)]
        start += kv

    def read(token: int, n: int, first: int, seen: int) -> Places:
        own = (slice(first, first + seen), n // (heads // call.kv_head_num))
        keys = torch.cat([call.k_nope[own], call.k_rope[own]], dim=-1)
        return torch.cat([call.q_nope[token, n], call.q_rope[token, n]], dim=-1), keys, value[own]

    numbers = draw(len(call.q_nope) * heads, elements=value.shape[-1], terms=len(value) * 2 * value.shape[-1])
    rows = [(token, n, *spans[token]) for token, n in (divmod(number, heads) for number in numbers)]
    out, lse = attend(rows, call.qk_scale, read)
    at = index_of([row[:2] for row in rows], value.device)
    if pre_out is not None and prev_lse is not None:
        before = prev_lse[at[::-1]].double()
        both = (lse.exp() + before.exp()).log()
        out = (lse - both).exp()[:, None] * out + (before - both).exp()[:, None] * pre_out[at].double()
        lse = both
    return Part(at, out), Part(at[::-1], lse)


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
@calls.takes
def lightning_indexer(draw: Draw, call: calls.LightningIndexer) -> tuple[Part, ...]:
    """Returns the largest of sum_n w_n max(q_n . k_j, 0) over the keys j that the query sees (causal)."""
    query, key, count = call.query, call.key, call.sparse_count
    ends, lengths = call.actual_seq_lengths_query.tolist(), call.actual_seq_lengths_key.tolist()
    longest = max(lengths)
    tokens = draw(len(query), elements=count, terms=longest * query.shape[1] * query.shape[2])
    scores = torch.full((len(tokens), longest), -torch.inf, dtype=torch.float64, device=query.device)
    for line, token in zip(scores, tokens, strict=True):
        b = bisect_right(ends, token)
        seen = lengths[b] - (ends[b] - token) + 1
        j = torch.arange(seen, device=query.device)
        k = key[call.block_table[b, j // key.shape[1]].long(), j % key.shape[1], 0].double()
        line[:seen] = (k @ query[token].double().T).clamp(min=0) @ call.weights[token].double()
    best = scores.sort(dim=-1, descending=True).values[:, :count]
    best = torch.nn.functional.pad(best, (0, count - best.shape[-1]), value=-torch.inf)
    where = (torch.tensor(tokens, device=query.device), 0)
    found = Part(where, Largest(scores, best))
    return (found, Part(where, best)) if call.return_value else (found,)


@parts()
@calls.takes
def sparse_flash_attention(draw: Draw, call: calls.SparseFlashAttention) -> tuple[Part, ...]:
    """Computes attention over the keys of `sparse_indices`; -1 means no key."""
    ends = call.actual_seq_lengths_query.tolist()
    queries = [(bisect_right(ends, t), call.key.shape[:2].numel()) for t in range(len(call.query))]
    tensors = (torch.cat([call.query, call.query_rope], dim=-1), (call.key, call.key_rope), call.value)
    return _over_blocks(draw, tensors, (call.sparse_indices, 1), queries, call.block_table, call.scale_value)[:1]


@parts()
@calls.takes
def sparse_attention_score(draw: Draw, call: calls.SparseAttentionScore) -> tuple[Part, ...]:
    """Computes attention over blocks of keys, chosen for each key head, up to the query's own (Lai et al. 2026)."""
    lengths = zip(call.actual_seq_lengths.tolist(), call.actual_seq_lengths_kv.tolist(), strict=True)
    queries = [(b, kv - own + i + 1) for b, (own, kv) in enumerate(lengths) for i in range(own)]
    blocks = (call.select_idx.transpose(0, 1), call.block_size)
    tensors = (call.query, (call.key,), call.value)
    return _over_blocks(draw, tensors, blocks, queries, call.block_table, call.scale_value)[:1]


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


@parts(view=_sort_scores)
def choose_blocks(draw: Draw, scores: Tensor, lengths: Tensor, count: int) -> tuple[Part, ...]:
    """Returns the largest scores of the blocks of 128 keys up to the query's own (Lai et al. 2026)."""
    heads, tokens, blocks = scores.shape
    seen, own = torch.full_like(scores, -torch.inf), tokens // len(lengths)
    numbers = draw(heads * tokens, elements=count, terms=2 * blocks)
    for h, t in (divmod(number, tokens) for number in numbers):
        visible = (int(lengths[t // own]) - own + t % own) // 128 + 1
        seen[h, t, :visible] = scores[h, t, :visible]
    at = index_of([divmod(number, tokens) for number in numbers], scores.device)
    best = seen[at].sort(dim=-1, descending=True).values[:, :count]
    best = torch.nn.functional.pad(best, (0, count - best.shape[-1]), value=-torch.inf)
    return (Part(at, Largest(seen[at], best, slack=0)),)


@parts()
@calls.takes
def nsa_select_attention(draw: Draw, call: calls.NsaSelectedInfer) -> tuple[Part, ...]:
    """Computes attention of the last query of each sequence over chosen blocks of keys (Yuan et al. 2025)."""
    key, value = (x.unflatten(-1, (call.key_value_head_num, -1)) for x in (call.key, call.value))
    queries, blocks = [*enumerate(call.actual_seq_kvlen)], (call.topk_indices, call.select_block_size)
    return _over_blocks(draw, (call.query, (key,), value), blocks, queries, call.block_table, call.scale_value)[:1]


@parts(view=sum_of_powers)
@calls.takes
def nsa_train_attention(draw: Draw, call: calls.NsaSelected) -> tuple[Part, ...]:
    """Computes attention of each query over chosen blocks of the keys of its sequence (Yuan et al. 2025)."""
    ends, count = call.actual_seq_qlen, len(call.actual_seq_qlen)
    key, value = (x.unflatten(0, (count, -1)) for x in (call.key, call.value))
    table = torch.arange(count, device=key.device)[:, None]
    queries = [(bisect_right(ends, t), key.shape[1]) for t in range(len(call.query))]
    blocks = (call.topk_indices, call.select_block_size)
    found, sums = _over_blocks(draw, (call.query, (key,), value), blocks, queries, table, call.scale_value)
    return found, sums, sums


@parts()
@calls.takes
def nsa_compress_attention(draw: Draw, call: calls.NsaCompressAttention) -> tuple[Part, ...]:
    """Computes attention P over sums, and the blocks j with the largest sum of P_(r (j + 1) - m - n) of all queries.

    Here r = block / stride, 0 <= m < r, 0 <= n < size / stride; the first and the last two are always among them (Yuan
    et al. 2025; ops-transformer, nsa_compress_attention_infer).
    """
    query, kv_heads, lengths = call.query, call.key_value_head_num, call.actual_cmp_seq_kvlen
    block, size, stride = call.select_block_size, call.compress_block_size, call.compress_stride
    ratio, group, page = block // stride, call.head_num // kv_heads, call.page_block_size
    steps = torch.tensor([m + n for m in range(ratio) for n in range(size // stride)])
    widest = -(-((max(lengths) - 1) * stride + size) // block)
    numbers = draw(len(query) * kv_heads, elements=widest, terms=max(lengths) * 2 * group * query.shape[-1])
    outs, rows = [], torch.full((len(numbers), widest), -torch.inf, dtype=torch.float64, device=query.device)
    for line, (b, h) in zip(rows, (divmod(number, kv_heads) for number in numbers), strict=True):
        j = torch.arange(lengths[b], device=query.device)
        places = call.block_table[b, j // page].long(), j % page
        k, v = (x.unflatten(-1, (kv_heads, -1))[places[0], places[1], h].double() for x in (call.key, call.value))
        scores = query[b, h * group : (h + 1) * group].double() @ k.T * call.scale_value
        shares = (scores - scores.logsumexp(dim=-1, keepdim=True)).exp()
        outs.append(shares @ v)
        blocks = -(-((lengths[b] - 1) * stride + size) // block)
        at = (torch.arange(1, blocks + 1)[:, None] * ratio - steps).to(query.device)
        seen = (at >= 0) & (at < lengths[b])
        line[:blocks] = (shares.sum(dim=0)[at.clamp(0, lengths[b] - 1)] * seen).sum(dim=-1)
        # No sum of shares is as large.
        line[0] = line[blocks - 2 : blocks] = 1000.0 * call.head_num
    drawn = index_of([divmod(number, kv_heads) for number in numbers], query.device)
    of_heads = (drawn[0][:, None], drawn[1][:, None] * group + torch.arange(group, device=query.device))
    best = rows.sort(dim=-1, descending=True).values[:, : call.select_block_count]
    return Part(of_heads, torch.stack(outs)), Part(drawn, Largest(rows, best))


@parts()
@calls.takes
def nsa_compress_infer(draw: Draw, call: calls.NsaCompressInfer) -> tuple[Part, ...]:
    """Computes sum_l w_l x_l over the last tokens of each sequence with a full block; other places stay."""
    x, weight, slots, cache = call.input, call.weight, call.slot_mapping, call.cache
    size, page = call.compress_block_size, call.page_block_size
    stored, found = [], []
    for b in draw(len(slots), elements=cache[0].numel(), terms=weight.numel() * x.shape[-1]):
        first = call.actual_seq_len[b] - size
        if first < 0 or first % call.compress_stride:
            continue
        total = torch.zeros_like(cache[0], dtype=torch.float64)
        for i in range(size):
            token = x[int(call.block_table[b, (first + i) // page]), (first + i) % page]
            total += token.double() * weight[i].double()[:, None]
        stored.append(int(slots[b]))
        found.append(total)
    kept = [place for place in range(len(cache)) if place not in set(slots.tolist())][:2]
    where = (torch.tensor(stored + kept, device=x.device),)
    return (Part(where, torch.stack([*found, *(cache[place].double() for place in kept)])),)


def _over_blocks(
    draw: Draw, tensors: Any, blocks: tuple[Tensor, int], queries: Any, table: Tensor, scale: float
) -> tuple[Part, Part]:
    """Computes attention over chosen blocks (T, H, K) of some size, and log-sum-exps.

    `queries`: sequences and numbers of keys seen.
    """
    (query, keys, value), (chosen, size), (heads, width) = tensors, blocks, tensors[0].shape[1:]

    def read(t: int, n: int) -> Places:
        (b, seen), h = queries[t], n * chosen.shape[1] // heads
        begins = [block * size for block in chosen[t, h].tolist() if block >= 0]
        j = torch.tensor([j for i in begins for j in range(i, min(i + size, seen))], device=query.device)
        own = (table[b, j // value.shape[1]].long(), j % value.shape[1], h)
        return query[t, n], torch.cat([part[own] for part in keys], dim=-1), value[own]

    numbers = draw(len(query) * heads, elements=value.shape[-1], terms=chosen.shape[-1] * size * 2 * width)
    rows = [divmod(number, heads) for number in numbers]
    out, sums = attend(rows, scale, read)
    statistics = Part(index_of(rows, query.device), sums[:, None])
    return Part(statistics.where, out), statistics


@per_element(terms=lambda x, weight, *_, **__: len(weight))
def nsa_compress(at: Places, x: Tensor, weight: Tensor, size: int, stride: int, *, actual_seq_len: Any) -> Tensor:
    """Returns sum_l w_l x_(i + l) over the blocks of each sequence that begin at multiples i of `stride`."""
    ends = pairwise([0, *actual_seq_len])
    begins = torch.tensor([i for first, end in ends for i in range(first, end - size + 1, stride)], device=x.device)
    (block, n, d), found = at, torch.zeros(len(at[0]), dtype=torch.float64, device=x.device)
    for token in range(size):
        found += to_float64(x[begins[block] + token, n, d]) * to_float64(weight[token, n])
    return found
