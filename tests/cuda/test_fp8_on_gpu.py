"""Rows in FP8 on a GPU, by every implementation that takes them: right, and in as many kernels as docs/devices.md says.

`pytest tests/cuda/test_fp8_on_gpu.py -rP` prints the kernels that ran.
"""

from __future__ import annotations

import pytest
import torch
from library_jobs import library_job
from replaying import cells_of
from sample_rows import E4M3, E5M2, FP8_GROUPS

from opatlas.row.status import Status
from opatlas.run.implementation_catalog import shipped

TORCH, COMPILED, FLASHINFER, FLAG_GEMS = "torch", "torch_compile", "flashinfer", "flag_gems"
#: Kernels of a grouped product of torch: the first computes the addresses of the groups.
GROUPED = 2
#: A composition of operators.
SEVERAL = 0
#: Parts of the names of kernels: of cuBLAS and CUTLASS; of Triton, whose kernels have the names of their functions.
KERNELS = {
    TORCH: ("nvjet", "cutlass", "gemm"),
    COMPILED: ("nvjet", "cutlass", "gemm", "triton"),
    FLASHINFER: ("nvjet", "cutlass", "gemm"),
    FLAG_GEMS: ("_smm_kernel", "fused_moe_kernel", "_per_token_group_quant_fp8"),
}

PRODUCTS = {
    "tokens and columns": (
        f"64,512;512,256;256;64 | {E4M3};FLOAT;FLOAT -> 64,256 | DT_BF16",
        {TORCH: 1, COMPILED: 1, FLAG_GEMS: 1},
    ),
    "one token": (
        f"1,1536;1536,512;512;1 | {E4M3};FLOAT;FLOAT -> 1,512 | DT_BF16",
        {TORCH: 1, COMPILED: 1, FLAG_GEMS: 1},
    ),
    "an odd number of tokens, weights by blocks": (
        f"17,96;2,6,16,32;64;17 | {E4M3};FLOAT;FLOAT | ND;FRACTAL_NZ;ND;ND -> 17,64 | DT_BF16",
        {TORCH: 1, COMPILED: 1, FLAG_GEMS: 1},
    ),
    "weights by columns": (
        f"128,512;256,512;256;128 | {E4M3};FLOAT;FLOAT -> 128,256 | DT_BF16",
        {TORCH: 1, COMPILED: 1, FLAG_GEMS: 1},
    ),
    "x by columns": (f"512,128;512,256;256;128 | {E4M3};FLOAT;FLOAT -> 128,256 | DT_BF16", {TORCH: 1}),
    "columns alone": (f"64,512;512,256;256 | {E4M3};FLOAT -> 64,256 | DT_BF16", {TORCH: 1, COMPILED: 1, FLAG_GEMS: 1}),
    "packed scales": (f"64,512;512,256;256 | {E4M3};INT64 -> 64,256 | DT_BF16", {TORCH: 1, FLAG_GEMS: 1}),
    "a bias": (
        f"64,512;512,256;256;;256;64 | {E4M3};FLOAT;;DT_BF16;FLOAT -> 64,256 | DT_BF16",
        {TORCH: 1, COMPILED: 1, FLAG_GEMS: 1},
    ),
    "one scale": (
        f"64,512;512,256;1 | {E4M3};FLOAT -> 64,256 | DT_BF16",
        {TORCH: 1, COMPILED: 1, FLASHINFER: 1, FLAG_GEMS: 1},
    ),
    "one scale, FLOAT16": (
        f"64,512;512,256;1 | {E4M3};FLOAT -> 64,256 | FLOAT16",
        {TORCH: 1, FLASHINFER: 1, FLAG_GEMS: 1},
    ),
    "one scale, FLOAT": (f"64,512;512,256;1 | {E4M3};FLOAT -> 64,256 | FLOAT", {TORCH: 1, FLAG_GEMS: 1}),
    "E5M2": (f"64,512;512,256;256;64 | {E5M2};FLOAT;FLOAT -> 64,256 | DT_BF16", {TORCH: 1, COMPILED: 1}),
    "E5M2, one scale": (f"64,512;512,256;1 | {E5M2};FLOAT -> 64,256 | DT_BF16", {TORCH: 1, FLASHINFER: 1}),
    "widths of no tensor core": (f"9,40;40,72;72;9 | {E4M3};FLOAT;FLOAT -> 9,72 | DT_BF16", {TORCH: SEVERAL}),
    "FLOAT16": (f"64,512;512,256;256;64 | {E4M3};FLOAT;FLOAT -> 64,256 | FLOAT16", {TORCH: 1, FLAG_GEMS: 1}),
    "FLOAT": (f"64,512;512,256;256;64 | {E4M3};FLOAT;FLOAT -> 64,256 | FLOAT", {TORCH: 1, FLAG_GEMS: 1}),
    "a prefill of DeepSeek-V3": (
        f"4096,7168;66,448,16,32;2112;4096 | {E4M3};FLOAT;FLOAT | ND;FRACTAL_NZ;ND;ND -> 4096,2112 | DT_BF16",
        {TORCH: 1, COMPILED: 1, FLAG_GEMS: 1},
    ),
    "a decoding step of DeepSeek-V3": (
        f"64,16384;224,1024,16,32;7168;64 | {E4M3};FLOAT;FLOAT | ND;FRACTAL_NZ;ND;ND -> 64,7168 | DT_BF16",
        {TORCH: 1, COMPILED: 1, FLAG_GEMS: 1},
    ),
    "a decoding step of Qwen3-32B": (
        f"32,5120;1600,320,16,32;51200;32 | {E4M3};FLOAT;FLOAT | ND;FRACTAL_NZ;ND;ND -> 32,51200 | DT_BF16",
        {TORCH: 1, COMPILED: 1, FLAG_GEMS: 1},
    ),
}
#: Scales of blocks of 128 x 128, and of 128 columns of a token.
BLOCKS = {
    "blocks": (f"64,512;256,512;2,4;64,4 | {E4M3};FLOAT;FLOAT -> 64,256 | DT_BF16", {TORCH: 1, FLAG_GEMS: 1}),
    "blocks, weights by rows": (
        f"64,512;512,256;4,2;64,4 | {E4M3};FLOAT;FLOAT -> 64,256 | DT_BF16",
        {TORCH: 1, FLAG_GEMS: 1},
    ),
    "blocks, one token": (
        f"1,7168;1536,7168;12,56;1,56 | {E4M3};FLOAT;FLOAT -> 1,1536 | DT_BF16",
        {TORCH: 1, FLAG_GEMS: 1},
    ),
    "blocks, an odd number of tokens and of blocks": (
        f"17,1152;384,1152;3,9;17,9 | {E4M3};FLOAT;FLOAT -> 17,384 | DT_BF16",
        {TORCH: 1, FLAG_GEMS: 1},
    ),
    "blocks, parts of blocks": (
        f"64,1040;2112,1040;17,9;64,9 | {E4M3};FLOAT;FLOAT -> 64,2112 | DT_BF16",
        {TORCH: 1, FLAG_GEMS: 1},
    ),
    "blocks, one block": (
        f"64,128;128,128;1,1;64,1 | {E4M3};FLOAT;FLOAT -> 64,128 | DT_BF16",
        {TORCH: 1, FLAG_GEMS: 1},
    ),
    "blocks, FLOAT": (f"64,512;256,512;2,4;64,4 | {E4M3};FLOAT;FLOAT -> 64,256 | FLOAT", {TORCH: 1, FLAG_GEMS: 1}),
    "blocks, a bias": (
        f"64,512;256,512;2,4;;256;64,4 | {E4M3};FLOAT;;DT_BF16;FLOAT -> 64,256 | DT_BF16",
        {TORCH: SEVERAL},
    ),
    "blocks, a prefill of DeepSeek-V3": (
        f"4096,7168;2112,7168;17,56;4096,56 | {E4M3};FLOAT;FLOAT -> 4096,2112 | DT_BF16",
        {TORCH: 1, FLAG_GEMS: 1},
    ),
    "blocks, a decoding step of DeepSeek-V3": (
        f"64,16384;7168,16384;56,128;64,128 | {E4M3};FLOAT;FLOAT -> 64,7168 | DT_BF16",
        {TORCH: 1, FLAG_GEMS: 1},
    ),
}
GROUPS = {
    "few rows": (
        f"3,96;5,64,96;;5,64;;;;5;3 | {FP8_GROUPS} -> 3,64 | DT_BF16",
        {TORCH: GROUPED, COMPILED: GROUPED, FLAG_GEMS: 1},
    ),
    "weights by blocks": (
        f"19,96;5,3,6,16,32;;5,96;;;;5;19 | {FP8_GROUPS} -> 19,96 | DT_BF16",
        {TORCH: GROUPED, FLAG_GEMS: 1},
    ),
    "no scale for each row": (
        f"64,256;4,256,128;;4,128;;;;4 | {E4M3};;FLOAT;;;;INT64 -> 64,128 | DT_BF16",
        {TORCH: GROUPED, FLAG_GEMS: 1},
    ),
    "a bias": (
        f"64,256;4,256,128;4,128;4,128;;;;4;64 | {E4M3};FLOAT;FLOAT;;;;INT64;FLOAT -> 64,128 | DT_BF16",
        {TORCH: SEVERAL, FLAG_GEMS: 1},
    ),
    "experts of DeepSeek-V3": (
        f"1024,7168;8,4096,7168;;8,4096;;;;8;1024 | {FP8_GROUPS} -> 1024,4096 | DT_BF16",
        {TORCH: GROUPED, COMPILED: GROUPED, FLAG_GEMS: 1},
    ),
}
GROUPED_BLOCKS = {
    "blocks": (f"64,512;4,256,512;;4,2,4;;;;4;64,4 | {FP8_GROUPS} -> 64,256 | DT_BF16", {TORCH: SEVERAL, FLAG_GEMS: 1}),
    "blocks, weights by rows, few rows": (
        f"3,256;5,256,384;;5,2,3;;;;5;3,2 | {FP8_GROUPS} -> 3,384 | DT_BF16",
        {TORCH: SEVERAL, FLAG_GEMS: 1},
    ),
    "blocks, experts of DeepSeek-V3": (
        f"1024,7168;8,4096,7168;;8,32,56;;;;8;1024,56 | {FP8_GROUPS} -> 1024,4096 | DT_BF16",
        {TORCH: SEVERAL, FLAG_GEMS: 1},
    ),
}
QUANTIZED = {
    "rows": ("64,7168 | DT_BF16 -> 64,7168;64 | FLOAT8_E4M3FN;FLOAT", {TORCH: SEVERAL, COMPILED: 1, FLAG_GEMS: 1}),
    "a row": ("1,5120 | DT_BF16 -> 1,5120;1 | FLOAT8_E4M3FN;FLOAT", {TORCH: SEVERAL, COMPILED: 1, FLAG_GEMS: 1}),
    "odd widths": ("6,73 | FLOAT16 -> 6,73;6 | FLOAT8_E4M3FN;FLOAT", {TORCH: SEVERAL, COMPILED: 1, FLAG_GEMS: 1}),
    "E5M2": ("2,32,1024 | DT_BF16 -> 2,32,1024;2,32 | FLOAT8_E5M2;FLOAT", {TORCH: SEVERAL, COMPILED: 1, FLAG_GEMS: 1}),
    "smooth": ("64,1024;1024 | DT_BF16;DT_BF16 -> 64,1024;64 | FLOAT8_E4M3FN;FLOAT", {TORCH: SEVERAL, COMPILED: 1}),
}
QUANTIZED_BLOCKS = {
    "blocks": ("64,7168 | DT_BF16 -> 64,7168;64,56 | FLOAT8_E4M3FN;FLOAT", {TORCH: SEVERAL, COMPILED: 1, FLAG_GEMS: 1}),
    "parts of blocks": ("7,200 | FLOAT16 -> 7,200;7,2 | FLOAT8_E4M3FN;FLOAT", {TORCH: SEVERAL, COMPILED: 1}),
    "E5M2": ("2,5,1024 | DT_BF16 -> 2,5,1024;2,5,8 | FLOAT8_E5M2;FLOAT", {TORCH: SEVERAL, FLAG_GEMS: 1}),
}
KINDS = {
    "QuantBatchMatmulV3": PRODUCTS | BLOCKS,
    "GroupedMatmul": GROUPS | GROUPED_BLOCKS,
    "DynamicQuant": QUANTIZED,
    "DynamicBlockQuant": QUANTIZED_BLOCKS,
}
CASES = [
    pytest.param(name, kernel_type, row, kernels, id=f"{name}-{kernel_type}-{case}")
    for name in (TORCH, COMPILED, FLASHINFER, FLAG_GEMS)
    for kernel_type, rows in KINDS.items()
    for case, (row, by_name) in rows.items()
    for kernels in [by_name.get(name)]
    if kernels is not None
]


@pytest.fixture(scope="module", autouse=True)
def hopper(gpu):
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("scales of rows are for compute capability 9.0")


@pytest.mark.parametrize(("name", "kernel_type", "row", "kernels"), CASES)
def test_row_in_fp8_is_right(name, kernel_type, row, kernels, processes):
    if name in shipped() and shipped()[name].missing:
        pytest.skip(f"{name} is {shipped()[name].missing}")
    outcome = processes(name).run(library_job(name, kernel_type, cells_of(row)))
    assert outcome.status is Status.MEASURED, f"{outcome.reason}\n{outcome.detail}"
    ran = outcome.measurement.execution
    # cuBLAS clears counters before large products, and adds the parts of products with a long K.
    launched = [each for each in ran.kernel_names if each not in ("memset", "cublasLt::splitKreduce_kernel")]
    print(outcome.measurement.samples_us, ran.max_error, ran.conversions, *ran.kernel_names, sep="\n")
    if kernels == SEVERAL:
        assert len(launched) > 1
    else:
        assert len(launched) == kernels, launched
        assert any(part in launched[-1] for part in KERNELS[name]), launched


@pytest.mark.parametrize(
    ("name", "row"),
    [
        (FLASHINFER, PRODUCTS["tokens and columns"][0]),
        (FLASHINFER, BLOCKS["blocks"][0]),
        (FLAG_GEMS, PRODUCTS["E5M2"][0]),
        (FLAG_GEMS, PRODUCTS["widths of no tensor core"][0]),
    ],
)
def test_row_that_a_library_cannot_run_is_unsupported(name, row, processes):
    if shipped()[name].missing:
        pytest.skip(f"{name} is {shipped()[name].missing}")
    outcome = processes(name).run(library_job(name, "QuantBatchMatmulV3", cells_of(row)))
    assert outcome.status is Status.UNSUPPORTED, outcome
    assert outcome.reason
