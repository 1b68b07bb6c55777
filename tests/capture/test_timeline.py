"""Busy and idle time of a device, by phase, and what of it waits for the host."""

import re
from pathlib import Path

import numpy as np
import pytest
from ascend_databases import write_database
from decode_timelines import decode_steps, launches_of
from hypothesis import given, strategies as st

from opatlas.capture.single_launches import Timeline
from opatlas.outer.diagnosis.diagnosis import diagnose
from opatlas.outer.diagnosis.verdicts import KernelVerdict

drawn = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 20), st.one_of(st.just(np.nan), st.integers(0, 30))),
    min_size=1,
    max_size=20,
)


@given(drawn)
def test_busy_and_idle_time_add_up_to_the_span(launches):
    launches.sort(key=lambda each: each[0])
    start, duration, queued = zip(*launches, strict=True)
    numbers = (np.array(each, dtype=float) for each in (duration, [np.nan] * len(start), queued))
    timeline = Timeline(np.array(start) * 1000, *numbers)
    ticks = {tick for at, size, _ in launches for tick in range(at, at + size)}
    assert timeline.busy_us.sum() == len(ticks)
    assert (timeline.busy_us + timeline.idle_us).sum() == max(ticks) + 1 - start[0]
    ends = [max(at + size for at, size, _ in launches[:i]) for i in range(1, len(launches))]
    late = [False, *(at > end and at - host > end for (at, _, host), end in zip(launches[1:], ends, strict=True))]
    if timeline.launch_bound is None:
        assert np.isnan(queued).all()
    else:
        assert timeline.launch_bound.tolist() == late


def test_a_diagnosis_has_the_phases_and_steps_of_a_capture(tmp_path):
    path = write_database(tmp_path / "ascend_pytorch_profiler_0.db", launches_of(decode_steps(2, 3)))
    (found,) = diagnose(path).timelines
    (decode,) = found.times("phase").to_dict("records")
    assert (decode["phase"], decode["steps"], decode["launches"]) == ("decode", 3, len(found.launches))
    assert (decode["before_us"], decode["longest_us"]) == pytest.approx((800, 400))
    span_us = (found.launches["start_us"] + found.launches["us"]).max()
    assert sum(decode[name] for name in ("busy_us", "gaps_us", "before_us")) == pytest.approx(span_us)
    assert found.times("step")["step"].tolist() == ["0", "1", "2"]
    assert np.isnan(decode["host_us"])


def test_an_eager_trace_of_a_gpu_waits_for_the_host():
    found = diagnose(Path(__file__).parents[1] / "data" / "torch_traces" / "plain-decode-eager.pt.trace.json.gz")
    (steps,) = found.timelines
    assert found.table.device == "NVIDIA_H200"
    assert found.peaks.peak.bandwidth_gbps == 4800
    assert found.idle_us > 0.9 * steps.launches[["busy_us", "idle_us"]].to_numpy().sum()
    assert found.verdicts.holds[KernelVerdict.HOST_BOUND].mean() > 0.8
    assert (len(steps.times("step")), steps.is_excerpt) == (2, False)
    assert steps.times("phase")["phase"].tolist() == ["decode"]
    # No line of a trace tells anything, but its times do.
    assert re.search(r"\.json\.gz at \d{6,}\.\d{3} us$", found.place(0))


def test_the_work_of_a_row_is_that_of_all_kernels_of_its_call():
    found = diagnose(Path(__file__).parents[1] / "data" / "torch_traces" / "qwen3moe-prefill-eager.pt.trace.json.gz")
    shares = found.shares.share[(found.table.frame["Type"] == "GroupedMatmul").to_numpy()]
    assert len(shares)
    assert shares.max() < 1
