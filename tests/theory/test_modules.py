"""The calls of each built-in model's step, layer by layer, against the parameters of transformers' modules.

`golden/modules.json` has the parameters of each kind of layer with their shapes, and how many layers have them;
`--write-golden` writes it with transformers, on the meta device. A parameter that no call has is named by the step.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opatlas.shapes import models

from opatlas.row.communication import BY_KERNEL_TYPE
from opatlas.theory.catalog import built_in_catalog
from opatlas.theory.model_calls import model_calls
from opatlas.theory.model_step import ModelCall
from opatlas.theory.models import ModelFacts
from opatlas.theory.sources import resolve_model
from opatlas.yaml_file import parse_yaml

GOLDEN = Path(__file__).parent / "golden" / "modules.json"
MODELS = (
    *("deepseek-v3.2", "kimi-k2", "glm-4.6", "qwen3-235b-a22b", "qwen3-next", "gpt-oss-20b", "gpt-oss-120b"),
    *("minimax-m2", "llama-3-8b", "gemma-3-27b", "mixtral-8x7b", "qwen3.5-397b-a17b"),
    *("kimi-linear", "nemotron-nano-9b-v2", "nemotron-3-nano", "minimax-m3"),
)
#: Parts of a step by the parameters that their call multiplies with, whose rows make its weight.
PARTS = {
    "qkv": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
    "q_kv_a": "self_attn.q_a_proj self_attn.kv_a_proj_with_mqa",
    "q": "latent_attn.q_proj",
    "kv_a": "latent_attn.kv_a_proj_with_mqa",
    "q_b": "self_attn.q_b_proj",
    "o_proj": "self_attn.o_proj latent_attn.o_proj",
    "indexer_qk": "self_attn.indexer.q_proj self_attn.indexer.k_proj",
    "indexer_q": "self_attn.indexer.wq_b",
    "indexer_k": "self_attn.indexer.wk",
    "indexer_weights": "self_attn.indexer.weights_proj",
    "in_proj_qkvz": "linear_attn.in_proj_qkvz linear_attn.in_proj_qkv linear_attn.in_proj_z",
    "in_proj_ba": "linear_attn.in_proj_ba linear_attn.in_proj_b linear_attn.in_proj_a",
    "in_proj_qkv": "linear_attn.q_proj linear_attn.k_proj linear_attn.v_proj",
    "in_proj_b": "linear_attn.b_proj",
    **{f"{role}_{half}": f"linear_attn.{role}_{half}_proj" for role in "fg" for half in "ab"},
    "in_proj": "linear_attn.in_proj",
    "out_proj": "linear_attn.out_proj linear_attn.o_proj",
    "gate_up": "mlp.gate_proj mlp.up_proj mlp.gate_up_proj",
    "down": "mlp.down_proj",
    "shared_gate_up": "mlp.shared_experts.gate_proj mlp.shared_experts.up_proj "
    "mlp.shared_expert.gate_proj mlp.shared_expert.up_proj mlp.shared_experts.gate_up_proj",
    "shared_down": "mlp.shared_experts.down_proj mlp.shared_expert.down_proj",
    "shared_expert_gate": "mlp.shared_expert_gate",
    "router": "mlp.gate mlp.router",
    "lm_head": "lm_head",
}
PRODUCTS = {name: part for part, names in PARTS.items() for name in names.split()}
EXPERTS = {f"mlp.experts.{part}_proj": f"experts_{part}" for part in ("gate_up", "up", "down")}
#: Parts by the parameter that is the gamma of their norm; a model with post_norms has others of the second name.
NORMS = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_a_layernorm": "query_norm",
    "self_attn.q_norm": "query_norm",
    "self_attn.k_norm": "key_norm",
    "self_attn.indexer.q_norm": "indexer_query_norm",
    "self_attn.indexer.k_norm": "indexer_key_norm",
    **dict.fromkeys(("model.norm", "model.norm_f"), "final_norm"),
}
POST_NORMS = {
    "post_attention_layernorm": "attention_post_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "ffn_post_norm",
}
#: Parts of other kinds by a parameter of theirs, and the input slot that has its last axes.
OTHERS = {
    **dict.fromkeys(("self_attn.kv_a_layernorm", "latent_attn.kv_a_layernorm"), ("cache", 1)),
    "linear_attn.conv1d": ("convolution", 1),
    "linear_attn.A_log": ("delta_gates", 0),
    "linear_attn.dt_bias": ("delta_gates", 3),
    "linear_attn.norm": ("delta_norm", 1),
    "linear_attn.o_norm": ("delta_norm", 1),
    **dict.fromkeys(("model.embed_tokens", "model.embeddings"), ("embedding", 0)),
}
#: As OTHERS, of layers with Kimi's rule and with Mamba2.
OF_RULES = {
    "kimi": {"linear_attn.dt_bias": ("delta_gates", 2)},
    "mamba": {
        **{f"linear_attn.{name}": ("mamba_rule", slot) for name, slot in (("A_log", 3), ("D", 6), ("dt_bias", 7))},
        "linear_attn.norm": ("mamba_norm", 1),
    },
}
#: Parameters that the calls leave out; docs/steps.md has them under "Missing".
LEFT_OUT = ("linear_attn.conv1d.bias",)

Layer = dict[str, list[int]]


def modules(name: str) -> list[tuple[int, Layer]]:
    """The parameters of each kind of layer of a model, with their number; those outside of layers first."""
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    import torch._dynamo  # It fails to be imported while the meta device is the default (torch 2.6).

    listed = parse_yaml(Path(models.__file__).with_name("models.yaml").read_bytes())
    known = {own.lower(): each for each in listed for own in each["names"]}

    def keys(name: str) -> dict[str, Any]:
        return {**(keys(known[name]["like"]) if "like" in known[name] else {}), **known[name]["config"]}

    config = {key: value for key, value in keys(name).items() if key not in ("model_type", "quantization_config")}
    # The class of Kimi K2 is that of DeepSeek-V3.
    model_type = keys(name)["model_type"].replace("kimi_k2", "deepseek_v3").replace("minimax_m3", "minimax_m3_vl_text")
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(model_type, **config))
    layers: dict[str, Layer] = {}
    for path, parameter in built.named_parameters():
        layer, _, own = path.removeprefix("model.layers.").partition(".")
        layer, own = (layer, own) if path.startswith("model.layers.") else ("", path)
        layers.setdefault(layer, {})[own.removesuffix(".weight")] = list(parameter.shape)
    counts = Counter(map(json.dumps, layers.values()))
    return [(count, json.loads(text)) for text, count in counts.items()]


def test_modules_are_recorded(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--write-golden"):
        found = {name: modules(name) for name in MODELS}
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(layers)}" for name, layers in found.items())
        GOLDEN.write_text(f"{{\n{lines}\n}}\n")
    assert set(json.loads(GOLDEN.read_text())) == set(MODELS)


def shape(call: ModelCall, slot: int) -> list[int]:
    return [int(size) for size in call.cells["Input Shapes"].split(";")[slot].split(",")]


def plain(layer: Layer) -> Layer:
    """The parameters of a layer by the names that other models have for them."""
    of_all = {"self_attn": "self_attn", "norm": "post_attention_layernorm", "mixer": "mlp"}
    if "mixer.in_proj" in layer or "self_attn.conv1d" in layer:
        of_all = {"mixer": "linear_attn", "self_attn": "linear_attn", "norm": "input_layernorm"}
    elif "mixer.q_proj" in layer:
        of_all = {"mixer": "self_attn", "norm": "input_layernorm"}
    elif "self_attn.kv_a_layernorm" in layer and "self_attn.q_a_proj" not in layer:
        of_all = {"self_attn": "latent_attn"}
    found = {}
    for path, sizes in layer.items():
        first, dot, rest = path.replace("forget_gate.", "").partition(".")
        found[f"{of_all.get(first, first)}{dot}{rest}"] = sizes
    return found


def wanted(facts: ModelFacts, layer: Layer) -> Iterator[tuple[str, int, list[int]]]:
    """The parts that one layer calls, the input slot of its parameter, and the shape there."""
    rows: dict[str, list[int]] = {}
    norms = {**NORMS, **(POST_NORMS if facts.post_norms else {})}
    rule = facts.linear_attention.rule if facts.linear_attention is not None else ""
    others = {**OTHERS, **OF_RULES.get(rule, {})}
    for path, sizes in plain(layer).items():
        name = path if path in others else path.removesuffix(".bias").removesuffix("_bias")
        # The norm of an indexer's keys is left out, too, where keys are chosen one by one.
        if path in LEFT_OUT or (name == "self_attn.indexer.k_norm" and facts.blocks is None):
            continue
        if path == "self_attn.sinks":
            # Of two parts, with and without a window.
            assert (facts.sinks, sizes) == (True, [facts.heads])
        elif name != path:
            assert (PRODUCTS.get(name) or EXPERTS[name]) in facts.biases, path
        elif name in PRODUCTS:
            part = PRODUCTS[name] if facts.gates else PRODUCTS[name].replace("gate_up", "up")
            found = rows.setdefault(part, [0, sizes[1]])
            found[0] += sizes[0]
            assert found[1] == sizes[1], path
        elif name in EXPERTS:
            count, *matrix = sizes
            width = matrix if facts.sinks else matrix[::-1]
            yield EXPERTS[name], 1, [count, *width]
        elif name in norms:
            yield norms[name], -1, sizes
        else:
            part, slot = others[name]
            # The weight of a convolution is stored by taps, and a row of Mamba2's norm is a group.
            groups = facts.linear_attention.linear_num_key_heads if part == "mamba_norm" else 1
            of_call = [sizes[2], sizes[0]] if name == "linear_attn.conv1d" else [size for size in sizes if size > 1]
            yield part, slot, [of_call[0] // groups, *of_call[1:]]
    # A head of its own has the weights of the embedding.
    if "model.embed_tokens" in layer:
        rows.setdefault("lm_head", layer["model.embed_tokens"])
    yield from ((part, 1, sizes) for part, sizes in rows.items())


@pytest.mark.parametrize("name", MODELS)
def test_each_parameter_of_each_layer_has_its_call(name: str) -> None:
    facts = resolve_model(name)
    calls: dict[str, list[ModelCall]] = {}
    for call in model_calls(facts, batch=4, context=256, dtype="BF16"):
        calls.setdefault(call.part, []).append(call)
    counts: Counter[str] = Counter()
    for count, layer in json.loads(GOLDEN.read_text())[name]:
        # Decoded tokens are multiplied with its parts of keys and of values, head by head.
        if (up := layer.pop("self_attn.kv_b_proj", None)) is not None:
            assert sum(math.prod(shape(calls[part][0], 1)) for part in ("query_absorb", "value_up")) == math.prod(up)
        found = list(wanted(facts, layer))
        counts.update(dict.fromkeys((part for part, _, _ in found), count))
        for part, slot, sizes in found:
            for call in calls[part]:
                if part != "cache" or call.kernel_type == "KvRmsNormRopeCache":
                    read = shape(call, slot)
                    # Engines pad the head to a multiple of 64 rows.
                    assert read == sizes or (part == "lm_head" and 0 <= read[0] - sizes[0] < 64), (call, sizes)
    assert {part: sum(call.calls_per_step for call in calls[part]) for part in counts} == counts
    biased = {
        part for part in facts.biases for call in calls.get(part, ()) if call.cells["Input Shapes"].count(";") > 1
    }
    assert biased == set(facts.biases) & calls.keys()
    known = {*built_in_catalog().kernels, *BY_KERNEL_TYPE}
    assert {call.kernel_type for each in calls.values() for call in each} <= known
