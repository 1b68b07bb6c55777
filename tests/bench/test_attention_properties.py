"""Invariants of attention kernels, on both sides of the check."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings, strategies as st
from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl

from opatlas.row.errors import WrongResult
from opatlas.run.result_check import check


def everything(count, *, elements, terms):
    return range(count)


def in_full(formula, results, *arguments, **keywords):
    """The formula, evaluated for every element of results that look like these."""
    found = []
    for result, part in zip(results, formula.function(everything, *arguments, **keywords), strict=True):
        tensor = torch.full(result.shape, torch.nan, dtype=torch.float64)
        tensor[part.where] = part.values
        assert not tensor.isnan().any()
        found.append(tensor)
    return tuple(found)


@dataclass
class Sequences:
    """Queries and keys of some sequences, and the calls that pack them in their ways.

    Attributes:
        q, k, v: of each sequence, (tokens, heads, D), float64.
        causal: whether a query sees no later keys.
    """

    q: list[torch.Tensor]
    k: list[torch.Tensor]
    v: list[torch.Tensor]
    causal: bool
    block_size: int = 4
    #: Blocks that no sequence uses, and entries of the table that no one may read.
    spare: int = 0
    tail: int = 0
    order: list[int] = field(default_factory=list)

    def shared(self):
        return {
            "num_heads": self.q[0].shape[1],
            "num_key_value_heads": self.k[0].shape[1],
            "scale": self.q[0].shape[-1] ** -0.5,
            "input_layout": "TND",
            "sparse_mode": 3 if self.causal else 0,
            "softmax_lse_flag": True,
            "actual_seq_lengths": list(accumulate(len(q) for q in self.q)),
        }

    def packed(self):
        ends = list(accumulate(len(k) for k in self.k))
        return (torch.cat(self.q), torch.cat(self.k), torch.cat(self.v)), {
            **self.shared(),
            "actual_seq_lengths_kv": ends,
        }

    def paged(self):
        """In pages of (blocks, block size, heads x D), in the order that `order` gives them; noise where nothing is."""
        counts = [-(-len(k) // self.block_size) for k in self.k]
        blocks = sum(counts) + self.spare
        order = self.order or list(range(blocks))
        caches = [
            torch.randn(blocks, self.block_size, x[0].shape[1] * x[0].shape[2]).double() for x in (self.k, self.v)
        ]
        table = torch.zeros(len(self.k), max(counts) + self.tail, dtype=torch.int32)
        unused = iter(order)
        for line, k, v, count in zip(table, self.k, self.v, counts, strict=True):
            line[:count] = torch.tensor([next(unused) for _ in range(count)])
            for cache, tokens in zip(caches, (k, v), strict=True):
                for j, token in enumerate(tokens):
                    cache[line[j // self.block_size], j % self.block_size] = token.flatten()
        keywords = {"block_table": table, "block_size": self.block_size}
        keywords |= {**self.shared(), "actual_seq_lengths_kv": [len(k) for k in self.k]}
        return (torch.cat(self.q), *caches), keywords

    def attention(self, how):
        """(tokens, heads, D) and (tokens, heads, 1) of both sides: implementation and formula."""
        arguments, keywords = getattr(self, how)()
        results = impl.fused_infer_attention_score(*arguments, **keywords)
        return results, in_full(formulas.fused_infer_attention_score, results, *arguments, **keywords)


@st.composite
def sequences(draw, causal=None):
    causal = draw(st.booleans()) if causal is None else causal
    lengths = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), min_size=1, max_size=4))
    kv_heads, group, width = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 9))
    torch.manual_seed(draw(st.integers(0, 999)))
    own = {
        "q": [torch.randn(own, kv_heads * group, width).double() for own, _ in lengths],
        "k": [torch.randn(own + more, kv_heads, width).double() for own, more in lengths],
        "v": [torch.randn(own + more, kv_heads, width).double() for own, more in lengths],
    }
    return Sequences(**own, causal=causal, block_size=draw(st.integers(1, 5)), spare=draw(st.integers(0, 3)))


def same(first, second):
    for side in (0, 1):
        for one, other in zip(first[side], second[side], strict=True):
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=1e-5)


PROPERTY = settings(max_examples=20, deadline=None)
both_ways = pytest.mark.parametrize("how", ["packed", "paged"])


@both_ways
@PROPERTY
@given(case=sequences())
def test_implementation_is_the_formula(how, case):
    found, formula = case.attention(how)
    same((found, found), (formula, formula))


@PROPERTY
@given(case=sequences(), data=st.data(), tail=st.integers(0, 3))
def test_pages_do_not_matter(case, data, tail):
    """In any order, with blocks that no sequence uses, and tables that are wider than needed."""
    blocks = sum(-(-len(k) // case.block_size) for k in case.k) + case.spare
    order = data.draw(st.permutations(range(blocks)))
    same(case.attention("packed"), replace(case, order=order, tail=tail).attention("paged"))


@both_ways
@PROPERTY
@given(case=sequences())
def test_shared_keys_are_repeated_keys(how, case):
    group = case.q[0].shape[1] // case.k[0].shape[1]
    repeated = {name: [x.repeat_interleave(group, 1) for x in getattr(case, name)] for name in "kv"}
    same(case.attention(how), replace(case, **repeated).attention(how))


@both_ways
@PROPERTY
@given(case=sequences(causal=True))
def test_causal_mask_is_cutting_the_keys(how, case):
    """Each query alone, without a mask, over the keys up to its own."""
    alone = {"q": [], "k": [], "v": []}
    for q, k, v in zip(case.q, case.k, case.v, strict=True):
        for i in range(len(q)):
            seen = len(k) - len(q) + i + 1
            alone["q"].append(q[i : i + 1])
            alone["k"].append(k[:seen])
            alone["v"].append(v[:seen])
    same(case.attention(how), replace(case, **alone, causal=False).attention(how))


@PROPERTY
@given(case=sequences(), rope=st.integers(1, 4), causal=st.booleans())
def test_rope_part_is_more_of_the_same_vectors(case, rope, causal):
    """Ring attention's two parts of a vector are one vector; the step is causal only where lengths agree."""
    width = case.q[0].shape[-1]
    torch.manual_seed(width)
    q, k, v = case.q[0], case.k[0], case.v[0]
    k, v = (k[: len(q)], v[: len(q)]) if causal else (k, v)
    q_rope, k_rope = (torch.randn(*x.shape[:2], rope).double() for x in (q, k))
    whole = Sequences([torch.cat([q, q_rope], -1)], [torch.cat([k, k_rope], -1)], [v], causal)
    (out, lse), _ = whole.attention("packed")
    found = ring_step(q, q_rope, k, k_rope, v, causal=causal)
    same((found, found), ((out, lse[..., 0].T), (out, lse[..., 0].T)))


def ring_step(q, q_rope, k, k_rope, v, *, causal=False, earlier=(None, None)):
    described = {
        "kernel_type": "kernel_type_high_precision",
        "mask_type": "mask_type_triu" if causal else "no_mask",
        "input_layout": "type_bsnd",
        "calc_type": "calc_type_first_ring" if earlier[0] is None else "calc_type_default",
    }
    lengths = torch.tensor([[len(q)], [len(k)]])
    arguments = (q, q_rope, k, k_rope, v, torch.empty(0), lengths, q.shape[1], k.shape[1])
    keywords = {"pre_out": earlier[0], "prev_lse": earlier[1], "qk_scale": (q.shape[-1] + q_rope.shape[-1]) ** -0.5}
    results = impl.ring_mla(*arguments, **keywords, **described)
    formula = in_full(formulas.ring_mla, results, *arguments, **keywords, **described)
    same((results, results), (formula, formula))
    return results


@PROPERTY
@given(case=sequences(causal=False), data=st.data())
def test_steps_over_parts_of_the_keys_make_one_attention(case, data):
    q, k, v = case.q[0], case.k[0], case.v[0]
    rope = torch.zeros(1).double()
    q_rope, k_rope = (rope.expand(*x.shape[:2], 1) for x in (q, k))
    whole = ring_step(q, q_rope, k, k_rope, v)
    cut = data.draw(st.integers(1, len(k)))
    first = ring_step(q, q_rope, k[:cut], k_rope[:cut], v[:cut])
    if cut < len(k):
        first = ring_step(q, q_rope, k[cut:], k_rope[cut:], v[cut:], earlier=first)
    same((whole, whole), (first, first))


LAYOUTS = {
    "SBH": lambda x: x.permute(2, 0, 1, 3).flatten(2),
    "BSH": lambda x: x.transpose(1, 2).flatten(2),
    "BSND": lambda x: x.transpose(1, 2).contiguous(),
    "BNSD": lambda x: x,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("causal", [True, False])
@settings(PROPERTY, max_examples=8)
@given(
    sizes=st.tuples(*[st.integers(1, 3)] * 3, st.integers(1, 6), st.integers(1, 6), st.integers(2, 9)),
    seed=st.integers(0, 99),
)
def test_gradient_is_autograds(layout, causal, sizes, seed):
    """Against torch's own derivative of the plain formula, in every layout, with shared keys."""
    batch, kv_heads, group, queries, keys, width = sizes
    keys = queries if causal else keys
    torch.manual_seed(seed)
    q = torch.randn(batch, kv_heads * group, queries, width)
    k, v = (torch.randn(batch, kv_heads, keys, width) for _ in range(2))
    grad = torch.randn_like(q)
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    scores = leaves[0] @ leaves[1].repeat_interleave(group, 1).mT * width**-0.5
    if causal:
        scores = scores.masked_fill(torch.ones(queries, keys, dtype=torch.bool).triu(1), -torch.inf)
    plain = scores.softmax(-1) @ leaves[2].repeat_interleave(group, 1)
    wanted = torch.autograd.grad(plain, leaves, grad.double())

    as_given = LAYOUTS[layout]
    call = {"head_num": q.shape[1], "input_layout": layout, "atten_mask": torch.empty(0) if causal else None}
    tensors = [as_given(x) for x in (q, k, v)]
    out, highest, total = impl.flash_attention_score(*tensors, **call, scale=width**-0.5)
    torch.testing.assert_close(out.double(), as_given(plain.detach()), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close((highest + total.log())[..., 0].double(), scores.logsumexp(-1), rtol=1e-4, atol=1e-5)
    check(formulas.flash_attention_score, tensors, {**call, "scale": width**-0.5}, [out, highest, total], seed)

    statistics = {"softmax_max": highest, "softmax_sum": total, "attention_in": out, "scale_value": width**-0.5}
    found = impl.flash_attention_grad(*tensors, as_given(grad), **call, **statistics)
    formula = in_full(formulas.flash_attention_grad, found, *tensors, as_given(grad), **call, **statistics)
    for one, two, three in zip(found, formula, wanted, strict=True):
        torch.testing.assert_close(one.double(), as_given(three), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(two, as_given(three), rtol=1e-3, atol=1e-4)


def test_statistics_may_be_stored_either_way():
    """A kernel's largest score and the sum of powers below it, or the logarithm of the sum and 1."""
    q = torch.randn(1, 2, 5, 4)
    call = {"head_num": 2, "input_layout": "BNSD", "scale": 0.5}
    out, lse, ones = impl.flash_attention_score(q, q, q, **call)
    scores = q @ q.mT * 0.5
    highest = scores.amax(-1, keepdim=True).expand(1, 2, 5, 8)
    total = (scores - scores.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True).expand(1, 2, 5, 8)
    check(formulas.flash_attention_score, [q, q, q], call, [out, highest, total], 1)
    check(formulas.flash_attention_score, [q, q, q], call, [out, lse, ones], 1)
    with pytest.raises(WrongResult, match="result"):
        check(formulas.flash_attention_score, [q, q, q], call, [out, highest, ones], 1)
