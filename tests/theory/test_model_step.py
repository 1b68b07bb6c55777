"""Steps of engines: lengths of sequences, ways to share a model, and the memory of a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from opatlas.shapes.models import DEEPSEEK_V3, GLM_5_1, LLAMA_3_70B, QWEN3_0_6B, QWEN3_30B_A3B, QWEN3_32B
from replaying import replay_functions, replay_of

from opatlas.errors import UsageError
from opatlas.row.columns import INPUT_DTYPES, INPUT_SHAPES, RUNTIME_PREFIX
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.registry import select_arguments
from opatlas.theory.config_json import read_config
from opatlas.theory.model_calls import model_calls
from opatlas.theory.model_step import ModelCall, Step, step_memory
from opatlas.theory.models import ModelFacts
from opatlas.theory.sources import resolve_model

MINIMAX_M3 = resolve_model("minimax-m3")
MIXED = "60x1@4096+4x4@1000+1x2048@6144+2x512@512"
KEYS = RUNTIME_PREFIX + "actual_seq_lengths_kv_values"


def calls_of(model: ModelFacts, part: str, **step: Any) -> list[ModelCall]:
    return [call for call in model_calls(model, **step) if call.part == part]


def tokens_of(model: ModelFacts, part: str, **step: Any) -> list[int]:
    """The rows of the first input of the calls of a part."""
    return [int(call.cells[INPUT_SHAPES].split(",")[0]) for call in calls_of(model, part, **step)]


def signatures(model: ModelFacts, **step: Any) -> list[str]:
    return [call.signature() for call in model_calls(model, **step)]


def test_a_step_is_read_from_its_text() -> None:
    step = Step("m", 64, 4096, tp=2, captured="1+2", cache_dtype="FLOAT8_E4M3FN")
    assert str(step) == "m,batch=64,context=4096,tp=2,cache_dtype=FLOAT8_E4M3FN,captured=1+2"
    assert Step.read(str(step)) == step


@pytest.mark.parametrize("model", [QWEN3_32B, DEEPSEEK_V3, GLM_5_1])
def test_sequences_of_one_length_are_those_of_batch_and_context(model: ModelFacts) -> None:
    assert signatures(model, sequences="64x1@4096") == signatures(model, batch=64, context=4096)
    assert signatures(model, sequences="2x512@512") == signatures(model, batch=2, context=512, phase="prefill")
    assert signatures(model, sequences="32x1@64+32x1@64") == signatures(model, batch=64, context=64)


def test_a_mixed_step_has_the_tokens_of_all_and_attention_for_each_number_of_queries() -> None:
    assert tokens_of(QWEN3_32B, "qkv", sequences=MIXED) == [60 + 16 + 2048 + 1024]
    # Each drafted token is verified, and each prompt gives one token.
    assert tokens_of(QWEN3_32B, "lm_head", sequences=MIXED) == [60 + 16 + 1 + 2]
    assert tokens_of(QWEN3_32B, "attention", sequences=MIXED) == [60, 16, 2048, 1024]
    (unequal,) = calls_of(QWEN3_32B, "attention", sequences="1x1@1000+2x1@3000")
    assert unequal.cells[KEYS] == "1000,3000,3000"


def test_latent_attention_of_a_mixed_step_absorbs_for_decoded_tokens_and_reads_the_prefix_of_prompts() -> None:
    of_parts = {part: tokens_of(DEEPSEEK_V3, part, sequences=MIXED) for part in ("o_proj", "kv_b", "prefix_attention")}
    assert of_parts == {"o_proj": [3148], "kv_b": [6144 + 1024], "prefix_attention": [2048]}
    (absorbed,) = calls_of(DEEPSEEK_V3, "query_absorb", sequences=MIXED)
    assert absorbed.cells[INPUT_SHAPES].split(",")[1] == "76"
    assert len(calls_of(DEEPSEEK_V3, "attention", sequences=MIXED)) == 4


@pytest.mark.parametrize(
    "model",
    [QWEN3_32B, DEEPSEEK_V3, GLM_5_1, *map(resolve_model, ("kimi-linear", "nemotron-3-nano", "minimax-m3"))],
    ids=lambda model: model.name,
)
def test_each_call_of_a_mixed_step_is_a_row_that_can_be_replayed(
    model: ModelFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReplayRow, "on_npu", False)
    for call in model_calls(model, sequences="3x1@256+2x1@100+1x64@256"):
        calls: list[object] = []
        arguments = select_arguments(
            function := replay_functions()[replay_of(call.kernel_type)],
            row=ReplayRow(call.kernel_type, dict(call.cells), torch.device("meta")),
            replay=lambda *given, calls=calls, **named: calls.append(given),
        )
        function(**arguments)
        assert len(calls) == 1, call


def test_windows_cache_dtype_and_captured_graphs() -> None:
    model = read_config(
        "windowed",
        {"model_type": "gpt_oss", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8}
        | {"num_key_value_heads": 2, "vocab_size": 1024, "intermediate_size": 128, "num_local_experts": 8}
        | {"num_experts_per_tok": 2, "sliding_window": 64},
    )
    (short,) = calls_of(model, "window_attention", batch=2, context=500)
    assert (short.cells[KEYS], short.layers) == ("64,64", 2)
    for sequences, mask in (("1x256@256", "4"), ("1x256@500", "4"), ("2x1@500", "3")):
        (whole,), (cut,) = (calls_of(model, f"{name}attention", sequences=sequences) for name in ("", "window_"))
        assert [call.cells["Runtime sparse_mode"] for call in (whole, cut)] == ["3", mask]
        assert cut.cells.get("Runtime pre_tokens", "") == ("63" if mask == "4" else "")
        # Each head has a sink, which rows may lack.
        for call in (whole, cut):
            assert call.instead is not None
            slots = [each.cells[INPUT_SHAPES].split(";")[28] for each in (call, call.instead)]
            assert (slots, call.layers, call.instead.layers) == (["8", ""], 2, 2)
    (cached,) = calls_of(QWEN3_32B, "attention", batch=2, context=64, cache_dtype="FLOAT8_E4M3FN")
    assert cached.cells[INPUT_DTYPES].split(";")[:3] == ["DT_BF16", "FLOAT8_E4M3FN", "FLOAT8_E4M3FN"]
    assert cached.nearest == calls_of(QWEN3_32B, "attention", batch=2, context=64)[0].cells
    for captured, tokens in (("vllm", 64), ("1+61+70", 61), ("1+2", 61), ("", 61)):
        assert tokens_of(QWEN3_32B, "qkv", batch=61, context=64, captured=captured) == [tokens]
        assert tokens_of(QWEN3_32B, "lm_head", batch=61, context=64, captured=captured) == [61]


def test_replicas_share_the_width_of_experts_and_stages_send_their_tokens() -> None:
    step = {"batch": 64, "context": 4096, "tp": 2}
    (product,) = calls_of(QWEN3_30B_A3B, "experts_gate_up", dp=4, **step)
    # Of 16 tokens 82 of 128 experts have rows.
    (few,) = calls_of(QWEN3_30B_A3B, "experts_gate_up", batch=16, context=4096)
    assert few.nearest[INPUT_SHAPES].split(";")[:2] == ["128,2048", "82,2048,1536"]
    assert product.cells[INPUT_SHAPES].split(";")[:2] == [f"{64 * 4 * 8},2048", f"128,2048,{2 * 768 // 8}"]
    (gathered,) = calls_of(QWEN3_30B_A3B, "tokens_all_gather", dp=4, **step)
    assert gathered.cells["num_devices"] == "4"
    (sent,) = calls_of(QWEN3_32B, "stage_send", pp=4, **step)
    assert sent.calls_per_step == 3


@pytest.mark.parametrize(
    "step",
    [
        {"sequences": "64"},
        {"sequences": "1x5@4"},
        {"sequences": "0x1@4"},
        {"sequences": "1x1@4", "batch": 2},
        {"batch": 4},
        {"batch": 4, "context": 64, "captured": "many"},
        {"batch": 4, "context": 64, "cache_dtype": "INT4"},
        {"batch": 4, "context": 64, "pp": 65},
    ],
)
def test_impossible_sequences_and_stages_are_refused(step: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        model_calls(QWEN3_32B, **step)


@pytest.mark.parametrize(
    ("model", "step", "weights", "of_token"),
    [
        pytest.param(LLAMA_3_70B, {}, 2 * 70.55e9, 80 * 2 * 8 * 128 * 2, id="Llama"),
        pytest.param(LLAMA_3_70B, {"dtype": "INT8", "cache_dtype": "FLOAT8_E4M3FN"}, 72.6e9, 80 * 2048, id="8 bit"),
        pytest.param(DEEPSEEK_V3, {}, 673e9, 61 * 576 * 2, id="published in FP8"),
        pytest.param(DEEPSEEK_V3, {"tp": 8, "ep": 32}, 23.8e9, 61 * 576 * 2, id="experts of 32 devices"),
        pytest.param(MINIMAX_M3, {"tp": 4}, 2 * 428.8e9 / 4, 60 * 2 * 128 * 2 + 57 * 128 * 2, id="scores of blocks"),
        pytest.param(QWEN3_0_6B, {}, 2 * 0.596e9, 28 * 2 * 8 * 128 * 2, id="small"),
    ],
)
def test_weights_and_cache_have_the_size_of_the_published_model(
    model: ModelFacts, step: dict[str, Any], weights: float, of_token: int
) -> None:
    found = step_memory(model, Step(model.name, 2, 1000, **step), device=1 << 40)
    assert found.weights == pytest.approx(weights, rel=0.01)
    assert (found.of_token, found.cache) == (of_token, 2000 * of_token)
    assert found.tokens_left == ((1 << 40) - found.needed) // of_token
    halves = step_memory(model, Step(model.name, 2, 1000, pp=2, **step))
    assert halves.weights == pytest.approx(weights / 2, rel=0.05 if model is not QWEN3_0_6B else 0.3)
    assert halves.cache == pytest.approx(found.cache, rel=0.02)
