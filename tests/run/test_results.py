"""Samples start from the same inputs, undeclared changes give no measurement, and results are compared in range."""

from __future__ import annotations

import ctypes
import dataclasses
import functools

import pytest
import torch
from replaying import job_of

from opatlas.outer.judging.results import compare_results
from opatlas.outer.suites.opinfo import opinfos
from opatlas.row.errors import ChangedInput, ReplayError, WrongResult
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.formula import per_element, pointwise
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.kernel_call import COMPARED_BYTES, InputWatch
from opatlas.run.registry import replays
from opatlas.run.result_check import Comparison, Formula, check
from opatlas.run.runner import Runner
from tests.support.wrapper import Wrapper

SHAPE = "64,16"
ROW = f"{SHAPE} | FLOAT -> {SHAPE} | FLOAT"


@pointwise
def doubled(x, *_, **__):
    return 2 * x


@per_element()
def sum_of_list(at, xs):
    return xs[0][at] + xs[1][at]


@pointwise
def sum_with_keyword(x, *, y):
    return x + y


def right_before(change):
    """A kernel whose result is right, and which changes its input afterwards."""

    @functools.wraps(change)
    def kernel(x):
        result = 2 * x
        change(x)
        return result

    return kernel


def through_numpy(x):
    x.numpy()[-1, -1] += 1


def through_its_address(x):
    last = x.data_ptr() + (x.numel() - 1) * x.element_size()
    ctypes.c_float.from_address(last).value += 1


def through_a_detached_tensor(x):
    x.data.add_(1)


def through_a_view(x):
    x[1:].T.mul_(2)


CHANGES = {
    change.__name__: right_before(change)
    for change in (torch.Tensor.neg_, through_numpy, through_its_address, through_a_detached_tensor, through_a_view)
}


@replays("ChangesItsInput", npu=None)
def changes_its_input(row, replay):
    replay(CHANGES[row.cells["change"]], row.tensor(0), expected=doubled)


@replays("ChangesLater", npu=None)
def changes_later(row, replay):
    calls = []

    def kernel(x):
        calls.append(x)
        return right_before(through_numpy)(x) if len(calls) == row.cells["call"] else 2 * x

    replay(kernel, row.tensor(0), expected=doubled)


@replays("ChangesAList", npu=None)
def changes_a_list(row, replay):
    def kernel(xs):
        result = xs[0] + xs[1]
        xs[1].add_(1)
        return result

    replay(kernel, [row.tensor(0), row.tensor(0)], expected=sum_of_list)


@replays("ChangesAKeyword", npu=None)
def changes_a_keyword(row, replay):
    def kernel(x, *, y):
        result = x + y
        y.add_(1)
        return result

    replay(kernel, row.tensor(0), y=row.tensor(0), mutates=row.cells["mutates"], expected=sum_with_keyword)


@replays("ChangesAnAlias", npu=None)
def changes_an_alias(row, replay):
    """The reference would see the second argument as the kernel has left it."""
    x = row.tensor(0)
    replay(lambda x, _: x.mul_(2), x, x[:], mutates=row.cells["mutates"], expected=doubled)


@replays("Overwrites", npu=None)
def overwrites(row, replay):
    replay(
        lambda x, out: torch.mul(x, 2, out=out),
        row.tensor(0),
        row.destination(),
        overwrites=row.cells["overwrites"],
        expected=doubled,
    )


@replays("ReturnsNoTensor", npu=None)
def returns_no_tensor(row, replay):
    def kernel(x, out):
        torch.mul(x, row.cells["factor"], out=out)
        return row.cells["returned"]

    replay(kernel, row.tensor(0), row.destination(), overwrites=[1], expected=doubled)


@pytest.fixture
def run():
    runner = Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=4, cache="warm"))

    def run(function, **cells):
        job = job_of("ChangesItsInput", ROW, f"{__name__}.{function}")
        return runner, dataclasses.replace(job, cells=job.cells | cells)

    return run


def place_of_change(run):
    """The argument that the error names; the row's status is that of a failure."""
    runner, job = run
    outcome = runner.run(job)
    assert outcome.status is Status.FAILED, outcome
    with pytest.raises(ChangedInput) as raised:
        runner.run_raising(job)
    assert f"mutates=[{raised.value.place!r}]" in outcome.reason
    return raised.value.place


@pytest.mark.parametrize(
    ("function", "cells"),
    [
        *(("changes_its_input", {"change": change}) for change in CHANGES),
        *(("changes_later", {"call": call}) for call in (2, 5)),
    ],
)
def test_an_undeclared_change_in_any_call_fails_the_row(run, function, cells):
    assert place_of_change(run(function, **cells)) == 0


def test_a_tensor_inside_a_list_is_watched(run):
    runner, job = run("changes_a_list")
    assert place_of_change((runner, job)) == 0
    assert "argument 0[1]" in runner.run(job).reason


@pytest.mark.parametrize(
    ("function", "keyword", "declared", "missing"),
    [
        pytest.param("changes_a_keyword", "mutates", [], "y", id="a keyword"),
        pytest.param("changes_an_alias", "mutates", [0], 1, id="a view of a declared argument"),
        pytest.param("overwrites", "overwrites", [], 1, id="a write-only argument"),
    ],
)
def test_a_change_must_be_declared(run, function, keyword, declared, missing):
    assert place_of_change(run(function, **{keyword: declared})) == missing
    runner, job = run(function, **{keyword: [*declared, missing]})
    assert runner.run(job).status is Status.MEASURED


@pytest.mark.parametrize(("factor", "status"), [(2, Status.MEASURED), (3, Status.FAILED)])
def test_overwritten_arguments_are_checked_where_a_kernel_returns_nothing(run, factor, status):
    runner, job = run("returns_no_tensor", returned=None, factor=factor)
    outcome = runner.run(job)
    assert outcome.status is status, outcome
    if outcome.measurement is not None:
        assert outcome.measurement.checked_elements == 64 * 16


def test_a_kernel_without_a_result_is_not_measured(run):
    runner, job = run("returns_no_tensor", returned=5, factor=2)
    assert runner.run(job).status is Status.FAILED
    with pytest.raises(ReplayError):
        runner.run_raising(job)


def watched(tensor):
    return InputWatch({0: tensor}, declared=(), seed=1)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.bfloat16, torch.complex64, torch.int64])
@pytest.mark.parametrize("size", [0, 1, 7])
def test_any_dtype_and_size_is_compared(dtype, size):
    tensor = torch.zeros(size, dtype=dtype)
    watch = watched(tensor)
    assert watch.changed() == []
    tensor.data.fill_(1)
    assert watch.changed() == ([(0, "argument 0")] if size else [])


def test_of_a_large_tensor_long_changes_and_the_ends_are_found():
    """A change that bypasses torch and is smaller than the gap between two blocks may be missed."""
    tensor = torch.zeros(16 * COMPARED_BYTES + 5, dtype=torch.uint8)
    stretches = [(start, COMPARED_BYTES) for start in range(999, 15 * COMPARED_BYTES, COMPARED_BYTES)]
    for first, count in [(0, 1), (len(tensor) - 1, 1), *stretches]:
        watch = watched(tensor)
        tensor.data[first : first + count] += 1
        assert watch.changed(), first


@pytest.mark.parametrize("made", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr, Wrapper])
def test_tensors_without_memory_of_their_own_are_watched_as_far_as_torch_counts(made):
    tensor = made(torch.eye(9))
    watch = watched(tensor)
    assert watch.changed() == []
    tensor.mul_(2)
    assert watch.changed()


SMALL = "4,5 | FLOAT -> 4,5 | FLOAT"


@pointwise
def one_more(x):
    return x + 1


@pointwise
def one_more_than_first(x, _):
    return x + 1


@pointwise
def one_more_twice(x):
    return x + 1, x + 1


@pointwise
def unchanged(x):
    return x


@replays("Counting", npu=None)
def counting(row, replay):
    """Two calls without a fresh start in between add 2."""
    replay(lambda x: x.add_(1), row.tensor(0), mutates=[0], expected=one_more)


@replays("ComparedWithItself", npu=None)
def compared_with_itself(row, replay):
    """Wrong, and right only where the formula is given the results of the kernel."""
    replay(lambda x: x.mul_(3), row.tensor(0), mutates=[0], expected=unchanged)


@replays("ReturnsNothing", npu=None)
def returns_nothing(row, replay):
    def kernel(x, y):
        x.add_(1)

    replay(kernel, row.tensor(0), row.tensor(0), mutates=[0], expected=one_more_than_first)


@replays("ReturnsMoreThanTheRowLists", npu=None)
def returns_more_than_the_row_lists(row, replay):
    """The second result is in no slot of the row; the third is not looked at."""
    replay(
        lambda x: (x + 1, x + row.cells["second"], x), row.tensor(0), output_slots=[0, None], expected=one_more_twice
    )


@pytest.fixture(params=["cold", "warm"])
def run_repeatedly(request):
    runner = Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=4, cache=request.param))

    def run_repeatedly(function, **cells):
        job = job_of("Counting", SMALL, f"{__name__}.{function}")
        return runner.run(dataclasses.replace(job, cells=job.cells | cells))

    return run_repeatedly


def test_each_sample_starts_from_the_same_state(run_repeatedly):
    outcome = run_repeatedly("counting")
    assert outcome.status is Status.MEASURED, outcome.reason
    assert len(outcome.measurement.samples_us) == 4


def test_in_place_kernel_is_not_compared_with_itself(run_repeatedly):
    outcome = run_repeatedly("compared_with_itself")
    assert outcome.status is Status.FAILED
    assert "unchanged" in outcome.reason


def test_results_of_a_kernel_that_returns_nothing_are_its_changed_arguments(run_repeatedly):
    assert run_repeatedly("returns_nothing").status is Status.MEASURED


@pytest.mark.parametrize(("second", "status"), [(1, Status.MEASURED), (2, Status.FAILED)])
def test_results_that_the_row_does_not_list_are_checked(run_repeatedly, second, status):
    assert run_repeatedly("returns_more_than_the_row_lists", second=second).status is status


class _Known:
    name = "known"

    def __init__(self, expected: torch.Tensor) -> None:
        self.expected = expected

    def compare(self, arguments: object, keywords: object, results: list[torch.Tensor], seed: int) -> list[Comparison]:
        return [Comparison(results[0], self.expected, exact=False)]


def is_right(result: torch.Tensor, expected: list[float]) -> bool:
    """Returns the verdict on a result, which replays of rows and judges of candidates must agree on."""
    formula: Formula = _Known(torch.tensor(expected, dtype=torch.float64))  # type: ignore[assignment]
    try:
        check(formula, [], {}, [result], seed=0)
        of_row = True
    except WrongResult:
        of_row = False
    of_candidate = not compare_results([result], [torch.tensor(expected, dtype=torch.float64)]).wrong
    assert of_row == of_candidate
    return of_row


@pytest.mark.parametrize(
    ("dtype", "result", "expected", "right"),
    [
        (torch.float32, [0.0, 0.0], [3.7e-298, -1e-200], True),
        (torch.float32, [1e-39, 0.0], [0.0, 1e-39], True),
        (torch.float32, [0.0, 0.0], [3e-30, 1e-30], False),
        (torch.float16, [0.0, 0.0], [3e-5, 1e-5], False),
        (torch.float16, [0.0, 0.0], [3e-9, 1e-9], True),
        (torch.float16, [torch.inf, -torch.inf, 1.0], [1e5, -7e4, 1.0], True),
        (torch.float16, [torch.inf, 1.0], [-1e5, 1.0], False),
        (torch.float16, [torch.inf, 1.0], [6e4, 1.0], False),
        (torch.float16, [65504.0, 1.0], [65510.0, 1.0], True),
        (torch.float32, [torch.inf], [1e300], True),
        (torch.bfloat16, [3.0], [1e300], False),
    ],
)
def test_results_are_compared_within_the_range_of_their_dtype(
    dtype: torch.dtype, result: list[float], expected: list[float], right: bool
) -> None:
    assert is_right(torch.tensor(result, dtype=dtype), expected) is right


def test_torchs_own_tests_leave_its_flags_free() -> None:
    """A session in one process lists their samples before it opens a GPU."""
    opinfos()
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32


@per_element()
def first_is_one_more(at, xs, ys):
    return xs[0][at] + 1


@replays("ChangesLists", npu=None)
def changes_lists(row, replay):
    """Not the first call's result, unless each starts from the same values."""

    def kernel(xs, ys):
        xs[0].add_(row.cells["added"])

    replay(kernel, [row.tensor(0)], [row.tensor(0)], mutates=[0], expected=first_is_one_more)


def test_lists_that_a_kernel_changes_start_from_the_same_values_and_are_its_results(run_repeatedly):
    outcome = run_repeatedly("changes_lists", added=1)
    assert outcome.status is Status.MEASURED, outcome.reason
    assert outcome.measurement.checked_elements == 20
    assert run_repeatedly("changes_lists", added=2).status is Status.FAILED


def test_tensors_in_mappings_are_watched():
    tensor = torch.zeros(8)
    watch = InputWatch({"options": {"scale": tensor}}, declared=(), seed=1)
    tensor.add_(1)
    assert watch.changed() == [("options", "argument 'options'['scale']")]
