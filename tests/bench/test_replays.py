"""Every kernel type is replayed, on rows as captures hold them, and its result is right."""

from __future__ import annotations

import operator
from collections import Counter

import pytest
import torch
from replaying import job_of, replay_functions, replay_of, replay_row, runner
from sample_rows import ROWS

import bench.runner
from bench.registry import replay_spec
from bench.replay import Replay
from database.schema import Status

#: Kernel types that this project promises to replay (single-device ones without a fused attention).
PROMISED = """
    MatMulV2 MatMulV3 MatMulCommon BatchMatMulV2
    Add AddAiCore Mul MulAiCore Muls Sub SubAiCore RealDiv FloorDiv FloorMod
    Neg Abs Log Cos Sin Pows Relu Cast
    Equal NotEqual Greater GreaterEqual Less LogicalAnd LogicalOr LogicalNot SelectV2
    Fill ZerosLike OnesLike Range
    TensorMove Slice SliceAiCore Transpose TransposeAiCore ConcatD BroadcastTo Tile PadV3 PadV3AiCore
    GatherV2 Index MaskedFill Sort ArgMaxV2
    SoftmaxV2 SwiGlu RmsNorm ReduceSum Cumsum
"""


def claimed_types() -> Counter[str]:
    return Counter(name for function in replay_functions().values() for name in replay_spec(function).kernel_types)


@pytest.mark.parametrize(("kernel_type", "row"), [(name, row) for name, rows in ROWS.items() for row in rows])
def test_row_is_measured_and_right(kernel_type, row):
    outcome = replay_row(kernel_type, row)
    assert outcome.status is Status.MEASURED, f"{outcome.reason}\n{outcome.detail}"
    measurement = outcome.measurement
    assert len(measurement.samples_us) == 1
    assert measurement.checked_elements == measurement.total_elements or measurement.checked_elements >= 4096


def test_every_promised_kernel_type_has_a_replay():
    assert set(claimed_types()) >= set(PROMISED.split())


def test_no_kernel_type_is_claimed_twice():
    assert [name for name, count in claimed_types().items() if count > 1] == []


def test_every_replay_names_its_npu_call():
    for name, function in replay_functions().items():
        assert replay_spec(function).npu, f"{name} has no NPU call"


def npu_call_of_torch(kernel_type):
    """The replay's NPU call, where it is torch's own; None for one of torch_npu or of another package."""
    package, _, path = replay_spec(replay_functions()[replay_of(kernel_type)]).npu.partition(".")
    custom = path.startswith("ops.") and not path.startswith("ops.aten.")
    return operator.attrgetter(path)(torch) if package == "torch" and not custom else None


@pytest.mark.parametrize("kernel_type", [name for name in ROWS if npu_call_of_torch(name)])
def test_npu_call_takes_the_same_arguments_and_means_the_same(monkeypatch, kernel_type):
    class ByNpuCall(Replay):
        def __call__(self, impl, *arguments, **keywords):
            super().__call__(npu_call_of_torch(kernel_type), *arguments, **keywords)

    monkeypatch.setattr(bench.runner, "Replay", ByNpuCall)
    outcome = runner().run(job_of(kernel_type, ROWS[kernel_type][0]))
    assert outcome.status is Status.MEASURED, f"{outcome.reason}\n{outcome.detail}"
