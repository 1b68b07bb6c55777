"""Arguments found from shapes: whatever the call was, they give the recorded output."""

from __future__ import annotations

import math
from itertools import combinations, permutations, product

import numpy
import pytest
import torch
from hypothesis import given, settings, strategies as st

from opatlas.run.inputs import shape_rules
from opatlas.run.inputs.replay_row import ReplayRow

#: Other processes on a shared machine may hold up an example for any time.
relaxed = settings(deadline=None)
sizes = st.integers(1, 4)
shapes = st.lists(sizes, min_size=0, max_size=4).map(tuple)


@relaxed
@given(m=sizes, k=sizes, n=sizes, transposed=st.tuples(st.booleans(), st.booleans()), b_first=st.booleans())
def test_matrix_product_has_the_recorded_shape(m, k, n, transposed, b_first):
    a = (k, m) if transposed[0] else (m, k)
    b = (n, k) if transposed[1] else (k, n)
    found = shape_rules.matrix_product(a, b, (m, n), transposed_b_first=b_first)
    assert found is not None
    left, right = numpy.ones(a), numpy.ones(b)
    assert ((left.T if found[0] else left) @ (right.T if found[1] else right)).shape == (m, n)


@relaxed
@given(a=st.tuples(sizes, sizes), b=st.tuples(sizes, sizes), result=st.tuples(sizes, sizes))
def test_matrix_product_is_found_where_there_is_one(a, b, result):
    readings = [
        (a_is_transposed, b_is_transposed)
        for a_is_transposed in (False, True)
        for b_is_transposed in (True, False)
        if (m := a[::-1] if a_is_transposed else a)[1] == (n := b[::-1] if b_is_transposed else b)[0]
        and (m[0], n[1]) == result
    ]
    assert shape_rules.matrix_product(a, b, result, transposed_b_first=True) == (readings[0] if readings else None)


@pytest.mark.parametrize(
    ("a", "b", "result", "reading"),
    [
        ((4096, 1024), (6144, 1024), (4096, 6144), (False, True)),
        ((4096, 1024), (1024, 3072), (4096, 3072), (False, False)),
        ((4096, 1024), (4096, 3072), (1024, 3072), (True, False)),
        ((4096, 4096), (4096, 1024), (4096, 1024), (False, False)),
        ((256, 256), (512, 256), (256, 512), (False, True)),
        ((256, 256), (256, 256), (256, 256), (False, True)),
    ],
)
def test_matrix_product_of_real_rows(a, b, result, reading):
    assert shape_rules.matrix_product(a, b, result, transposed_b_first=True) == reading


@relaxed
@given(source=shapes, data=st.data())
def test_permutation_gives_the_recorded_shape(source, data):
    axes = data.draw(st.permutations(range(len(source))))
    result = tuple(source[axis] for axis in axes)
    found = shape_rules.permutation(source, result)
    assert found is not None
    assert numpy.zeros(source).transpose(found).shape == result


@relaxed
@given(source=st.lists(st.integers(1, 3), max_size=5).map(tuple), data=st.data())
def test_permutation_moves_the_fewest_axes(source, data):
    result = tuple(data.draw(st.permutations(source)))
    rank = len(source)
    fitting = [p for p in permutations(range(rank)) if tuple(source[axis] for axis in p) == result]
    moving = [p for p in fitting if (large := [axis for axis in p if source[axis] > 1]) != sorted(large)]
    found = shape_rules.permutation(source, result)
    assert found in (moving or fitting)
    assert moved(found) == min(map(moved, moving or fitting))


@relaxed
@given(source=st.lists(st.integers(1, 3), max_size=5).map(tuple))
def test_permutation_is_unique_where_others_move_the_same(source):
    orders = {
        tuple(axis for axis in p if source[axis] > 1)
        for p in permutations(range(len(source)))
        if tuple(source[axis] for axis in p) == source
    }
    assert shape_rules.permutation_is_unique(source) == (len(orders) == 1)


def moved(permutation):
    """Axes that must be taken out for the others to be in order."""
    rank = len(permutation)
    return min(
        count
        for count in range(rank + 1)
        if any(list(kept) == sorted(kept) for kept in combinations(permutation, rank - count))
    )


@pytest.mark.parametrize(
    ("source", "result", "permutation"),
    [
        ((32, 1, 6, 6, 256), (32, 256, 1, 6, 6), (0, 4, 1, 2, 3)),
        ((32, 256, 1, 6, 6), (32, 1, 6, 6, 256), (0, 2, 3, 4, 1)),
        ((8192, 1, 6, 6), (1, 6, 6, 8192), (1, 2, 3, 0)),
        ((4, 6, 6), (6, 4, 6), (1, 0, 2)),
        ((6, 6), (6, 6), (1, 0)),
        ((6, 5, 6, 6), (6, 5, 6, 6), (0, 1, 3, 2)),
        ((6, 5, 6), (6, 5, 6), (2, 1, 0)),
        ((1, 1, 6), (1, 1, 6), (0, 1, 2)),
        ((6, 1, 6), (1, 6, 6), (1, 2, 0)),
        ((4, 8), (4, 9), None),
        ((4, 8), (4, 8, 1), None),
    ],
)
def test_permutation_of_real_rows(source, result, permutation):
    assert shape_rules.permutation(source, result) == permutation


@relaxed
@given(source=st.lists(sizes, max_size=4).map(tuple), data=st.data(), keepdim=st.booleans(), counted=st.booleans())
def test_reduction_gives_the_recorded_shape(source, data, keepdim, counted):
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, len(source) - 1)) if source else st.just(set()))))
    result = numpy.zeros(source).sum(axis=axes, keepdims=keepdim).shape
    found = shape_rules.reduction(source, result, len(axes) if counted else None)
    assert found is not None
    assert numpy.zeros(source).sum(axis=found[0], keepdims=found[1]).shape == result
    assert len(found[0]) == len(axes) if counted else len(found[0]) <= len(axes)


@pytest.mark.parametrize(
    ("source", "count", "result", "found"),
    [
        ((32, 192, 729), 2, (192,), ((0, 2), False)),
        ((160,), 1, (1,), ((0,), True)),
        ((32, 1000), 1, (1, 1000), ((0,), True)),
        ((32, 32), 1, (32,), ((0,), False)),
        ((32, 1000), 1, (31,), None),
    ],
)
def test_reduction_of_real_rows(source, count, result, found):
    assert shape_rules.reduction(source, result, count) == found


@relaxed
@given(
    shape=st.lists(sizes, min_size=1, max_size=4).map(tuple),
    lengths=st.lists(sizes, min_size=1, max_size=4),
    data=st.data(),
)
def test_concatenation_gives_the_recorded_shape(shape, lengths, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    parts = [(*shape[:axis], length, *shape[axis + 1 :]) for length in lengths]
    result = numpy.concatenate([numpy.zeros(part) for part in parts], axis).shape
    found = shape_rules.concatenation(parts, result)
    assert found is not None
    assert numpy.concatenate([numpy.zeros(part) for part in parts], found).shape == result
    if len(parts) > 1:
        assert found == axis


@relaxed
@given(source=shapes, leading=st.lists(sizes, max_size=2), data=st.data())
def test_repetition_gives_the_recorded_shape(source, leading, data):
    repeats = (*leading, *data.draw(st.lists(sizes, min_size=len(source), max_size=len(source))))
    result = numpy.tile(numpy.zeros(source), repeats).shape
    found = shape_rules.repetition(source, result)
    assert found == tuple(repeats)


@relaxed
@given(st.lists(shapes, min_size=1, max_size=3))
def test_broadcast_is_numpys(shapes):
    try:
        expected = numpy.broadcast_shapes(*shapes)
    except ValueError:
        expected = None
    assert shape_rules.broadcast(shapes) == expected


def nz_stored(matrices, block):
    """FRACTAL_NZ by its definition, element by element: axes (column block, row block, row, column) of a block."""
    rows, columns = matrices.shape[-2] // block[0], matrices.shape[-1] // block[1]
    stored = torch.empty((*matrices.shape[:-2], columns, rows, *block), dtype=matrices.dtype)
    for a, b, c, d in product(range(columns), range(rows), range(block[0]), range(block[1])):
        stored[..., a, b, c, d] = matrices[..., b * block[0] + c, a * block[1] + d]
    return stored


@settings(deadline=None, max_examples=30)
@given(
    blocks=st.tuples(sizes, sizes),
    batch=st.lists(st.integers(1, 3), max_size=2),
    block=st.tuples(sizes, sizes) | st.sampled_from([(16, 16), (16, 32)]),
    dtype=st.sampled_from([torch.int8, torch.float32, torch.bfloat16]),
)
def test_nz_matrix_equals_the_stored_one(blocks, batch, block, dtype):
    shape = (*batch, blocks[0] * block[0], blocks[1] * block[1])
    matrices = torch.arange(math.prod(shape)).remainder(127).reshape(shape).to(dtype)
    assert torch.equal(shape_rules.nz_matrix(nz_stored(matrices, block)), matrices)


class TestRowValues:
    """The tensors of a row: seeded, in range, legal."""

    def row(self, **more):
        cells = {
            "Input Shapes": "40,50;300;2,5,16,16",
            "Input Data Types": "FLOAT;INT32;DT_BF16",
            "Input Formats": "ND;ND;FRACTAL_NZ",
            "Output Shapes": "40,50",
            "Output Data Types": "FLOAT",
        }
        return ReplayRow("Some", cells | more, torch.device("cpu"))

    def test_same_row_gets_the_same_values(self):
        assert all(map(torch.equal, self.row().inputs(), self.row().inputs()))

    def test_a_measured_row_gets_the_same_values_as_before(self):
        measured = self.row(**{"Average Duration(us)": "12.5", "Status": "measured"})
        assert torch.equal(measured.tensor(0), self.row().tensor(0))

    def test_ranges(self):
        row = self.row()
        x, whole, integers = row.tensor(0, 2.0, 3.0), row.integers(0, -3, 3), row.tensor(1)
        assert 2 <= x.min() < x.max() <= 3
        assert set(whole.unique().tolist()) == {-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0}
        assert set(integers.unique().tolist()) == set(range(1, 9))

    def test_indices_are_legal(self):
        row = self.row()
        indices = row.indices(1, 7)
        assert indices.dtype is torch.int32
        assert set(indices.unique().tolist()) == set(range(7))
        assert row.indices(1, 300, distinct=True).unique().numel() == 300

    @pytest.mark.parametrize("below", [300, 301, 10**13])
    def test_distinct_indices_reach_over_the_whole_range(self, below):
        """Of a range that no memory could list, too."""
        row = self.row(**{"Input Data Types": "FLOAT;INT64;DT_BF16"})
        indices = row.indices(1, below, distinct=True)
        assert indices.unique().numel() == 300
        assert indices.min() >= 0
        assert indices.max() < below
        assert indices.max() >= below - below // 300 - 1
        assert not torch.equal(indices, indices.sort().values)

    @pytest.mark.parametrize("below", [30, 31, 10**12])
    def test_indices_that_differ_along_an_axis_only(self, below):
        row = self.row(**{"Input Data Types": "FLOAT;INT64;DT_BF16"})
        indices = row.indices(1, below, along=1, shape=(10, 30, 2)).sort(1).values
        assert indices.diff(dim=1).min() > 0
        assert indices.min() >= 0
        assert indices.max() < below
        if below > 30:
            assert not torch.equal(indices[0], indices[1])

    def test_nz_slot_is_its_matrix(self):
        assert self.row().matrices(2, rank=2).shape == (80, 32)
