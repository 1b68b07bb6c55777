"""`pytest shapes/` in real sessions: what it adds, tells, and refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest
import warm_python

from opatlas.data.manifest import code_digest

REPOSITORY = Path(__file__).parents[2]
FEW = ("-k", "MatMulV2 and not Batch or SwiGlu and not Group and not Clipped or PagedCacheLoad")


def run(database: Path | None, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs `pytest shapes/`; on the default database where `database` is None."""
    named = [f"--database-path={database}"] if database else []
    words = [sys.executable, "-m", "pytest", "shapes/", "-p", "no:cacheprovider", *named, *options]
    return warm_python.run(words, cwd=REPOSITORY)


def contents(database: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in database.glob("*.csv")}


def rows_in(database: Path) -> int:
    """The number of rows of all kernel types."""
    return sum(text.count(b"\n") - 1 for text in contents(database).values())


def test_a_second_run_adds_nothing(tmp_path: Path) -> None:
    options = (*FEW, "--target-models=dsv3,Qwen/Qwen3-32B", "--rows=120", "--seed=7")
    first = run(tmp_path, *options)
    assert first.returncode == 0, first.stdout
    assert "3 passed" in first.stdout
    before = contents(tmp_path)
    assert set(before) == {"MatMulV2.csv", "PagedCacheLoadNdKernel.csv", "SwiGlu.csv"}
    assert rows_in(tmp_path) == 360
    (manifest,) = (tmp_path / "runs").glob("*.json")
    written = json.loads(manifest.read_text())
    assert written["options"]["seed"] == 7
    assert written["options"]["target_models"] == ["deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-32B"]
    assert written["packages"]["hypothesis"] == hypothesis.__version__
    assert written["statuses"] == {"added": 360}
    assert written["code"] == code_digest([REPOSITORY / "shapes", REPOSITORY / "opatlas" / "theory"])
    second = run(tmp_path, *options)
    assert second.returncode == 0
    assert re.search(rf"^database +{tmp_path}$", second.stdout, re.MULTILINE)
    assert contents(tmp_path) == before
    assert len(list((tmp_path / "runs").glob("*.json"))) == 1


@pytest.mark.parametrize("option", ["--read-only", "--co"])
def test_a_plan_that_cannot_be_made_is_wrong_usage_where_nothing_is_written(tmp_path: Path, option: str) -> None:
    """It had been a traceback of the collection."""
    assert run(tmp_path, "--ops=MatMulV4", option).returncode == pytest.ExitCode.USAGE_ERROR


def test_a_list_of_calls_gives_the_rows(tmp_path: Path) -> None:
    calls, database = tmp_path / "calls.json", tmp_path / "db"
    sizes = {"m": 16, "n": 256, "k": 128}
    entries = [{"type": "gemm", "args": {**sizes, "dtype_a": dtype, "dtype_b": dtype}} for dtype in ("bf16", "nvfp4")]
    calls.write_text(json.dumps(entries))
    done = run(database, f"--calls={calls}")
    assert done.returncode == 0, done.stdout
    assert "gemm nvfp4" in done.stdout
    assert set(contents(database)) == {"MatMulV2.csv"}
    assert rows_in(database) == 1
    (manifest,) = (database / "runs").glob("*.json")
    assert json.loads(manifest.read_text())["options"]["calls"] == str(calls)
    refused = run(database, "--calls", str(calls), "--rows", "5")
    assert refused.returncode == 4
    assert "--rows" in refused.stdout + str(refused.stderr)


def test_a_new_database_of_an_npu_gets_the_mapping_of_its_neighbour_and_the_rows_that_it_names(tmp_path: Path) -> None:
    device = tmp_path / "ATLAS_800_A3_752T_128G_DIE" / "vllm_ascend"
    (device / "vllm0.17.0_torch2.9.0_cann8.5").mkdir(parents=True)
    mapping = "operator_mappings:\n  aten.own: {kernel_type: OwnAdd, query_mode: elementwise}\n"
    (device / "vllm0.17.0_torch2.9.0_cann8.5" / "op_mapping.yaml").write_text(mapping)
    database = device / "vllm0.18.0_torch2.9.0_cann8.5"
    done = run(database, "-k", "OwnAdd", "--rows=4")
    assert done.returncode == 0, done.stdout
    assert str(device / "vllm0.17.0_torch2.9.0_cann8.5" / "op_mapping.yaml") in done.stdout
    assert set(contents(database)) == {"OwnAdd.csv"}
    assert mapping in (database / "op_mapping.yaml").read_text()
    plan = ("--read-only", "-k", "AddRmsNorm", "--target-models=qwen3-0.6b", "--rows=0")
    planned = run(device / "vllm0.19.0_torch2.9.0_cann8.5", *plan)
    assert planned.returncode == 0, planned.stdout
    assert "to add" in planned.stdout
    assert not (device / "vllm0.19.0_torch2.9.0_cann8.5").exists()


HEADER = "Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats"


def test_a_malformed_file_costs_its_kernel_type_and_is_named(tmp_path: Path) -> None:
    text = f'{HEADER},Averge Duration(us)\n"4,-64",DT_BF16,ND,"4,32",DT_BF16,ND,\n'
    (tmp_path / "SwiGlu.csv").write_text(text)
    done = run(tmp_path, *FEW, "--rows=3")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "SwiGlu.csv:2: column 'Input Shapes' is '4,-64'" in done.stdout
    assert (tmp_path / "SwiGlu.csv").read_text() == text
    assert "2 passed" in done.stdout


def test_a_database_that_cannot_be_written_is_refused_once(tmp_path: Path) -> None:
    # Where locks are made stands a file: no permission keeps the administrator out.
    (tmp_path / "journal").write_text("in the way")
    done = run(tmp_path, *FEW, "--rows=3")
    assert done.returncode == 4
    assert (done.stdout).count("cannot be written (") == 1
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("folder", "options", "in_blocks"),
    [("new", ["--device=ATLAS_800_A2_376T_64G"], True), ("NVIDIA_H200/torch/torch2.11.0_cuda13.0", [], False)],
)
def test_blocked_formats_are_those_of_an_npu(tmp_path: Path, folder: str, options: list[str], in_blocks: bool) -> None:
    done = run(tmp_path / folder, "--ops=matmul", "--rows=20", "--target-models=qwen3-0.6b", *options)
    assert done.returncode == 0, done.stdout
    (table,) = (cells for name, cells in contents(tmp_path / folder).items() if name.startswith("MatMul"))
    assert (b"FRACTAL_NZ" in table) == in_blocks
