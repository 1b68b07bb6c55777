"""Busy and idle time of a device, by phase, and what of it waits for the host."""

import json
from pathlib import Path

import numpy as np
import pytest
from ascend_databases import write_database
from captures import write_capture
from decode_timelines import decode_steps, launches_of
from hypothesis import given
from hypothesis import strategies as st

from opatlas.capture.timeline import Timeline, launch_bound_stretches, numbered_steps, timeline_parts
from opatlas.cli.main import main
from opatlas.outer.diagnosis.diagnosis import diagnose
from opatlas.outer.diagnosis.verdicts import KernelVerdict

drawn = st.lists(
    st.tuples(
        st.integers(0, 60), st.integers(1, 20), st.one_of(st.just(np.nan), st.integers(0, 30)), st.sampled_from("ab ")
    ),
    min_size=1,
    max_size=20,
)


@given(drawn)
def test_parts_add_up_to_the_span_and_busy_time_is_the_union(launches):
    launches.sort(key=lambda each: each[0])
    start, duration, queued, labels = zip(*launches, strict=True)
    unknown = np.full(len(start), np.nan)
    timeline = Timeline(np.array(start) * 1000, np.array(duration, dtype=float), unknown, np.array(queued, dtype=float))
    steps = numbered_steps([label.strip() for label in labels])
    parts = timeline_parts(timeline, steps, [f"phase {step}" for step in range(steps[-1] + 1)])
    ticks = {tick for at, size, *_ in launches for tick in range(at, at + size)}
    assert sum(part.busy_us for part in parts) == len(ticks)
    assert sum(part.busy_us + part.idle_us for part in parts) == max(ticks) + 1 - start[0]
    ends = [max(at + size for at, size, *_ in launches[:i]) for i in range(1, len(launches))]
    late = [at - end for (at, _, host, _), end in zip(launches[1:], ends, strict=True) if at - host > end]
    bound = [part.launch_bound_us for part in parts]
    assert sum(bound) == sum(late) if np.isfinite(queued).any() else bound == [None] * len(parts)
    runs = launch_bound_stretches(timeline)
    assert sum(stop - start for start, stop in runs) == len(late)


def test_a_diagnosis_has_the_phases_of_a_capture(tmp_path):
    path = write_database(tmp_path / "ascend_pytorch_profiler_0.db", launches_of(decode_steps(2, 3)))
    (found,) = diagnose(path).timelines
    decode, between = timeline_parts(found.timeline, found.steps, found.phases)
    assert (decode.name, decode.steps, decode.launches) == ("decode", 3, len(found.lines))
    assert (between.idle_us, between.longest_us) == pytest.approx((800, 400))
    assert found.labels == ["0", "1", "2"]


def test_the_launches_of_a_diagnosis_are_a_trace(tmp_path):
    path = write_capture(tmp_path / "kernel_details.csv", launches_of(decode_steps(1, 2)))
    trace = tmp_path / "trace.json"
    assert main(["diagnose", str(path), "--peaks", "Ascend910B3", "--trace", str(trace)]) == 0
    slices = [each for each in json.loads(trace.read_text())["traceEvents"] if each["ph"] == "X"]
    product = next(each for each in slices if each["name"] == "MatMulV2")
    assert product["dur"] == 18
    assert product["args"]["share of the roof"] > 0
    assert (product["args"]["how"], product["args"]["phase"]) == ("captured", "decode")
    assert [each["name"] for each in slices[-2:]] == ["decode 0", "decode 1"]


def test_an_eager_trace_of_a_gpu_waits_for_the_host():
    found = diagnose(Path(__file__).parents[1] / "data" / "torch_traces" / "plain-decode-eager.pt.trace.json.gz")
    (steps,) = found.timelines
    assert found.table.device == "NVIDIA_H200"
    assert found.peaks.peak.bandwidth_gbps == 4800
    assert found.idle_us > 0.9 * (steps.timeline.busy_us + steps.timeline.idle_us).sum()
    assert found.verdicts.holds[KernelVerdict.HOST_BOUND].mean() > 0.8
    assert (steps.phases, steps.timeline.is_excerpt) == (["decode"] * 2, False)
