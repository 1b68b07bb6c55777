"""Formulas of sparse attention (DeepSeek-V3.2), one query token at a time."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import torch
from torch import Tensor

from opatlas.run.formula import Draw, Part, parts
from opatlas.run.result_check import Largest

from .attention import attention_of, index_of


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
