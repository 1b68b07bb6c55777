"""What models run: the matrices of their modules, divided among devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opatlas.shapes.models import (
    BUILT_IN,
    BY_NAME,
    DEEPSEEK_V3,
    GLM_5_1,
    GLM_5_2,
    LLAMA_3_70B,
    QWEN3_0_6B,
    QWEN3_30B_A3B,
    QWEN3_32B,
)

import opatlas.theory.architectures
from opatlas.theory.models import TP_SIZES, ModelFacts, TargetError
from opatlas.theory.sources import resolve_model, resolve_targets

#: The numbers of each config.json that differ from what transformers takes without one.
CONFIGS: dict[str, tuple[ModelFacts, dict[str, Any]]] = {
    "deepseek_v3": (DEEPSEEK_V3, {"num_hidden_layers": 5}),
    "qwen3": (
        QWEN3_32B,
        {
            "hidden_size": 5120,
            "intermediate_size": 25600,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_hidden_layers": 2,
        },
    ),
    "llama": (
        LLAMA_3_70B,
        {
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "num_hidden_layers": 2,
            "vocab_size": 128256,
        },
    ),
    "qwen3_moe": (
        QWEN3_30B_A3B,
        {
            "hidden_size": 2048,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_hidden_layers": 2,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
    ),
    "glm_moe_dsa": (GLM_5_1, {}),
}


def config_file(folder: Path, architecture: str, **numbers: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": architecture, **numbers}))
    return path


def built(architecture: str) -> Any:
    """The model on the meta device. It has no weights, and every shape."""
    transformers = pytest.importorskip("transformers", reason="pip install 'opatlas[models]'")
    import torch._dynamo  # As in opatlas/theory/architectures.py.

    config = transformers.AutoConfig.for_model(architecture, **CONFIGS[architecture][1])
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


def sharded(architecture: str, tp: int) -> set[tuple[int, int]]:
    """(N, K) of all weights of one of `tp` devices, cut and joined as vLLM does it, with torch's own operators."""
    import torch

    model = built(architecture)
    heads, kv_heads = model.config.num_attention_heads, model.config.num_key_value_heads
    shapes: set[tuple[int, int]] = set()

    def rows(weight: torch.Tensor, parts: int = tp) -> torch.Tensor:
        assert weight.shape[0] % parts == 0
        return weight.chunk(parts, 0)[0]

    def columns(weight: torch.Tensor) -> torch.Tensor:
        assert weight.shape[1] % tp == 0
        return weight.chunk(tp, 1)[0]

    for path, module in model.named_modules():
        child = dict(module.named_children())
        local: list[torch.Tensor] = []
        if path.endswith("self_attn") and "q_proj" in child:
            # Devices beyond the number of key heads share one.
            of_keys = min(tp, kv_heads)
            parts = [
                rows(child["q_proj"].weight),
                *(rows(child[name].weight, of_keys) for name in ("k_proj", "v_proj")),
            ]
            local = [torch.cat(parts), columns(child["o_proj"].weight)]
        elif path.endswith("self_attn"):
            assert heads % tp == 0
            down = [child["q_a_proj"].weight, child["kv_a_proj_with_mqa"].weight]
            up = [rows(child["q_b_proj"].weight), rows(child["kv_b_proj"].weight)]
            local = [*down, torch.cat(down), *up, columns(child["o_proj"].weight)]
        elif path.endswith("indexer"):
            local = [child[name].weight for name in ("wq_b", "wk", "weights_proj")]
        elif "gate_proj" in child:
            local = [
                torch.cat([rows(child["gate_proj"].weight), rows(child["up_proj"].weight)]),
                columns(child["down_proj"].weight),
            ]
        elif path.endswith(".mlp.gate"):
            local = [module.weight]
        elif path == "lm_head":
            local = [rows(module.weight)]
        shapes |= {(int(weight.shape[0]), int(weight.shape[1])) for weight in local}
    return shapes


@pytest.mark.parametrize("tp", TP_SIZES)
@pytest.mark.parametrize("architecture", CONFIGS)
def test_weights_are_those_of_the_sharded_modules(architecture: str, tp: int) -> None:
    facts, _ = CONFIGS[architecture]
    assert {(linear.n, linear.k) for linear in facts.linears(tp)} == sharded(architecture, tp)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_what_modules_and_configuration_say_is_what_is_built_in(architecture: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="pip install 'opatlas[models]'")
    facts, numbers = CONFIGS[architecture]
    read = resolve_model(str(config_file(tmp_path, architecture, **numbers)))
    assert set(read.weights) == set(facts.weights)
    for name in ("hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab", "head_norms"):
        assert getattr(read, name) == getattr(facts, name), name
    assert (read.latent, read.indexer, read.experts) == (facts.latent, facts.indexer, facts.experts)
    assert read.tp_sizes() == facts.tp_sizes() == TP_SIZES


def calls_of(model: ModelFacts) -> dict[str, int]:
    return {weight.role: weight.calls for weight in model.weights}


def test_a_step_calls_a_weight_once_in_each_layer_that_has_it(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="pip install 'opatlas[models]'")
    read = resolve_model(str(config_file(tmp_path, "glm_moe_dsa")))
    assert calls_of(read) == calls_of(GLM_5_1)
    read = resolve_model(str(config_file(tmp_path, "deepseek_v3", num_hidden_layers=5)))
    assert read.layers == 5
    calls = calls_of(read)
    wanted = {"q_b": 5, "q_kv_a": 5, "down": 3, "gate_up": 3, "shared_down": 2, "router": 2, "lm_head": 1}
    assert {role: calls[role] for role in wanted} == wanted


def test_both_glm_5_are_alike() -> None:
    assert GLM_5_1.weights == GLM_5_2.weights


def pairs(model: ModelFacts, tp: int) -> dict[str, tuple[int, int]]:
    return {linear.name: (linear.n, linear.k) for linear in model.linears(tp)}


def test_shapes_that_the_older_tool_misses() -> None:
    assert pairs(QWEN3_32B, 1)["qkv"] == (10240, 5120)
    assert pairs(QWEN3_32B, 1)["gate_up"] == (51200, 5120)
    for tp in TP_SIZES:
        assert pairs(QWEN3_32B, tp)["o_proj"] == (5120, 8192 // tp)
        assert pairs(DEEPSEEK_V3, tp)["q_b"] == (24576 // tp, 1536)
        assert pairs(DEEPSEEK_V3, tp)["kv_b"] == (32768 // tp, 512)
        assert pairs(DEEPSEEK_V3, tp)["o_proj"] == (7168, 16384 // tp)
        assert pairs(DEEPSEEK_V3, tp)["gate_up"] == (36864 // tp, 7168)


def test_devices_beyond_the_number_of_key_heads_share_one() -> None:
    """768 = (4 query heads + a key head + a value head) * 128, as captures of Qwen3-32B on 16 devices have it."""
    assert pairs(QWEN3_32B, 16)["qkv"] == (768, 5120)
    assert pairs(QWEN3_32B, 16)["lm_head"] == (9496, 5120)


def test_expert_parallelism_divides_the_number_of_experts_and_not_their_width() -> None:
    shares = DEEPSEEK_V3.expert_shares((1,), (1, 8, 256))
    assert shares == ((256, 2048, 1), (32, 2048, 8), (1, 2048, 256))
    assert (256, 512, 1) in DEEPSEEK_V3.expert_shares((4,), (8,))


def test_sizes_that_do_not_divide_a_model_are_left_out() -> None:
    assert QWEN3_32B.tp_sizes((1, 3, 7, 8)) == (1, 8)
    assert DEEPSEEK_V3.ep_sizes((1, 3, 16)) == (1, 16)


@pytest.mark.parametrize("architecture", ["mixtral", "phi3", "gpt_oss", "qwen3_moe", "gpt2"])
def test_any_architecture_of_transformers(architecture: str) -> None:
    pytest.importorskip("transformers", reason="pip install 'opatlas[models]'")
    model = resolve_model(architecture)
    of_layers = {weight.role: weight for weight in model.weights}
    assert of_layers["lm_head"].k == model.hidden
    assert len(of_layers) > 3
    assert model.tp_sizes((1,)) == (1,)
    if architecture in ("mixtral", "gpt_oss", "qwen3_moe"):
        assert model.experts is not None
        assert of_layers["router"].parts == (model.experts.count,)
    if architecture == "phi3":
        assert of_layers["gate_up"].parts == (model.intermediate,) * 2
        assert sum(of_layers["qkv"].parts) == (model.heads + 2 * model.kv_heads) * model.head_dim


@pytest.mark.parametrize(
    ("name", "model"), [*BY_NAME.items(), *((model.name, model) for model in (*BUILT_IN, QWEN3_0_6B))]
)
def test_names_of_built_in_models(name: str, model: ModelFacts) -> None:
    assert resolve_model(name.upper()) is model


@pytest.mark.parametrize(
    ("name", "similar"),
    [
        ("qwen3-33b", "qwen3-32b"),
        ("deepseek-v33", "deepseek-v3"),
        ("Qwen/Qwen3-235B-A22B", ""),
        ("missing.json", ""),
    ],
)
def test_an_unknown_model_is_refused_with_similar_names(name: str, similar: str) -> None:
    with pytest.raises(TargetError) as error:
        resolve_targets([name])
    assert similar in str(error.value)
    assert (error.value.argument, error.value.value) == ("model", name)


def test_without_transformers_built_in_models_serve_and_others_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(opatlas.theory.architectures, "find_spec", lambda name: None)
    opatlas.theory.architectures.architectures.cache_clear()
    try:
        assert resolve_model("dsv3") is DEEPSEEK_V3
        with pytest.raises(TargetError, match=r"opatlas\[models\]"):
            resolve_model("mixtral")
        with pytest.raises(TargetError, match=r"opatlas\[models\]"):
            resolve_model(str(config_file(tmp_path, "llama")))
    finally:
        opatlas.theory.architectures.architectures.cache_clear()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[" * 100_000,
        '{"model_type": "llama", "hidden_size": ' + "9" * 5000 + "}",
        "[]",
        '{"hidden_size": 8}',
        '{"model_type": "no_such_architecture"}',
        '{"model_type": "llama", "hidden_size": "wide"}',
        '{"model_type": "mamba"}',
    ],
    ids=range(8),
)
def test_files_that_describe_no_model_are_refused(tmp_path: Path, text: str) -> None:
    pytest.importorskip("transformers", reason="pip install 'opatlas[models]'")
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(TargetError):
        resolve_model(str(tmp_path))


#: What published files have, at any depth; transformers needs packages for it that theory does not, or downloads it.
NOT_OF_SHAPES: dict[str, Any] = {
    "attn_implementation": "flash_attention_2",
    "_attn_implementation": "kernels-community/flash-attn",
    "_experts_implementation": "kernels-community/megablocks",
    "experts_implementation": "no_such_thing",
    "auto_map": {"AutoConfig": "configuration_x.XConfig"},
    "quantization_config": {"quant_method": "fp8"},
    "dtype": "no_such_dtype",
    "_name_or_path": "somebody/else",
}


@pytest.mark.parametrize("nested", [False, True])
def test_how_a_model_is_computed_has_no_bearing_on_its_shapes(
    nested: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="pip install 'opatlas[models]'")
    sizes = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 64}

    def built(further: dict[str, Any]) -> ModelFacts:
        text = {"model_type": "gemma3_text", **sizes, **further}
        content = {"model_type": "gemma3", "text_config": text, **further} if nested else text
        (tmp_path / "config.json").write_text(json.dumps(content))
        return resolve_model(str(tmp_path))

    def connect(*arguments: object) -> None:
        raise AssertionError(f"the network was asked for: {arguments}")

    monkeypatch.setattr("socket.socket.connect", connect)
    monkeypatch.setattr("socket.getaddrinfo", connect)
    assert built(NOT_OF_SHAPES).weights == built({}).weights
    assert resolve_model(str(tmp_path)).hidden == 256


def test_parallel_sizes_that_fit_no_model_are_an_error() -> None:
    with pytest.raises(TargetError) as tp_error:
        resolve_targets(["qwen3-32b"], tp_sizes=(3, 5))
    assert (tp_error.value.argument, tp_error.value.value) == ("tp", "3,5")
    with pytest.raises(TargetError) as ep_error:
        resolve_targets(["dsv3"], ep_sizes=(3,))
    assert (ep_error.value.argument, ep_error.value.value) == ("ep", "3")
