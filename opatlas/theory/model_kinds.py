"""The kinds of models whose config.json is known, by their `model_type`: how each is read.

From the configuration classes of transformers 5 and published files.
"""

from __future__ import annotations

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
