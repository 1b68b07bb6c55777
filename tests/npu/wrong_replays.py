"""Replays whose NPU calls are wrong, each in its own way, and some that are right."""

from __future__ import annotations

import os

import torch
from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl

from opatlas.run.registry import replays

ROW = "4,8 | FLOAT -> 4,4 | FLOAT"


def swiglu(name, npu="torch_npu.npu_swiglu", *arguments, **keywords):
    @replays(name, npu=npu)
    def replay_it(row, replay):
        replay(impl.swiglu, row.tensor(0), *arguments, expected=formulas.swiglu, **keywords)

    return replay_it


right = swiglu("Right", "torch_npu.npu_swiglu", -1)
no_such_call = swiglu("NoSuchCall", "torch_npu.npu_swiglu_of_tomorrow", -1)
wrong_type = swiglu("WrongType", "torch_npu.npu_swiglu", "last")
unknown_keyword = swiglu("UnknownKeyword", "torch_npu.npu_swiglu", axis=-1)
other_shape = swiglu("OtherShape", "torch.softmax", -1)
#: npu_broadcast has no meta kernel, only a schema.
too_few = swiglu("TooFew", "torch_npu.npu_broadcast")
not_a_list = swiglu("NotAList", "torch_npu.npu_broadcast", 1.5)


@replays("OtherDtype", npu="torch_npu.npu_swiglu")
def other_dtype(row, replay):
    replay(lambda x, dim: impl.swiglu(x, dim).float(), row.tensor(0).half(), -1, expected=formulas.swiglu)


@replays("ReturnsMore", npu="torch_npu.npu_broadcast")
def returns_more(row, replay):
    replay(lambda x, size: (x[:, :4], x), row.tensor(0), [4, 8], output_slots=[0], expected=formulas.swiglu)


@replays("ReadsValues", npu="torch_npu.npu_swiglu")
def reads_values(row, replay):
    replay(impl.swiglu, row.tensor(0), int(row.tensor(0).sum()), expected=formulas.swiglu)


@replays("EndsTheProcess", npu="torch_npu.npu_swiglu")
def ends_the_process(row, replay):
    os.abort()


@replays("BySchema", npu="torch_npu.npu_broadcast")
def by_schema(row, replay):
    replay(lambda x, size: torch.empty(4, 4, device=x.device), row.tensor(0), [4, 4], expected=formulas.swiglu)


@replays("DependsOnValues", npu="torch.nonzero")
def depends_on_values(row, replay):
    replay(torch.nonzero, row.tensor(0), expected=formulas.swiglu)
