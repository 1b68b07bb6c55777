"""Kernel types that one call may launch in each other's place: one rule for replays, --prof-path and plots."""

from __future__ import annotations

from database.matmul_family import FAMILY

#: One API of torch_npu each, behind which the library chooses one of these.
_FAMILIES = (
    (*FAMILY, "MatMul"),
    ("BatchMatMulV2", "BatchMatMulV3", "BatchMatMul"),
    ("GatherV2", "GatherV3"),
    # The forms with fixed axes are those of older toolkits.
    ("ReduceMean", "ReduceMeanD"),
    ("ReduceSum", "ReduceSumD"),
    ("ScaledMaskedSoftmax", "ScaledMaskedSoftmaxV2"),
    ("StridedSlice", "StridedSliceD"),
)
#: CANN named a kernel so where a graph was captured (aclgraph): the same kernel under another name.
_TWINS = ("AiCore", "Aicore")


def plain_type(kernel_type: str) -> str:
    """Returns the kernel type without the ending of a twin: `AddAiCore` does what `Add` does."""
    return next((kernel_type.removesuffix(twin) for twin in _TWINS if kernel_type.endswith(twin)), kernel_type)


def siblings(kernel_type: str) -> tuple[str, ...]:
    """Returns the types that a call may launch for a row of `kernel_type`: its twins, then its family with their twins.

    A sample of a sibling belongs to the sibling's row, and fills the row that was asked for
    (database.record.RanAs).
    """
    plain = plain_type(kernel_type)
    family = next((family for family in _FAMILIES if plain in family), (plain,))
    names = sorted(family, key=lambda name: name != plain)
    everybody = [name + twin for name in names for twin in ("", *_TWINS)]
    return tuple(name for name in everybody if name != kernel_type)
