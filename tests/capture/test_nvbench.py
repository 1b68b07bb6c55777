"""The JSON of nvbench: a state of a benchmark is a row, with its mean or all of its samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opatlas.cli.main import main
from opatlas.data.database import Database

MEAN, SAMPLES = "nv/cold/time/gpu/mean", "nv/json/bin:nv/cold/sample_times"


def state(axes: dict[str, tuple[str, str]], *summaries: tuple[str, str, str], device: int = 1) -> dict[str, Any]:
    """A state by its axes (type and value), and summaries (tag, name and value)."""
    return {
        "name": " ".join(axes),
        "device": device,
        "is_skipped": not summaries,
        "axis_values": [{"name": name, "type": kind, "value": value} for name, (kind, value) in axes.items()] or None,
        "summaries": [
            {"tag": tag, "name": "x", "data": [{"name": name, "type": "string", "value": value}]}
            for tag, name, value in summaries
        ],
    }


def write(path: Path, *states: dict[str, Any]) -> Path:
    devices = [{"id": 0, "name": "Quadro GV100"}, {"id": 1, "name": "NVIDIA H200"}]
    benchmarks = [{"name": "copy", "axes": None, "states": list(states)}]
    path.write_text(json.dumps({"meta": {}, "devices": devices, "benchmarks": benchmarks}))
    return path


def test_states_become_rows_of_their_sizes(tmp_path: Path) -> None:
    (tmp_path / "nvbench.json-bin").mkdir()
    np.array([1e-6, 2e-6, 3e-6], dtype="<f4").tofile(tmp_path / "nvbench.json-bin" / "0.bin")
    sizes = {"M": ("int64", "64"), "N": ("int64", "256")}
    file = write(
        tmp_path / "nvbench.json",
        state(sizes, (MEAN, "value", "4e-06")),
        state({**sizes, "T": ("string", "F32")}, (SAMPLES, "filename", "elsewhere/nvbench.json-bin/0.bin")),
        state({}, (MEAN, "value", "5e-06")),
        state({"M": ("int64", "1")}),
    )
    database = tmp_path / "db"
    assert main(["ingest", "--profiling-path", str(file), "--database-path", str(database)]) == 0
    rows = list(Database(database).read("copy").rows())
    assert {row["Input Shapes"]: float(row["Profiling Average Duration(us)"]) for row in rows} == {
        "64,256": pytest.approx(4),
        "1": pytest.approx(5),
    }
    (typed,) = Database(database).read("copy.T=F32").rows()
    assert (float(typed["Profiling Median Duration(us)"]), typed["Profiling Samples"]) == (pytest.approx(2), "3")
    (manifest,) = (json.loads(path.read_text()) for path in (database / "runs").glob("ingest-*.json"))
    assert "NVIDIA_H200" in json.dumps(manifest)


@pytest.mark.parametrize(
    "text",
    [
        '{"benchmarks": 1}',
        json.dumps({"benchmarks": [{"name": "x", "states": [state({}, device=0), state({}, device=1)]}]}),
    ],
)
def test_other_files_and_several_devices_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "nvbench.json").write_text(text)
    options = ["--profiling-path", str(tmp_path / "nvbench.json"), "--database-path", str(tmp_path / "db")]
    assert main(["ingest", *options]) == 2
    assert "nvbench.json" in capsys.readouterr().err
