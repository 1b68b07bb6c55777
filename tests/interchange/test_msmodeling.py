"""msmodeling finds the rows of a database that OpAtlas wrote: from a capture, after a replay, and of messages."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from captures import DECODE_RECORD, DECODE_SHAPES, launch, write_capture
from sessions import ROOT, Finished
from stand_in_npu_plugin import NAME
from stand_in_npus import StandInNpus

from .loader import Loader

pytestmark = pytest.mark.usefixtures("forks")
VERSIONS = "vllm0.18.0_torch2.9.0_cann8.5"
BF16 = "bfloat16"
ABSENT = "DT_UNDEFINED"
LAUNCHES = (
    launch(type="MatMulV2", shapes="16,32;64,32", out="16,64"),
    launch(type="MatMulV3", shapes="48,64;4,8,16,16", formats="ND;FRACTAL_NZ", out="48,128"),
    launch(type="Add", shapes="40,8;40,8", out="40,8"),
    # The lone 0-dim tensors of a scalar sum, for which nothing stands in the cells.
    launch(type="Add", shapes=";", dtypes="FLOAT;FLOAT", formats="ND;ND", out="", out_dtypes="FLOAT", out_formats="ND"),
    launch(type="Mul", shapes="24,8;24,8", out="24,8"),
    launch(type="Neg", shapes="", dtypes="FLOAT", formats="ND", out="", out_dtypes="FLOAT", out_formats="ND"),
    launch(type="Neg", shapes="72,8", dtypes="DT_BF16", formats="ND", out="72,8"),
    launch(type="SwiGlu", shapes="24,128", dtypes="DT_BF16", formats="ND", out="24,64"),
    launch(type="RmsNorm", shapes="8,64;64", dtypes="DT_BF16;DT_BF16", formats="ND;ND", out="8,64;8,1",
           out_dtypes="DT_BF16;FLOAT", out_formats="ND;ND"),
    launch(type="ApplyRotaryPosEmb", shapes="1,56,4,128;1,56,1,128;1,56,1,128;1,56,1,128",
           dtypes="DT_BF16;DT_BF16;DT_BF16;DT_BF16", formats="ND;ND;ND;ND", out="1,56,4,128;1,56,1,128",
           out_dtypes="DT_BF16;DT_BF16", out_formats="ND;ND"),
    launch(type="FusedInferAttentionScore", shapes=";".join(DECODE_SHAPES),
           dtypes=f"DT_BF16;DT_BF16;DT_BF16;{ABSENT};BOOL;INT64;INT64;{';'.join([ABSENT] * 7)};INT32",
           formats=";".join(["ND"] * len(DECODE_SHAPES)), out="3,4,128"),
)  # fmt: skip
QUERIES = {
    "MatMulV2": lambda found: found.duration_us("aten.mm.default", ((16, 32), BF16), ((32, 64), BF16)),
    "MatMulV3": lambda found: found.duration_us("aten.mm.default", ((48, 64), BF16), ((64, 128), BF16)),
    "Add": lambda found: found.duration_us("aten.add.Tensor", output=((1, 40, 8), BF16)),
    "Mul": lambda found: found.duration_us("aten.mul.Tensor", output=((24, 8), BF16)),
    "Neg": lambda found: found.duration_us("aten.neg.default", output=((72, 8), BF16)),
    "SwiGlu": lambda found: found.duration_us("tensor_cast.swiglu.default", ((24, 64), BF16), ((24, 64), BF16)),
    "RmsNorm": lambda found: found.duration_us("tensor_cast.rms_norm.default", ((1, 8, 64), BF16), ((64,), BF16)),
    "ApplyRotaryPosEmb": lambda found: found.duration_us(
        "tensor_cast.apply_rope.default", ((1, 1, 56, 128), BF16), ((1, 4, 56, 128), BF16), ((1, 56, 128), BF16)
    ),
    "FusedInferAttentionScore": lambda found: found.attention_us(
        "tensor_cast.attention.default", ((3, 4, 128), BF16), (99, 128, 1, 128), [300, 128, 7]
    ),
}
MESSAGES = {
    "hcom_allReduce_": "tensor_cast.all_reduce.default",
    "hcom_allGather_": "tensor_cast.all_gather.default",
    "hcom_reduceScatter_": "tensor_cast.reduce_scatter.default",
    "hcom_alltoallv_": "tensor_cast.all_to_all.default",
}


def run(*words: str, **environment: str) -> Finished:
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )
    return Finished(done.returncode, done.stdout + done.stderr)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A version folder, from a capture and the records of its lengths."""
    folder = tmp_path / "data" / NAME / "vllm_ascend" / VERSIONS
    capture = write_capture(tmp_path / "kernel_details.csv", LAUNCHES)
    done = run("opatlas", "ingest", "--profiling-path", str(capture), "--database-path", str(folder))
    assert done.code == 0, done.output
    (tmp_path / "calls.jsonl").write_text(json.dumps(DECODE_RECORD) + "\n")
    done = run(
        "opatlas", "ingest", "--attention-records", str(tmp_path / "calls.jsonl"), "--database-path", str(folder)
    )
    assert done.code == 0, done.output
    return folder


def durations(folder: Path) -> dict[str, float | None]:
    loader = Loader(folder)
    return {kernel_type: query(loader) for kernel_type, query in QUERIES.items()}


def test_a_captured_row_answers_and_after_a_replay_its_replayed_duration(database: Path, npus: StandInNpus) -> None:
    assert durations(database) == dict.fromkeys(QUERIES, 10.0)
    mapping = (database / "op_mapping.yaml").read_bytes()
    done = run(
        *("pytest", "bench/", "-p", "no:cacheprovider", "-p", "stand_in_npu_plugin", f"--device={NAME}"),
        *(f"--database-path={database}", "--repeat-count=2", "--mixed"),
        PYTHONPATH=str(ROOT / "tests" / "support"),
        **npus.environment,
    )
    assert done.code == 0, done.output
    assert done.ledger() == {"measured": len(LAUNCHES)}
    replayed = durations(database)
    for kernel_type, us in replayed.items():
        averages = pd.read_csv(database / f"{kernel_type}.csv")["Average Duration(us)"]
        assert us is not None
        assert any(math.isclose(us, average) for average in averages), (kernel_type, us, done.output)
    assert set(replayed.values()) != {10.0}
    # The rows of the signatures are the captured ones, and nobody wrote over the mapping.
    assert len(pd.read_csv(database / "Neg.csv")) == 2
    assert (database / "op_mapping.yaml").read_bytes() == mapping


@pytest.mark.skipif(sys.platform != "linux", reason="process tables are read from /proc")
def test_messages_answer(database: Path, tmp_path: Path) -> None:
    """Measured over gloo, whose CSVs have the columns of HCCL's, and put where an NPU's lie."""
    done = run(
        *("pytest", "bench/test_collectives.py", "-p", "no:cacheprovider", "--device=cpu", "--num-devices=2"),
        *("--bytes-grid=4096", "--comm-dtype=bfloat16", "--repeat-count=3", f"--database-path={tmp_path / 'gloo'}"),
    )
    assert done.code == 0, done.output
    messages = database.parents[1] / "hccl" / "v8.5"
    shutil.copytree(tmp_path / "gloo", messages)
    loader = Loader(database)
    for kernel_type, operator in MESSAGES.items():
        (row,) = pd.read_csv(messages / f"{kernel_type}.csv").to_dict("records")
        us = loader.message_us(operator, 4096, 2, row["topology_tier"])
        assert us is not None
        assert math.isclose(us, row["Duration(us)"]), kernel_type
