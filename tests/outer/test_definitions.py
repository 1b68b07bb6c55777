"""Definitions of flashinfer-bench and SOL-ExecBench are tasks, and what was measured of them are their traces."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from doc_commands import ROOT

from opatlas.cli.query import export
from opatlas.errors import OpAtlasError, UsageError
from opatlas.outer.tasks.task import read_tasks
from opatlas.outer.tasks.task_replay import TaskModule
from opatlas.outer.tasks.task_rows import find_candidates
from opatlas.run.implementation_catalog import read_directory

SCALE = {
    "name": "scale_n8",
    "op_type": "scale",
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 8}},
    "inputs": {
        "x": {"shape": ["M", "N"], "dtype": "float32"},
        "factor": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["M", "N"], "dtype": "float32"}},
    "reference": "import torch\n\ndef run(x, factor):\n    return x * factor\n",
}
SCALED = [
    {
        "uuid": f"of-{rows}",
        "axes": {"M": rows},
        "inputs": {"x": {"type": "random"}, "factor": {"type": "scalar", "value": 3.0}},
    }
    for rows in (2, 5)
]
#: SOL-ExecBench: no name, an axis that follows from others, indices by a function of the reference.
PICK = {
    "axes": {
        "B": {"type": "var", "description": None},
        "T": {"type": "expr", "expression": "B * 3 + 1"},
        "D": {"type": "const", "value": 4},
    },
    "custom_inputs_entrypoint": "make",
    "inputs": {"table": {"shape": ["T", "D"], "dtype": "bfloat16"}, "at": {"shape": ["B"], "dtype": "int64"}},
    "outputs": {"out": {"shape": ["B", "D"], "dtype": "bfloat16"}},
    "reference": "import torch\n\n"
    "def make(axes_and_scalars, device):\n"
    "    return {'at': torch.arange(axes_and_scalars['B'], device=device)}\n\n"
    "@torch.no_grad()\ndef run(table, at):\n    return table[at]\n",
}
PICKED = [{"uuid": "p", "axes": {"B": 2}, "inputs": {"table": {"type": "random"}, "at": {"type": "custom"}}}]


def solution(name: str, **spec: Any) -> dict[str, Any]:
    """A solution of two sources."""
    spec = {"entry_point": "src/main.py::run", "language": "python", "destination_passing_style": False, **spec}
    main = "import torch\nfrom factors import times\n\ndef run(x, factor):\n    return times(x, factor)\n"
    helper = "def times(x, factor):\n    return x * factor\n"
    sources = [{"path": "src/main.py", "content": main}, {"path": "factors.py", "content": helper}]
    return {"name": name, "definition": "scale_n8", "author": "a", "spec": spec, "sources": sources}


def write(path: Path, *values: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))
    return path


@pytest.fixture
def data_set(tmp_path: Path) -> Path:
    """A data set in both layouts; a line of flashinfer-bench is a trace with a workload."""
    folder = tmp_path / "kernels"
    write(folder / "definitions/scale/scale_n8.json", SCALE)
    lines = [{"definition": "scale_n8", "solution": None, "workload": each, "evaluation": None} for each in SCALED]
    write(folder / "workloads/scale/scale_n8.jsonl", *lines)
    write(folder / "pick/definition.json", PICK)
    write(folder / "pick/workload.jsonl", *PICKED)
    write(folder / "solutions/scale/mine.json", {"name": "no solution"})
    return folder


def test_definitions_are_tasks_whose_inputs_are_the_workloads(data_set: Path) -> None:
    pick, scale = read_tasks(data_set)
    assert [each.full_name for each in (pick, scale)] == ["kernels/pick", "kernels/scale/scale_n8"]
    for place in (data_set / "definitions", scale.path):
        (alone,) = read_tasks(place)
        assert (alone.full_name, alone.digest) == (scale.full_name, scale.digest)
    scaled = TaskModule(scale).input_lists()
    assert [(tuple(x.shape), x.dtype, factor) for x, factor in scaled] == [
        ((rows, 8), torch.float32, 3.0) for rows in (2, 5)
    ]
    ((table, at),) = TaskModule(pick).input_lists()
    assert (tuple(table.shape), table.dtype, at.tolist()) == ((7, 4), torch.bfloat16, [0, 1])
    write(data_set / "workloads/scale/scale_n8.jsonl", SCALED[0])
    assert not scale.is_unchanged


def test_tensors_are_read_from_the_data_set(data_set: Path) -> None:
    save_file = pytest.importorskip("safetensors.torch").save_file
    (data_set / "blob").mkdir()
    save_file({"first": torch.ones(2, 8)}, data_set / "blob/x.safetensors")
    stored = {"type": "safetensors", "path": "blob/x.safetensors", "tensor_key": "first"}
    write(data_set / "workloads/scale/scale_n8.jsonl", {**SCALED[0], "inputs": {**SCALED[0]["inputs"], "x": stored}})
    ((x, _),) = TaskModule(read_tasks(data_set / "definitions")[0]).input_lists()
    assert x.tolist() == torch.ones(2, 8).tolist()


@pytest.mark.parametrize(
    ("path", "values", "named"),
    [
        ("workloads/scale/scale_n8.jsonl", [{**SCALED[0], "axes": {}}], "'M'"),
        ("workloads/scale/scale_n8.jsonl", [{"axes": {"M": "2"}}], "axes"),
        ("definitions/scale/scale_n8.json", [{"axes": {}}], "reference"),
        ("pick/definition.json", [{**PICK, "axes": {"T": {"type": "expr", "expression": "open('x')"}}}], "open"),
    ],
)
def test_what_does_not_fit_the_schema_is_refused(data_set: Path, path: str, values: list[Any], named: str) -> None:
    write(data_set / path, *values)
    with pytest.raises(OpAtlasError) as raised:
        read_tasks(data_set)
    assert path in str(raised.value)
    assert named in str(raised.value)


@pytest.mark.parametrize(
    ("changed", "field", "value"),
    [
        ({"spec": solution("x", language="cuda")["spec"]}, "spec.language", "cuda"),
        ({"spec": solution("x", destination_passing_style=True)["spec"]}, "spec.destination_passing_style", "true"),
        ({"spec": solution("x", entry_point="main.py")["spec"]}, "spec.entry_point", "main.py"),
        ({"definition": "other"}, "definition", "other"),
        ({"sources": [*solution("x")["sources"], {"path": "src/../../x.py", "content": ""}]}, "path", "src/../../x.py"),
        ({"sources": [*solution("x")["sources"], {"path": "/tmp/x.py", "content": ""}]}, "path", "/tmp/x.py"),
        ({"sources": [*solution("x")["sources"], {"path": "factors.py/x.py", "content": ""}]}, "path", "factors.py/x"),
        ({"sources": 1}, "sources", "int"),
    ],
)
def test_solutions_that_cannot_be_judged_name_the_field(
    data_set: Path, tmp_path: Path, changed: dict[str, Any], field: str, value: str
) -> None:
    file = write(tmp_path / "mine.json", {**solution("x"), **changed})
    with pytest.raises(OpAtlasError) as raised:
        read_directory(file, find_candidates(read_tasks(data_set)))
    assert all(each in str(raised.value) for each in (str(file), field, value))


def test_what_was_measured_is_written_as_traces(data_set: Path, tmp_path: Path) -> None:
    for name, result in (("right", "x * factor"), ("wrong", "x + factor")):
        file = tmp_path / "mine/scale_n8" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"def run(x, factor):\n    return {result}\n")
    write(data_set / "solutions/fast-v1.json", solution("fast-v1"))
    database = tmp_path / "db"
    options = ["--tasks", str(data_set), "--database-path", str(database), "--repeat-count=2", "--cache=warm"]
    options += ["--implementation", f"torch,{tmp_path / 'mine'},{data_set / 'solutions'}", "-p", "no:cacheprovider"]
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "bench/", *options], cwd=ROOT, check=False)
    assert done.returncode == 0
    with (database / "kernels.pick.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["Input Shapes"], row["Status"]) == ("7,4;2", "measured")
    for definitions, ending in ((data_set, "csv"), (None, "jsonl")):
        with pytest.raises(UsageError):
            export(str(database), definitions, output=tmp_path / f"traces.{ending}")
    export(str(database), data_set, output=tmp_path / "traces.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "traces.jsonl").read_text().splitlines()]
    assert {line["definition"] for line in lines} == {"scale_n8"}
    right, wrong, solved = (
        [line for line in lines if line["solution"].startswith(name)]
        for name in ("mine-right", "mine-wrong", "fast-v1")
    )
    assert {line["solution"] for line in solved} == {"fast-v1"}
    for own in (right, wrong, solved):
        assert [line["workload"] for line in own] == SCALED
    for line in (*right, *solved):
        assert line["evaluation"]["status"] == "PASSED"
        latency, reference, speed_up = (
            line["evaluation"]["performance"][name] for name in ("latency_ms", "reference_latency_ms", "speedup_factor")
        )
        assert speed_up == pytest.approx(reference / latency)
        assert line["evaluation"]["environment"]["hardware"]
    for line in wrong:
        assert (line["evaluation"]["status"], line["evaluation"]["performance"]) == ("INCORRECT_NUMERICAL", None)
