"""From a capture to a filled database on an NPU: the real replays, under stand-ins for the device and msprof."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from captures import launch, write_capture
from sessions import ROOT, Finished
from stand_in_npu_plugin import NAME
from stand_in_npus import StandInNpus, is_mean_us

from opatlas.store.database import Database
from opatlas.store.manifest import manifest_paths

pytestmark = pytest.mark.usefixtures("forks")
SAMPLES = 3
LAUNCHES = (
    launch(type="MatMulV2", shapes="16,32;64,32", out="16,64"),
    launch(type="RmsNorm", shapes="8,64;64", dtypes="DT_BF16;DT_BF16", formats="ND;ND", out="8,64;8,1",
           out_dtypes="DT_BF16;FLOAT", out_formats="ND;ND"),
    launch(type="SwiGlu", shapes="24,128", dtypes="DT_BF16", formats="ND", out="24,64"),
    launch(type="Add", shapes="40,8;40,8", out="40,8"),
    launch(type="MatMulCommon", shapes="16,32;4,2,16,16", formats="ND;FRACTAL_NZ", out="16,64"),
)  # fmt: skip


KERNELS = {
    # The library has chosen another product than when the capture was taken.
    "MatMulV2": ["MatMulV3"],
    # For the sum an operand is cast first.
    "Add": [{"type": "Cast", "us": 7.5}, "Add"],
    # The weights were not kept in FRACTAL_NZ.
    "MatMulCommon": [{"type": "MatMulV3", "cells": {"Input Shapes": "16,32;32,64", "Input Formats": "ND;ND"}}],
}


def run(*words: str, **environment: str) -> Finished:
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )
    return Finished(done.returncode, done.stdout + done.stderr)


def rows(database: Path, kernel_type: str) -> list[dict[str, str]]:
    with open(database / f"{kernel_type}.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    capture = write_capture(tmp_path / "kernel_details.csv", LAUNCHES)
    done = run("opatlas", "ingest", "--profiling-path", str(capture), "--database-path", str(tmp_path / "npu"))
    assert done.code == 0, done.output
    return tmp_path / "npu"


def test_a_capture_is_measured_on_the_npu(database: Path, npus: StandInNpus, tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    done = run(
        *("pytest", "bench/", "-p", "no:cacheprovider", "-p", "stand_in_npu_plugin", f"--device={NAME}"),
        *(f"--database-path={database}", f"--repeat-count={SAMPLES}", f"--junitxml={junit}"),
        PYTHONPATH=str(ROOT / "tests" / "support"),
        STAND_IN_KERNELS=json.dumps(KERNELS),
        **npus.environment,
    )
    assert done.code == 0, done.output
    assert done.ledger() == {"measured": 4, "unsupported": 1}
    for kernel_type, size in {"MatMulV2": 16, "RmsNorm": 8, "SwiGlu": 24, "Add": 40, "MatMulV3": 16}.items():
        (row,) = rows(database, kernel_type)
        assert is_mean_us(float(row["Average Duration(us)"]), size, SAMPLES), row
        assert row["Instrument"] == "msprof"
    (blocked,) = rows(database, "MatMulCommon")
    assert not blocked.get("Average Duration(us)")
    for words in ("input slot 1", "(4,2,16,16) BF16 FRACTAL_NZ", "(32,64) BF16 ND"):
        assert words in blocked["Status Reason"]
    (gaps,) = (database / "reports").glob("duration_gap_*.csv")
    with open(gaps, newline="") as file:
        of_add = next(gap for gap in csv.DictReader(file) if gap["Kernel Type"] == "Add")
    # As the capture has it: without the Cast.
    assert is_mean_us(float(of_add["Average Duration(us)"]), 40, SAMPLES)
    assert of_add["MicroBench Helper Kernels"] == "Cast 7.5000"
    assert "ran as MatMulV3" in rows(database, "MatMulV2")[0]["Status Reason"]
    (manifest,) = manifest_paths(Database(database))
    options = json.loads(manifest.read_text())["options"]
    assert (options["aic_metrics"], options["msprof_rows"]) == ("PipeUtilization", 200)
    assert junit.read_text().count('name="instrument" value="msprof"') == 4
    assert list((database / "reports").glob("replay_report_*.md"))
    # Nothing is missing now.
    again = run(
        *("pytest", "bench/", "-p", "no:cacheprovider", "-p", "stand_in_npu_plugin", f"--device={NAME}"),
        *(f"--database-path={database}", "--update-mode=missing-only"),
        PYTHONPATH=str(ROOT / "tests" / "support"),
        **npus.environment,
    )
    assert again.code == 0, again.output
    assert "nothing to do" in again
