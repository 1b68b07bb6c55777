"""Kernels of operators that only seem right are caught by the guards of candidates; honest ones pass."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from opatlas.outer.judging.judgement import Judgement, Level
from opatlas.row.columns import ARGUMENTS, SAMPLE
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.implementation import KernelSource
from opatlas.run.instruments import instrument
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, RowOutcome
from opatlas.run.runner import Runner

MUL = "mul__Tensor"
TWO = "((T([32, 16], f32), T([32, 16], f32)), {})"
INTEGERS = "((T([32, 16], i64), T([32, 16], i64)), {})"

CHEATS = {
    "stale-result": "KEPT = {}\n\n\ndef kernel(x, y):\n    return KEPT.setdefault(x.data_ptr(), x * y)\n",
    "patched": "def kernel(x, y):\n    time.perf_counter_ns = lambda: 1\n    return x * y\n",
}
SET_UP = """\
from opatlas import Prepared


def kernel(x, y):
    packed, result = y.double(), torch.empty_like(x)

    def call():
        result.copy_(x * packed)

    return Prepared(call, results=lambda _: result, converted=("y to FLOAT64",))
"""


@pytest.fixture
def runner() -> Iterator[Runner]:
    threads = torch.get_num_threads()
    yield Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=20, time_limit_s=60, cache="warm", threads=1))
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _restored_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner in (time, instrument):
        monkeypatch.setattr(owner, "perf_counter_ns", time.perf_counter_ns)


def judged(
    runner: Runner,
    folder: Path,
    text: str,
    arguments: str = TWO,
    *,
    kernel_type: str = MUL,
    is_functional: bool = False,
) -> RowOutcome:
    """Returns the outcome of a case with a kernel."""
    path = folder / f"{kernel_type}.py"
    path.write_text(f"import threading\nimport time\n\nimport torch\n\n\n{text}")
    source = KernelSource("kit 1", "", str(path), "kernel", is_functional=is_functional)
    cells = {SAMPLE: "trace/0", ARGUMENTS: arguments}
    return runner.run(Job("opatlas.bench.test_listed", "", "test_operator", kernel_type, cells, 60.0, source=source))


def judgement_of(outcome: RowOutcome) -> Judgement:
    judgement = Judgement.of(outcome)
    assert judgement is not None, outcome.reason
    return judgement


@pytest.mark.parametrize("guard", CHEATS)
def test_a_way_to_cheat_is_a_hack_and_ends_the_process(guard: str, runner: Runner, tmp_path: Path) -> None:
    outcome = judged(runner, tmp_path, CHEATS[guard])
    assert judgement_of(outcome).name == f"hack/{guard}"
    assert outcome.status is Status.FAILED
    assert outcome.ends_process


@pytest.mark.parametrize(
    ("kernel_type", "arguments", "text", "is_functional"),
    [
        (MUL, TWO, "def kernel(x, y):\n    return x * y\n", False),
        (MUL, INTEGERS, "def kernel(x, y):\n    return x * y\n", False),
        (MUL, TWO, SET_UP, False),
        ("mul___Tensor", TWO, "def kernel(x, y):\n    return x * y\n", True),
        ("mul___Tensor", TWO, "def kernel(x, y):\n    return x.mul_(y)\n", False),
        ("acosh__default", "((T([8], f32),), {})", "kernel = torch.acosh\n", False),
        (
            "as_strided_copy__default",
            "((T([4, 4], f32), [2, 2], [1, 2], 3), {})",
            "kernel = torch.as_strided_copy\n",
            False,
        ),
        (
            "native_layer_norm_backward__default",
            (
                "((T([4, 8], f32), T([4, 8], f32), [8], T([4, 1], f32), T([4, 1], f32), T([8], f32), T([8], f32), "
                "[False, True, False]), {})"
            ),
            "def kernel(g, x, _, mean, rstd, *rest):\n    return None, (g * (x - mean) * rstd).sum(0), None\n",
            False,
        ),
    ],
    ids=["functional", "integers", "set-up", "derived", "in place", "all NaN", "offset in storage", "left-out results"],
)
def test_an_honest_kernel_passes(
    kernel_type: str, arguments: str, text: str, is_functional: bool, runner: Runner, tmp_path: Path
) -> None:
    outcome = judged(runner, tmp_path, text, arguments, kernel_type=kernel_type, is_functional=is_functional)
    assert outcome.status is Status.MEASURED, outcome.reason
    assert (judgement_of(outcome).name, judgement_of(outcome).level) == ("pass", Level.MEASURED)
    assert not outcome.changed
    assert outcome.measurement is not None
    if text is SET_UP:
        assert outcome.measurement.execution.conversions == ("y to FLOAT64",)
