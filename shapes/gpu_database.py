"""The rows of a GPU's database: the calls of a step of five models, and samples of other kernels.

`python -m opatlas.shapes.gpu_database FOLDER` makes three databases of rows without durations. They differ in the
implementations that measure them: torch where torch has the kernel, libraries that compile a kernel once, and
libraries that compile one for each shape, which takes seconds a row. Kernel types that torch composes of several
operators are not in the first. `make gpu-database` also measures the rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from opatlas.data.database import Database
from opatlas.errors import OpAtlasError
from opatlas.text import pluralize
from opatlas.theory.catalog import CatalogKernel, built_in_catalog
from opatlas.theory.patterns import parse_expression
from opatlas.theory.plan import Request, add_theory_rows
from opatlas.theory.sources import Targets
from opatlas.theory.space import GB

from .models import DEEPSEEK_V3, GLM_5_1, LLAMA_3_70B, QWEN3_30B_A3B, QWEN3_32B
from .strategies import sample_rows

#: Tensors of a row and the flush buffer; set-up and checks need up to as much again. A GPU of 48 GB will do.
_BUDGET_BYTES = 16 * GB
#: The models, in the order in which they take turns, and how they are divided.
MODELS = Targets(
    (QWEN3_32B, DEEPSEEK_V3, QWEN3_30B_A3B, LLAMA_3_70B, GLM_5_1), tp_sizes=(1, 2, 4, 8), ep_sizes=(4, 8, 16, 32)
)
#: For kernels that depend on the number of elements rather than on the width.
_TWO = Targets((QWEN3_32B, DEEPSEEK_V3), tp_sizes=(1,), ep_sizes=(8,))
#: The model whose weights in FP8 have scales of blocks.
_OF_BLOCKS = replace(MODELS, models=(DEEPSEEK_V3,))
#: Some 20 ms of an H200's tensor cores for BF16.
_SHORT = "m * n * k <= 7500 * 1000 * 1000 * 1000"


@dataclass(frozen=True)
class DatabasePart:
    """Rows of a kernel type by one pattern.

    Attributes:
        pattern: a pattern of the kernel type; "": its only one.
        sizes: the number of sizes of each shape's axis of tokens; 0: a sample, or all points of the grids.
        edges: whether the edges of tiles are there besides.
        rows: the most rows; 0: no limit. A sample has so many.
        grids: the sizes of some axes, in place of the catalog's.
        dtype: a dtype that the rows have in some slot; "": all dtypes of the catalog.
        limit: a condition that keeps calls short, in the variables of the pattern.
        targets: the models.
    """

    kernel_type: str
    pattern: str = ""
    sizes: int = 16
    edges: bool = False
    rows: int = 0
    dtype: str = ""
    limit: str = ""
    grids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    targets: Targets = MODELS

    def kernel(self) -> CatalogKernel:
        """Returns the catalog's kernel type with this pattern, these dtypes and within the limit."""
        patterns = built_in_catalog().kernel(self.kernel_type).patterns
        pattern = next(each for each in patterns if self.pattern in ("", each.name))
        forms = tuple(
            form for form in pattern.forms if not self.dtype or self.dtype in (*form.input_dtypes, *form.output_dtypes)
        )
        limits = (parse_expression(self.limit),) if self.limit else ()
        axes = tuple(replace(axis, grid=self.grids.get(axis.name, axis.grid)) for axis in pattern.axes)
        limited = replace(pattern, axes=axes, forms=forms, where=(*pattern.where, *limits))
        return CatalogKernel(self.kernel_type, (limited,))

    def write(self, database: Database) -> int:
        """Appends the rows that the database lacks, and returns their number. Raises OpAtlasError."""
        request = Request(
            self.targets,
            self.rows,
            seed=0,
            budget_bytes=_BUDGET_BYTES,
            draw=sample_rows,
            is_npu=False,
            sizes_per_shape=self.sizes,
            edges=self.edges,
        )
        return len(add_theory_rows(database, self.kernel(), request, forms_of_database=False).signatures)


def _samples(*kernel_types: str) -> list[DatabasePart]:
    return [
        DatabasePart(kernel_type, pattern.name, rows=64, targets=_TWO)
        for kernel_type in kernel_types
        for pattern in built_in_catalog().kernel(kernel_type).patterns
    ]


def _of_weights(wanted: Callable[[str], bool]) -> Targets:
    """Returns the models with some of their weights, by role."""
    models = (replace(each, weights=tuple(w for w in each.weights if wanted(w.role))) for each in MODELS.models)
    return replace(MODELS, models=tuple(models))


#: Tokens whose logits are computed: the last of each sequence, never those of a whole prefill.
_SAMPLED = {"m": (1, 2, 4, 8, 16, 32, 63, 64, 65, 127, 128, 129, 255, 256, 257, 512, 1024, 2048)}
#: Decoding steps: sequences, one query of each, and keys.
_DECODING = {"s": (1, 8, 32, 64, 128, 256), "t": (1,), "k": (1024, 4096, 8192, 16384)}
#: One operator of torch on a GPU. MatMulV3 and MatMulCommon would be the same rows as MatMulV2: other names of Ascend.
TORCH = (
    DatabasePart("MatMulV2", edges=True, limit=_SHORT, targets=_of_weights(lambda role: role != "lm_head")),
    DatabasePart("MatMulV2", sizes=0, grids=_SAMPLED, targets=_of_weights(lambda role: role == "lm_head")),
    DatabasePart("GroupedMatmul", "grouped_gate_up"),
    DatabasePart("GroupedMatmul", "grouped_down"),
    DatabasePart("QuantBatchMatmulV3", "quant_matmul_per_token", dtype="FLOAT8_E4M3FN", limit=_SHORT),
    DatabasePart("QuantBatchMatmulV3", "quant_matmul_blocks", limit=_SHORT, targets=_OF_BLOCKS),
    DatabasePart("GroupedMatmul", "grouped_gate_up_quantized", dtype="FLOAT8_E4M3FN"),
    DatabasePart("GroupedMatmul", "grouped_down_quantized", dtype="FLOAT8_E4M3FN"),
    DatabasePart("BatchMatMulV2", edges=True),
    DatabasePart("TransposeBatchMatMul", edges=True),
    DatabasePart(
        "FusedInferAttentionScore",
        "packed_attention",
        sizes=0,
        grids={"s": (1, 4, 16), "k": (128, 512, 1024, 2048, 4096, 8192, 16384)},
    ),
    DatabasePart("FusedInferAttentionScore", "packed_attention", sizes=8),
    DatabasePart("RmsNorm", "rms_norm"),
    DatabasePart("RmsNorm", "head_rms_norm"),
    DatabasePart("Add", "binary", dtype="BF16"),
    DatabasePart("GatherV2"),
    DatabasePart("Index"),
    DatabasePart("Cast", "unary_logits"),
    DatabasePart("ArgMaxV2"),
    *_samples("Cast", "Add", "SoftmaxV2", "Sort", "Mul", "Sub", "RealDiv", "Muls", "Neg", "Abs", "Square", "Swish"),
    *_samples("Log", "Exp", "Sin", "Cos", "Rsqrt", "Reciprocal", "ReduceMean", "LayerNormV3", "LayerNormV4"),
    *_samples("GreaterEqual", "Less", "LogicalAnd", "LogicalNot", "ArgMaxWithValue", "GatherV3"),
    *_samples("TensorMove", "Slice", "Transpose", "ConcatD", "Tile", "BroadcastTo"),
)
#: One kernel of FlashInfer or Liger, which is compiled once for all shapes of a dtype.
LIBRARIES = (
    DatabasePart("FusedInferAttentionScore", "paged_attention", sizes=0, grids=_DECODING),
    DatabasePart("FusedInferAttentionScore", "latent_attention", sizes=0, grids=_DECODING),
    DatabasePart("FusedInferAttentionScore", "paged_attention"),
    DatabasePart("FusedInferAttentionScore", "latent_attention"),
    DatabasePart("FusedInferAttentionScore", "packed_attention"),
    DatabasePart("AddRmsNorm"),
    DatabasePart("SwiGlu", sizes=8),
    DatabasePart("ApplyRotaryPosEmb", sizes=8),
    DatabasePart("RINGMLAPrefillBF16Kernel", "ring_first"),
    DatabasePart("RINGMLAPrefillBF16Kernel", "ring_later", sizes=8, rows=64),
    DatabasePart("ReshapeAndCacheNdKernel", sizes=8),
    DatabasePart("MoeGatingTopK", sizes=8),
    DatabasePart("InterleaveRope", sizes=8),
    DatabasePart("_triton_rope", sizes=8, rows=64),
    DatabasePart("RotaryPositionEmbedding", sizes=8, rows=64),
)
#: FlagGems, which tunes some kernels for each shape, and torch.compile, which compiles one for each.
COMPILED = (
    DatabasePart("DynamicQuant", sizes=8, dtype="FLOAT8_E4M3FN"),
    DatabasePart("DynamicBlockQuant", sizes=8, dtype="FLOAT8_E4M3FN", targets=_OF_BLOCKS),
    DatabasePart("AddRmsNormBias", "add_rms_norm_bias", sizes=8),
    DatabasePart("QuantBatchMatmulV3", "quant_matmul_per_token", sizes=8, rows=24, dtype="INT8", targets=_TWO),
    DatabasePart("GroupedMatmul", "grouped_gate_up_quantized", sizes=8, rows=12, dtype="INT8", targets=_TWO),
    DatabasePart("GroupedMatmul", "grouped_down_quantized", sizes=8, rows=12, dtype="INT8", targets=_TWO),
    DatabasePart("GroupedMatmul", "grouped_gate_up_blocks", sizes=8, rows=8, targets=_OF_BLOCKS),
    DatabasePart("GroupedMatmul", "grouped_down_blocks", sizes=8, rows=8, targets=_OF_BLOCKS),
    *(
        DatabasePart(name, sizes=8, rows=12, targets=_TWO)
        for name in ("AddRmsNormDynamicQuant", "AscendQuantV2", "MaskedFill", "PadV3")
    ),
)
#: The folders of the command, each with its rows.
FOLDERS: Mapping[str, Sequence[DatabasePart]] = {"torch": TORCH, "libraries": LIBRARIES, "compiled": COMPILED}


def write_gpu_rows(folder: Path) -> dict[str, int]:
    """Adds the rows that each database in a folder lacks, and returns their numbers. Raises OpAtlasError."""
    return {name: sum(part.write(Database(folder / name)) for part in parts) for name, parts in FOLDERS.items()}


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
