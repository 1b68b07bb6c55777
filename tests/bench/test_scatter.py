"""Properties of gathers and scatters."""

from __future__ import annotations

import numpy
import pytest
import torch
from hypothesis import given, strategies as st
from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl
from replaying import assert_wrong, replay_row, time_instead

from opatlas.row.status import Status
from opatlas.run.result_check import check

seeds = st.integers(0, 999)
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def drawn(shape, seed):
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))


@given(shape=shapes, seed=seeds, data=st.data())
def test_scattering_equals_loops_and_changes_nothing_else(shape, seed, data):
    """numpy's put_along_axis, and ScatterNd written as a loop."""
    x, axis = drawn(shape, seed), data.draw(st.integers(0, len(shape) - 1))
    count = data.draw(st.integers(1, shape[axis]))
    indices = drawn(shape, seed + 1).argsort(axis).narrow(axis, 0, count)
    updates = drawn(indices.shape, seed + 2)
    wanted = x.numpy().copy()
    numpy.put_along_axis(wanted, indices.numpy(), updates.numpy(), axis)
    result = impl.scatter_(x.clone(), axis, indices, updates)
    assert numpy.array_equal(result.numpy(), wanted)
    check(formulas.scatter_elements, [x, axis, indices, updates], {}, [torch.from_numpy(wanted)], seed)
    assert torch.equal(impl.gather(result, axis, indices), updates)
    check(formulas.gather_elements, [result, axis, indices], {}, [updates], seed)


@given(shape=shapes, seed=seeds, data=st.data())
def test_scatter_nd_equals_a_loop_and_changes_nothing_else(shape, seed, data):
    x, axes = drawn(shape, seed), data.draw(st.integers(1, len(shape)))
    every = list(numpy.ndindex(*shape[:axes]))
    named = data.draw(st.lists(st.sampled_from(every), unique=True, min_size=1))
    updates = drawn((len(named), *shape[axes:]), seed + 1)
    wanted = x.clone()
    for place, row in zip(named, updates, strict=True):
        wanted[place] = row
    indices = torch.tensor(named)
    assert torch.equal(impl.scatter_nd_update(x.clone(), indices, updates), wanted)
    check(formulas.scatter_nd_update, [x, indices, updates], {}, [wanted], seed)
    if axes == 1:
        check(formulas.index_select, [wanted, 0, indices[:, 0]], {}, [updates], seed)


@given(shape=st.lists(st.integers(1, 4), min_size=2, max_size=4), seed=seeds, data=st.data())
def test_putting_at_indices_is_numpys(shape, seed, data):
    """With axes before and after the indexed ones, and index tensors that broadcast to each other."""
    x, first = drawn(shape, seed), data.draw(st.integers(0, len(shape) - 2))
    sizes = shape[first : first + 2]
    rows, columns = (torch.randperm(size)[: data.draw(st.integers(1, size))] for size in sizes)
    rows = rows.unsqueeze(-1)
    values = drawn((*shape[:first], len(rows), len(columns), *shape[first + 2 :]), seed + 1)
    wanted = x.numpy().copy()
    wanted[(*[slice(None)] * first, rows.numpy(), columns.numpy())] = values.numpy()
    indices = [*[None] * first, rows, columns]
    result = impl.index_put(x.clone(), indices, values)
    assert numpy.array_equal(result.numpy(), wanted)
    check(formulas.index_put, [x, indices, values], {}, [torch.from_numpy(wanted)], seed)


SCALAR_INDICES = [
    "3,1,1,16;;1 | FLOAT16;INT64;INT64 | NCHW;NCHW;NCHW -> 1,1,16 | FLOAT16 | NCHW",
    "3,5,7,2;; | FLOAT;INT32;INT64 -> 3,7,2 | FLOAT",
    "6,5,4; | DT_BF16;INT64 -> 6,5 | DT_BF16",
    "9;; | INT32;INT64;INT64 -> | INT32",
    "64,5; | FLOAT;INT64 -> 5 | FLOAT",
]


@pytest.mark.parametrize("row", SCALAR_INDICES)
def test_a_scalar_index_chooses_along_any_axis(row):
    outcome = replay_row("GatherV2", row)
    assert outcome.status is Status.MEASURED, outcome


def test_a_wrong_position_of_a_scalar_index_is_found(monkeypatch):
    def first(x, indices):
        return x[(*[slice(None)] * (len(indices) - 1), 0)].clone() + 1

    time_instead(monkeypatch, first)
    assert_wrong("GatherV2", SCALAR_INDICES[1])
