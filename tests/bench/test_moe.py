"""Mixtures of experts: routing is legal and balanced, and the kernels undo each other."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl
from replaying import assert_wrong, replay_row, time_instead

from opatlas.row.columns import INPUT_DTYPES, INPUT_SHAPES
from opatlas.row.status import Status
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.result_check import check

relaxed = settings(deadline=None, max_examples=40)


def row_of(shapes, dtypes="INT64"):
    return ReplayRow("Any", {INPUT_SHAPES: shapes, INPUT_DTYPES: dtypes}, torch.device("cpu"))


@relaxed
@given(groups=st.integers(1, 40), total=st.integers(0, 200))
def test_groups_are_balanced(groups, total):
    ends = row_of(f"{groups}").group_list(0, total).tolist()
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    assert ends[-1] == total
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("load", ["random", "power law 1.5", "9,0,1,14"])
def test_rows_with_a_load_are_checked_by_its_groups(monkeypatch, load):
    row = f"24,16;4,16,8;;;;;;4 | BF16;BF16;;;;;;INT64 -> 24,8 | BF16 @ Expert Load = {load}"
    ends = []

    def of_equal_groups(x, weight, *, group_list, **how):
        ends.append(group_list.tolist())
        return impl.grouped_matmul(x, weight, group_list=torch.tensor([6, 12, 18, 24]), **how)

    assert replay_row("GroupedMatmul", row).status is Status.MEASURED
    time_instead(monkeypatch, of_equal_groups)
    for _ in range(2):
        assert_wrong("GroupedMatmul", row)
    assert {tuple(each) for each in ends} == {tuple(ends[0])}
    assert ends[0][-1] == 24
    assert ends[0] == [9, 9, 10, 24] or not load[0].isdigit()


@pytest.mark.parametrize("experts", [128, 256])
def test_a_random_load_hits_as_many_experts_as_random_ones_mostly_do(experts):
    cells = {INPUT_SHAPES: f"8,16;{experts}", INPUT_DTYPES: "BF16;INT64", "Expert Load": "random"}
    ends = ReplayRow("GroupedMatmul", cells, torch.device("cpu")).group_list(1, 8)
    assert len(ends.unique()) == 8 + (int(ends[0]) == 0)


@pytest.mark.parametrize("load", ["even", "power law", "9,0,1,13", "24", "-1,25,0,0"])
def test_other_text_is_no_load(load):
    row = f"24,16;4,16,8;;;;;;4 | BF16;BF16;;;;;;INT64 -> 24,8 | BF16 @ Expert Load = {load}"
    assert replay_row("GroupedMatmul", row).status is Status.INVALID


@relaxed
@given(tokens=st.integers(1, 30), k=st.integers(1, 8), more=st.integers(0, 30))
def test_experts_are_legal_distinct_and_balanced(tokens, k, more):
    experts = k + more
    ids = row_of(f"{tokens},{k}").expert_ids(0, experts)
    counts = torch.bincount(ids.flatten(), minlength=experts)
    assert len(counts) == experts
    assert all(len(set(chosen)) == k for chosen in ids.tolist())
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("load", ["random", "power law 1.2"])
def test_every_rank_draws_the_same_distinct_experts_of_each_rank_by_the_load(load):
    cells = {INPUT_SHAPES: "400,3", INPUT_DTYPES: "INT32", "Expert Load": load}
    ranks = [ReplayRow("DispatchFFNCombine", cells, torch.device("cpu")) for _ in range(2)]
    drawn = [[row.expert_ids(0, 12, rank) for rank in range(2)] for row in ranks]
    assert all(map(torch.equal, *drawn))
    assert not torch.equal(*drawn[0])
    first, second = (torch.bincount(ids.flatten(), minlength=12) for ids in drawn[0])
    assert all(len(set(chosen)) == 3 for chosen in drawn[0][0].tolist())
    assert first.max() - first.min() > 1
    # The frequent expert is that of all ranks.
    assert first.argmax() == second.argmax() or load == "random"
    assert (first.max() > 3 * first.min()) == (load != "random")


@relaxed
@given(tokens=st.integers(1, 20), k=st.integers(1, 6), experts=st.integers(1, 9), seed=st.integers(0, 99))
def test_unpermute_undoes_permute(tokens, k, experts, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(tokens, 5, generator=generator)
    indices = torch.randint(experts, (tokens, k), generator=generator)
    probs = torch.rand(tokens, k, generator=generator)
    permuted, places = impl.moe_token_permute(x, indices)
    check(formulas.moe_token_permute, [x, indices], {}, [permuted, places], 0)
    ids = indices.flatten().sort().values
    assert torch.equal(permuted, x[torch.argsort(indices.flatten(), stable=True) // k])
    assert torch.equal(ids[places.long()], indices.flatten())
    torch.testing.assert_close(impl.moe_token_unpermute(permuted, places, probs), x * probs.sum(1, keepdim=True))


@relaxed
@given(data=st.data(), k=st.integers(1, 40), n=st.integers(1, 6))
def test_grouped_product_is_a_product_for_each_group(data, k, n):
    sizes = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    generator = torch.Generator().manual_seed(k * 7 + n)
    x = torch.randint(-128, 128, (sum(sizes), k), dtype=torch.int8, generator=generator)
    weight = torch.randint(-128, 128, (len(sizes), k, n), dtype=torch.int8, generator=generator)
    ends = torch.tensor(sizes).cumsum(0)
    how = {"group_list": ends, "split_item": 2, "group_type": 0, "group_list_type": 0, "output_dtype": torch.int32}
    (result,) = impl.grouped_matmul([x], [weight], **how)
    parts = [part.long() @ own.long() for part, own in zip(x.split(sizes), weight, strict=True)]
    assert torch.equal(result.long(), torch.cat(parts))
    check(formulas.grouped_matmul, [[x], [weight]], how, [result], 0)


@pytest.mark.parametrize("bias", [True, False])
def test_gating_prefers_the_bias_but_does_not_weigh_with_it(bias):
    x = torch.tensor([[3.0, 1.0, 0.0, -1.0]])
    how = {"norm_type": 1, "bias": torch.tensor([0.0, 0.0, 1.0, 1.0])} if bias else {"norm_type": 0}
    weights, experts, _ = impl.moe_gating_top_k(x, 2, **how)
    assert experts.tolist() == ([[2, 3]] if bias else [[0, 1]])
    if bias:
        norm = [1 / (1 + math.exp(-value)) for value in (0.0, -1.0)]
        torch.testing.assert_close(weights, torch.tensor([[part / sum(norm) for part in norm]]))


def test_top_p_keeps_the_largest_alone_where_it_is_enough():
    logits = torch.tensor([[0.0, 9.0, 1.0, -3.0]])
    for p in (0.0, 0.9):
        kept = impl.apply_top_k_top_p(logits, p=torch.tensor([p]))
        assert kept.tolist() == [[-math.inf, 9.0, -math.inf, -math.inf]]
    assert impl.apply_top_k_top_p(logits, k=torch.tensor([2])).tolist() == [[-math.inf, 9.0, 1.0, -math.inf]]
