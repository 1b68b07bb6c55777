"""Kernel types that a call may launch in each other's place."""

from __future__ import annotations

import pytest

from opatlas.row.slots import base_type, siblings


@pytest.mark.parametrize(
    ("kernel_type", "first"),
    [
        ("Add", "AddAiCore"),
        ("AddAiCore", "Add"),
        ("AscendQuantV2Aicore", "AscendQuantV2"),
        ("MatMulV2", "MatMulV2AiCore"),
        ("GatherV2AiCore", "GatherV2"),
    ],
)
def test_the_same_kernel_under_another_name_comes_first(kernel_type: str, first: str) -> None:
    assert siblings(kernel_type)[0] == first


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("MatMulV2", "MatMulCommon"),
        ("MatMul", "MatMulV3"),
        ("BatchMatMul", "BatchMatMulV2"),
        ("ReduceSumD", "ReduceSum"),
        ("GatherV2", "GatherV3"),
        ("GatherV2AiCore", "GatherV3"),
        ("Sort", "SortAicore"),
        ("ArangeAiCore", "Range"),
        ("BatchMatMulNd", "BatchMatMulV3"),
    ],
)
def test_each_is_the_others_sibling(one: str, other: str) -> None:
    assert other in siblings(one)
    assert one in siblings(other)
    assert one not in siblings(one)


def test_others_are_no_siblings() -> None:
    assert {base_type(name) for name in siblings("TransposeBatchMatMul")} == {"TransposeBatchMatMul"}
    assert {base_type(name) for name in siblings("MatMulV3")} == {"MatMul", "MatMulV2", "MatMulV3", "MatMulCommon"}
