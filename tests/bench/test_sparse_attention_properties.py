"""Invariants of sparse and of linear attention: the order of sequences and of pages, unused places, blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from hypothesis import given, settings, strategies as st
from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl

from opatlas.run.formula import Draw
from opatlas.run.result_check import check

HEADS, WIDTH, ROPE, BLOCK_SIZE, COUNT = 3, 8, 4, 4, 5
PROPERTY = settings(max_examples=15)


@dataclass(frozen=True)
class Sequences:
    """Of each sequence its queries (S, heads, D + rope), the weights (S, heads) and its keys (T, D + rope).

    Attributes:
        order: the blocks of the cache, in the order in which they are used.
        tail: entries of the table that no one may read.
    """

    q: tuple[torch.Tensor, ...]
    weights: tuple[torch.Tensor, ...]
    k: tuple[torch.Tensor, ...]
    order: tuple[int, ...]
    tail: int = 0

    def in_pages(self):
        """The cache, with noise where nothing is, and the table."""
        counts = [-(-len(k) // BLOCK_SIZE) for k in self.k]
        cache = torch.randn(len(self.order), BLOCK_SIZE, 1, WIDTH + ROPE)
        table = torch.zeros(len(self.k), max(counts) + self.tail, dtype=torch.int32)
        unused = iter(self.order)
        for line, k, count in zip(table, self.k, counts, strict=True):
            line[:count] = torch.tensor([next(unused) for _ in range(count)])
            for j, token in enumerate(k):
                cache[line[j // BLOCK_SIZE], j % BLOCK_SIZE, 0] = token
        return cache, table

    def lengths(self, name):
        ends = torch.tensor(list(accumulate(map(len, self.q))), dtype=torch.int32)
        return {
            "actual_seq_lengths_query": ends,
            f"actual_seq_lengths_{name}": torch.tensor([len(k) for k in self.k], dtype=torch.int32),
        }

    def indexed(self):
        """The positions that each query looks at, in order, checked against the formula."""
        cache, table = self.in_pages()
        arguments = [torch.cat(self.q), cache, torch.cat(self.weights)]
        how = {"layout_query": "TND", "layout_key": "PA_BSND", "sparse_count": COUNT, "sparse_mode": 3}
        how |= {**self.lengths("key"), "block_table": table, "return_value": True}
        results = impl.lightning_indexer(*arguments, **how)
        check(formulas.lightning_indexer, arguments, how, results, 1)
        return results[0].sort(dim=-1).values

    def attended(self, positions):
        """The attention over these positions, checked against the formula."""
        cache, table = self.in_pages()
        (q, q_rope), (key, key_rope) = (x.split([WIDTH, ROPE], dim=-1) for x in (torch.cat(self.q), cache))
        arguments = [q, key, key, positions, 0.3]
        how = {"layout_query": "TND", "layout_kv": "PA_BSND", "sparse_block_size": 1, "sparse_mode": 3}
        how |= {**self.lengths("kv"), "block_table": table, "attention_mode": 2}
        how |= {"query_rope": q_rope, "key_rope": key_rope}
        # The others, which are of training, are empty.
        result, *_ = impl.sparse_flash_attention(*arguments, **how)
        check(formulas.sparse_flash_attention, arguments, how, [result], 1)
        return result


@st.composite
def sequences(draw):
    lengths = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 12)), min_size=1, max_size=3))
    torch.manual_seed(draw(st.integers(0, 999)))
    q = tuple(torch.randn(own, HEADS, WIDTH + ROPE) for own, _ in lengths)
    weights = tuple(torch.randn(own, HEADS) for own, _ in lengths)
    k = tuple(torch.randn(own + more, WIDTH + ROPE) for own, more in lengths)
    blocks = sum(-(-len(own) // BLOCK_SIZE) for own in k)
    return Sequences(q, weights, k, tuple(range(blocks)))


@PROPERTY
@given(case=sequences(), data=st.data(), spare=st.integers(0, 3), tail=st.integers(0, 3))
def test_pages_and_the_tail_of_the_cache_do_not_matter(case, data, spare, tail):
    order = tuple(data.draw(st.permutations(range(len(case.order) + spare))))
    other = replace(case, order=order, tail=tail)
    positions = case.indexed()
    assert torch.equal(positions, other.indexed())
    torch.testing.assert_close(case.attended(positions), other.attended(positions))


@PROPERTY
@given(case=sequences(), data=st.data())
def test_batch_order_does_not_matter(case, data):
    order = data.draw(st.permutations(range(len(case.q))))
    shuffled = replace(case, **{name: tuple(getattr(case, name)[i] for i in order) for name in ("q", "weights", "k")})
    pieces = list(map(len, case.q))
    positions = case.indexed()
    moved = torch.cat([positions.split(pieces)[i] for i in order])
    assert torch.equal(moved, shuffled.indexed())
    attended = case.attended(positions).split(pieces)
    torch.testing.assert_close(torch.cat([attended[i] for i in order]), shuffled.attended(moved))


@PROPERTY
@given(case=sequences())
def test_positions_are_those_that_the_query_sees(case):
    positions = case.indexed()[:, 0].tolist()
    seen = [len(k) - len(q) + i + 1 for q, k in zip(case.q, case.k, strict=True) for i in range(len(q))]
    for line, count in zip(positions, seen, strict=True):
        there = [position for position in line if position >= 0]
        assert len(set(there)) == len(there) == min(count, COUNT)
        assert max(there) < count


def test_mamba_in_blocks_of_tokens_is_mamba_token_by_token():
    draw = torch.Generator().manual_seed(1)
    shapes = ((200, 2, 3), (200, 2), (2,), (200, 1, 5), (200, 1, 5), (2,), (2,), (2, 2, 3, 5))
    x, dt, decay, keys, queries, skip, bias, state = (
        torch.rand(shape, generator=draw, dtype=torch.float64) for shape in shapes
    )
    results, states = formulas.mamba_chunk_scan.function(Draw(0), x, dt, -4 * decay, keys, queries, skip, bias, state)
    step = (1 + (dt + bias).exp()).log()
    for sequence, n in ((0, 0), (0, 1), (1, 0), (1, 1)):
        s = state[sequence, n]
        for t in range(100 * sequence, 100 * sequence + 100):
            s = s * (-4 * step[t, n] * decay[n]).exp() + step[t, n] * torch.outer(x[t, n], keys[t, 0])
            found = results.values[(results.where[0] == t) & (results.where[1] == n)]
            torch.testing.assert_close(found, (s @ queries[t, 0] + skip[n] * x[t, n])[None], rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(states.values[2 * sequence + n], s, rtol=1e-13, atol=1e-13)
