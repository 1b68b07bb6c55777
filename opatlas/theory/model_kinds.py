"""How a config.json is read: the kinds of models by their `model_type`, and how it says that weights are quantized.

From the configuration classes of transformers 5 and published files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

SLIDING, LINEAR = "sliding_attention", "linear_attention"


@dataclass(frozen=True)
class ModelKind:
    """How the configurations of a kind of model are read.

    Attributes:
        attention: multi-head latent attention, with or without an indexer, or queries that share keys.
        width: the key with the features of an expert; "" without experts.
        sparse: which layers have experts: all, those after the first dense ones, or each of some steps.
        defaults: transformers' values of keys that a file may leave out. Other keys are required.
        head_norms: whether queries and keys are normalized, or the key that says so.
        cycle: each layer of this number has full attention, if the file does not list the kinds of layers.
        other: the kind of the other layers.
        gated: whether the attention's output has a gate.
        differs: the parts of each of these models that the calls leave out.
    """

    attention: Literal["shared", "latent", "indexed"] = "shared"
    width: str = ""
    sparse: Literal["all", "later", "steps"] = "all"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    head_norms: bool | str = False
    cycle: int = 1
    other: str = SLIDING
    gated: bool = False
    differs: tuple[str, ...] = ()


MOE_WIDTH = "moe_intermediate_size"
_DEEPSEEK_V3 = ModelKind("latent", MOE_WIDTH, "later", {"first_k_dense_replace": 3, "n_shared_experts": 1})
_NEXT = ModelKind(
    head_norms=True,
    gated=True,
    cycle=4,
    other=LINEAR,
    defaults={
        "head_dim": 256,
        "partial_rotary_factor": 0.25,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    },
)
#: Of Qwen: a window is in use only if the file says so, and in later layers.
_NO_WINDOW = {"use_sliding_window": False, "max_window_layers": 28}
INDEXER = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
#: The kinds of models by their `model_type`.
MODEL_KINDS: Mapping[str, ModelKind] = {
    "llama": ModelKind(defaults={"num_key_value_heads": None}),
    "mistral": ModelKind(defaults={"sliding_window": 4096}),
    "mixtral": ModelKind(width="intermediate_size"),
    "qwen2": ModelKind(defaults=_NO_WINDOW, differs=("no biases of queries, keys and values",)),
    "qwen3": ModelKind(head_norms=True, defaults={"head_dim": 128, **_NO_WINDOW}),
    "qwen3_moe": ModelKind(width=MOE_WIDTH, sparse="steps", head_norms=True, defaults=_NO_WINDOW),
    "qwen3_next": replace(_NEXT, width=MOE_WIDTH, sparse="steps"),
    "qwen3_5_text": _NEXT,
    "qwen3_5_moe_text": replace(_NEXT, width=MOE_WIDTH),
    "glm4_moe": ModelKind(
        width=MOE_WIDTH,
        sparse="later",
        head_norms="use_qk_norm",
        defaults={"first_k_dense_replace": 1, "n_shared_experts": 1, "partial_rotary_factor": 0.5},
    ),
    "minimax_m2": ModelKind(
        width="intermediate_size", head_norms="use_qk_norm", defaults={"head_dim": 128, "use_qk_norm": True}
    ),
    "gpt_oss": ModelKind(
        width="intermediate_size",
        cycle=2,
        defaults={"head_dim": 64, "sliding_window": 128, "attention_bias": True},
        differs=("no attention sinks", "no biases of experts and of the router"),
    ),
    "gemma3_text": ModelKind(
        head_norms=True,
        cycle=6,
        defaults={"head_dim": 256, "sliding_window": 4096, "hidden_act": "gelu_pytorch_tanh"},
        differs=("no norms after attention and feed-forward network",),
    ),
    "deepseek_v2": ModelKind("latent", MOE_WIDTH, "later"),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "deepseek_v32": replace(_DEEPSEEK_V3, attention="indexed", defaults={**_DEEPSEEK_V3.defaults, **INDEXER}),
    "glm_moe_dsa": replace(
        _DEEPSEEK_V3, attention="indexed", defaults={**_DEEPSEEK_V3.defaults, **INDEXER, "index_n_heads": 32}
    ),
}
#: Models of several modalities whose `text_config` may lack a `model_type`.
TEXT_OF = {
    "gemma3": "gemma3_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "kimi_k25": "kimi_k2",
}

#: Modules by these names are in no quantized product of a step.
_NEVER_QUANTIZED = re.compile(
    r"(lm_head|embed|norm|router|e_score|vision|visual|image|mm_|mtp|shared_expert_gate|in_proj_[ab]|conv1d|indexer"
    r"|(^|[.*])gate(\.weight)?\$?$)"
)


def read_quantization(found: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the dtype of a step with quantized weights, "" if no row has it, and how the weights are stored."""
    method = str(found.get("quant_method") or "").lower()
    algorithm = str(found.get("quant_algo") or "").upper()
    dtype, stored = "", f"weights by quant_method {method[:60]!r}"
    if method == "fp8":
        blocks = found.get("weight_block_size")
        in_blocks = f" in blocks of {'x'.join(map(str, blocks))}" if isinstance(blocks, list) else ""
        is_other = str(found.get("fmt") or "e4m3").lower() not in ("e4m3", "e4m3fn", "float8_e4m3fn")
        dtype, stored = "" if is_other else "FLOAT8_E4M3FN", f"FP8 weights{in_blocks}"
    elif method == "mxfp4":
        return "", "MXFP4 experts"
    elif method.startswith("modelopt"):
        dtype, stored = "FLOAT8_E4M3FN" if algorithm == "FP8" else "", f"{algorithm[:60] or method} weights"
    elif method in ("awq", "gptq"):
        stored = f"INT{found.get('bits', 4)} weights ({method})"
    elif method == "compressed-tensors":
        dtype, stored = _compressed(found)
    kept = [found.get(key) or () for key in ("ignore", "modules_to_not_convert", "exclude_modules")]
    if any(not _NEVER_QUANTIZED.search(str(name)) for names in kept if isinstance(names, list) for name in names):
        stored += " (not in all layers)"
    return dtype, stored


def _compressed(found: Mapping[str, Any]) -> tuple[str, str]:
    """Reads the groups of layers of compressed-tensors."""
    groups = found.get("config_groups")
    kinds: list[tuple[str, bool]] = []
    for group in groups.values() if isinstance(groups, dict) else ():
        weights, inputs = (
            group.get(key) if isinstance(group, dict) else None for key in ("weights", "input_activations")
        )
        if isinstance(weights, dict):
            bits, kind = weights.get("num_bits"), weights.get("type", "int")
            size = weights.get("group_size")
            in_groups = f" in groups of {size}" if isinstance(size, int) and size > 0 else ""
            same = isinstance(inputs, dict) and (inputs.get("num_bits"), inputs.get("type", "int")) == (bits, kind)
            kinds.append((f"{'FP' if kind == 'float' else 'INT'}{bits} weights{in_groups}", same))
    dtypes = {"FP8 weights": "FLOAT8_E4M3FN", "INT8 weights": "INT8"}
    dtype = dtypes.get(kinds[0][0], "") if len({*kinds}) == 1 and kinds[0][1] else ""
    return dtype, " and ".join(dict.fromkeys(name for name, _ in kinds)) or "weights of compressed-tensors"
