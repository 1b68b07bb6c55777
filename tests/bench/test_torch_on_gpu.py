"""The forms that torch's functions take on a GPU, computed on the CPU: one operator, with set-up before it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from opatlas.bench.implementations.torch import attention, matmul, moe, quantized, rope
from opatlas.bench.implementations.torch.matmul import may_prepare
from replaying import replay_row
from sample_rows import ROWS

from opatlas.row.status import Status
from opatlas.run.job import RowOutcome

_MODULES = (attention, matmul, moe, quantized, rope)
_FEW_ROWS = "9,96;96,64;64;9 | INT8;INT8;DT_BF16;FLOAT -> 9,64 | DT_BF16"
_GROUPS = "19,96;5,96,64;;;;;;5 | DT_BF16;DT_BF16;;;;;;INT64 -> 19,64 | DT_BF16"
_WITH_BIAS = "19,96;5,96,64;5,64;;;;;5 | DT_BF16;DT_BF16;FLOAT;;;;;INT64 -> 19,64 | DT_BF16"


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in _MODULES:
        monkeypatch.setattr(module, "may_prepare", lambda tensor: True)
    monkeypatch.setattr(attention, "has_flash_kernel", lambda tensor: True)
    # Other tests compile; operators of a kernel that may be compiled are not counted.
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)


def flash_attention_of_packed(
    query, key, value, q_steps, kv_steps, max_q, max_k, dropout, causal, debug, *, scale, **window
):
    """Computes the same as FlashAttention-2, a sequence at a time."""
    left = window.get("window_size_left")
    results = []
    for i in range(len(q_steps) - 1):
        q = query[q_steps[i] : q_steps[i + 1]]
        k, v = (x[kv_steps[i] : kv_steps[i + 1]] for x in (key, value))
        assert len(q) <= max_q
        assert len(k) <= max_k
        heads = [x.transpose(0, 1)[None] for x in (q, k, v)]
        results.append(attention.attend_with_lse(*heads, scale=scale, causal=causal, window=left))
    out = torch.cat([out[0].transpose(0, 1) for out, _ in results])
    nothing = torch.empty(0)
    return out, torch.cat([lse[0] for _, lse in results], dim=-1), nothing, nothing, nothing


@pytest.fixture
def flash_attention_on_cpu() -> object:
    """torch's operator, which has no kernel for CPUs, on a CPU."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", flash_attention_of_packed, "CPU")
    return library


def conversions(outcome: RowOutcome) -> tuple[str, ...]:
    assert outcome.status is Status.MEASURED, outcome
    assert outcome.measurement is not None
    return outcome.measurement.execution.conversions


@pytest.mark.parametrize(
    "kernel_type",
    [
        "TransposeBatchMatMul",
        "GroupedMatmul",
        "QuantBatchMatmulV3",
        "ReshapeAndCacheNdKernel",
        "PagedCacheLoadNdKernel",
    ],
)
def test_results_are_right(kernel_type, as_on_gpu):
    for row in ROWS[kernel_type]:
        assert replay_row(kernel_type, row).status is Status.MEASURED, row


def test_packed_attention_is_right(as_on_gpu, flash_attention_on_cpu):
    prepared = 0
    for row in ROWS["FusedInferAttentionScore"]:
        outcome = replay_row("FusedInferAttentionScore", row)
        assert outcome.status is Status.MEASURED, (row, outcome)
        prepared += outcome.measurement.stand_in == ""
    assert prepared > 0


@pytest.mark.parametrize(
    ("kernel_type", "row"),
    [
        ("ReshapeAndCacheNdKernel", ROWS["ReshapeAndCacheNdKernel"][0]),
        ("PagedCacheLoadNdKernel", ROWS["PagedCacheLoadNdKernel"][0]),
        ("QuantBatchMatmulV3", _FEW_ROWS),
        pytest.param(
            "GroupedMatmul",
            _GROUPS,
            marks=pytest.mark.skipif(
                not hasattr(torch.nn.functional, "grouped_mm"), reason="this torch has no grouped_mm"
            ),
        ),
    ],
)
def test_set_up_is_declared_on_a_gpu_and_not_made_on_a_cpu(kernel_type, row, as_on_gpu, monkeypatch):
    assert conversions(replay_row(kernel_type, row))
    monkeypatch.undo()
    assert not conversions(replay_row(kernel_type, row))


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="this torch has no grouped_mm")
@pytest.mark.parametrize("row", [_GROUPS, _WITH_BIAS])
def test_a_grouped_product_is_one_operator_also_with_a_bias_of_another_dtype(row, as_on_gpu):
    outcome = replay_row("GroupedMatmul", row)
    assert outcome.status is Status.MEASURED, outcome
    assert (outcome.measurement.stand_in == "") is (row == _GROUPS), "the bias is added behind it"


def test_a_compiled_function_prepares_nothing():
    """A prepared call would be timed without having been compiled."""
    on_gpu = SimpleNamespace(is_cuda=True)
    compiled = torch.compile(lambda x: x + 1 if may_prepare(on_gpu) else x - 1, backend="eager", fullgraph=True)
    assert may_prepare(on_gpu)
    assert compiled(torch.ones(2)).tolist() == [0, 0]
