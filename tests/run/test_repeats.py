"""Every sample starts from the same state, and an in-place kernel is not compared with itself."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from replaying import job_of

from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.formula import per_element, pointwise
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.registry import replays
from opatlas.run.runner import Runner

ROW = "4,5 | FLOAT -> 4,5 | FLOAT"


@pointwise
def one_more(x):
    return x + 1


@pointwise
def one_more_than_first(x, _):
    return x + 1


@pointwise
def one_more_twice(x):
    return x + 1, x + 1


@per_element()
def first_is_one_more(at, xs, ys):
    return xs[0][at] + 1


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
        lambda x: (x + 1, x + row.cells["second"], x),
        row.tensor(0),
        output_slots=[0, None],
        expected=one_more_twice,
    )


@replays("ChangesLists", npu=None)
def changes_lists(row, replay):
    """Not the first call's result, unless each starts from the same values."""

    def kernel(xs, ys):
        xs[0].add_(row.cells["added"])

    replay(kernel, [row.tensor(0)], [row.tensor(0)], mutates=[0], expected=first_is_one_more)


@replays("Starts", npu=None)
def starts(row, replay):
    seen = row.cells["seen"]

    def kernel(x):
        seen.append(x.clone())
        return x.add_(1)

    replay(kernel, row.tensor(0), mutates=[0], expected=one_more)


@pytest.fixture(params=["cold", "warm"])
def run(request):
    runner = Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=4, cache=request.param))

    def run(function, **cells):
        job = job_of("Counting", ROW, f"{__name__}.{function}")
        return runner.run(dataclasses.replace(job, cells=job.cells | cells))

    return run


def test_each_sample_starts_from_the_same_state(run):
    outcome = run("counting")
    assert outcome.status is Status.MEASURED, outcome.reason
    assert len(outcome.measurement.samples_us) == 4


def test_in_place_kernel_is_not_compared_with_itself(run):
    outcome = run("compared_with_itself")
    assert outcome.status is Status.FAILED
    assert "unchanged" in outcome.reason


def test_results_of_a_kernel_that_returns_nothing_are_its_changed_arguments(run):
    assert run("returns_nothing").status is Status.MEASURED


@pytest.mark.parametrize(("second", "status"), [(1, Status.MEASURED), (2, Status.FAILED)])
def test_results_that_the_row_does_not_list_are_checked(run, second, status):
    assert run("returns_more_than_the_row_lists", second=second).status is status


def test_every_call_sees_the_same_values():
    runner = Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=3, cache="warm"))
    job = job_of("Counting", ROW, f"{__name__}.starts")
    seen: list[torch.Tensor] = []
    job.cells["seen"] = seen
    assert runner.run(job).status is Status.MEASURED
    assert len(seen) >= 4
    assert all(torch.equal(seen[0], other) for other in seen)


def test_masked_fill_starts_from_its_initial_values():
    runner = Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=3, cache="cold"))
    row = "2,129;2,129; | FLOAT;BOOL;FLOAT -> 2,129 | FLOAT"
    assert runner.run(job_of("MaskedFill", row)).status is Status.MEASURED


def test_lists_that_a_kernel_changes_start_from_the_same_values_and_are_its_results(run):
    outcome = run("changes_lists", added=1)
    assert outcome.status is Status.MEASURED, outcome.reason
    assert outcome.measurement.checked_elements == 20
    assert run("changes_lists", added=2).status is Status.FAILED
