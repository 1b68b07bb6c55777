"""A candidate whose timed calls launch no kernel returns an earlier result."""

from __future__ import annotations

from pathlib import Path

import torch
from planted_trials import PLANTED, job_of_candidate

from opatlas.outer.judging.judgement import ErrorClass, Judgement
from opatlas.outer.tasks.task_replay import bind
from opatlas.row.errors import NoKernelLaunched
from opatlas.run.devices.device import DeviceSpec, open_device
from opatlas.run.group import ALONE
from opatlas.run.instruments.instrument import MeasureSettings, Samples


class _NoRecords:
    """Stands in for CUPTI, whose records of a call that launches no kernel are empty."""

    name = "no-records"

    def sample(self, call, before_each, rule) -> Samples:
        before_each()
        call()
        raise NoKernelLaunched("the device's records hold no kernel of some of the calls")


def test_right_results_without_a_kernel_are_a_hack(tmp_path: Path) -> None:
    task = PLANTED / "tasks" / "softmax.py"
    path = tmp_path / "honest.py"
    path.write_text(task.read_text("utf-8").replace("class Model(", "class ModelNew("), "utf-8")
    settings = MeasureSettings(repeat_count=3)
    device = open_device(DeviceSpec("cpu"), settings)
    _, replay = bind(job_of_candidate(task, path), device, _NoRecords(), settings, ALONE)
    with torch.no_grad():
        replay()
    judgement = Judgement.of(replay.outcome)
    assert (judgement.error_class, judgement.sub_class) == (ErrorClass.HACK, "no-kernel")
    assert judgement.within_1e3
