"""Sibling kernel types: other names of one kernel, and types between which a library chooses."""

from __future__ import annotations

#: Types of one product of two matrices. Their rows may borrow samples of a product that differs only in transposition.
MATMUL_FAMILY = ("MatMulV2", "MatMulV3", "MatMulCommon")
#: Types between which the library chooses behind one function of torch_npu.
_FAMILIES = (
    (*MATMUL_FAMILY, "MatMul"),
    ("BatchMatMulV2", "BatchMatMulV3", "BatchMatMul"),
    ("DispatchFFNCombine", "DispatchFFNCombineBF16"),
    ("GatherV2", "GatherV3"),
    # Older toolkits have the forms with fixed axes.
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
