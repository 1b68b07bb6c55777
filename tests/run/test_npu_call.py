"""The function that a replay's NPU call names."""

from __future__ import annotations

import pytest
import torch
from opatlas.bench.implementations import torch as impl

from opatlas.row.errors import Unsupported
from opatlas.run.devices.npu_operators import resolve_npu_call

MISSING = "torch.ops._C_ascend.an_operator_that_nobody_registers"


def test_the_first_existing_one_of_several_is_called() -> None:
    assert resolve_npu_call(f"{MISSING} or torch.add") is torch.add
    assert resolve_npu_call("torch.mul or torch.add") is torch.mul
    assert resolve_npu_call(f"{MISSING} or {MISSING} or torch.add") is torch.add


def test_none_of_several_exists() -> None:
    with pytest.raises(Unsupported, match="a_call_of_tomorrow"):
        resolve_npu_call(f"{MISSING} or torch.a_call_of_tomorrow")


def test_the_timed_call_can_be_the_call_of_an_npu() -> None:
    assert resolve_npu_call("opatlas.bench.implementations.torch.transpose_copy") is impl.transpose_copy
