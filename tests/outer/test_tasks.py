"""Task files, their classes, their rows and the candidates for them: nothing is run in this process."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from opatlas.data.database import Database
from opatlas.data.fold import add_rows
from opatlas.errors import OpAtlasError
from opatlas.outer.tasks.task import TaskKind, complexity_of_task, read_tasks
from opatlas.outer.tasks.task_rows import find_candidates, task_rows
from opatlas.row.columns import INPUT_DTYPES, INPUT_SHAPES, TASK_DIGEST, TASK_INPUTS
from opatlas.row.signature import signature
from opatlas.run.implementation_catalog import KernelInFile

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


def task(forward: str, init: str = "pass") -> str:
    return (
        "import torch, torch.nn as nn\nimport torch.nn.functional as F\nclass Model(nn.Module):\n"
        f"    def __init__(self):\n        {init}\n    def forward(self, x):\n        {forward}\n"
        "def get_inputs():\n    return [torch.randn(8).cumsum(0) @ torch.ones(8)]\n"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (task("return torch.relu(x) + 1"), "C1"),
        (task("return max(x, 0)"), "C1"),
        (task("return x.softmax(-1)"), "C2"),
        (task("return x.sort().values.sum()"), "C2"),
        (task("return F.max_pool2d(x, 2)"), "C2"),
        (task("return x @ x.T"), "C3"),
        (task("return self.l(x)", "self.l = nn.Linear(8, 8)"), "C3"),
        (task("return (x @ x).softmax(-1)"), "C3"),
        (task("return self.c(x)", "self.c = nn.ConvTranspose2d(3, 3, 3)"), "C4"),
        (task("return F.scaled_dot_product_attention(x, x, x)"), "C4"),
        (task("return F.cross_entropy(x, x)"), "C4"),
        (task("return nn.SmoothL1Loss()(x, x)"), "C4"),
    ],
)
def test_the_class_of_a_task(source: str, expected: str) -> None:
    assert complexity_of_task(source) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("numpy/54_conv_standard_3D", "C4"),
        ("100_hingeloss", "C4"),
        ("5_matrix_scalar_multiplication", "C3"),
        ("45_average_pooling_2d", "C2"),
        ("matmul/19_ReLU", "C1"),
        ("convert_layout", "C1"),
    ],
)
def test_a_name_tells_what_the_operators_do_not(name: str, expected: str) -> None:
    assert complexity_of_task(task("return x + x"), name) == expected


TASK = "class Model: ...\ndef get_inputs(): return []\n"


@pytest.mark.parametrize(
    ("path", "source", "function", "candidate"),
    [
        ("level1/26_GELU_.py", "class ModelNew: ...\n", "ModelNew", ""),
        ("26_GELU.py", "def kernel(x): ...\n", "kernel", ""),
        ("level1/26_GELU_/fast.py", "def gelu_triton_torch(x): ...\ndef other(x): ...\n", "gelu_triton_torch", "fast"),
        ("26_GELU_.py", "None\n", "ModelNew", ""),
        ("26_GELU_.py", "def f(:\n", "ModelNew", ""),
    ],
)
def test_a_candidate_has_the_name_of_its_task(
    tmp_path: Path, path: str, source: str, function: str, candidate: str
) -> None:
    for file, text in ((tmp_path / "set/level1/26_GELU_.py", TASK), (tmp_path / "own" / path, source)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    [task] = read_tasks(tmp_path / "set")
    [found] = find_candidates([task])(tmp_path / "own", [tmp_path / "own" / path])
    assert isinstance(found, KernelInFile)
    assert (found.kernel_type, found.function, found.candidate) == (task.kernel_type, function, candidate)


pytestmark = pytest.mark.usefixtures("forks")
HEAD = "import os, torch\nimport numpy as np\nclass Model(torch.nn.Module):\n    pass\n"
FILES = {
    # Far more than any machine has: the inputs get no values.
    "large": "def get_inputs():\n    return [torch.rand(1 << 20, 1 << 20), torch.randint(0, 9, (3,)), 0.5]\n",
    "dynamic": "def get_inputs_dyn_list():\n    return [[torch.ones(n, 2, dtype=torch.bfloat16)] for n in (1, 3)]\n",
    "needs_values": "def get_inputs():\n    return [torch.ones(int(torch.ones(3).sum()), 2)]\n",
    "numpy_array": "def get_inputs():\n    return [np.random.rand(4, 5).astype(np.float16)]\n",
    "aborts": "def get_inputs():\n    os.abort()\n",
    "lists": "def get_inputs():\n    return [[torch.ones(2, 3)], torch.ones(4, dtype=torch.int8)]\n",
    "no_list": "def get_inputs():\n    return 3\n",
    "missing": "import a_package_that_nobody_has as nobody\ndef get_inputs():\n    return [nobody.tensor()]\n",
}
SHAPES = {
    "large": [("1048576,1048576;3", "FLOAT;INT64")],
    "dynamic": [("1,2", "BF16"), ("3,2", "BF16")],
    "needs_values": [("3,2", "FLOAT")],
    "lists": [("2,3;4", "FLOAT;INT8")],
    "numpy_array": [("4,5", "FLOAT16")],
}


def test_shapes_are_read_in_a_process_of_their_own(tmp_path: Path) -> None:
    folder, database = tmp_path / "set", Database(tmp_path / "db")
    folder.mkdir()
    for name, text in FILES.items():
        (folder / f"{name}.py").write_text(HEAD + text)
    tasks = read_tasks(folder)
    found = task_rows(tasks, database)
    shapes = {name: [(row[INPUT_SHAPES], row[INPUT_DTYPES]) for row in rows] for name, rows in found.rows.items()}
    assert shapes == {f"set.{name}": expected for name, expected in SHAPES.items()}
    assert found.failed.keys() == {"set/aborts", "set/no_list", "set/missing"}
    assert len(found.notes) == 1

    # A database that has the rows of a content saves the run; another content has rows of its own.
    add_rows(database, found.rows)
    (folder / "large.py").write_text(HEAD + "def get_inputs():\n    return [torch.rand(1 << 20, 1 << 20)]\n")
    known = [task for task in tasks if task.name == "dynamic"]
    assert task_rows(known, database).rows == {"set.dynamic": found.rows["set.dynamic"]}
    [changed] = [task for task in read_tasks(folder) if task.name == "large"]
    [row] = task_rows([changed], database).rows["set.large"]
    [former] = found.rows["set.large"]
    assert row[TASK_DIGEST] != former[TASK_DIGEST]
    signatures = {signature("set.large", each) for each in (row, former, {**row, TASK_INPUTS: "1"})}
    assert len(signatures) == 3
