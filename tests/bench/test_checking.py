"""The elements that the check compares: all of a small result, a seeded sample of a large one."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from opatlas.bench import formulas

import opatlas.run.formula
from opatlas.row.errors import WrongResult
from opatlas.run.formula import Draw, each, per_element, per_row, pointwise
from opatlas.run.result_check import Picks, Rounded, check

SEED = 5


@pointwise
def tripled(x):
    return 3 * x


@per_row("x")
def shares(x):
    return x / x.sum(dim=-1, keepdim=True)


@per_row("x")
def row_maximum(x):
    return Picks(x, x.amax(dim=-1, keepdim=True))


@per_element(exact=True)
def mirrored(at, x):
    return x[tuple(size - 1 - index for index, size in zip(at, x.shape, strict=True))]


@per_element(terms=lambda x: x.shape[-1])
def row_sum(at, x):
    return x[at].to(torch.float64).sum(dim=-1)


FORMULAS = {
    "pointwise": (tripled, lambda x: 3 * x),
    "per_row": (shares, lambda x: x / x.sum(-1, keepdim=True)),
    "picks": (row_maximum, lambda x: x.argmax(-1)),
    "per_element": (mirrored, lambda x: x.flip(0, 1)),
    "terms": (row_sum, lambda x: x.sum(-1)),
}


@pytest.fixture(params=FORMULAS)
def case(request):
    """A formula, an input of 64 rows, and a right result."""
    formula, compute = FORMULAS[request.param]
    x = torch.rand(64, 16, generator=torch.Generator().manual_seed(1)) + 0.5
    return formula, x, compute(x)


@pytest.fixture
def small_sample(monkeypatch):
    monkeypatch.setattr(opatlas.run.formula, "SAMPLED_ELEMENTS", 64)
    monkeypatch.setattr(opatlas.run.formula, "READ_INPUTS", 256)
    monkeypatch.setattr(opatlas.run.formula, "_LEAST_ELEMENTS", 4)


def wrong_at(result, index):
    flat = result.clone().reshape(-1)
    flat[index] = (flat[index] + 1) % 16 if not result.is_floating_point() else flat[index] + 1
    return flat.reshape(result.shape)


def found(formula, x, result):
    try:
        check(formula, [x], {}, [result], SEED)
    except WrongResult:
        return True
    return False


def test_right_result_passes_in_full(case):
    formula, x, result = case
    checked = check(formula, [x], {}, [result], SEED)
    assert checked.elements == checked.total == result.numel()


def test_right_result_passes_sampled(case, small_sample):
    formula, x, result = case
    checked = check(formula, [x], {}, [result], SEED)
    assert 0 < checked.elements < checked.total


def test_in_full_every_wrong_element_is_found(case):
    formula, x, result = case
    for index in range(0, result.numel(), 7):
        assert found(formula, x, wrong_at(result, index)), index


def test_sampled_wrong_elements_are_found_where_full_checking_compares_the_same(case, small_sample):
    """A sampled element is compared with the same value as in a full check."""
    formula, x, result = case
    compared = formula.compare([x], {}, [torch.arange(result.numel()).reshape(result.shape)], SEED)
    inside = set(compared[0].actual.flatten().tolist())
    assert 0 < len(inside) < result.numel()
    for index in range(result.numel()):
        assert found(formula, x, wrong_at(result, index)) == (index in inside), index


def test_first_and_last_element_are_in_every_sample(case, small_sample):
    formula, x, result = case
    assert found(formula, x, wrong_at(result, 0))
    assert found(formula, x, wrong_at(result, result.numel() - 1))


def test_a_wrong_stretch_is_found_anywhere(small_sample):
    x = torch.rand(64, 16)
    for start in range(0, 64 * 16 - 32, 5):
        result = x.flip(0, 1)
        result.view(-1)[start : start + 32] += 1
        assert found(mirrored, x, result), start


def test_wide_rows_are_checked_between_the_first_and_the_last():
    x = torch.rand(64, 8192) + 0.5
    right = x / x.sum(-1, keepdim=True)
    for start in range(0, 64 - 16, 3):
        result = right.clone()
        result[start : start + 16] *= 2
        assert found(shares, x, result), start


def test_costly_parts_are_spread_over_all():
    parts = Draw(SEED)(1000, elements=128, terms=1 << 30)
    assert (parts[0], parts[-1]) == (0, 999)
    assert max(second - first for first, second in pairwise(parts)) <= 2 * 1000 / len(parts)
    assert len(parts) == 16


def test_the_same_elements_are_sampled_again(case, small_sample):
    formula, x, result = case
    first, again, other = (formula.compare([x], {}, [result], seed)[0].actual for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["pointwise", "per_row", "per_element", "terms"])
def test_nan_and_infinity_never_pass(name, bad):
    formula, compute = FORMULAS[name]
    x = torch.rand(8, 16) + 0.5
    result = compute(x)
    result.view(-1)[3] = bad
    assert found(formula, x, result)


def test_nan_of_the_reference_does_not_excuse_one_of_the_kernel():
    x = torch.full((4,), float("nan"))
    assert found(tripled, x, 3 * x)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.uint8, torch.bool])
def test_integers_and_booleans_are_compared_exactly(dtype):
    @pointwise
    def same(x):
        return x

    x = torch.arange(64).remainder(2).to(dtype)
    assert not found(same, x, x.clone())
    assert found(same, x, torch.where(torch.arange(64) == 40, 1 - x.int(), x.int()).to(dtype))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_wide_unsigned_integers_are_compared(dtype):
    x = torch.arange(64).to(dtype)
    check(formulas.copy_into, [x, x], {}, [x.clone()], SEED)
    with pytest.raises(WrongResult):
        check(formulas.copy_into, [x, x], {}, [(torch.arange(64) + 1).to(dtype)], SEED)


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 2e-5), (torch.bfloat16, 4e-3), (torch.float16, 5e-4)])
def test_rounding_passes_and_ten_times_the_tolerance_does_not(dtype, within):
    x = torch.rand(64) + 1
    assert not found(tripled, x.to(dtype), (3 * x.to(dtype) * (1 + within)).to(dtype))
    assert found(tripled, x.to(dtype), (3 * x.to(dtype) * (1 + 100 * within)).to(dtype))


def test_moved_data_is_compared_to_the_letter():
    x = torch.rand(8, 16) + 1
    result = x.flip(0, 1)
    result[3, 3] *= 1 + 1e-6
    assert found(mirrored, x, result)


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (5, 0), (1,)])
@pytest.mark.parametrize(
    ("formula", "compute"),
    [(tripled, lambda x: 3 * x), (formulas.copy_into, None), (formulas.softmax, lambda x: torch.softmax(x, -1))],
    ids=["pointwise", "per_element", "per_row"],
)
def test_scalars_and_empty_results(formula, compute, shape):
    x = torch.rand(shape)
    if compute is None:
        arguments, result = [torch.zeros_like(x), x], x.clone()
    else:
        arguments, result = [x] if formula is tripled else [x, -1], compute(x)
    checked = check(formula, arguments, {}, [result], SEED)
    assert checked.elements == checked.total == x.numel()
    if x.numel():
        with pytest.raises(WrongResult):
            check(formula, arguments, {}, [result + 1], SEED)


def test_ties_may_be_broken_either_way():
    x = torch.tensor([[1.0, 7.0, 7.0, 2.0]])
    for index in (1, 2):
        check(row_maximum, [x], {}, [torch.tensor([index])], SEED)
    with pytest.raises(WrongResult):
        check(row_maximum, [x], {}, [torch.tensor([3])], SEED)


class TestSortedIndices:
    x = torch.tensor([[1.0, 7.0, 7.0, 2.0]])
    values = torch.tensor([[7.0, 7.0, 2.0, 1.0]])

    def check(self, indices):
        check(formulas.sort, [self.x], {"dim": -1, "descending": True}, [self.values, torch.tensor([indices])], SEED)

    @pytest.mark.parametrize("indices", [[1, 2, 3, 0], [2, 1, 3, 0]])
    def test_equal_numbers_come_in_any_order(self, indices):
        self.check(indices)

    def test_an_index_twice_is_wrong(self):
        with pytest.raises(WrongResult, match="twice"):
            self.check([1, 1, 3, 0])

    @pytest.mark.parametrize("outside", [-1, 4])
    def test_an_index_outside_is_wrong(self, outside):
        with pytest.raises(WrongResult, match="outside"):
            self.check([1, 2, 3, outside])


@per_row("x")
def halves(x):
    return Rounded(x / 2)


class TestRoundedResults:
    def test_the_nearest_whole_number_is_right(self):
        x = torch.arange(-250.0, 250.0).reshape(5, 100)
        assert not found(halves, x, (x / 2).round().to(torch.int8))

    @pytest.mark.parametrize("off", [-1, 1])
    def test_another_is_wrong(self, off):
        x = torch.tensor([[5.2, 8.0]])
        assert found(halves, x, torch.tensor([[3, 4 + off]], dtype=torch.int8))

    @pytest.mark.parametrize("either", [2, 3])
    def test_midway_between_two_either_is_right(self, either):
        assert not found(halves, torch.tensor([[5.0]]), torch.tensor([[either]], dtype=torch.int8))

    def test_nan_of_the_reference_is_wrong(self):
        assert found(halves, torch.tensor([[float("nan")]]), torch.tensor([[0]], dtype=torch.int8))

    @pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
    def test_the_nearest_number_of_fp8_is_right_and_the_next_ones_are_wrong(self, dtype):
        rows = torch.tensor([[0.3, 17.4, 300.0, 0.002, 1.0, -447.0, 0.0]])
        right = (rows / 2).to(dtype)
        assert not found(halves, rows, right)
        for column, number in enumerate(right[0].tolist()):
            bits = right.view(torch.uint8)
            for step in (-1, 1):
                wrong = bits.clone()
                # The next number up or down; below zero comes NaN.
                wrong[0, column] = (int(bits[0, column]) + step) % 256
                assert found(halves, rows, wrong.view(dtype)), (number, step)

    def test_eight_numbers_in_one(self):
        @per_row("x")
        def nibbles(x):
            return Rounded(x, packed=True)

        x = torch.tensor([[0.0, 1.0, -1.0, 7.0, -8.0, 3.0, 2.0, -3.0]])
        packed = torch.tensor([[sum((int(v) & 15) << 4 * i for i, v in enumerate(x[0])) - (1 << 32)]]).int()
        assert not found(nibbles, x, packed)
        assert found(nibbles, x, packed ^ (1 << 12))


def test_minus_infinity_allows_no_other_number():
    @per_row("x")
    def negative_masked(x):
        return x.masked_fill(x < 0, -math.inf)

    x = torch.tensor([[1.0, -2.0, 3.0]])
    assert not found(negative_masked, x, torch.tensor([[1.0, -math.inf, 3.0]]))
    assert found(negative_masked, x, torch.tensor([[1.0, -2.0, 3.0]]))
    assert found(negative_masked, x, torch.tensor([[-math.inf, -math.inf, 3.0]]))


@per_element(exact=True, written=lambda x, places, rows: (places,))
def overwritten(at, x, places, rows):
    result = x.clone()
    result[places] = rows
    return result[at]


class TestLittleOfALargeTensorIsWritten:
    x = torch.zeros(1 << 16, 8)
    places = torch.tensor([777, 60_000])
    rows = torch.ones(2, 8)

    def check(self, result):
        return check(overwritten, [self.x, self.places, self.rows], {}, [result], SEED)

    def test_right(self):
        result = self.x.clone()
        result[self.places] = self.rows
        assert 4096 < self.check(result).elements < 8192

    @pytest.mark.parametrize("missing", range(2))
    @pytest.mark.parametrize("column", range(8))
    def test_an_element_that_is_not_written_is_found(self, missing, column):
        result = self.x.clone()
        result[self.places] = self.rows
        result[self.places[missing], column] = 0
        with pytest.raises(WrongResult):
            self.check(result)

    def test_elements_that_must_not_be_written_are_sampled_too(self):
        with pytest.raises(WrongResult):
            self.check(torch.ones_like(self.x))


class TestAFormulaForEachResult:
    formula = each(tripled, shares)
    x = torch.rand(4, 8) + 0.5

    def check(self, *results):
        return check(self.formula, [self.x], {}, results, SEED)

    def test_right(self):
        assert self.check(3 * self.x, self.x / self.x.sum(-1, keepdim=True)).elements == 64

    def test_the_second_is_checked(self):
        with pytest.raises(WrongResult, match="result 1 differs"):
            self.check(3 * self.x, 3 * self.x)

    def test_fewer_results(self):
        assert self.check(3 * self.x).elements == 32

    def test_more_results(self):
        with pytest.raises(WrongResult, match="3 results"):
            self.check(3 * self.x, self.x / self.x.sum(-1, keepdim=True), self.x)


class Elsewhere(torch.Tensor):
    """A substitute for a tensor of an NPU: on a device that does not compute in float64."""

    @property
    def device(self):
        return torch.device("privateuseone", 0)

    def cpu(self):
        return self.as_subclass(torch.Tensor)


def test_tensors_of_a_device_without_float64_are_checked_on_the_host():
    seen = []

    @pointwise
    def doubled(x, *, more):
        seen.extend([x, *more])
        return 2 * x

    x = torch.rand(64)
    more = [torch.ones(3).as_subclass(Elsewhere)]
    for factor, right in ((2.0, True), (2.1, False)):
        result = (factor * x).as_subclass(Elsewhere)
        try:
            check(doubled, [x.as_subclass(Elsewhere)], {"more": more}, [result], SEED)
        except WrongResult:
            assert not right
        else:
            assert right
    assert {type(tensor) for tensor in seen} == {torch.Tensor}
