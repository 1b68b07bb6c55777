"""Properties of paged caches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st
from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl
from replaying import replay_row
from sample_rows import ROWS

from opatlas.row.status import Status
from opatlas.run.result_check import check

FUSED, LOAD = "KvRmsNormRopeCache", "PagedCacheLoadNdKernel"
BLOCKS, BLOCK_SIZE = 5, 4
PLACES = BLOCKS * BLOCK_SIZE

places = st.lists(st.integers(0, PLACES - 1), unique=True, min_size=1, max_size=PLACES)
lengths = st.lists(st.integers(0, 3 * BLOCK_SIZE), min_size=1, max_size=4)
seeds = st.integers(0, 999)


def cache(seed, *rest):
    return torch.randn(BLOCKS, BLOCK_SIZE, *rest, generator=torch.Generator().manual_seed(seed))


def load(cached, table, lengths, **keywords):
    total = sum(lengths)
    key, value = torch.empty(total, 2, 3), torch.empty(total, 2, 3)
    keywords = {"seq_starts": None, "cumsum": False} | keywords
    impl.paged_cache_load(cached, cached + 1, table, torch.tensor(lengths), key=key, value=value, **keywords)
    assert torch.equal(value, key + 1)
    return key


def table_for(lengths, seed):
    """Blocks of each sequence; sequences may share some."""
    return torch.randint(BLOCKS, (len(lengths), 3), generator=torch.Generator().manual_seed(seed))


@given(slots=places, seed=seeds)
def test_caches_are_untouched_outside_the_slots(slots, seed):
    caches = [cache(seed, 2, 3), cache(seed + 1, 2, 5)]
    before = [value.clone() for value in caches]
    new = [torch.ones(len(slots), 2, 3), torch.full((len(slots), 2, 5), 2.0)]
    assert impl.reshape_and_cache(*new, *caches, torch.tensor(slots)) is None
    outside = [place for place in range(PLACES) if place not in slots]
    for value, was, rows in zip(caches, before, new, strict=True):
        assert torch.equal(value.flatten(0, 1)[outside], was.flatten(0, 1)[outside])
        assert torch.equal(value.flatten(0, 1)[slots], rows)
    check(formulas.reshape_and_cache, [*new, *before, torch.tensor(slots)], {}, caches, seed)


@given(slots=places, seed=seeds)
def test_fused_kernel_writes_its_results_and_nothing_else(slots, seed):
    generator = torch.Generator().manual_seed(seed)
    kv, cos, sin = (torch.randn(len(slots), 1, 1, size, generator=generator) for size in (10, 4, 4))
    gamma, caches = torch.rand(6, generator=generator), [cache(seed, 1, 4), cache(seed + 1, 1, 6)]
    before = [value.clone() for value in caches]
    options = {"epsilon": 1e-5, "cache_mode": "PA_BNSD", "is_output_kv": True}
    results = impl.kv_rmsnorm_rope_cache(kv, gamma, cos, sin, torch.tensor(slots), *caches, **options)
    outside = [place for place in range(PLACES) if place not in slots]
    for value, was, written in zip(caches, before, results[2:], strict=True):
        assert torch.equal(value.flatten(0, 1)[outside], was.flatten(0, 1)[outside])
        assert torch.equal(value.flatten(0, 1)[slots], written[:, 0])
    torch.testing.assert_close(results[2], impl.interleave_rope(kv[..., 6:], cos, sin))
    torch.testing.assert_close(results[3], impl.rms_norm(kv[..., :6], gamma, epsilon=1e-5)[0])
    check(formulas.kv_rmsnorm_rope_cache, [kv, gamma, cos, sin, torch.tensor(slots), *before], options, results, seed)


@given(slots=places, seed=seeds)
def test_written_values_are_loaded(slots, seed):
    """Through a table that finds the blocks of the slots in the order of the tokens, one token a sequence."""
    cached, rows = cache(seed, 2, 3), cache(seed + 1, 2, 3).flatten(0, 1)[: len(slots)]
    impl.reshape_and_cache(rows, rows, cached, cached.clone(), torch.tensor(slots))
    table = torch.tensor([[slot // BLOCK_SIZE] for slot in slots])
    starts = torch.tensor([slot % BLOCK_SIZE for slot in slots])
    assert torch.equal(load(cached, table, [1] * len(slots), seq_starts=starts), rows)


@given(lengths=lengths, seed=seeds, later=st.booleans(), cumsum=st.booleans())
def test_reference_agrees_for_any_lengths(lengths, seed, later, cumsum):
    cached, table, total = cache(seed, 2, 3), table_for(lengths, seed), sum(lengths)
    starts = torch.tensor([3 * BLOCK_SIZE - length for length in lengths]) if later else None
    counts = [sum(lengths[:i]) for i in range(len(lengths) + 1)] if cumsum else lengths
    arguments = [cached, cached + 1, table, torch.tensor(counts)]
    options = {
        "seq_starts": starts,
        "cumsum": cumsum,
        "key": torch.empty(total, 2, 3),
        "value": torch.empty(total, 2, 3),
    }
    results = impl.paged_cache_load(*arguments, **options)
    assert torch.equal(results[0], load(cached, table, lengths, seq_starts=starts))
    check(formulas.paged_cache_load, arguments, options, results, seed)


@pytest.mark.parametrize(("output", "total"), [("7,4,1,6;7,4,1,14;;", 560), ("7,4,1,6;7,4,1,14;5,1,3,6;5,1,3,14", 860)])
def test_outputs_select_whether_written_values_are_returned(output, total):
    dtypes = ";".join(["FLOAT"] * 4)
    outcome = replay_row(FUSED, ROWS[FUSED][0].partition("->")[0] + f"-> {output} | {dtypes}")
    assert outcome.status is Status.MEASURED, outcome.reason
    assert outcome.measurement.total_elements == total
