"""Drawn rows of every kernel type replay as they are: a call can be built from each, and its result is right."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from opatlas.shapes.models import DEEPSEEK_V3, GLM_5_1, QWEN3_0_6B, QWEN3_32B
from replaying import replay_functions, replay_of, runner
from tests_of_shapes import theory_rows

from opatlas.row.columns import EP_SIZE
from opatlas.row.status import Status
from opatlas.run.group import Group
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.job import Job
from opatlas.run.registry import select_arguments
from opatlas.theory.catalog import built_in_catalog
from opatlas.theory.sources import Targets
from opatlas.theory.space import FLUSH_BUFFER_BYTES, TheoryRow

#: Small heads, experts and widths; an embedding table of 66 MB is the least of its kernel.
TARGETS = Targets((QWEN3_0_6B,), tp_sizes=(16,), generic=True)
_MB = 10**6
_BUDGET = {"GatherV2": 80 * _MB, "GatherV3": 30 * _MB, "_triton_rope": 30 * _MB, "ReshapeAndCacheNdKernel": 40 * _MB}
_BUDGET |= {"split_qkv_rmsnorm_rope_kernel": 30 * _MB, "KvRmsNormRopeCache": 40 * _MB, "GroupedMatmul": 80 * _MB}
_BUDGET |= {"GroupedMatmulSwigluQuant": 60 * _MB}
#: It runs in a group of devices.
WITH_ONE_DEVICE = [name for name in built_in_catalog().kernels if name != "DispatchFFNCombine"]
#: Its replay makes a dispatch first, whose results have as many tokens as the values say.
WITHOUT_VALUES = [name for name in built_in_catalog().kernels if name != "MoeDistributeCombineV3"]


@pytest.mark.parametrize("kernel_type", WITH_ONE_DEVICE)
def test_drawn_rows_replay(kernel_type: str) -> None:
    budget_bytes = FLUSH_BUFFER_BYTES + _BUDGET.get(kernel_type, 12 * _MB)
    rows = theory_rows(kernel_type, targets=TARGETS, budget_bytes=budget_bytes)
    module, _, name = replay_of(kernel_type).rpartition(".")

    @settings(max_examples=2, deadline=None)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        row: TheoryRow = data.draw(rows)
        outcome = runner().run(Job(module, "", name, kernel_type, row.cells, timeout_s=60))
        assert outcome.status is Status.MEASURED, outcome

    check()


@pytest.mark.parametrize("kernel_type", WITHOUT_VALUES)
def test_a_call_is_built_from_drawn_rows_of_any_size(kernel_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of models as they are, on the meta device, where tensors have no values and take no memory."""
    # Formats of an NPU take torch_npu; tests/npu has rows in these.
    monkeypatch.setattr(ReplayRow, "on_npu", False)
    rows = theory_rows(kernel_type, targets=Targets((DEEPSEEK_V3, QWEN3_32B, GLM_5_1), generic=True))
    function = replay_functions()[replay_of(kernel_type)]

    @settings(max_examples=5, deadline=None)
    @given(row=rows)
    def check(row: TheoryRow) -> None:
        calls = []
        cells = row.cells
        function(
            **select_arguments(
                function,
                row=ReplayRow(kernel_type, cells, torch.device("meta")),
                replay=lambda *arguments, **keywords: calls.append(arguments),
                group=Group(0, int(cells.get(EP_SIZE, 1))),
            )
        )
        assert len(calls) == 1

    check()
