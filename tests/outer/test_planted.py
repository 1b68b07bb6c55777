"""Each planted kernel is caught by the guard that its header names; an honest one is not."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from planted_trials import PLANTED, PlantedKernel, each_of, job_of_candidate, planted_kernels

from opatlas.outer.judging.failures import run_judged
from opatlas.outer.judging.judgement import ErrorClass, Judgement, Level
from opatlas.outer.judging.rules import judge_source
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.instruments import instrument, kernel_records
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.process.device_process import DeviceProcess
from opatlas.run.runner import Runner

pytestmark = pytest.mark.usefixtures("forks")
CPU = DeviceSpec("cpu")
SETTINGS = MeasureSettings(repeat_count=16, time_limit_s=60, cache="warm", threads=1)
KERNELS = [each for each in planted_kernels() if each.device != "cuda"]
#: They end their process.
_END = [each for each in KERNELS if each.error_class is ErrorClass.CRASH and not each.has_own_process]
#: They may do anything to their process.
_OWN = [each for each in KERNELS if each.has_own_process]


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    """Judges in this process."""
    threads = torch.get_num_threads()
    yield Runner(CPU, SETTINGS)
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _restored_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts back what planted kernels replace."""
    for owner, names in (
        (time, ("perf_counter_ns",)),
        (torch.cuda, ("synchronize",)),
        (torch.cuda.Event, ("elapsed_time",)),
        (instrument, ("perf_counter_ns",)),
        (kernel_records, ("perf_counter",)),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, getattr(owner, name))


def test_there_is_one_for_each_known_way() -> None:
    assert [kernel.number for kernel in planted_kernels()] == list(range(1, 70))


@pytest.mark.parametrize("kernel", each_of([each for each in KERNELS if each not in (*_END, *_OWN)]))
def test_a_planted_kernel_is_caught_by_its_calls(kernel: PlantedKernel, runner: Runner, tmp_path: Path) -> None:
    """No rule on its source is asked."""
    kernel.expect(run_judged(runner.run, kernel.job(tmp_path)))


@pytest.mark.parametrize("kernel", each_of(_OWN))
def test_a_planted_kernel_that_owns_its_process_is_caught_from_outside(kernel: PlantedKernel, tmp_path: Path) -> None:
    if "machine code" in kernel.path.read_text() and platform.machine() != "x86_64":
        pytest.skip("the code is that of another processor")
    process = DeviceProcess(CPU, SETTINGS)
    try:
        kernel.expect(run_judged(process.run, kernel.job(tmp_path)))
    finally:
        process.close()


@pytest.mark.parametrize("kernel", each_of(_END))
def test_a_planted_kernel_that_ends_its_process_is_a_crash(kernel: PlantedKernel, tmp_path: Path) -> None:
    process = DeviceProcess(CPU, SETTINGS)
    try:
        outcome = process.run(kernel.job(tmp_path))
    finally:
        process.close()
    assert outcome.status is Status.CRASHED
    assert outcome.measurement is None


@pytest.mark.parametrize("kernel", each_of(KERNELS))
def test_a_planted_kernel_is_caught_by_its_source_where_a_rule_is_for_it(kernel: PlantedKernel) -> None:
    judgement, _ = judge_source(kernel.path.read_text(), kernel.path)
    found = f"{judgement.error_class} {judgement.sub_class}" if judgement else ""
    assert found == kernel.static


@pytest.mark.parametrize("task", sorted((PLANTED / "tasks").glob("*.py")), ids=lambda path: path.stem)
def test_an_honest_candidate_passes(task: Path, tmp_path: Path) -> None:
    candidate = tmp_path / "honest.py"
    candidate.write_text(task.read_text().replace("class Model", "class ModelNew"))
    outcome = run_judged(Runner(CPU, SETTINGS).run, job_of_candidate(task, candidate))
    judgement = Judgement.of(outcome)
    assert (judgement.name, judgement.level, judgement.notes) == ("pass", Level.MEASURED, ()), outcome.reason
    assert outcome.changed == ()
