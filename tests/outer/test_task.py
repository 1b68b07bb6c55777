"""Task files are read without running them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from opatlas.errors import OpAtlasError
from opatlas.outer.tasks.task import TaskKind, read_tasks

TORCH = """\
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x
def get_inputs():
    raise RuntimeError("run")
"""
NUMPY = """\
import numpy as np
class Model:
    def __call__(self, x):
        return x
def get_inputs_dyn_list():
    raise RuntimeError("run")
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_names_are_the_same_for_a_set_a_folder_and_a_file(tmp_path):
    """The layouts of KernelBench and AKG say where a set begins; any other set is the folder that is named."""
    relu = write(tmp_path / "KernelBench" / "level1" / "19_ReLU.py", TORCH)
    write(tmp_path / "KernelBench" / "level1" / "100_Loss.py", TORCH)
    twin = write(tmp_path / "kernelbench" / "numpy" / "19_relu" / "19_relu_numpy.py", NUMPY)
    own = write(tmp_path / "my set" / "norms" / "rms.norm.py", TORCH)

    for place in (relu.parents[1], relu.parent):
        assert [task.full_name for task in read_tasks(place)] == [
            "kernelbench/level1/19_ReLU",
            "kernelbench/level1/100_Loss",
        ]
    [task] = read_tasks(relu)
    assert (task.name, task.task_set, task.kernel_type) == (
        "level1/19_ReLU",
        "kernelbench",
        "kernelbench.level1.19_ReLU",
    )
    assert (task.kind, task.is_dynamic, task.source) == (TaskKind.TORCH, False, TORCH)
    [task] = read_tasks(twin)
    assert (task.full_name, task.kind, task.is_dynamic) == ("akg_numpy/19_relu", TaskKind.NUMPY, True)
    [task] = read_tasks(own.parents[1])
    assert task.full_name == "my_set/norms/rms_norm"


def test_the_digest_is_that_of_the_content(tmp_path):
    """Another text is another digest, and a task whose file has changed gives no source."""
    path = write(tmp_path / "relu.py", TORCH)
    [before] = read_tasks(path)
    path.write_text(TORCH + "\n")
    assert read_tasks(path)[0].digest != before.digest
    with pytest.raises(OpAtlasError):
        _ = before.source


def test_what_is_no_task(tmp_path):
    """A folder may hold other files; a task that is not Python, two of one name, and nothing at all are errors."""
    write(tmp_path / "set" / "relu.py", TORCH)
    write(tmp_path / "set" / "_helper.py", TORCH)
    write(tmp_path / "set" / "notes.py", "x = 1\n")
    write(tmp_path / "set" / "old.py", "print 'Python 2'\n")
    write(tmp_path / "set" / "no_inputs.py", "class Model: ...\n")
    write(tmp_path / "set" / "no_model.py", "def get_inputs(): ...\n")
    write(tmp_path / "set" / "new.py", "class ModelNew: ...\n")
    write(tmp_path / "set" / "runner.py", "def run(task): return task.Model(*task.get_inputs())\n")
    assert [task.name for task in read_tasks(tmp_path / "set")] == ["relu"]
    for files in ({"a.py": "x = 1\n"}, {}, {"a.py": TORCH + "def\n"}, {"a b.py": TORCH, "a_b.py": TORCH}):
        folder = tmp_path / f"bad{len(os.listdir(tmp_path))}"
        folder.mkdir()
        for name, text in files.items():
            write(folder / name, text)
        with pytest.raises(OpAtlasError):
            read_tasks(folder)
    with pytest.raises(OpAtlasError):
        read_tasks(tmp_path / "missing")


@pytest.mark.skipif("OPATLAS_PUBLIC_SETS" not in os.environ, reason="OPATLAS_PUBLIC_SETS names no public sets")
def test_public_sets():
    """All tasks of KernelBench and AKG are read."""
    sets = Path(os.environ["OPATLAS_PUBLIC_SETS"])
    found = read_tasks(sets / "ScalingIntelligence+KernelBench" / "KernelBench")
    assert Counter(task.name.partition("/")[0] for task in found) == {
        "level1": 100,
        "level2": 100,
        "level3": 50,
        "level4": 20,
    }
    found = read_tasks(sets / "mindspore-ai+akg" / "akg_agents" / "benchmark" / "kernelbench")
    assert Counter(task.kind for task in found) == {TaskKind.NUMPY: 66, TaskKind.MINDSPORE: 100}
