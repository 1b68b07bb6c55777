"""Tensor slots: the shape, dtype and format of each tensor of a row; and the names that one kernel has.

A cell lists the slots of a kernel separated by `;`. A shape lists dimensions separated by `,`: `136,7168;7168,3584`
with `DT_BF16;DT_BF16` and `ND;ND`. Profilers put cells in quotes and write N/A for a missing value; both are read.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

from opatlas.errors import CellError
from opatlas.row import columns as col
from opatlas.text import parse_whole

#: Types of one product of two matrices. Their rows may borrow samples of a product that differs only in transposition.
MATMUL_FAMILY = ("MatMulV2", "MatMulV3", "MatMulCommon")
#: Types between which the library chooses behind one function of torch_npu.
_FAMILIES = (
    (*MATMUL_FAMILY, "MatMul"),
    ("BatchMatMulV2", "BatchMatMulV3", "BatchMatMul"),
    ("DispatchFFNCombine", "DispatchFFNCombineBF16"),
    ("GatherV2", "GatherV3"),
    ("batch_matmul_transpose", "batch_matmul_transpose_0"),
    ("MoeInitRoutingV2", "MoeInitRoutingV3"),
    # Older toolkits and graphs have the forms with fixed axes.
    ("ConcatD", "ConcatV2D"),
    ("PadV3", "Pad"),
    ("SplitV", "SplitVD", "Split"),
    ("ReduceMean", "ReduceMeanD"),
    ("ReduceSum", "ReduceSumD"),
    ("ScaledMaskedSoftmax", "ScaledMaskedSoftmaxV2"),
    ("StridedSlice", "StridedSliceD"),
)
#: In captured graphs (aclgraph) CANN before 8.5 names a kernel after the library function that launches it: mostly the
#: type with one of these endings, as in the launch name `aclnnAdd_AddAiCore_Add`.
_ALIAS_ENDINGS = ("AiCore", "Aicore")
#: Function names that do not follow this rule, and their types.
_FUNCTIONS = {
    "ArangeAiCore": "Range",
    "BatchMatMulNd": "BatchMatMulV2",
    "DropoutDoMaskAiCore": "DropOutDoMask",
    "LayerNormV3WithImplMode": "LayerNormV3",
    "LogSoftmaxAiCore": "LogSoftmaxV2",
    "MatMulV3Common": "MatMulV3",
    "NonzeroAiCore": "NonZero",
    "ReduceSumOpAiCore": "ReduceSum",
    "SoftmaxAiCore": "SoftmaxV2",
    "TransDataSpecial": "TransData",
}


def base_type(kernel_type: str) -> str:
    """Returns the kernel type of a name that may be a library function: `Add` for `AddAiCore`."""
    named = _FUNCTIONS.get(kernel_type)
    if named is not None:
        return named
    return next(
        (kernel_type.removesuffix(ending) for ending in _ALIAS_ENDINGS if kernel_type.endswith(ending)), kernel_type
    )


def siblings(kernel_type: str) -> tuple[str, ...]:
    """Returns the types that a call may launch for a row: other names of the kernel first, then the family.

    A sample of a sibling belongs to the sibling's row, and fills the requested row too
    (opatlas.row.record.LaunchedCase).
    """
    plain = base_type(kernel_type)
    family = next((family for family in _FAMILIES if plain in family), (plain,))
    types = sorted(family, key=lambda name: name != plain)
    names = [name for plain_name in types for name in _names(plain_name)]
    return tuple(name for name in names if name != kernel_type)


def _names(plain: str) -> tuple[str, ...]:
    """Returns a type and the other names of the kernel."""
    functions = (function for function, kernel_type in _FUNCTIONS.items() if kernel_type == plain)
    return plain, *(plain + ending for ending in _ALIAS_ENDINGS), *functions


#: Words that mean "nothing" in a shape, dtype or format cell.
EMPTY_WORDS = frozenset({"", "N/A", "NA", "NULL", "NONE", "NAN", "UNDEFINED", "DT_UNDEFINED", "FORMAT_UNDEFINED"})

#: The shape cell of a single 0-dim tensor, as profilers write it: two quotes.
EMPTY_SHAPE = '""'
#: Characters of a wrong cell that an error shows.
_SHOWN = 200
_DROPPED = {ord(c): None for c in "\"'()[]{} \t\r\n"}


# Slots that hold no scalar: an optional tensor that a call leaves out, whatever dtype a profiler gives the slot.
# CANN 8.5 and later give an absent input the default dtype of the kernel's definition, older versions DT_UNDEFINED.
# Both have no dimensions, and so has a scalar of an elementwise kernel. Which of the two a slot holds follows from the
# kernel, by the definitions of the kernels (`*_def.cpp`, `*_proto.h`) in CANN's ops-nn and ops-transformer.

#: Numbers of slots.
SlotNumbers = range | frozenset[int]
NO_SLOTS = range(0)
ALL_SLOTS = range(sys.maxsize)

#: Kernel types with optional tensors and without scalars.
_WITHOUT_SCALARS = frozenset(
    {
        *("FlashAttentionScore", "FlashAttentionScoreGrad", "FusedInferAttentionScore", "IncreFlashAttention"),
        *("KvRmsNormRopeCache", "LightningIndexer", "LightningIndexerVllm", "MlaProlog", "MlaPrologV2", "MlaPrologV3"),
        *("PromptFlashAttention", "RINGMLAPrefillBF16Kernel", "RotaryPositionEmbeddingGrad", "ScaledMaskedSoftmaxV2"),
        *("SparseAttentionScore", "SparseFlashAttention", "ApplyTopKTopPCustom", "ChunkKdaFwd"),
        *("NsaCompress", "NsaCompressAttentionInfer", "NsaCompressWithCache", "NsaSelectedAttention"),
        "NsaSelectedAttentionInfer",
        *("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Conv2D", "Conv2DV2", "DepthwiseConv2D"),
        "GroupedMatmul",
        *("GroupedMatmulFinalizeRouting", "GroupedMatmulSwigluQuant", "GroupedMatmulSwigluQuantV2", "MatMul"),
        *("MatMulCommon", "MatMulV2", "MatMulV3", "QuantBatchMatmulV3", "QuantBatchMatmulV4", "TransposeBatchMatMul"),
        "WeightQuantBatchMatmulV2",
        *col.EXPERT_PARALLEL,
        *("MoeFinalizeRoutingV2", "MoeGatingTopK", "MoeGatingTopKSoftmax"),
        *("MoeInitRoutingV3", "MoeReRouting", "MoeTokenUnpermute", "MoeTokenUnpermuteGrad"),
        *("AddLayerNorm", "AddRmsNormBias", "AddRmsNormDynamicQuant", "AddRmsNormQuant", "LayerNormV4"),
        *("AscendQuantV2", "DequantSwigluQuant", "DynamicQuant", "DynamicQuantV2", "SwiGluQuant"),
    }
)
#: The optional tensors among the inputs of kernel types that take scalars, too.
_OPTIONAL_INPUTS = {"ApplyAdamW": frozenset({11}), "ApplyAdamWV2": frozenset({5}), "NLLLoss": frozenset({2})}


@cache
def optional_inputs(kernel_type: str) -> SlotNumbers:
    """Returns the input slots that hold no scalar."""
    name = base_type(kernel_type)
    return ALL_SLOTS if name in _WITHOUT_SCALARS else _OPTIONAL_INPUTS.get(name, NO_SLOTS)


@cache
def optional_outputs(kernel_type: str) -> SlotNumbers:
    """Returns the output slots that hold no scalar."""
    return ALL_SLOTS if base_type(kernel_type) in _WITHOUT_SCALARS else NO_SLOTS


@dataclass(frozen=True)
class Slot:
    """One tensor of a kernel call.

    Attributes:
        shape: the dimensions; () for a 0-dim or absent tensor.
        dtype: the profiler's name without the prefix DT_ ("BF16", "FLOAT"); "" if undefined.
        format: the profiler's name without the prefix FORMAT_ ("ND", "FRACTAL_NZ"); "" if undefined.
    """

    shape: tuple[int, ...]
    dtype: str
    format: str

    @property
    def absent(self) -> bool:
        """Whether there is no tensor: neither dimensions nor a dtype. (A 0-dim tensor has a dtype.)"""
        return not self.shape and not self.dtype


def strip_quotes(cell: str) -> str:
    """Returns a cell without the tabs, blanks and quotes that a profiler puts around the text."""
    return cell.strip().strip('"').strip()


def split_cell(cell: str) -> list[str]:
    """Returns the slots of a cell as upper-case words without quotes, brackets and blanks.

    Words for "nothing" (N/A, NULL, ...) become "".
    """
    return ["" if word in EMPTY_WORDS else word for word in cell.translate(_DROPPED).upper().split(";")]


def dtype_name(word: str) -> str:
    """Returns a dtype without the prefix: `FLOAT` for `DT_FLOAT`."""
    return word[3:] if word.startswith("DT_") else word


def format_name(word: str) -> str:
    """Returns a format without the prefix: `ND` for `FORMAT_ND`."""
    return word[7:] if word.startswith("FORMAT_") else word


@lru_cache(maxsize=4096)
def _dtype_words(cell: str) -> tuple[str, ...]:
    return tuple(dtype_name(word) for word in split_cell(cell))


@lru_cache(maxsize=4096)
def _format_words(cell: str) -> tuple[str, ...]:
    return tuple(format_name(word) for word in split_cell(cell))


@lru_cache(maxsize=4096)
def slot_words(
    shapes: str, dtypes: str, formats: str, optional: SlotNumbers = NO_SLOTS
) -> tuple[tuple[str, str, str], ...]:
    """Returns the normalized words (shape, dtype, format) of each slot, without absent slots at the end.

    Accepts any text, so that malformed rows have a signature and can be reported. `parse_slots` checks the numbers.

    Args:
        optional: the slots that are absent without a shape, whatever their dtype (`optional_inputs`).
    """
    shape_words = split_cell(shapes)
    dtype_words, format_words = list(_dtype_words(dtypes)), list(_format_words(formats))
    count = max(len(shape_words), len(dtype_words))
    shape_words += [""] * (count - len(shape_words))
    dtype_words += [""] * (count - len(dtype_words))
    format_words += [""] * (count - len(format_words))
    slots = [
        (shape, dtype, form) if shape or (dtype and slot not in optional) else ("", "", "")
        for slot, (shape, dtype, form) in enumerate(zip(shape_words, dtype_words, format_words, strict=False))
    ]
    while slots and slots[-1] == ("", "", ""):
        slots.pop()
    return tuple(slots)


@lru_cache(maxsize=1 << 15)
def parse_slots(
    shapes: str, dtypes: str, formats: str, columns: tuple[str, str, str], optional: SlotNumbers = NO_SLOTS
) -> tuple[Slot, ...]:
    """Returns the tensors that three cells describe, with absent tensors in between.

    Args:
        shapes, dtypes, formats: the cells.
        columns: their column names, for errors.
        optional: as for `slot_words`.

    Raises:
        CellError: a dimension is not a whole number of at least 0, or a shape has no dtype (the cells have different
            numbers of slots).
    """
    slots = []
    for i, (shape, dtype, form) in enumerate(slot_words(shapes, dtypes, formats, optional)):
        dimensions = parse_shape(shape, columns[0], shapes)
        if dimensions and not dtype:
            raise CellError(columns[1], dtypes, f"slot {i} has the shape {shape} in '{columns[0]}' but no dtype here")
        slots.append(Slot(dimensions, dtype, form))
    return tuple(slots)


def row_slots(kernel_type: str, cells: Mapping[str, str]) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
    """Returns the input and the output tensors of a row; a missing cell counts as empty. Raises CellError."""

    def read(columns: tuple[str, str, str], optional: SlotNumbers) -> tuple[Slot, ...]:
        shapes, dtypes, formats = (cells.get(column, "") for column in columns)
        return parse_slots(shapes, dtypes, formats, columns, optional)

    return read(col.INPUT_SLOTS, optional_inputs(kernel_type)), read(col.OUTPUT_SLOTS, optional_outputs(kernel_type))


def parse_shape(shape: str, column: str, cell: str) -> tuple[int, ...]:
    """Returns the dimensions of one slot of a cell of shapes. Raises CellError."""
    sizes = []
    for text in shape.split(",") if shape else ():
        size = parse_whole(text)
        if size is None:
            raise CellError(column, cell[:_SHOWN], f"{text[:_SHOWN]!r} is not a dimension (a whole number below 10^18)")
        sizes.append(size)
    return tuple(sizes)


@dataclass(frozen=True)
class Dtype:
    """A dtype of profilers.

    Attributes:
        name: the profiler's name.
        torch_name: the attribute of torch.
        bytes: of one element.
        is_float: whether the elements are real numbers, not integers or bool.
    """

    name: str
    torch_name: str
    bytes: int
    is_float: bool = False


_KNOWN = {
    dtype.name: dtype
    for dtype in (
        Dtype("FLOAT", "float32", 4, is_float=True),
        Dtype("FLOAT16", "float16", 2, is_float=True),
        Dtype("BF16", "bfloat16", 2, is_float=True),
        Dtype("DOUBLE", "float64", 8, is_float=True),
        Dtype("FLOAT8_E4M3FN", "float8_e4m3fn", 1, is_float=True),
        Dtype("FLOAT8_E5M2", "float8_e5m2", 1, is_float=True),
        Dtype("FLOAT8_E8M0", "float8_e8m0fnu", 1, is_float=True),
        Dtype("FLOAT4_E2M1", "float4_e2m1fn_x2", 1, is_float=True),
        Dtype("INT4", "int4", 1),
        Dtype("INT8", "int8", 1),
        Dtype("INT16", "int16", 2),
        Dtype("INT32", "int32", 4),
        Dtype("INT64", "int64", 8),
        Dtype("UINT8", "uint8", 1),
        Dtype("UINT16", "uint16", 2),
        Dtype("UINT32", "uint32", 4),
        Dtype("UINT64", "uint64", 8),
        Dtype("BOOL", "bool", 1),
        Dtype("COMPLEX64", "complex64", 8),
        Dtype("COMPLEX128", "complex128", 16),
    )
}
#: The dtypes of FP8, by the names of CANN's enumeration of dtypes (ge::DataType).
FP8 = frozenset({"FLOAT8_E4M3FN", "FLOAT8_E5M2"})
#: Dtypes of four bits, and those that hold their numbers in calls: eight in an INT32, two in a byte.
FOUR_BITS = {"INT4": "INT32", "FLOAT4_E2M1": "UINT8"}
_SYNONYMS = {"FLOAT32": "FLOAT", "BFLOAT16": "BF16", "FP16": "FLOAT16", "FP32": "FLOAT", "FLOAT64": "DOUBLE"}


#: The known dtypes, as profilers name them.
DTYPE_NAMES = tuple(_KNOWN)


@cache
def known_dtype(name: str) -> Dtype | None:
    """Returns the dtype of a profiler's name ("DT_BF16", "BF16", "FLOAT"); None if unknown."""
    name = dtype_name(name.strip().upper())
    return _KNOWN.get(_SYNONYMS.get(name, name))


@cache
def dtype_of_torch(name: str) -> str:
    """Returns the profiler's name of a dtype of torch ("BF16" for "bfloat16"); the same in capitals if unknown."""
    return next((dtype.name for dtype in _KNOWN.values() if dtype.torch_name == name), name.upper())


def unknown_dtypes(cells: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the dtypes of a row that OpAtlas does not know (65534), sorted.

    The row is kept: its captured duration is valid, and a newer OpAtlas may know the dtype.
    """
    unknown = {*_unknown_words(cells[col.INPUT_DTYPES]), *_unknown_words(cells[col.OUTPUT_DTYPES])}
    return tuple(sorted(unknown))


@lru_cache(maxsize=4096)
def _unknown_words(dtypes: str) -> tuple[str, ...]:
    return tuple(word for word in split_cell(dtypes) if word and known_dtype(word) is None)


_OF_INPUTS = (col.INPUT_DTYPES, col.INPUT_FORMATS)
_SHAPES = (col.INPUT_SHAPES, col.OUTPUT_SHAPES)
#: The shapes of the slots that a column describes.
SHAPES_OF = {
    **dict.fromkeys(_OF_INPUTS, col.INPUT_SHAPES),
    **dict.fromkeys((col.OUTPUT_DTYPES, col.OUTPUT_FORMATS), col.OUTPUT_SHAPES),
}


def normal_words(kernel_type: str, column: str, cells: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the words of a cell: dtypes without prefixes and synonyms, no absent slots at the end.

    Args:
        cells: the cell, and that of the shapes of its slots, where it is known.
    """
    if column in _SHAPES:
        # The shapes of each row are others: they are not kept.
        return _without_end(split_cell(cells.get(column, "")))
    shapes = cells.get(SHAPES_OF.get(column, ""), "")
    optional = (optional_inputs if column in _OF_INPUTS else optional_outputs)(kernel_type) if shapes else NO_SLOTS
    return _present(_known_words(cells.get(column, "")), _has_shape(shapes) if optional else (), optional)


# Cells of dtypes and formats repeat, and several columns have the same shapes.


@lru_cache(maxsize=8192)
def _known_words(cell: str) -> tuple[str, ...]:
    words = [format_name(dtype_name(word)) for word in split_cell(cell)]
    return tuple(word if (known := known_dtype(word)) is None else known.name for word in words)


@lru_cache(maxsize=8192)
def _has_shape(shapes: str) -> tuple[bool, ...]:
    return tuple(bool(shape) for shape in split_cell(shapes))


@lru_cache(maxsize=8192)
def _present(words: tuple[str, ...], has_shape: tuple[bool, ...], optional: SlotNumbers) -> tuple[str, ...]:
    found = (any(has_shape[i : i + 1]) or i not in optional for i in range(len(words)))
    return _without_end([word if there else "" for word, there in zip(words, found, strict=True)])


def _without_end(words: list[str]) -> tuple[str, ...]:
    while words and not words[-1]:
        words.pop()
    return tuple(words)
