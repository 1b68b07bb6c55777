"""Definitions of flashinfer-bench and SOL-ExecBench are tasks, and what was measured of them are their traces."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checked import timed, write_database
from planted_trials import job_of_candidate

from opatlas.cli.query import export
from opatlas.errors import OpAtlasError, UsageError
from opatlas.outer.judging.failures import run_judged
from opatlas.outer.judging.judgement import Judgement
from opatlas.outer.tasks.task import read_tasks
from opatlas.outer.tasks.task_replay import TaskModule
from opatlas.outer.tasks.task_rows import find_candidates
from opatlas.row import columns as col
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.implementation_catalog import read_directory
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.runner import Runner
from opatlas.show.result import Table

SCALE = {
    "name": "scale_n8",
    "op_type": "scale",
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 8}},
    "inputs": {"x": {"shape": ["M", "N"], "dtype": "float32"}, "factor": {"shape": None, "dtype": "float32"}},
    "outputs": {"y": {"shape": ["M", "N"], "dtype": "float32"}},
    "reference": "import torch\n\ndef run(x, factor):\n    return x * factor\n",
}
SCALED = [
    {"uuid": f"of-{rows}", "axes": {"M": rows}, "inputs": {"x": {"type": "random"}, "factor": factor}}
    for rows, factor in ((2, {"type": "scalar", "value": 3.0}), (5, {"type": "random"}))
]
#: SOL-ExecBench: no name, an axis that follows from others, a size as an axis, indices by a function of the reference.
PICK = {
    "axes": {"B": {"type": "var", "description": None}, "T": {"type": "expr", "expression": "B * 3 + 1"}},
    "custom_inputs_entrypoint": "make",
    "inputs": {"table": {"shape": ["T", "4"], "dtype": "bfloat16"}, "at": {"shape": ["B"], "dtype": "int64"}},
    "outputs": {"out": {"shape": ["B", "4"], "dtype": "bfloat16"}},
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


def row(inputs: str, outputs: str, dtypes: str = "FLOAT;FLOAT", results: str = "FLOAT", **cells: str) -> dict[str, str]:
    """A measured row."""
    shapes = {col.INPUT_SHAPES: inputs, col.OUTPUT_SHAPES: outputs}
    return {**shapes, col.INPUT_DTYPES: dtypes, col.OUTPUT_DTYPES: results, **timed(6.0, 0.1), **cells}


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
    assert [(tuple(x.shape), x.dtype, type(factor)) for x, factor in scaled] == [
        ((rows, 8), torch.float32, float) for rows in (2, 5)
    ]
    assert scaled[0][1] == 3.0
    ((table, at),) = TaskModule(pick).input_lists()
    assert (tuple(table.shape), table.dtype, at.tolist()) == ((7, 4), torch.bfloat16, [0, 1])
    write(data_set / "workloads/scale/scale_n8.jsonl", SCALED[0])
    assert not scale.is_unchanged


def test_inputs_of_a_workload_are_made_without_those_of_others(tmp_path: Path) -> None:
    write(tmp_path / "kernels/definitions/scale/scale_n8.json", SCALE)
    huge = {**SCALED[0], "uuid": "huge", "axes": {"M": 1 << 50}}
    write(tmp_path / "kernels/workloads/scale/scale_n8.jsonl", *({"workload": each} for each in (huge, *SCALED)))
    (task,) = read_tasks(tmp_path / "kernels")
    x, factor = TaskModule(task).inputs(1, 0, torch.device("cpu"))
    assert (tuple(x.shape), factor) == ((2, 8), 3.0)


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


@pytest.mark.parametrize(
    ("main", "writes", "verdict"),
    [
        ("def run(x, factor, y):\n    torch.mul(x, factor, out=y)\n", True, "pass"),
        ("def run(x, factor, y):\n    torch.add(x, factor, out=y)\n", True, "mismatch"),
        ("def run(x, factor, y):\n    torch.mul(x[1:], factor, out=y[1:])\n", True, "hack"),
        ("def run(x, factor, y):\n    torch.mul(x, factor, out=y)\n", False, "interface"),
        ("from factors import times\ndef run(x, factor):\n    return times(x, factor)\n", False, "pass"),
    ],
)
def test_a_solution_that_writes_its_outputs_gets_its_verdict(
    data_set: Path, tmp_path: Path, main: str, writes: bool, verdict: str
) -> None:
    written = solution("fast-v1", destination_passing_style=writes)
    written["sources"][0]["content"] = f"import torch\n{main}"
    (found,) = read_directory(write(tmp_path / "fast.json", written), find_candidates(read_tasks(data_set)))
    job = job_of_candidate(data_set / "definitions", tmp_path / "fast.json", 1)
    source = found.sources[job.kernel_type]
    outcome = run_judged(Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=2)).run, replace(job, source=source))
    judgement = Judgement.of(outcome)
    assert judgement is not None, outcome.reason
    assert judgement.error_class == verdict, outcome.reason


def test_how_a_solution_is_called_is_part_of_its_version(data_set: Path, tmp_path: Path) -> None:
    """Durations of another function, or of one that returns its results, had counted as those of the same kernel."""
    versions = set()
    for spec in ({}, {"destination_passing_style": True}, {"entry_point": "src/main.py::other"}, {}):
        file = write(tmp_path / "mine.json", solution("fast", **spec))
        (found,) = read_directory(file, find_candidates(read_tasks(data_set)))
        versions.add(found.version)
    assert len(versions) == 3


def test_what_was_measured_is_written_as_traces(data_set: Path, tmp_path: Path) -> None:
    write(data_set / "solutions/fast-v1.json", solution("fast-v1"))
    (_, scale), database = read_tasks(data_set), tmp_path / "db"
    for name, verdict, us in (
        ("", "", "6"),
        ("fast_v1", "pass", "2"),
        ("wrong", "mismatch/x", "2"),
        ("empty", "pass", ""),
    ):
        judged = {col.ERROR_CLASS: verdict, col.MAX_ERROR: "inf", col.MICROBENCH_MEDIAN: us}
        rows = [
            row("2,8", "2,8", **judged, **{col.TASK_DIGEST: scale.digest, col.TASK_INPUTS: str(number)})
            for number in (0, 1)
        ]
        folder = database / f"implementations/mine-{name}-01234567" if name else database
        write_database(folder, {scale.kernel_type: rows})
    for definitions, ending in ((data_set, "csv"), (None, "jsonl")):
        with pytest.raises(UsageError):
            export(str(database), definitions, output=tmp_path / f"traces.{ending}")
    export(str(database), data_set, output=tmp_path / "traces.jsonl")
    lines = [json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "traces.jsonl").open()]
    assert [line["workload"] for line in lines] == [*SCALED, *SCALED]
    assert {(line["definition"], line["solution"], line["evaluation"]["status"]) for line in lines} == {
        ("scale_n8", "fast-v1", "PASSED"),
        ("scale_n8", "mine-wrong-01234567", "INCORRECT_NUMERICAL"),
    }
    for line in lines:
        passed, evaluation = line["solution"] == "fast-v1", line["evaluation"]
        latencies = {"latency_ms": 0.002, "reference_latency_ms": 0.006, "speedup_factor": 3.0}
        assert evaluation["performance"] == (latencies if passed else None)
        assert evaluation["environment"]["hardware"] == "NVIDIA_H200"


def test_measured_rows_are_written_as_definitions_which_are_tasks(tmp_path: Path) -> None:
    rows = {
        "RmsNorm": [row(f"{m},64;64", f"{m},64;{m},1", results="FLOAT;FLOAT") for m in (2, 3)],
        "SwiGlu": [row(f"4,{width}", f"4,{width // 2}", "FLOAT") for width in (12, 10)],
        "Log": [row("4,8", "4,8", "FLOAT")],
        "GatherV2": [row("8,4;2", "2,4", "FLOAT;INT64")],
        "InplaceAddRmsNorm": [row("2,64;2,64;64", "2,64;2,1;2,64", "FLOAT;FLOAT;FLOAT", "FLOAT;FLOAT;FLOAT")],
        "MoeGatingTopK": [row("1,256;256", "1,8;1,8;1,256", results="FLOAT;INT32;FLOAT")],
        "Unknown": [row("4,8", "4,8", "FLOAT")],
    }
    rows["RmsNorm"].append({**rows["RmsNorm"][0], col.INPUT_SHAPES: "9,64;64", col.STATUS: "failed"})
    folder = tmp_path / "written"
    _, refused = export(str(write_database(tmp_path / "db", rows)), output=folder).parts
    assert isinstance(refused, Table)
    assert [each[:2] for each in refused.rows] == [
        (name, 1) for name in ("GatherV2", "InplaceAddRmsNorm", "Log", "MoeGatingTopK", "Unknown")
    ]
    assert all(str(each[2]).startswith("Unsupported") for each in refused.rows)
    with pytest.raises(OpAtlasError):
        export(str(tmp_path / "db"), output=folder)
    definitions = [json.loads(file.read_text()) for file in sorted(folder.glob("definitions/norm/*.json"))]
    assert [each["name"].split("_")[0] for each in definitions] == ["RmsNorm", "SwiGlu", "SwiGlu"]
    assert {each["op_type"] for each in definitions} == {"norm"}
    norm, *gates = definitions
    assert norm["axes"] == {
        "x_axis0": {"type": "var"},
        "x_axis1": {"type": "const", "value": 64},
        "result_1_axis1": {"type": "const", "value": 1},
    }
    assert norm["inputs"] == {
        "x": {"shape": ["x_axis0", "x_axis1"], "dtype": "float32"},
        "gamma": {"shape": ["x_axis1"], "dtype": "float32"},
    }
    assert [each["shape"] for each in norm["outputs"].values()] == [
        ["x_axis0", "x_axis1"],
        ["x_axis0", "result_1_axis1"],
    ]
    # No axis of the inputs has the width of the outputs: each width is a definition.
    assert [[axis["type"] for axis in each["axes"].values()] for each in gates] == [["const"] * 3] * 2
    lines = list(map(json.loads, (folder / f"workloads/norm/{norm['name']}.jsonl").open()))
    assert [(line["definition"], line["axes"]) for line in lines] == [(norm["name"], {"x_axis0": m}) for m in (2, 3)]
    assert all(line["workload"].items() <= line.items() for line in lines)
    shapes = [[tuple(x.shape) for x in inputs] for inputs in TaskModule(read_tasks(folder)[0]).input_lists()]
    assert shapes == [[(2, 64), (64,)], [(3, 64), (64,)]]
    for task in read_tasks(folder):
        job = replace(job_of_candidate(task.path, tmp_path / "none.py"), source=None)
        judgement = Judgement.of(run_judged(Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=2)).run, job))
        assert judgement is not None
        assert judgement.passed
