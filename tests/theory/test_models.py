"""The products of models: the matrices of their modules, divided among devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opatlas.shapes.models import GLM_5_1, GLM_5_2
from tests_of_shapes import CONFIGS, EXPERTS, FP8, SIZES, read

from opatlas.theory.model_calls import model_calls
from opatlas.theory.model_step import ModelCall
from opatlas.theory.models import TP_SIZES, ModelFacts, TargetError
from opatlas.theory.sources import resolve_targets

LATENT: dict[str, Any] = {
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 16,
    "moe_intermediate_size": 64,
    "num_experts_per_tok": 4,
    "moe_layer_freq": 1,
}
GPT_OSS: dict[str, Any] = {
    "num_local_experts": 16,
    "experts_per_token": 4,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
}
KIMI: dict[str, Any] = {
    **LATENT,
    "q_lora_rank": None,
    "linear_attn_config": {"kda_layers": [1, 2, 3, 5, 6], "num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4},
}
BLOCKS: dict[str, Any] = {
    "num_local_experts": 16,
    "num_experts_per_tok": 4,
    "dense_intermediate_size": 512,
    "moe_layer_freq": [0, 0, *[1] * 6],
    "sparse_attention_config": {"sparse_num_index_heads": 2, "sparse_attention_freq": [0, 0, 0, *[1] * 5]},
}
#: A layer is attention, Mamba2, or a feed-forward network.
MAMBA: dict[str, Any] = {
    **EXPERTS,
    "hybrid_override_pattern": "M-M*EM*E",
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "moe_latent_size": 48,
    "moe_shared_expert_intermediate_size": 96,
}
#: Keys of published files that decide no call.
HARMLESS: dict[str, Any] = {
    "ep_size": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
    "bos_token_id": 1,
    "max_position_embeddings": 4096,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "attention_dropout": 0.0,
    "rope_scaling": None,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "auto_map": {"AutoConfig": "configuration_x.XConfig"},
    "_attn_implementation": "kernels-community/flash-attn",
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "pretraining_tp": 1,
    "use_cache": True,
}


@pytest.mark.parametrize(
    ("architecture", "stated", "inputs"),
    [
        ("qwen3_moe", {}, "64,128"),
        ("qwen3_moe", {"scoring_func": "sigmoid"}, "64,128;128"),
        ("deepseek_v3", {}, "64,256;256"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "64,256"),
    ],
)
def test_experts_are_chosen_by_softmax_without_a_bias(
    tmp_path: Path, architecture: str, stated: dict[str, str], inputs: str
) -> None:
    facts, numbers = CONFIGS[architecture]
    found = read(tmp_path, architecture, **{**numbers, **stated}, num_hidden_layers=facts.layers)
    calls = model_calls(found, batch=64, context=128, dtype="BF16")
    assert [each.cells["Input Shapes"] for each in calls if each.part == "gating"] == [inputs]


def built(architecture: str) -> Any:
    """The model on the meta device. It has no weights, and every shape."""
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    import torch._dynamo  # It fails to be imported while the meta device is the default (torch 2.6).

    config = transformers.AutoConfig.for_model(architecture, **CONFIGS[architecture][1], num_hidden_layers=5)
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
def test_a_file_of_a_built_in_model_describes_it(architecture: str, tmp_path: Path) -> None:
    facts, numbers = CONFIGS[architecture]
    found = read(tmp_path, architecture, **numbers, **HARMLESS, num_hidden_layers=facts.layers)
    assert {(weight.role, weight.parts, weight.k) for weight in found.weights} == {
        (weight.role, weight.parts, weight.k) for weight in facts.weights
    }
    for name in ("hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab", "head_norms"):
        assert getattr(found, name) == getattr(facts, name), name
    assert (found.latent, found.indexer, found.experts) == (facts.latent, facts.indexer, facts.experts)
    assert found.tp_sizes() == facts.tp_sizes() == TP_SIZES
    assert found.differs == ()


INDEXED = {**SIZES, **LATENT, "index_n_heads": 4, "index_head_dim": 32, "index_topk": 64}


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        pytest.param({}, 8, id="all"),
        pytest.param({"index_topk_freq": 4, "index_skip_topk_offset": 3}, 4, id="freq"),
        pytest.param({"index_topk_pattern": "FSSSFSSS"}, 2, id="pattern"),
        pytest.param({"indexer_types": ["full", *["shared"] * 7]}, 1, id="types"),
    ],
)
def test_layers_that_take_the_keys_of_another_have_no_indexer(
    keys: dict[str, Any], layers: int, tmp_path: Path
) -> None:
    calls = by_part(read(tmp_path, "glm_moe_dsa", **INDEXED, **keys))
    parts = ("indexer", "indexer_q", "indexer_cache")
    assert {calls[part].calls_per_step for part in parts} == {layers}
    assert calls["attention"].calls_per_step == 8


def test_glm_5_2_selects_keys_in_21_layers() -> None:
    assert [by_part(model)["indexer"].calls_per_step for model in (GLM_5_1, GLM_5_2)] == [78, 21]


def by_part(model: ModelFacts, **numbers: Any) -> dict[str, ModelCall]:
    return {call.part: call for call in model_calls(model, batch=4, context=256, phase="decode", **numbers)}


#: A file, and the parts of a step with the number of their calls.
CALLED: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "kimi": ("kimi_k2", {**LATENT, "first_k_dense_replace": 1, **HARMLESS}, {"q_b": 8, "down": 1, "router": 7}),
    "no compressed queries": ("deepseek_v2", {**LATENT, "q_lora_rank": None}, {"q": 8, "kv_a": 8, "router": 8}),
    "some sparse": (
        "qwen3_moe",
        {**EXPERTS, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
        {"router": 3, "down": 5, "experts_down": 3},
    ),
    "stated sparse": ("glm_moe_dsa", {**INDEXED, "mlp_layer_types": ["dense"] * 6 + ["sparse"] * 2}, {"router": 2}),
    "delta nets": (
        "qwen3_5_text",
        {"layer_types": ["linear_attention"] * 6 + ["full_attention"] * 2},
        {"qkv": 2, "attention": 2, "rope": 2, "in_proj_qkvz": 6, "convolution": 6, "delta_rule": 6, "gate_up": 8},
    ),
    "delta nets by default": (
        "qwen3_next",
        {**EXPERTS, "shared_expert_intermediate_size": 64},
        {"o_proj": 2, "cache": 2, "out_proj": 6, "delta_norm": 6, "attention_gate": 2, "shared_expert_gate": 8},
    ),
    "Kimi's delta attention": (
        "kimi_linear",
        {**KIMI, "num_shared_experts": 1},
        {"q": 3, "cache": 3, "in_proj_qkv": 5, "f_b": 5, "delta_gates": 5, "delta_rule": 5, "shared_act": 7, "down": 1},
    ),
    "blocks of keys": (
        "minimax_m3",
        BLOCKS,
        {
            "attention": 3,
            "indexer": 5,
            "block_choice": 5,
            "block_attention": 5,
            "rope": 8,
            "indexer_rope": 5,
            "down": 2,
        },
    ),
}


@pytest.mark.parametrize(("model_type", "keys", "calls"), CALLED.values(), ids=CALLED)
def test_each_layer_calls_its_kernels(
    model_type: str, keys: dict[str, Any], calls: dict[str, int], tmp_path: Path
) -> None:
    found = read(tmp_path, model_type, **SIZES, **{key: keys[key] for key in keys if key not in SIZES})
    parts = by_part(found)
    assert {part: parts[part].calls_per_step for part in calls} == calls
    assert found.layers == parts["ffn_norm"].layers == 8


def test_a_layer_may_be_a_feed_forward_network_alone(tmp_path: Path) -> None:
    found = read(tmp_path, "nemotron_h", **SIZES, **MAMBA)
    parts = by_part(found, tp=2)
    wanted = {"attention_norm": 4, "qkv": 2, "mamba_rule": 3, "ffn_norm": 3, "up": 1, "experts_up": 2, "shared_up": 2}
    assert {part: parts[part].calls_per_step for part in wanted} == wanted
    assert not {"rope", "gate_up", "experts_gate_up"} & parts.keys()
    collectives = {"attention_all_reduce": 5, "ffn_all_reduce": 1, "experts_all_reduce": 2}
    assert {part: parts[part].calls_per_step for part in collectives} == collectives
    # Experts see tokens of fewer features.
    shapes = {
        part: parts[part].cells["Input Shapes"] for part in ("experts_in", "permute", "experts_up", "experts_down")
    }
    assert shapes == {
        "experts_in": "4,256;48,256",
        "permute": "4,48;4,4",
        "experts_up": "16,48;16,48,32;;;;;;16;",
        "experts_down": "16,32;16,32,48;;;;;;16;",
    }


def test_equal_weights_of_two_kinds_of_layers_are_both_called(tmp_path: Path) -> None:
    """Here the products after attention and after the delta rule are equally large."""
    sizes = {"linear_num_value_heads": 2, "linear_value_head_dim": 128, "linear_num_key_heads": 2}
    found = read(
        tmp_path, "qwen3_next", **SIZES, **EXPERTS, **sizes, layer_types=["full_attention", "linear_attention"] * 4
    )
    calls = [
        call for call in model_calls(found, batch=4, context=256, phase="decode") if call.kernel_type == "MatMulV2"
    ]
    equal = [call for call in calls if call.part in ("o_proj", "out_proj")]
    assert len({call.signature() for call in equal}) == 1
    assert sum(call.calls_per_step for call in equal) == found.layers


#: A file, and its layers with a window of so many tokens.
WINDOWS: dict[str, tuple[str, dict[str, Any], tuple[int, int]]] = {
    "with sinks": ("gpt_oss", GPT_OSS, (4, 128)),
    "all": ("mistral", {"sliding_window": 512}, (8, 512)),
    "of the class": ("mistral", {}, (8, 4096)),
    "none": ("mistral", {"sliding_window": None}, (0, 0)),
    "late": ("qwen3", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 6}, (2, 64)),
    "unused": ("qwen2", {"sliding_window": 64, "max_window_layers": 6}, (0, 0)),
    "stated": (
        "llama",
        {"layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 5, "sliding_window": 32},
        (3, 32),
    ),
    "gemma": ("gemma3_text", {"sliding_window": 512}, (7, 512)),
}


@pytest.mark.parametrize(("model_type", "keys", "sliding"), WINDOWS.values(), ids=WINDOWS)
def test_windows_and_sinks(model_type: str, keys: dict[str, Any], sliding: tuple[int, int], tmp_path: Path) -> None:
    found = read(tmp_path, model_type, **SIZES, **keys)
    assert (found.sliding, found.sinks, found.differs) == (sliding, model_type == "gpt_oss", ())


#: A file, and words for parts that a step of it leaves out or has in another way.
TOLD: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "rotation": (
        "minimax_m2",
        {**EXPERTS, "rotary_dim": 16, "qk_norm_type": "per_layer", "num_mtp_modules": 3, "attn_type_list": [1] * 8},
        ("no multi-token prediction",),
    )
}


@pytest.mark.parametrize(("model_type", "keys", "words"), TOLD.values(), ids=TOLD)
def test_parts_that_a_step_leaves_out_are_reported(
    model_type: str, keys: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    found = read(tmp_path, model_type, **SIZES, **keys)
    assert len(found.differs) >= len(words) > 0 or found.differs == ()
    for word in words:
        assert any(word in each for each in found.differs), (word, found.differs)


#: A file, a part of its step, and the slots of the calls of that part, with the kernel type.
SHAPED: dict[str, tuple[str, dict[str, Any], str, list[str]]] = {
    "some features rotated": (
        "llama",
        {"rope_parameters": {"partial_rotary_factor": 0.25}},
        "rope",
        ["ApplyRotaryPosEmb 1,4,8,8;1,4,2,8;1,4,1,8;1,4,1,8"],
    ),
    "norm over all heads": (
        "minimax_m2",
        {**EXPERTS, "rotary_dim": 16, "qk_norm_type": "per_layer"},
        "query_norm",
        ["RmsNorm 4,256;256"],
    ),
    "bias": ("qwen2", {}, "qkv", ["MatMulV2 4,256;384,256;384"]),
    "no bias": ("qwen2", {}, "o_proj", ["MatMulV2 4,256;256,256"]),
    "bias of a stated key": ("llama", {"mlp_bias": True}, "down", ["MatMulV2 4,512;256,512;256"]),
    "biases of experts": ("gpt_oss", GPT_OSS, "experts_down", ["GroupedMatmul 16,512;16,512,256;16,256;;;;;16;"]),
    "another gate": ("gemma3_text", {}, "act", ["GeGluV2 4,1024"]),
    "gate of the attention": ("qwen3_next", EXPERTS, "attention_gate", ["Sigmoid 4,256", "Mul 4,256;4,256"]),
}


@pytest.mark.parametrize(("model_type", "keys", "part", "calls"), SHAPED.values(), ids=SHAPED)
def test_calls_have_the_sizes_of_the_file(
    model_type: str, keys: dict[str, Any], part: str, calls: list[str], tmp_path: Path
) -> None:
    found = model_calls(read(tmp_path, model_type, **SIZES, **keys), batch=4, context=256, dtype="BF16")
    assert [f"{call.kernel_type} {call.cells['Input Shapes']}" for call in found if call.part == part] == calls


#: Files of models whose calls are not known, and words of the error.
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "model type": ("falcon_h1", {}, "falcon_h1"),
    "no kinds of layers": ("nemotron_h", {}, "layer_types"),
    "a gate in place of ReLU": ("nemotron_h", {"layers_block_type": ["mlp"] * 8, "mlp_hidden_act": "silu"}, "silu"),
    "no experts": ("nemotron_h", {"hybrid_override_pattern": "**EEEEEE"}, "num_experts"),
    "a gate of latent attention": ("kimi_linear", {**KIMI, "mla_use_output_gate": True}, "mla_use_output_gate"),
    "a nested key": (
        "kimi_linear",
        {**KIMI, "linear_attn_config": {**KIMI["linear_attn_config"], "use_full_rank_gate": True}},
        "use_full_rank_gate",
    ),
    "blocks of another size": (
        "minimax_m3",
        {**BLOCKS, "sparse_attention_config": {**BLOCKS["sparse_attention_config"], "sparse_block_size": 64}},
        "index_block_size",
    ),
    "layer type": ("llama", {"layer_types": ["chunked_attention"] * 8}, "chunked_attention"),
    "Mamba layers": ("qwen3_next", {**EXPERTS, "layer_types": ["mamba"] * 8}, "mamba"),
    "indexer": ("deepseek_v3", {**LATENT, "index_topk": 64}, "index_topk"),
    "compression": ("deepseek_v3", {**LATENT, "compress_ratios": [4, 128]}, "compress_ratios"),
    "hyper-connections": ("deepseek_v3", {**LATENT, "hc_mult": 4}, "hc_mult"),
    "grouped outputs": ("llama", {"o_groups": 8}, "o_groups"),
    "experts in a dense model": ("llama", {"num_local_experts": 8, "num_experts_per_tok": 2}, "num_"),
    "latent experts": ("qwen3_moe", {**EXPERTS, "moe_latent_size": 64}, "moe_latent_size"),
    "an unknown size": ("qwen3", {"attention_chunk_size": 8192}, "attention_chunk_size"),
    "delta nets of another family": ("llama", {"linear_num_value_heads": 32}, "linear_num_value_heads"),
    "frequency of experts": ("deepseek_v3", {**LATENT, "moe_layer_freq": 2}, "moe_layer_freq"),
    "no number of experts": ("mixtral", {}, "num_experts"),
    "no key heads": ("qwen2", {"num_key_value_heads": None}, "num_key_value_heads"),
    "no gate": ("llama", {"hidden_act": "relu2"}, "relu2"),
    "no window size": ("llama", {"layer_types": ["sliding_attention"] * 8}, "sliding_window"),
    "other attention": ("minimax_m2", {**EXPERTS, "attn_type_list": [0] * 8}, "attn_type_list"),
    "many layers": ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
    "no size": ("llama", {"hidden_size": "wide"}, "hidden_size"),
    "no factor": ("llama", {"partial_rotary_factor": float("nan")}, "partial_rotary_factor"),
    "no quantization": ("llama", {"quantization_config": "fp8"}, "quantization_config"),
    "other cache": ("llama", {"quantization_config": {**FP8, "kv_cache_scheme": {"num_bits": 4}}}, "cache"),
}


@pytest.mark.parametrize(("model_type", "keys", "word"), REFUSED.values(), ids=REFUSED)
def test_a_model_of_unknown_calls_is_refused(model_type: str, keys: dict[str, Any], word: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError) as error:
        read(tmp_path, model_type, **{**SIZES, **keys})
    assert error.value.argument == "model"
    assert word in error.value.problem


@pytest.mark.parametrize(
    ("name", "similar"),
    [("qwen3-33b", "qwen3-32b"), ("deepseek-v33", "deepseek-v3"), ("Qwen/Qwen2-7B", ""), ("missing.json", "")],
)
def test_an_unknown_model_is_refused_with_similar_names(name: str, similar: str) -> None:
    with pytest.raises(TargetError) as error:
        resolve_targets([name])
    assert similar in str(error.value)
    assert (error.value.argument, error.value.value) == ("model", name)
