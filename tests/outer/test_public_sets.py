"""Counts over public tasks and public generated kernels, in the folder that OPATLAS_PUBLIC_SETS names."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from opatlas.outer.judging.complexity import complexity_of_task
from opatlas.outer.judging.static_rules import static_findings
from opatlas.outer.tasks.task import read_tasks

SETS = Path(os.environ.get("OPATLAS_PUBLIC_SETS", ""))
pytestmark = pytest.mark.skipif("OPATLAS_PUBLIC_SETS" not in os.environ, reason="OPATLAS_PUBLIC_SETS names no sets")


def test_the_166_tasks_of_the_experiment() -> None:
    tasks = read_tasks(SETS / "mindspore-ai+akg" / "akg_agents" / "benchmark" / "kernelbench")
    counts = Counter(complexity_of_task(task.source, task.name) for task in tasks)
    assert counts == {"C1": 26, "C2": 56, "C3": 36, "C4": 48}


def test_the_rules_on_the_kernels_of_cuda_l1() -> None:
    path = SETS / "deepreinforce-ai+CUDA-L1" / "optimized_cuda_code" / "h100.json"
    entries = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    sources = [entry["custom_code"] for entry in entries if entry["custom_code"]]
    assert len(sources) == 227
    found = Counter()
    for source in sources:
        found.update({rule.name for rule, _ in static_findings(source, Path("candidate.py"), installed=lambda _: True)})
    assert (found["fallback"], found["no_kernel"], found["empty_code"], found["syntax_error"]) == (128, 128, 17, 1)
    assert (found["global_setting"], found["tensor_subclass"], found["stream"], found["torch_operator"]) == (
        51,
        1,
        2,
        183,
    )
