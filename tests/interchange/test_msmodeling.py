"""msmodeling finds the rows of a database that OpAtlas wrote from a capture."""

from __future__ import annotations

import json
from pathlib import Path

from captures import DECODE_RECORD, DECODE_SHAPES, launch, write_capture

from opatlas.cli.main import main
from opatlas.row.location import DEFAULT_NPU_DEVICE

from .loader import Loader

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


def test_captured_rows_answer(tmp_path: Path) -> None:
    """Replayed ones: tests/acceptance/msmodeling-reads."""
    folder = tmp_path / "data" / DEFAULT_NPU_DEVICE / "vllm_ascend" / "vllm0.18.0_torch2.9.0_cann8.5"
    capture, calls = write_capture(tmp_path / "kernel_details.csv", LAUNCHES), tmp_path / "calls.jsonl"
    calls.write_text(json.dumps(DECODE_RECORD) + "\n")
    for words in (("--profiling-path", capture), ("--attention-records", calls)):
        assert main(["ingest", *map(str, words), "--database-path", str(folder)]) == 0
    loader = Loader(folder)
    assert {kernel_type: query(loader) for kernel_type, query in QUERIES.items()} == dict.fromkeys(QUERIES, 10.0)
