"""Kernels of graph mode into which a Cast is fused: another output dtype than the kernel alone would have."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from opatlas.bench.implementations import torch as impl
from replaying import assert_mistake_is_caught, assert_refused, assert_wrong, replay_row

import opatlas.run.replay
from opatlas.row.columns import OUTPUT_DTYPES
from opatlas.row.status import Status

MUL = "3,1,1,128; | FLOAT;FLOAT | NCHW;NCHW -> 3,1,1,128 | FLOAT16 | NCHW"


@pytest.mark.parametrize(
    ("kernel_type", "row", "dtypes"),
    [
        ("Mul", MUL, ("float32", "float16")),
        ("Add", "8,64;64 | FLOAT;FLOAT -> 8,64 | BF16", ("float32", "bfloat16")),
        ("Add", "8,64;64 | BF16;BF16 -> 8,64 | FLOAT", ("bfloat16", "float32")),
        ("Add", "8,64;64 | FLOAT;BF16 -> 8,64 | BF16", ("float32", "bfloat16")),
        ("Add", "4;4 | INT32;INT32 -> 4 | FLOAT16", ("int32", "float16")),
        ("Equal", "4;4 | FLOAT;FLOAT -> 4 | FLOAT16", ("bool", "float16")),
        ("Relu", "4 | FLOAT -> 4 | BF16", ("float32", "bfloat16")),
        ("ClipByValueV2", "4;; | FLOAT;FLOAT;FLOAT -> 4 | BF16", ("float32", "bfloat16")),
        ("MaskedFill", "4,8;4,8; | FLOAT;BOOL;FLOAT -> 4,8 | FLOAT16", ("float32", "float16")),
        ("SoftmaxV2", "4,8 | FLOAT -> 4,8 | FLOAT16", ("float32", "float16")),
        ("MatMulV2", "4,8;8,7 | FLOAT;FLOAT -> 4,7 | BF16", ("float32", "bfloat16")),
        ("MatMulV3", "4,8;8,7;7 | BF16;BF16;BF16 -> 4,7 | FLOAT", ("bfloat16", "float32")),
        ("LogSoftmaxV2", "4,8 | FLOAT -> 4,8 | FLOAT16", ("float32", "float16")),
        ("ConcatD", "3,4;3,4 | FLOAT;FLOAT -> 3,8 | BF16", ("float32", "bfloat16")),
        ("ArgMaxV2", "4,8 | FLOAT -> 4 | FLOAT", ("int64", "float32")),
    ],
)
def test_the_cast_is_timed_checked_and_named(kernel_type: str, row: str, dtypes: tuple[str, str]) -> None:
    outcome = replay_row(kernel_type, row)
    assert outcome.status is Status.MEASURED, outcome
    assert outcome.measurement is not None
    (assumption,) = (text for text in outcome.measurement.assumptions if "Cast" in text)
    assert all(f"torch.{dtype} " in assumption.replace(",", " ") for dtype in dtypes)
    assert "_to_copy" in outcome.measurement.stand_in


@pytest.mark.parametrize(
    ("kernel_type", "row"), [("Mul", MUL), ("MaskedFill", "4,8;4,8; | FLOAT;BOOL;FLOAT -> 4,8 | FLOAT16")]
)
def test_the_cast_is_named_in_a_process_that_compiles(
    kernel_type: str, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Functions and methods of torch in C++ are not compiled: their operators are counted."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", ModuleType("torch._dynamo"))
    outcome = replay_row(kernel_type, row)
    assert outcome.measurement is not None
    assert "_to_copy" in outcome.measurement.stand_in


def test_a_row_without_a_cast_has_none() -> None:
    outcome = replay_row("Mul", "3,4;4 | FLOAT;FLOAT -> 3,4 | FLOAT")
    assert outcome.measurement is not None
    assert (outcome.measurement.assumptions, outcome.measurement.stand_in) == ((), "")


def test_a_wrong_kernel_before_the_cast_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_mistake_is_caught(monkeypatch, "mul", lambda x, y: x * y + 0.25, "Mul", MUL)


def test_a_wrong_cast_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with_cast = opatlas.run.replay.with_cast
    monkeypatch.setattr(
        opatlas.run.replay, "with_cast", lambda kernel, dtype: lambda *args: with_cast(kernel, dtype)(*args) * 1.1
    )
    assert_wrong("Mul", MUL)
    assert_wrong("Add", "8,64;64 | BF16;BF16 -> 8,64 | FLOAT")


def test_a_call_that_returns_another_dtype_than_all_tensors_have_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impl, "mul", lambda x, y: (x * y).half())
    assert_refused("Mul", "3,4;4 | FLOAT;FLOAT -> 3,4 | FLOAT", OUTPUT_DTYPES)


@pytest.mark.parametrize(
    ("kernel_type", "row"),
    [
        ("Add", "4;4 | FLOAT;FLOAT -> 4 | INT32"),
        ("Conv2D", "1,2,5,5;3,2,3,3 | FLOAT;FLOAT | NCHW;NCHW -> 1,3,3,3 | FLOAT16 | NCHW"),
    ],
)
def test_a_cast_that_is_not_replayed_is_not_a_wrong_cell(kernel_type: str, row: str) -> None:
    outcome = replay_row(kernel_type, row)
    assert outcome.status is Status.UNSUPPORTED
    assert "Cast" in outcome.reason
