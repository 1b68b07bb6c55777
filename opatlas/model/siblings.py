"""Kernel types that one call may launch in each other's place: one rule for replays, --prof-path and plots."""

from __future__ import annotations

from collections.abc import Mapping

from opatlas.model.schema import INPUT_SLOTS, OUTPUT_SLOTS
from opatlas.model.slots import slot_words
from opatlas.text import whole

FAMILY = ("MatMulV2", "MatMulV3", "MatMulCommon")

_NZ = "FRACTAL_NZ"


def canonical_form(row: Mapping[str, str]) -> str | None:
    """Text that is equal for products (M,K; N,K -> M,N) which differ only in what is transposed.

    A transposed operand is another case with another duration: this finds a row where nothing
    matches exactly. Dtypes, formats and inputs beyond the two operands (a bias) still count.

    Args:
        row: cells by column name.

    Returns:
        None for a row that is no product of two matrices, or that does not say which dimension is K.
    """
    inputs = slot_words(*(row.get(column, "") for column in INPUT_SLOTS))
    outputs = slot_words(*(row.get(column, "") for column in OUTPUT_SLOTS))
    if len(inputs) < 2 or len(outputs) != 1:
        return None
    left, right, product = (_matrix(shape, form) for shape, _, form in (*inputs[:2], *outputs))
    if left is None or right is None or product is None:
        return None
    m, n = product
    k = left[1] if left[0] == m else left[0] if left[1] == m else None
    if k is None or sorted(right) != sorted((n, k)):
        return None
    dtypes_and_formats = ";".join(f"{dtype},{form}" for _, dtype, form in (*inputs, *outputs))
    return f"{m},{k},{n}|{dtypes_and_formats}|" + ";".join(shape for shape, _, _ in inputs[2:])


def _matrix(shape: str, form: str) -> tuple[int, int] | None:
    """Rows and columns; those of (a, b, c, d) in FRACTAL_NZ are b*c and a*d."""
    sizes = [size for word in shape.split(",") if (size := whole(word)) is not None]
    if len(sizes) != shape.count(",") + 1:
        return None
    if form == _NZ and len(sizes) == 4:
        return sizes[1] * sizes[2], sizes[0] * sizes[3]
    return (sizes[0], sizes[1]) if len(sizes) == 2 else None


#: One API of torch_npu each, behind which the library chooses one of these.
_FAMILIES = (
    (*FAMILY, "MatMul"),
    ("BatchMatMulV2", "BatchMatMulV3", "BatchMatMul"),
    ("DispatchFFNCombine", "DispatchFFNCombineBF16"),
    ("GatherV2", "GatherV3"),
    # The forms with fixed axes are those of older toolkits.
    ("ReduceMean", "ReduceMeanD"),
    ("ReduceSum", "ReduceSumD"),
    ("ScaledMaskedSoftmax", "ScaledMaskedSoftmaxV2"),
    ("StridedSlice", "StridedSliceD"),
)
#: Where a graph is captured (aclgraph), CANN before 8.5 named a kernel after the function of its library that launches
#: it, whose name mostly is the type with one of these endings. Names of launches tell: `aclnnAdd_AddAiCore_Add`.
_TWINS = ("AiCore", "Aicore")
#: The other functions, each with its type.
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


def plain_type(kernel_type: str) -> str:
    """Returns the type of a kernel that may be named after its function: `AddAiCore` is `Add`."""
    named = _FUNCTIONS.get(kernel_type)
    if named is not None:
        return named
    return next((kernel_type.removesuffix(twin) for twin in _TWINS if kernel_type.endswith(twin)), kernel_type)


def siblings(kernel_type: str) -> tuple[str, ...]:
    """Returns the types that a call may launch for a row of `kernel_type`: the same kernel's, then those of its family.

    A sample of a sibling belongs to the sibling's row, and fills the row that was asked for
    (opatlas.model.record.RanAs).
    """
    plain = plain_type(kernel_type)
    family = next((family for family in _FAMILIES if plain in family), (plain,))
    types = sorted(family, key=lambda name: name != plain)
    names = [name for plain_name in types for name in _names(plain_name)]
    return tuple(name for name in names if name != kernel_type)


def _names(plain: str) -> tuple[str, ...]:
    """A type, and what else its kernel is called."""
    functions = (function for function, kernel_type in _FUNCTIONS.items() if kernel_type == plain)
    return plain, *(plain + twin for twin in _TWINS), *functions
