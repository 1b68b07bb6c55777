"""Rows of reports that list a kernel's input shapes only, completed by the kernels' own shape rules.

The profiling reports of an ATLAS 800 A3 (`a3_eager_per_shape.csv`, `a3_aclgraph_per_shape.csv`) leave
out outputs and formats, the second one dtypes too. Each rule here gives the results of a kernel for its
inputs. Its comment names its source: `call` is the documentation of the kernel's NPU call, `capture` a
capture that has these rows whole, `report` other rows of the same report, `chosen` a legal choice where
the inputs leave it open. A rule never repairs an input: slots that contradict themselves stay as they are.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opatlas.run.inputs.shape_rules import broadcast, nz_shape

Shape = tuple[int, ...]
#: The shape and the dtype of an output.
Output = tuple[Shape, str]

#: The sizes of models with 16 heads of latent attention: 128 features without a position, 64 with one.
HEADS, ROPE = 16, 64
#: Experts that DeepSeek-V3 chooses for a token: the report's Cast of `1,8` casts their weights.
CHOSEN = 8


@dataclass(frozen=True)
class Slots:
    """The inputs of a row of a report.

    Attributes:
        dtypes: one for each shape; DT_UNDEFINED for an absent slot.
        scenario: the workload of the report.
    """

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    scenario: str

    @property
    def like_first(self) -> Output:
        return self.shapes[0], self.dtypes[0]


def rows_of_report(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Kernel type and cells of each row of a report, in its order. Raises KeyError for a type without a rule."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            kernel_type = row.get("kernel_type") or kernel_type_of(row["Name"])
            yield kernel_type, completed(kernel_type, row["Input Shapes"], row.get("Input Data Types"), row)


def kernel_type_of(name: str) -> str:
    """The kernel type in the name of a launch.

    `aclnn<call>_<operator>_<type>` ends with it; the names of compiled variants (`SwiGlu_3_high_performance_27`,
    `trans_TransData_6`) hold it as their first capitalized part; a Triton kernel's name is its type.
    """
    parts = name.split("_")
    if name.startswith("aclnn"):
        return parts[-1]
    return next((part for part in parts if part[:1].isupper()), name)


def completed(kernel_type: str, shapes: str, dtypes: str | None, row: dict[str, str]) -> dict[str, str]:
    """The cells of a row, of its input shapes and perhaps dtypes."""
    inputs = tuple(_shape(text) for text in shapes.split(";"))
    words = dtypes.split(";") if dtypes else _dtypes(kernel_type, inputs)
    outputs = _OUTPUTS[kernel_type](Slots(inputs, tuple(words), row.get("scenario", "")))
    return {
        "Input Shapes": shapes,
        "Input Data Types": ";".join(words),
        "Input Formats": ";".join(_formats(kernel_type, inputs, words)),
        "Output Shapes": ";".join(",".join(map(str, shape)) for shape, _ in outputs),
        "Output Data Types": ";".join(dtype for _, dtype in outputs),
        "Output Formats": ";".join("ND" for _ in outputs),
    }


def _shape(text: str) -> Shape:
    return tuple(map(int, text.split(","))) if text else ()


# Dtypes that the report of compiled graphs lacks

_BF16, _HALVES = "DT_BF16", ("DT_BF16",) * 31

#: Where they are not all DT_BF16, which both models compute in (report: the other report's rows of the
#: same types). A shape that is not there has none, but for the scalars of elementwise kernels.
_DTYPES: dict[str, tuple[str, ...]] = {
    # INT32 is a bias, as long as the result's rows; FLOAT a scale per token (call; report).
    "QuantBatchMatmulV3": ("INT8", "INT8"),
    "Slice": (_BF16, "INT64", "INT64"),
    "Transpose": (_BF16, "INT64"),
    "BroadcastTo": (_BF16, "INT64"),
    "Tile": (_BF16, "INT64"),
    "GatherV3": (_BF16, "INT64", "INT64"),
    "Index": (_BF16, "INT64", "INT64", "INT32"),
    "Fill": ("INT64", "INT32"),
    # Logits, which a sampler takes as FLOAT.
    "Neg": ("FLOAT",),
    "Sort": ("FLOAT",),
    "SoftmaxV2": ("FLOAT",),
    "ArgMaxV2": ("FLOAT", "INT64"),
    "RealDiv": ("FLOAT", "FLOAT"),
    "MaskedFill": ("FLOAT", "BOOL", "FLOAT"),
    "ApplyTopKTopPCustom": ("FLOAT", "INT32", "FLOAT", "INT32"),
    # call: the positions of the tokens, or their places in a cache.
    "split_qkv_rmsnorm_rope_kernel": (_BF16, _BF16, "INT64"),
    "ReshapeAndCacheNdKernel": (*_HALVES[:4], "INT32"),
    "KvRmsNormRopeCache": (*_HALVES[:4], "INT64", *_HALVES[:2]),
    # call: the mask, the lengths, the block table; slots 24 and 25 are halves.
    "FusedInferAttentionScore": (
        *_HALVES[:4],
        *("INT8", "INT64", "INT64"),
        *_HALVES[:7],
        "INT32",
        *_HALVES[:16],
    ),
}
#: Kernels whose empty slots are scalars; those of the others are absent.
_WITH_SCALARS = ("ArgMaxV2", "Fill", "MaskedFill")


def _dtypes(kernel_type: str, shapes: Sequence[Shape]) -> list[str]:
    known = _DTYPES.get(kernel_type, _HALVES)
    if kernel_type == "QuantBatchMatmulV3":
        per_token = shapes[3] == shapes[0][:1] and shapes[3] != shapes[2]
        known += (_BF16, "FLOAT") if per_token else ("FLOAT", "INT32")
    is_there = [bool(shape) or kernel_type in _WITH_SCALARS for shape in shapes]
    return [dtype if there else "DT_UNDEFINED" for dtype, there in zip(known, is_there, strict=False)]


# Formats

#: Kernels of products, whose second operand is FRACTAL_NZ where it has two axes more than the first (call).
_PRODUCTS = ("MatMulV2", "MatMulV3", "QuantBatchMatmulV3")


def _formats(kernel_type: str, shapes: Sequence[Shape], dtypes: Sequence[str]) -> list[str]:
    formats = ["NULL" if dtype == "DT_UNDEFINED" else "ND" for dtype in dtypes]
    if kernel_type in _PRODUCTS and len(shapes[1]) == len(shapes[0]) + 2:
        formats[1] = "FRACTAL_NZ"
    if kernel_type == "TransData":
        formats[0] = "FRACTAL_NZ"
    return formats


# Outputs


def _like_first(slots: Slots) -> list[Output]:
    return [slots.like_first]


def _elementwise(slots: Slots) -> list[Output]:
    # Where they do not broadcast, the row contradicts itself, and keeps its first shape.
    return [(broadcast(slots.shapes) or slots.shapes[0], slots.dtypes[0])]


def _comparison(slots: Slots) -> list[Output]:
    return [(shape, "BOOL") for shape, _ in _elementwise(slots)]


def _product(slots: Slots, dtype: str = "", *, stored_as_k_n: bool = False) -> list[Output]:
    """(M, N): of (N, K) or (K, N), whichever fits first, (K, N) with `stored_as_k_n`."""
    (m, k), stored = slots.shapes[0], slots.shapes[1]
    matrix = nz_shape(stored) if len(stored) == 4 else stored
    axes = (1, 0) if stored_as_k_n else (0, 1)
    n = next((matrix[axis] for axis in axes if matrix[1 - axis] == k), matrix[axes[0]])
    return [((m, n), dtype or slots.dtypes[0])]


def _quantized_product(slots: Slots) -> list[Output]:
    return _product(slots, _BF16, stored_as_k_n=True)


def _batch_product(slots: Slots) -> list[Output]:
    (batch, m, _), (*_, n) = slots.shapes
    return [((batch, m, n), slots.dtypes[0])]


def _transposed_batch_product(slots: Slots) -> list[Output]:
    (batch, m, _), (*_, n) = slots.shapes
    return [((m, batch, n), slots.dtypes[0])]


def _quantized(slots: Slots) -> list[Output]:
    return [(slots.shapes[0], "INT8")]


def _quantized_with_scale(slots: Slots) -> list[Output]:
    return [(slots.shapes[0], "INT8"), (slots.shapes[0][:-1], "FLOAT")]


def _norm(slots: Slots) -> list[Output]:
    return [slots.like_first, ((*slots.shapes[0][:-1], 1), "FLOAT")]


def _norm_of_sum(slots: Slots) -> list[Output]:
    return [*_norm(slots), slots.like_first]


def _half(slots: Slots) -> list[Output]:
    *rows, size = slots.shapes[0]
    return [((*rows, size // 2), slots.dtypes[0])]


def _chosen_experts(slots: Slots) -> list[Output]:
    tokens, experts = slots.shapes[0]
    return [((tokens, CHOSEN), slots.dtypes[0]), ((tokens, CHOSEN), "INT32"), ((tokens, experts), "FLOAT")]


def _unblocked(slots: Slots) -> list[Output]:
    return [(nz_shape(slots.shapes[0]), slots.dtypes[0])]


def _first_axes_swapped(slots: Slots) -> list[Output]:
    first, second, *others = slots.shapes[0]
    return [((second, first, *others), slots.dtypes[0])]


def _cast(slots: Slots) -> list[Output]:
    targets = {_BF16: "FLOAT", "INT32": "INT64", "INT64": "INT32", "BOOL": "INT32"}
    return [(slots.shapes[0], targets[slots.dtypes[0]])]


def _ones_repeated(slots: Slots) -> list[Output]:
    return [(tuple(HEADS if size == 1 else size for size in slots.shapes[0]), slots.dtypes[0])]


def _filled(slots: Slots) -> list[Output]:
    return [((HEADS,) * slots.shapes[0][0], slots.dtypes[1])]


def _strided(slots: Slots) -> list[Output]:
    tokens = slots.shapes[0][0] // (HEADS * 3 * ROPE)
    return [((tokens, HEADS, ROPE), slots.dtypes[0])]


def _tiled(slots: Slots) -> list[Output]:
    *others, size = slots.shapes[0]
    return [((*others, 2 * size), slots.dtypes[0])]


def _gathered(slots: Slots) -> list[Output]:
    return [((*slots.shapes[1], *slots.shapes[0][1:]), slots.dtypes[0])]


def _indexed(slots: Slots) -> list[Output]:
    return [((*slots.shapes[3], *slots.shapes[0][1:]), slots.dtypes[0])]


def _sorted(slots: Slots) -> list[Output]:
    return [slots.like_first, (slots.shapes[0], "INT32")]


def _largest(slots: Slots) -> list[Output]:
    return [(slots.shapes[0][:-1], "INT64")]


def _query_and_key(slots: Slots) -> list[Output]:
    return [(slots.shapes[slot], slots.dtypes[0]) for slot in (0, 1)]


def _caches(slots: Slots) -> list[Output]:
    return [(slots.shapes[slot], slots.dtypes[slot]) for slot in (2, 3)]


def _latent_caches(slots: Slots) -> list[Output]:
    (batch, _, tokens, _), (latent,), cos = slots.shapes[:3]
    written = [((batch, 1, tokens, cos[-1]), _BF16), ((batch, 1, tokens, latent), _BF16)]
    return [*((slots.shapes[slot], _BF16) for slot in (5, 6)), *(written if "Prefill" in slots.scenario else [])]


def _query_key_value(slots: Slots) -> list[Output]:
    (tokens, fused), (_, head) = slots.shapes[:2]
    return [((tokens, size), _BF16) for size in (fused - 2 * head, head, head)]


def _attention(slots: Slots) -> list[Output]:
    query = slots.shapes[0]
    # (batch, heads, S, D) gives (heads, batch, S, D); (tokens, heads, D) gives the same.
    return [((query[1], query[0], *query[2:]) if len(query) == 4 else query, _BF16)]


_OUTPUTS: dict[str, Callable[[Slots], list[Output]]] = {
    **dict.fromkeys(("Neg", "Muls", "TensorMove", "MaskedFill", "SoftmaxV2"), _like_first),  # call
    **dict.fromkeys(("Add", "Mul", "RealDiv"), _elementwise),  # call
    "GreaterEqual": _comparison,  # call
    "MatMulV2": _product,  # call; capture: most weights are (N, K)
    "MatMulV3": _product,
    "QuantBatchMatmulV3": _quantized_product,  # call; report: the DT_BF16 that AscendQuantV2 and SwiGlu take
    "BatchMatMulV2": _batch_product,  # call
    "TransposeBatchMatMul": _transposed_batch_product,  # call
    "AscendQuantV2": _quantized,  # call; report: the products take INT8
    "DynamicQuant": _quantized_with_scale,  # call
    "RmsNorm": _norm,  # capture
    "AddRmsNormBias": _norm_of_sum,  # call
    "SwiGlu": _half,  # call
    "InterleaveRope": _like_first,  # call
    "MoeGatingTopK": _chosen_experts,  # call; report: Cast of `1,8`
    "TransData": _unblocked,  # report: the weight of BatchMatMulV2, `16,128,512`
    "Transpose": _first_axes_swapped,  # chosen
    "Cast": _cast,  # chosen: to the other width, from logits to FLOAT
    "BroadcastTo": _ones_repeated,  # chosen: a rotary part for each of 16 heads
    "Slice": _half,  # chosen: half of the last axis
    "Fill": _filled,  # chosen: 16 along each of the axes that slot 0 lists
    "AsStrided": _strided,  # chosen: the rotary part of 16 heads of 192 features
    "Tile": _tiled,  # call: vllm-ascend's rotary embedding repeats a table's last axis
    "GatherV3": _gathered,  # call, along the first axis
    "Index": _indexed,  # call, along the first axis
    "Sort": _sorted,  # report: the INT32 that ApplyTopKTopPCustom takes
    "ArgMaxV2": _largest,  # call, along the last axis
    "ApplyTopKTopPCustom": _like_first,  # call
    "_triton_rope": _query_and_key,  # call: in place
    "split_qkv_rmsnorm_rope_kernel": _query_key_value,  # call; report: keys of one head
    "ReshapeAndCacheNdKernel": _caches,  # call: in place
    "KvRmsNormRopeCache": _latent_caches,  # call: in place; in prefill attention uses the written values
    "FusedInferAttentionScore": _attention,  # call: BNSD_NBSD, TND
}
