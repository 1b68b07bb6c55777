"""Exchanges of tokens with a mistake that one rank alone cannot have, in the place of the right ones."""

from __future__ import annotations

from functools import partial
from unittest import mock

from opatlas.bench.implementations import torch as impl
from opatlas.bench.test_expert_parallel import (
    test_moe_distribute_combine as replay_combine,
    test_moe_distribute_dispatch as replay_dispatch,
)
from torch import distributed

from opatlas.run.group import GroupSpec
from opatlas.run.registry import replays


def two_ranks(cells, options):
    return GroupSpec(2)


def ranks_turned_round(**call):
    """Tokens go to the other rank than the one that has their expert."""
    half = call["moe_expert_num"] // 2
    return impl.moe_distribute_dispatch(**{**call, "expert_ids": (call["expert_ids"] + half) % (2 * half)})


def rows_of_another_rank(**call):
    """The results of one rank's tokens go back as the other's."""
    made = call["expand_x"]
    count = int(call["ep_send_counts"][-1])
    return impl.moe_distribute_combine(**{**call, "expand_x": made[:count].roll(1, 0)})


@replays("MoeDistributeDispatch", npu=None, group=two_ranks)
def dispatch(row, replay, group):
    replay_dispatch(row, lambda kernel, **keywords: replay(ranks_turned_round, **keywords), group)


@replays("MoeDistributeCombine", npu=None, group=two_ranks)
def combine(row, replay, group):
    replay_combine(row, lambda kernel, **keywords: replay(rows_of_another_rank, **keywords), group)


@replays("ParallelStep", npu=None, group=two_ranks, binding="opatlas.run.step_replay:bind_step")
def step(row, replay):
    """The all_reduces keep the largest number of all ranks."""
    largest = partial(distributed.all_reduce, op=distributed.ReduceOp.MAX)
    with mock.patch.object(distributed, "all_reduce", largest):
        replay()
