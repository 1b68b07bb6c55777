"""A kernel that changes an input which its replay does not name gives no measurement."""

from __future__ import annotations

import ctypes
import dataclasses
import functools

import pytest
import torch
from replaying import job_of

from opatlas.row.errors import ChangedInput, ReplayError
from opatlas.row.status import Status
from opatlas.run.call_watch import COMPARED_BYTES, InputWatch
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.formula import per_element, pointwise
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.registry import replays
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


def test_a_tensor_that_torch_does_not_count_changes_of_is_compared():
    with torch.inference_mode():
        tensor = torch.zeros(8)
        watch = watched(tensor)
        tensor.add_(1)
    assert watch.changed()


@pytest.mark.parametrize("made", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr, Wrapper])
def test_tensors_without_memory_of_their_own_are_watched_as_far_as_torch_counts(made):
    tensor = made(torch.eye(9))
    watch = watched(tensor)
    assert watch.changed() == []
    tensor.mul_(2)
    assert watch.changed()


def test_tensors_in_mappings_are_watched():
    tensor = torch.zeros(8)
    watch = InputWatch({"options": {"scale": tensor}}, declared=(), seed=1)
    tensor.add_(1)
    assert watch.changed() == [("options", "argument 'options'['scale']")]
