"""Candidates are found by the names of their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from opatlas.outer.tasks.task import read_tasks
from opatlas.outer.tasks.task_rows import find_candidates
from opatlas.run.implementation_catalog import KernelInFile

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
