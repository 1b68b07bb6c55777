"""Sibling kernel types: other names of one kernel, and types between which a library chooses."""

from __future__ import annotations

import re
from collections.abc import Iterable

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


_VERSION = re.compile(r"V\d+|v\d+$")
#: The fewest letters of a name that may be misspelt by one: Relu and Elu are two kernels.
_LONG_NAME = 6
_MOST_NAMES = 3
_NO_SMALL_LETTERS = re.compile(r"[^a-z]")


def spellings(kernel_type: str, known: Iterable[str]) -> list[str]:
    """Returns known names of the same kernel, a few at most.

    The names differ in case, in a version, or in one small letter: similar names are mostly those of other kernels.
    """
    name = _VERSION.sub("", base_type(kernel_type))
    return sorted(other for other in known if base_type(other) == other and _is_spelling(name, other))[:_MOST_NAMES]


def suggest_spelling(kernel_type: str, known: Iterable[str]) -> str:
    """Returns ` (did you mean ...?)` with known names of the same kernel; "" if there are none."""
    found = spellings(kernel_type, known)
    return f" (did you mean {', '.join(found)}?)" if found else ""


def _is_spelling(name: str, other: str) -> bool:
    """Returns whether two names are equal but for case and version, for one small letter, or for two swapped ones."""
    other = _VERSION.sub("", other)
    if name.lower() == other.lower():
        return True
    shorter = min(len(name), len(other))
    if shorter < _LONG_NAME or _NO_SMALL_LETTERS.findall(name) != _NO_SMALL_LETTERS.findall(other):
        return False
    start = next((i for i in range(shorter) if name[i] != other[i]), shorter)
    one, two = name[start:], other[start:]
    swapped = one[:2] == two[1::-1] and one[2:] == two[2:]
    return swapped or one[1:] == two[1:] or one[1:] == two or one == two[1:]


def _names(plain: str) -> tuple[str, ...]:
    """Returns a type and the other names of the kernel."""
    functions = (function for function, kernel_type in _FUNCTIONS.items() if kernel_type == plain)
    return plain, *(plain + ending for ending in _ALIAS_ENDINGS), *functions
