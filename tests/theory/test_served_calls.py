"""Rows of lists of served calls: of operators as in the test lists of OperatorX, and of kernel types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opatlas.errors import UsageError
from opatlas.theory.catalog import built_in_catalog
from opatlas.theory.served_calls import ServedCalls, read_calls

MHA = {"batch_size": 4, "num_heads": 8, "num_heads_kv": 2, "head_dim": 64}
MLA = {"num_heads": 4, "head_dim_qk_nope": 128, "head_dim_qk_rope": 64, "head_dim_v": 128, "kv_lora_rank": 512}
EXPERTS = {"num_tokens": 10, "hidden": 64, "intermediate": 32, "num_experts": 8, "top_k": 2, "n_shared_experts": 0}
#: An entry, and the kernel types with the first slots of its rows.
CALLS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("gemm", {"m": 3, "n": 5, "k": 7}, ["MatMulV2 3,7;5,7"]),
    ("gemm", {"m": 3, "n": 5, "k": 7, "bias": True}, ["MatMulV2 3,7;5,7;5"]),
    ("gemm", {"m": 3, "n": 5, "k": 7, "dtype_a": "fp8", "dtype_b": "fp8"}, ["QuantBatchMatmulV3 3,7;7,5;5;3"]),
    ("gemm", {"m": 3, "n": 5, "k": 7, "dtype_a": "nvfp4", "dtype_b": "nvfp4"}, []),
    ("attention_mha", {**MHA, "seq_len_q": 16, "seq_len_kv": 16}, ["FusedInferAttentionScore 64,8,64;64,2,64"]),
    ("attention_mha", {**MHA, "seq_len_q": 1, "seq_len_kv": 300}, ["FusedInferAttentionScore 4,8,64;12,128,128"]),
    (
        "attention_mha",
        {**MHA, "seq_len_q": 1, "seq_len_kv": 300, "sliding_window": 128, "causal": False},
        ["FusedInferAttentionScore 4,8,64;4,128,128"],
    ),
    (
        "attention_mha",
        {**MHA, "seq_len_q": 16, "seq_len_kv": 16, "sliding_window": 8},
        ["FusedInferAttentionScore 64,8,64;64,2,64"],
    ),
    ("attention_mha", {**MHA, "seq_len_q": 16, "seq_len_kv": 16, "causal": False}, []),
    (
        "attention_mla",
        {**MLA, "batch_size": 2, "seq_len_q": 2, "seq_len_kv": 9},
        ["FusedInferAttentionScore 2,4,2,512"],
    ),
    (
        "attention_mla",
        {**MLA, "batch_size": 1, "seq_len_q": 64, "seq_len_kv": 64},
        ["RINGMLAPrefillBF16Kernel 64,4,128"],
    ),
    ("moe_forward", {**EXPERTS, "ep": 2}, ["GroupedMatmul 10,64;4,64,64", "GroupedMatmul 10,32;4,32,64"]),
    ("moe_gemm", {**EXPERTS, "expert_distribution": "zipf"}, []),
    ("allreduce", {"num_elements": 1 << 40, "dtype": "bf16", "world_size": 8}, []),
    ("RmsNorm", {"m": 3, "h": 16, "dtype": "FLOAT16"}, ["RmsNorm 3,16;16"]),
    ("RmsNorm", {"m": 3, "g": 2, "d": 16}, ["RmsNorm 3,2,16;16"]),
    ("MatMulV2", {"m": 3, "n": 5, "k": 7, "pattern": "matmul_bias"}, ["MatMulV2 3,7;5,7;5"]),
]


def read(path: Path, *entries: Any) -> ServedCalls:
    path.write_text(json.dumps(entries))
    return read_calls(path, built_in_catalog())


def test_calls_become_rows(tmp_path: Path) -> None:
    for name, args, rows in CALLS:
        found = read(tmp_path / "calls.json", {"type": name, "args": args, "name": "model"})
        cells = [f"{kind} {row.cells['Input Shapes']}" for kind, own in found.rows.items() for row in own.values()]
        assert len(cells) == len(rows), (name, args, found)
        assert all(cell.startswith(row) for cell, row in zip(cells, rows, strict=True)), (cells, rows)
        assert found.without_row.total() == (not rows)


def test_equal_calls_are_one_row(tmp_path: Path) -> None:
    calls = [{"type": name, "args": args} for name, args, _ in CALLS]
    found = read(tmp_path / "calls.json", *calls, *calls)
    assert found.without_row["gemm nvfp4"] == 2
    assert {row.cells["Input Data Types"] for row in found.rows["RmsNorm"].values()} == {
        "FLOAT16;FLOAT16",
        "DT_BF16;DT_BF16",
    }


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        ([{"type": "gemm", "args": {"m": 1, "k": 2}}], "'n'"),
        ([{"type": "gem", "args": {}}], "gem"),
        ([{"type": "RmsNorm", "args": {"m": 1}}], "RmsNorm"),
        ([{"type": "gemm"}], "args"),
        ([{"type": "gemm", "args": {"m": [1]}}], "m"),
        ([3], "calls.json"),
    ],
)
def test_a_list_that_cannot_be_read_is_refused_with_its_entry(entries: list[Any], word: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        read(tmp_path / "calls.json", *entries)
    assert word in str(error.value)
    assert "calls.json" in str(error.value)
