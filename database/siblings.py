"""Kernel types that one call may launch in each other's place: one rule for replays, --prof-path and plots."""

from __future__ import annotations

from database.matmul_family import FAMILY

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
    (database.record.RanAs).
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
