"""Requirements on a GPU beyond right results: the requested state of the cache, records of the call alone, poison that
costs one row."""

from __future__ import annotations

import textwrap
from statistics import median

import pytest
from replaying import job_of

from opatlas.row.status import Status
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job
from opatlas.run.process.device_process import DeviceProcess

#: Four megabytes in, four out: all of it fits into the L2 cache, and none is left of it after a flush.
MEMORY_BOUND = ("Neg", "1048576 | FLOAT -> 1048576 | FLOAT")
SPLIT_K = ("MatMulV2", "8,8192;1024,8192 | DT_BF16;DT_BF16 -> 8,1024 | DT_BF16")


def measured(gpu, kernel_type, row, **settings):
    """In a process of its own: a process has one profiler."""
    process = DeviceProcess(gpu, MeasureSettings(repeat_count=30, **settings))
    try:
        outcome = process.run(job_of(kernel_type, row))
    finally:
        process.close()
    assert outcome.status is Status.MEASURED, f"{outcome.reason}\n{outcome.detail}"
    return outcome.measurement


def test_the_cache_is_in_the_state_that_the_record_names(gpu):
    cold, warm = (measured(gpu, *MEMORY_BOUND, cache=cache) for cache in ("cold", "warm"))
    assert (cold.cache_state, warm.cache_state) == ("cold", "warm")
    assert median(cold.samples_us) > 1.2 * median(warm.samples_us)


def test_records_are_of_the_call_alone(gpu):
    """With each call run its mark's kernel, the flush's kernel and fill, and copies that restore its changed inputs."""
    assert measured(gpu, *MEMORY_BOUND).device_kernels == 1
    assert measured(gpu, "MaskedFill", "64,64;64,64; | FLOAT;BOOL;FLOAT -> 64,64 | FLOAT").device_kernels == 2


def test_kineto_and_cupti_see_the_same_kernels(gpu):
    by = {name: measured(gpu, *SPLIT_K, instrument=name) for name in ("cupti", "kineto")}
    assert by["cupti"].device_kernels == by["kineto"].device_kernels
    assert median(by["cupti"].samples_us) == pytest.approx(median(by["kineto"].samples_us), rel=0.1, abs=0.5)
    events = measured(gpu, *SPLIT_K, instrument="cuda-events")
    assert events.device_kernels is None
    assert median(events.samples_us) > median(by["cupti"].samples_us)


def test_the_device_describes_itself(gpu, runner):
    description = runner.describe()
    assert description.kind == "cuda"
    assert description.name == gpu.name
    assert description.facts["uuid"].startswith("GPU-")
    assert {"driver", "cuda", "memory_bytes", "l2_cache_bytes", "max_sm_clock_mhz"} <= description.facts.keys()
    assert {"temperature_c", "power_w", "sm_clock_mhz", "throttled_by"} <= description.state.keys()


@pytest.fixture
def bad_replays(tmp_path):
    path = tmp_path / "bad_replays.py"
    path.write_text(
        textwrap.dedent(
            """
            import torch
            from opatlas.run.registry import replays

            @replays("OutOfBounds", npu=None)
            def out_of_bounds(row, replay):
                torch._assert_async(torch.zeros((), dtype=torch.bool, device="cuda"))
                torch.cuda.synchronize()

            @replays("TooLarge", npu=None)
            def too_large(row, replay):
                torch.empty(1 << 50, device="cuda")
            """
        )
    )
    return path


def test_a_sticky_error_costs_its_row_and_its_process(gpu, bad_replays):
    def bad(function):
        cells = job_of(*MEMORY_BOUND).cells
        return Job("bad_replays", str(bad_replays), function, "Neg", cells, timeout_s=60)

    process = DeviceProcess(gpu, MeasureSettings(repeat_count=3))
    try:
        first = process.run(job_of(*MEMORY_BOUND))
        poisoned = process.run(bad("out_of_bounds"))
        after = process.run(job_of(*MEMORY_BOUND))
        too_large = process.run(bad("too_large"))
        last = process.run(job_of(*MEMORY_BOUND))
    finally:
        process.close()
    outcomes = (first, poisoned, after, too_large, last)
    assert [outcome.status for outcome in outcomes] == [
        Status.MEASURED,
        Status.DEVICE_ERROR,
        Status.MEASURED,
        Status.OOM,
        Status.MEASURED,
    ], [outcome.reason for outcome in outcomes]
    assert "CUDA error 710 (device-side assert triggered)" in poisoned.reason
