"""The requests of a device's actor to its host, and of the head to hosts, without a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from opatlas.errors import OpAtlasError
from opatlas.outer.cluster.ray_actor import HostFacts, other_file
from opatlas.outer.cluster.ray_cluster import differing_cpus
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


def host(name: str, cores: int, model: str, kind: str = "cpu") -> HostFacts:
    return HostFacts(name, {}, cores=cores, processor=model, spec=DeviceSpec(kind))


def test_hosts_with_equal_cpus_measure_together_and_those_of_other_devices_may_differ() -> None:
    assert differing_cpus([host("a", 8, "model 1"), host("b", 8, "model 1")], mixed=False) == []
    assert differing_cpus([host("a", 8, "model 1", "cuda"), host("b", 4, "model 2", "cuda")], mixed=False) == []


@pytest.mark.parametrize("other", [host("other", 4, "model 1"), host("other", 8, "model 2")], ids=["cores", "model"])
def test_cpus_that_differ_are_named_and_mixed_only_if_asked(other: HostFacts) -> None:
    hosts = [host("a", 8, "model 1"), host("b", 8, "model 1"), other]
    with pytest.raises(OpAtlasError, match=f"{other.processor}.*--mixed"):
        differing_cpus(hosts, mixed=False)
    (note,) = differing_cpus(hosts, mixed=True)
    assert "other" in note


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="no Linux")
def test_the_model_of_this_cpu_is_known() -> None:
    assert any(word in processor() for word in ("model", "CPU part"))
