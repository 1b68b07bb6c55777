"""Rows of tasks: shapes that a process of their own reads, and rows that a database has already."""

from __future__ import annotations

from pathlib import Path

import pytest

from opatlas.data.database import Database
from opatlas.data.fold import add_rows
from opatlas.errors import OpAtlasError
from opatlas.outer.tasks.task import read_tasks
from opatlas.outer.tasks.task_rows import task_rows
from opatlas.row.columns import INPUT_DTYPES, INPUT_SHAPES, TASK_DIGEST, TASK_INPUTS
from opatlas.row.signature import signature

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


def test_nothing_that_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opatlas.outer.tasks.task_rows._describe", lambda tasks: ["its process ended"])
    (tmp_path / "aborts.py").write_text(HEAD + FILES["aborts"])
    with pytest.raises(OpAtlasError):
        task_rows(read_tasks(tmp_path))
