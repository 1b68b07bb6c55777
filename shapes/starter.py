"""Rows that ship as lists: the starter database of a device, calls of a small model; and the rows of a GPU's database.

The starter's rows are small enough for a CPU without bfloat16 instructions: a call takes at most about 50 ms, and all
rows together take about two minutes on two cores.

`python -m opatlas.shapes.starter FOLDER` makes three databases of a GPU, with the calls of a step of five models and
samples of other kernels, without durations. They differ in the implementations that measure them: torch where torch has
the kernel, libraries that compile a kernel once, and libraries that compile one for each shape, which takes seconds a
row. Kernel types that torch composes of several operators are not in the first. `make gpu-database` also measures them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from opatlas.data.database import Database
from opatlas.errors import OpAtlasError
from opatlas.text import pluralize
from opatlas.theory.catalog import CatalogKernel, built_in_catalog
from opatlas.theory.patterns import Axis, Form, parse_expression
from opatlas.theory.plan import Request, add_theory_rows
from opatlas.theory.sources import Targets
from opatlas.theory.space import GB

from .models import (
    DEEPSEEK_V3,
    GLM_5_1,
    LLAMA_3_70B,
    MINIMAX_M2_5,
    QWEN3_0_6B,
    QWEN3_30B_A3B,
    QWEN3_32B,
    QWEN3_235B_A22B,
)
from .strategies import sample_rows

#: The largest tensor, the embedding table, has 311 MB.
_BUDGET_BYTES = GB
_HALF, _FLOAT = "BF16", "FLOAT"
_TARGETS = Targets([QWEN3_0_6B], tp_sizes=(1,), ep_sizes=(1,))


@dataclass(frozen=True)
class RowsPart:
    """Rows of a kernel type by one pattern.

    Attributes:
        pattern: a pattern of the kernel type; "": its first one.
        rows: the size of a sample; 0: all points of the grids.
        limit: a condition that keeps calls short, in the variables of the pattern; "": none.
        form: dtypes and formats; "": those of the catalog.
        dtype: a dtype that the rows have in some slot; "": any.
        grids: the sizes of some axes, in place of the catalog's.
        sizes: the most sizes of each axis of tokens, from the smallest to the largest; 0: all.
        targets: the models.
    """

    kernel_type: str
    pattern: str = ""
    rows: int = 0
    limit: str = ""
    form: str = ""
    dtype: str = ""
    grids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sizes: int = 0
    targets: Targets = _TARGETS

    def kernel(self) -> CatalogKernel:
        """Returns the catalog's kernel type with this pattern alone, these sizes and dtypes, within the limit."""
        kernel = built_in_catalog().kernel(self.kernel_type)
        pattern = kernel.pattern(self.pattern or kernel.patterns[0].name)
        forms = (Form.parse(self.form),) if self.form else pattern.forms
        forms = tuple(form for form in forms if self.dtype in ("", *form.input_dtypes, *form.output_dtypes))
        limits = (parse_expression(self.limit),) if self.limit else ()
        axes = tuple(replace(axis, grid=self.grids.get(axis.name, self._thinned(axis))) for axis in pattern.axes)
        limited = replace(pattern, axes=axes, forms=forms, where=(*pattern.where, *limits))
        return CatalogKernel(self.kernel_type, (limited,))

    def _thinned(self, axis: Axis) -> tuple[int, ...]:
        """Returns the powers of two, which batches mostly are, and others between them; fewer powers if need be."""
        if not axis.between or not self.sizes:
            return axis.grid
        powers = [size for size in axis.grid if size.bit_count() == 1]
        others = [size for size in axis.grid if size.bit_count() != 1]
        chosen = {*_spread(powers, self.sizes), *_spread(others, self.sizes - len(powers)), axis.grid[-1]}
        return tuple(sorted(chosen))

    def write(self, database: Database, budget_bytes: int, *, is_npu: bool = True) -> int:
        """Appends the rows that the database lacks, and returns their number. Raises OpAtlasError."""
        request = Request(self.targets, self.rows, 0, budget_bytes, sample_rows, is_npu, forms_of_database=False)
        return len(add_theory_rows(database, self.kernel(), request).signatures)


def _spread(sizes: Sequence[int], count: int) -> list[int]:
    """Returns up to `count` sizes, from the first to the last."""
    if count < 2 or count >= len(sizes):
        return [*sizes[: max(count, 0)]]
    return [sizes[i * (len(sizes) - 1) // (count - 1)] for i in range(count)]


#: Two cores of a server reach about 80 GFLOP/s in float32, and 20 in bfloat16 without instructions for bfloat16.
#: Normalization and softmax read and write each element several times. Few rows hold the embedding table, whose
#: random inputs take longer to make than to measure.
PARTS = (
    RowsPart("MatMulV2", "matmul", 64, "2 * m * n * k <= 1000000000", f"{_HALF};{_HALF} -> {_HALF}"),
    RowsPart("MatMulV2", "matmul", 12, "2 * m * n * k <= 4000000000 and n <= 4096", f"{_FLOAT};{_FLOAT} -> {_FLOAT}"),
    RowsPart("Add", "binary", 20, "m <= 4096", f"{_HALF};{_HALF} -> {_HALF}"),
    RowsPart("Add", "binary", 10, "m <= 4096", f"{_FLOAT};{_FLOAT} -> {_FLOAT}"),
    RowsPart("Mul", "binary", 16, "m <= 4096", f"{_HALF};{_HALF} -> {_HALF}"),
    RowsPart("RmsNorm", "rms_norm", 18, "m * h <= 2097152", f"{_HALF};{_HALF} -> {_HALF};{_FLOAT}"),
    RowsPart("RmsNorm", "head_rms_norm", 20, "m * g * d <= 2097152", f"{_HALF};{_HALF} -> {_HALF};{_FLOAT}"),
    RowsPart("SwiGlu", "swiglu", 20, "m <= 4096", f"{_HALF} -> {_HALF}"),
    RowsPart("SoftmaxV2", "unary_logits", 10, "b * vocab <= 2097152", f"{_FLOAT} -> {_FLOAT}"),
    RowsPart("GatherV2", "gather", 6, "m <= 4096", f"{_HALF};INT64;INT64 -> {_HALF}"),
)


def write_starter(database: Database) -> int:
    """Appends the starter rows, about two hundred, and returns their number. Raises OpAtlasError.

    The rows are the same for a given version of hypothesis.
    """
    return sum(part.write(database, _BUDGET_BYTES) for part in PARTS)


#: Tensors of a row and the flush buffer; set-up and checks need up to as much again. A GPU of 48 GB will do.
_GPU_BUDGET_BYTES = 16 * GB
#: The models, in the order in which they take turns, and how they are divided.
MODELS = Targets(
    (QWEN3_32B, DEEPSEEK_V3, QWEN3_30B_A3B, LLAMA_3_70B, GLM_5_1), tp_sizes=(1, 2, 4, 8), ep_sizes=(4, 8, 16, 32)
)
#: For kernels that depend on the number of elements rather than on the width.
_TWO = Targets((QWEN3_32B, DEEPSEEK_V3), tp_sizes=(1,), ep_sizes=(8,))
#: The model whose weights in FP8 have scales of blocks, and further ones of which few tokens are measured.
_OF_BLOCKS = replace(MODELS, models=(DEEPSEEK_V3,))
_OF_BLOCKS_TOO = replace(MODELS, models=(QWEN3_235B_A22B, MINIMAX_M2_5, GLM_5_1))
#: The model whose weights in FP8 have one scale each.
_OF_TENSORS = replace(MODELS, models=(LLAMA_3_70B,))
_FEW_TOKENS = {"m": (1, 2, 4, 8, 16, 32, 64, 128, 256)}
#: Some 20 ms of an H200's tensor cores for BF16.
_SHORT = "m * n * k <= 7500 * 1000 * 1000 * 1000"


_part = partial(RowsPart, sizes=16, targets=MODELS)


def _samples(*kernel_types: str) -> list[RowsPart]:
    return [
        RowsPart(kernel_type, pattern.name, rows=64, targets=_TWO)
        for kernel_type in kernel_types
        for pattern in built_in_catalog().kernel(kernel_type).patterns
    ]


#: Tokens whose logits are computed: the last of each sequence, never those of a whole prefill.
_SAMPLED = {"m": (1, 2, 4, 8, 16, 32, 63, 64, 65, 127, 128, 129, 255, 256, 257, 512, 1024, 2048)}
#: Decoding steps: sequences, one query of each, and keys.
_DECODING = {"s": (1, 8, 32, 64, 128, 256), "t": (1,), "k": (1024, 4096, 8192, 16384)}
#: Prefill: sequences, and tokens of each.
_PREFILL = {"s": (1, 4, 16), "k": (128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 32768)}
_GROUPED = ("gate_up", "down")
#: One operator of torch on a GPU. MatMulV3 and MatMulCommon would be the same rows as MatMulV2: other names of Ascend.
TORCH = (
    _part("MatMulV2", sizes=24, limit=_SHORT, targets=replace(MODELS, lm_head=False)),
    _part("MatMulV2", grids=_SAMPLED, targets=replace(MODELS, lm_head=True)),
    _part("GroupedMatmul", "grouped_gate_up"),
    _part("GroupedMatmul", "grouped_down"),
    _part("QuantBatchMatmulV3", "quant_matmul_per_token", sizes=20, dtype="FLOAT8_E4M3FN", limit=_SHORT),
    _part("QuantBatchMatmulV3", "quant_matmul_blocks", sizes=20, limit=_SHORT, targets=_OF_BLOCKS),
    _part("QuantBatchMatmulV3", "quant_matmul_blocks", grids=_FEW_TOKENS, targets=_OF_BLOCKS_TOO),
    _part("QuantBatchMatmulV3", "quant_matmul_per_tensor", grids=_FEW_TOKENS, targets=_OF_TENSORS),
    _part("GroupedMatmul", "grouped_gate_up_quantized", dtype="FLOAT8_E4M3FN"),
    _part("GroupedMatmul", "grouped_down_quantized", dtype="FLOAT8_E4M3FN"),
    _part("BatchMatMulV2", sizes=24),
    _part("TransposeBatchMatMul", sizes=24),
    _part("FusedInferAttentionScore", "packed_attention", grids=_PREFILL),
    _part("RmsNorm", "rms_norm"),
    _part("RmsNorm", "head_rms_norm"),
    _part("Add", "binary", dtype="BF16"),
    _part("GatherV2"),
    _part("Index"),
    _part("Cast", "unary_logits"),
    _part("ArgMaxV2"),
    *_samples("Cast", "Add", "SoftmaxV2", "Sort", "Mul", "Sub", "RealDiv", "Muls", "Neg", "Abs", "Square", "Swish"),
    *_samples("Log", "Exp", "Sin", "Cos", "Rsqrt", "Reciprocal", "ReduceMean", "LayerNormV3", "LayerNormV4"),
    *_samples("GreaterEqual", "Less", "LogicalAnd", "LogicalNot", "ArgMaxWithValue", "GatherV3"),
    *_samples("TensorMove", "Slice", "Transpose", "ConcatD", "Tile", "BroadcastTo"),
)
#: One kernel of FlashInfer or Liger, which is compiled once for all shapes of a dtype.
LIBRARIES = (
    _part("FusedInferAttentionScore", "paged_attention", grids=_DECODING),
    _part("FusedInferAttentionScore", "latent_attention", grids=_DECODING),
    _part("FusedInferAttentionScore", "paged_attention", rows=64),
    _part("FusedInferAttentionScore", "latent_attention", rows=64),
    _part("FusedInferAttentionScore", "packed_attention", rows=64),
    _part("QuantBatchMatmulV3", "quant_matmul_per_tensor", grids=_FEW_TOKENS, targets=_OF_TENSORS),
    _part("AddRmsNorm"),
    _part("RINGMLAPrefillBF16Kernel", "ring_first"),
    *(_part(name, sizes=8) for name in ("SwiGlu", "ApplyRotaryPosEmb", "ReshapeAndCacheNdKernel", "MoeGatingTopK")),
    _part("InterleaveRope", sizes=8),
    _part("RINGMLAPrefillBF16Kernel", "ring_later", rows=64),
    *(_part(name, rows=64) for name in ("_triton_rope", "RotaryPositionEmbedding")),
)
#: FlagGems, which tunes some kernels for each shape, and torch.compile, which compiles one for each.
COMPILED = (
    _part("DynamicQuant", sizes=8, dtype="FLOAT8_E4M3FN"),
    _part("DynamicBlockQuant", sizes=8, dtype="FLOAT8_E4M3FN", targets=_OF_BLOCKS),
    _part("AddRmsNormBias", "add_rms_norm_bias", sizes=8),
    _part("QuantBatchMatmulV3", "quant_matmul_per_token", rows=24, dtype="INT8", targets=_TWO),
    *(_part("GroupedMatmul", f"grouped_{each}_quantized", rows=12, dtype="INT8", targets=_TWO) for each in _GROUPED),
    *(_part("GroupedMatmul", f"grouped_{each}_blocks", rows=8, targets=_OF_BLOCKS) for each in _GROUPED),
    *(
        _part(name, rows=12, targets=_TWO)
        for name in ("AddRmsNormDynamicQuant", "AscendQuantV2", "MaskedFill", "PadV3")
    ),
)
#: The folders of the command, each with its rows.
FOLDERS: Mapping[str, Sequence[RowsPart]] = {"torch": TORCH, "libraries": LIBRARIES, "compiled": COMPILED}


def write_gpu_rows(folder: Path) -> dict[str, int]:
    """Adds the rows that each database in a folder lacks, and returns their numbers. Raises OpAtlasError."""
    return {
        name: sum(part.write(Database(folder / name), _GPU_BUDGET_BYTES, is_npu=False) for part in parts)
        for name, parts in FOLDERS.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the databases torch, libraries and compiled are made")
    folder = parser.parse_args().folder
    try:
        added = write_gpu_rows(folder)
    except OpAtlasError as error:
        raise SystemExit(f"error: {error}") from None
    for name, rows in added.items():
        print(f"{folder / name}: {pluralize(rows, 'row')} added")


if __name__ == "__main__":
    main()
