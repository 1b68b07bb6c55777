"""The calls of a model's step: their products against those of a traced model, and their rows in a database."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from opatlas.shapes.models import DEEPSEEK_V3, GLM_5_1, LLAMA_3_70B, QWEN3_30B_A3B, QWEN3_32B
from replaying import replay_functions, replay_of
from tests_of_shapes import CONFIGS

from opatlas.errors import OpAtlasError
from opatlas.row.communication import BY_KERNEL_TYPE, is_communication
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.registry import select_arguments
from opatlas.theory.model_calls import model_calls
from opatlas.theory.model_step import ModelCall, Phase
from opatlas.theory.models import ModelFacts

BATCH, CONTEXT = 2, 16
TRACED_MODELS = ("qwen3", "deepseek_v3", "qwen3_moe")
#: M, N and K of a product.
Product = tuple[int, int, int]


#: Rows and columns of the tensor that an operator reads: how often it is called.
Sizes = Counter[tuple[int, ...]]
#: The compared calls except products, by operators of torch and by kernels.
TRACED = ("norm", "residual", "gate", "attention", "router", "permutation", "embedding")


@dataclass
class Trace:
    """The calls of a prefill of a model on the meta device.

    Attributes:
        products: products with weights. Weights that multiply the same tensor count as one, since engines fuse them.
        others: the other operators that stand for a kernel, by TRACED.
    """

    products: Counter[Product]
    others: dict[str, Sizes]


@cache
def traced(architecture: str) -> Trace:
    """The calls of a prefill of a model. Skips if transformers is missing, or too old for the model."""
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    import torch._dynamo  # It fails to be imported while the meta device is the default (torch 2.6).
    from torch.utils._python_dispatch import TorchDispatchMode

    model_facts, numbers = CONFIGS[architecture]
    found: dict[int, list[Any]] = {}
    others: dict[str, Sizes] = {kind: Counter() for kind in TRACED}

    def kind_of(name: str, shapes: list[tuple[int, ...]]) -> str:
        hidden = (BATCH, CONTEXT, model_facts.hidden)
        if name == "add":
            return "residual" if shapes == [hidden, hidden] else ""
        if name == "topk":
            return "router" if shapes[0] == (BATCH * CONTEXT, getattr(model_facts.experts, "count", 0)) else ""
        kinds = {"mean": "norm", "silu": "gate", "_safe_softmax": "attention", "sort": "permutation"}
        return "attention" if name.startswith("_scaled_dot_product") else kinds.get(name, "")

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            shapes = [tuple(each.shape) for each in args if isinstance(each, torch.Tensor)]
            if name in ("mm", "_grouped_mm"):
                x, weight = args[:2]
                # The tensor is kept, so that no other one gets its storage.
                product = found.setdefault(x.untyped_storage()._cdata, [x, x.shape[0], 0, x.shape[1]])
                product[2] += weight.shape[-1]
            elif name == "embedding":
                others["embedding"][BATCH * CONTEXT, shapes[0][1]] += 1
            elif kind := kind_of(name, shapes):
                *rows, columns = shapes[0]
                others[kind][(math.prod(rows), columns) if kind not in ("attention", "permutation") else ()] += 1
            return func(*args, **(kwargs or {}))

    try:
        config = transformers.AutoConfig.for_model(architecture, **numbers, num_hidden_layers=model_facts.layers)
    except ValueError as error:
        pytest.skip(f"this transformers has no {architecture}: {error}")
    if model_facts.experts is not None:
        config._experts_implementation = "grouped_mm"
    with torch.device("meta"), torch.no_grad():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
        tokens = torch.zeros((BATCH, CONTEXT), dtype=torch.int64)
        # transformers reads the values of positions, which a meta tensor lacks, unless it is given a whole mask.
        mask = torch.zeros((BATCH, 1, CONTEXT, CONTEXT), dtype=torch.bfloat16)
        with Recorder():
            model(tokens, attention_mask=mask, use_cache=False, logits_to_keep=1)
    return Trace(Counter((m, n, k) for _, m, n, k in found.values()), others)


def others(calls: list[ModelCall]) -> dict[str, Sizes]:
    """The work of a step's kernels except products, by TRACED. A kernel may do the work of several operators."""
    found: dict[str, Sizes] = {kind: Counter() for kind in TRACED}
    for call in calls:
        inputs = [shape_of(cell) for cell in call.cells["Input Shapes"].split(";")]
        output, count = shape_of(call.cells["Output Shapes"].split(";")[0]), call.calls_per_step
        *rows, columns = inputs[0]
        of_first = (math.prod(rows), columns)
        if call.kernel_type in ("RmsNorm", "AddRmsNorm"):
            found["norm"][of_first] += count
        if call.kernel_type == "AddRmsNorm" or call.part == "experts_add":
            found["residual"][of_first] += count
        if call.kernel_type == "KvRmsNormRopeCache":
            # The features of the latent that it normalizes are those of its weight.
            found["norm"][inputs[0][0], inputs[1][0]] += count
        if call.kernel_type == "SwiGlu":
            found["gate"][output] += count
        if call.part == "attention":
            # A call of some kernels is one sequence.
            found["attention"][()] += count // (BATCH if call.calls > 1 else 1)
        if call.kernel_type == "MoeGatingTopK":
            found["router"][of_first] += count
        if call.kernel_type == "MoeTokenPermute":
            found["permutation"][()] += count
        if call.part == "embedding":
            found["embedding"][output] += count
    return found


def shape_of(cell: str) -> tuple[int, ...]:
    return tuple(int(size) for size in cell.split(",") if size)


def products(calls: list[ModelCall]) -> Counter[Product]:
    """How often a step multiplies with which weights."""
    found: Counter[Product] = Counter()
    for call in calls:
        if call.kernel_type in ("MatMulV2", "GroupedMatmul"):
            x, weight = (shape.split(",") for shape in call.cells["Input Shapes"].split(";")[:2])
            n = call.cells["Output Shapes"].split(",")[-1]
            assert x[-1] in weight
            found[int(x[0]), int(n), int(x[1])] += call.calls_per_step
    return found


@pytest.mark.parametrize("architecture", TRACED_MODELS)
def test_products_are_those_of_the_traced_model(architecture: str) -> None:
    model, _ = CONFIGS[architecture]

    found = products(model_calls(model, batch=BATCH, context=CONTEXT, phase="prefill", routing="equal"))

    assert found == traced(architecture).products


@pytest.mark.parametrize("kind", TRACED)
@pytest.mark.parametrize("architecture", TRACED_MODELS)
def test_other_kernels_do_the_operators_of_the_traced_model(architecture: str, kind: str) -> None:
    model, _ = CONFIGS[architecture]

    found = others(model_calls(model, batch=BATCH, context=CONTEXT, phase="prefill", routing="equal"))

    assert found[kind] == traced(architecture).others[kind]


def by_part(model: ModelFacts, **numbers: Any) -> dict[str, ModelCall]:
    """The calls of a step by part and kernel type."""
    given = {"batch": 64, "context": 4096, "phase": "decode", **numbers}
    return {f"{call.part} {call.kernel_type}": call for call in model_calls(model, **given)}


def parts(model: ModelFacts, **numbers: Any) -> list[str]:
    return [name.split()[0] for name in by_part(model, **numbers)]


#: The ways to divide each model that the tests go through.
DIVIDED = [
    pytest.param(model, tp, ep, id=f"{model.name}-{tp}-{ep}")
    for model, divisions in (
        (QWEN3_32B, [(1, 1), (2, 1), (16, 1)]),
        (LLAMA_3_70B, [(8, 1)]),
        (QWEN3_30B_A3B, [(1, 1), (4, 1), (2, 2), (1, 8)]),
        (DEEPSEEK_V3, [(8, 1), (8, 8), (1, 32), (4, 16)]),
        (GLM_5_1, [(1, 16)]),
    )
    for tp, ep in divisions
]


@pytest.mark.parametrize("dtype", ["BF16", "FLOAT16", "INT8", "FLOAT8_E4M3FN"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize(("model", "tp", "ep"), DIVIDED)
def test_each_call_is_a_row_that_can_be_replayed(
    model: ModelFacts, tp: int, ep: int, phase: Phase, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReplayRow, "on_npu", False)
    for call in model_calls(model, tp=tp, ep=ep, batch=2, context=256, phase=phase, dtype=dtype):
        if is_communication(call.kernel_type):
            assert call.kernel_type in BY_KERNEL_TYPE
            assert int(call.cells["message_bytes"]) > 0
            assert int(call.cells["num_devices"]) in (tp, ep)
            continue
        calls = []
        function = replay_functions()[replay_of(call.kernel_type)]
        arguments = select_arguments(
            function,
            row=ReplayRow(call.kernel_type, dict(call.cells), torch.device("meta")),
            replay=lambda *given, calls=calls, **named: calls.append(given),
        )
        function(**arguments)
        assert len(calls) == 1, call


@pytest.mark.parametrize(
    ("scales", "quantization", "axes"),
    [("", ["DynamicQuant"], [1, 1]), ("blocks", ["DynamicBlockQuant"], [2, 2]), ("per_tensor", [], [1])],
)
def test_products_in_fp8_have_the_scales_of_the_checkpoint(
    scales: Any, quantization: list[str], axes: list[int]
) -> None:
    calls = model_calls(replace(QWEN3_32B, scales=scales), batch=2, context=256, dtype="FLOAT8_E4M3FN")
    quantized = dict.fromkeys(call.kernel_type for call in calls if "Quant" in call.kernel_type)
    assert list(quantized) == [*quantization, "QuantBatchMatmulV3"]
    (product,) = (call for call in calls if call.part == "qkv")
    assert [shape.count(",") + 1 for shape in product.cells["Input Shapes"].split(";")[2:]] == axes


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_products_of_all_devices_multiply_as_much_as_those_of_one(tp: int) -> None:
    def multiplied(calls: list[ModelCall]) -> int:
        return sum(m * n * k * count for (m, n, k), count in products(calls).items())

    whole, share = (model_calls(LLAMA_3_70B, tp=size, batch=64, context=4096, phase="decode") for size in (1, tp))

    assert multiplied(share) * tp == multiplied(whole)


@pytest.mark.parametrize(
    ("tp", "ep", "weights", "tokens"),
    [
        pytest.param(1, 1, "256,7168,4096", 512, id="one device"),
        pytest.param(8, 1, "256,7168,512", 512, id="each expert divided"),
        pytest.param(8, 8, "32,7168,4096", 64, id="experts divided"),
        pytest.param(1, 32, "8,7168,4096", 512, id="replicas of the attention"),
    ],
)
def test_experts_of_a_device(tp: int, ep: int, weights: str, tokens: int) -> None:
    call = by_part(DEEPSEEK_V3, tp=tp, ep=ep, routing="equal")["experts_gate_up GroupedMatmul"]

    assert call.cells["Input Shapes"].split(";")[:2] == [f"{tokens},7168", weights]
    assert call.calls_per_step == 58


@pytest.mark.parametrize(("ep", "rows", "experts"), [(1, 32, 31), (8, 7, 6)])
def test_with_random_routing_all_wait_for_the_device_whose_experts_are_chosen_most(
    ep: int, rows: int, experts: int
) -> None:
    call = by_part(DEEPSEEK_V3, tp=8, ep=ep, batch=4)["experts_gate_up GroupedMatmul"]
    x, weights = (shape.split(",")[0] for shape in call.nearest["Input Shapes"].split(";")[:2])
    assert (int(x), int(weights)) == (rows, experts)


def test_tokens_travel_only_where_experts_are_on_more_devices_than_the_attention() -> None:
    travelling = by_part(DEEPSEEK_V3, tp=1, ep=32)

    assert travelling["dispatch hcom_alltoallv_"].signature() == f"{64 * 8 * 7168 * 2}|32|BF16|1"
    assert travelling["combine hcom_alltoallv_"].calls_per_step == 58
    assert not {"dispatch", "combine"} & {*parts(DEEPSEEK_V3, tp=8, ep=8), *parts(DEEPSEEK_V3, tp=8)}


def test_latent_attention_absorbs_its_up_projection_in_decode_alone() -> None:
    decode, prefill = (parts(DEEPSEEK_V3, batch=1, phase=phase) for phase in ("decode", "prefill"))

    of_latents = {"query_absorb", "value_up", "kv_b"}
    assert of_latents & {*decode} == {"query_absorb", "value_up"}
    assert of_latents & {*prefill} == {"kv_b"}


@pytest.mark.parametrize(
    ("model", "numbers"),
    [
        pytest.param(QWEN3_32B, {"tp": 3}, id="tp"),
        pytest.param(QWEN3_32B, {"ep": 2}, id="no experts"),
        pytest.param(DEEPSEEK_V3, {"ep": 3}, id="ep"),
        pytest.param(DEEPSEEK_V3, {"tp": 8, "ep": 4}, id="ep below tp"),
        pytest.param(QWEN3_32B, {"batch": 0}, id="batch"),
        pytest.param(QWEN3_32B, {"phase": "train"}, id="phase"),
        pytest.param(QWEN3_32B, {"dtype": "INT64"}, id="dtype"),
    ],
)
def test_an_impossible_step_is_refused(model: ModelFacts, numbers: dict[str, Any]) -> None:
    with pytest.raises(OpAtlasError):
        by_part(model, **numbers)
