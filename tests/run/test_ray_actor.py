"""The requests of a device's actor to its host, and of the head to hosts, without a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from opatlas.outer.cluster.ray_actor import HostFacts, other_file
from opatlas.outer.cluster.ray_cluster import differences
from opatlas.outer.tasks.task import read_tasks
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.devices.system import processor
from opatlas.run.implementation import KernelSource, content_digest
from opatlas.run.job import Job

TASK = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x

def get_inputs():
    return [torch.zeros(1)]
"""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Of a candidate in a file with a helper, for a task."""
    for name, text in (("task.py", TASK), ("kernel.py", "import helper\n"), ("helper.py", "")):
        (tmp_path / name).write_text(text)
    (task,) = read_tasks(tmp_path / "task.py")
    path, helper = str(tmp_path / "kernel.py"), str(tmp_path / "helper.py")
    source = KernelSource("mine", "", path, "f", helpers=(helper,), digest=content_digest([path, helper]))
    return Job("module", "module.py", "test", task.kernel_type, {}, 1.0, source=source, subject=task)


def test_a_host_with_the_files_of_the_head_lacks_none(job: Job) -> None:
    assert other_file(job) == ""
    assert other_file(replace(job, source=None, subject=None)) == ""


@pytest.mark.parametrize("name", ["kernel.py", "helper.py", "task.py"])
@pytest.mark.parametrize(
    "spoil", [Path.unlink, lambda path: path.write_text("x = 1")], ids=["missing", "other content"]
)
def test_a_host_without_a_file_or_with_another_one_names_it(
    job: Job, tmp_path: Path, name: str, spoil: Callable[[Path], object]
) -> None:
    spoil(tmp_path / name)
    assert other_file(job) == str(tmp_path / ("task.py" if name == "task.py" else "kernel.py"))


HERE = {"torch": "2.13.0", "CANN": ""}


def host(hardware: str, kind: str = "cpu", torch: str = "2.13.0") -> HostFacts:
    return HostFacts("a", {"torch": torch}, hardware, spec=DeviceSpec(kind))


@pytest.mark.parametrize(
    ("other", "mixed", "named"),
    [
        (host("8 cores, model 1"), False, ""),
        (host("4 cores, model 1"), False, "4 cores"),
        (host("8 cores, model 2"), False, "--mixed"),
        (host("8 cores, model 2"), True, ""),
        (host("driver 550", "cuda"), True, "driver 550"),
        (host("8 cores, model 1", torch="2.12.0"), True, "torch 2.12.0"),
        (HostFacts("a", {}, problem="no such device"), True, "no such device"),
    ],
)
def test_a_host_unlike_most_is_left_out_with_the_reason(other: HostFacts, mixed: bool, named: str) -> None:
    *most, reason = differences([host("8 cores, model 1")] * 2 + [other], HERE, mixed=mixed)
    assert most == ["", ""]
    assert named in reason
    assert bool(named) == bool(reason)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="no Linux")
def test_the_model_of_this_cpu_is_known() -> None:
    assert any(word in processor() for word in ("model", "CPU part"))
