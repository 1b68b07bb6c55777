"""The instrument of torch_npu's profiler. The profiler is a stand-in: it writes the launches that its test names.

That the real one takes the arguments it gets here is tested in tests/npu.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from captures import launch, write_capture

from opatlas.run.devices.device import kind_named
from opatlas.run.instruments import npu_profilers
from opatlas.run.instruments.attribution import BEGIN_MARK, END_MARK, NoSamples, ProfiledSamples, dimensions, row_mark
from opatlas.run.instruments.instrument import MeasureSettings, StopRule
from opatlas.run.instruments.npu_profilers import MarkedLaunches

COUNTER = {"aicore_time(us)": "0.5"}


@pytest.fixture
def launched(monkeypatch):
    """The launches of a device, in order: (kernel type, shapes, microseconds)."""
    kernels: list[tuple[str, str, float]] = []

    @contextmanager
    def profile(*, activities, on_trace_ready, experimental_config):
        assert experimental_config == {"profiler_level": 1, "aic_metrics": "memory"}
        yield
        on_trace_ready(
            [
                launch({"Start Time(us)": f"{place}.000\t", **COUNTER}, type=name, shapes=shapes, duration=str(us))
                for place, (name, shapes, us) in enumerate(kernels)
            ]
        )

    profiler = SimpleNamespace(
        profile=profile,
        ProfilerActivity=SimpleNamespace(NPU="npu"),
        ProfilerLevel=SimpleNamespace(Level1=1),
        AiCMetrics=SimpleNamespace(Memory="memory"),
        _ExperimentalConfig=lambda **options: options,
        tensorboard_trace_handler=lambda folder: (
            lambda rows: write_capture(
                Path(folder, "vm_1_ascend_pt", "ASCEND_PROFILER_OUTPUT", "kernel_details.csv"), rows
            )
        ),
    )
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(profiler=profiler))
    monkeypatch.setattr(
        npu_profilers, "marked_launches", lambda name, kind: MarkedLaunches(name, torch.device("cpu"), lambda: None)
    )
    negate = torch.neg

    def mark(source, out):
        kernels.append(("Neg", dimensions(tuple(source.shape)), 2.0))
        return negate(source, out=out)

    monkeypatch.setattr(torch, "neg", mark)
    return kernels


def opened():
    settings = MeasureSettings(instrument="torch-npu-profiler", aic_metrics="Memory")
    return kind_named("npu").open_instrument(settings)


def test_a_rows_samples_are_read_from_its_own_profile(launched):
    durations = iter([7.0, 8.0, 9.0])
    samples = opened().sample(
        lambda: launched.append(("RmsNorm", "16,32", next(durations))),
        lambda: launched.append(("ReduceSum", "50331648", 40.0)),
        StopRule(repeat_count=3, time_limit_s=5),
    )
    assert isinstance(samples.profiled, ProfiledSamples)
    assert [[kernel.duration_us for kernel in call] for call in samples.profiled.calls] == [[7.0], [8.0], [9.0]]
    assert samples.profiled.calls[0][0].counters["aicore_time(us)"] == 0.5
    first = [shape for _, shape, _ in launched].index(dimensions(row_mark(0)))
    assert [name for name, *_ in launched][first : first + 5] == ["Neg", "ReduceSum", "Neg", "RmsNorm", "Neg"]
    marks = [shape for name, shape, _ in launched[first + 1 : first + 5] if name == "Neg"]
    assert marks == [dimensions(BEGIN_MARK), dimensions(END_MARK)]


def test_records_that_the_profiler_loses_at_its_start_cost_nothing(launched, monkeypatch):
    """Ascend/pytorch issue 167: the kernels of the first moments of a window are not recorded."""
    profiler = sys.modules["torch_npu"].profiler
    whole = profiler.profile

    @contextmanager
    def headless(**keywords):
        with whole(**keywords):
            yield
            del launched[:10]

    monkeypatch.setattr(profiler, "profile", headless)
    durations = iter([7.0, 8.0, 9.0])
    samples = opened().sample(
        lambda: launched.append(("RmsNorm", "16,32", next(durations))), None, StopRule(repeat_count=3, time_limit_s=5)
    )
    assert isinstance(samples.profiled, ProfiledSamples)
    assert [[kernel.duration_us for kernel in call] for call in samples.profiled.calls] == [[7.0], [8.0], [9.0]]
    assert samples.profiled.assumption == ""


def test_a_profiler_that_writes_nothing_gives_no_measurement(launched, monkeypatch):
    profiler = sys.modules["torch_npu"].profiler
    monkeypatch.setattr(profiler, "tensorboard_trace_handler", lambda folder: lambda rows: None)
    samples = opened().sample(lambda: None, None, StopRule(repeat_count=1, time_limit_s=5))
    assert isinstance(samples.profiled, NoSamples)
    assert "kernel_details.csv" in samples.profiled.reason
