"""The keys of config.json by kind of model, their types and defaults, and how a file says that weights are quantized.

Names and defaults are those of the configuration classes of transformers 5 and of published files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from opatlas.theory.model_parts import OptionalSize, Size
from opatlas.theory.models import Activation
from opatlas.yaml_file import read_yaml

_PATH = Path(import_module("opatlas.shapes").__path__[0], "model_kinds.yaml")

FULL, SLIDING, LINEAR, BLOCKS = "full_attention", "sliding_attention", "linear_attention", "minimax_m3_sparse"
#: Layers that are a feed-forward network alone, of which the second kind has experts.
MLP, MOE = "mlp", "moe"
#: The kind of each layer: a list, or a text with a letter for each.
LayerKinds = list[str | int] | str


class EveryKind(msgspec.Struct):
    """Keys that each kind of model may have. Rules that no type can say are in the functions below."""

    num_hidden_layers: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    hidden_size: Size
    num_attention_heads: Size
    vocab_size: Size
    intermediate_size: OptionalSize = 0
    layer_types: LayerKinds = ""
    attn_type_list: LayerKinds = ""
    kda_layers: list[int] = []
    sliding_window: OptionalSize = 0
    use_sliding_window: bool = True
    max_window_layers: OptionalSize = 0
    qk_norm_type: str = "per_head"
    attention_bias: bool = False
    mlp_bias: bool = False
    hidden_act: str = "silu"
    mlp_hidden_act: str = ""
    hidden_activation: str = ""
    attn_logit_softcapping: float = 0
    final_logit_softcapping: float = 0
    num_nextn_predict_layers: int = 0
    tie_word_embeddings: bool = False
    max_position_embeddings: OptionalSize = 0


class SharedKeys(msgspec.Struct):
    """Attention whose queries share keys."""

    num_key_value_heads: Size
    head_dim: OptionalSize = 0
    partial_rotary_factor: float = 1
    rotary_dim: OptionalSize = 0


class Cycle(msgspec.Struct):
    """One layer of so many has full attention, if the file lists no kinds of layers."""

    full_attention_interval: Size


class IndexedLayers(msgspec.Struct):
    """The layers with an indexer."""

    indexer_types: LayerKinds = ""
    index_topk_pattern: LayerKinds = ""
    index_topk_freq: Size = 1
    index_skip_topk_offset: Size = 2


class Experts(msgspec.Struct):
    num_experts: OptionalSize
    num_experts_per_tok: OptionalSize = 0
    moe_intermediate_size: OptionalSize = 0
    shared_expert_intermediate_size: OptionalSize = 0
    shared_intermediate_size: OptionalSize = 0
    n_shared_experts: OptionalSize = 0
    routed_latent_size: OptionalSize = 0
    mlp_layer_types: list[Literal["dense", "sparse"]] = []
    mlp_only_layers: list[int] = []
    first_k_dense_replace: OptionalSize = 0
    decoder_sparse_step: Size = 1
    moe_layer_freq: Literal[1] | list[Literal[0, 1]] = 1
    scoring_func: Literal["", "softmax", "sigmoid"] = ""


class ModelKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the configurations of a kind of model are read: an entry of shapes/model_kinds.yaml.

    Attributes:
        attention: multi-head latent attention, with or without an indexer, or queries that share keys.
        width: the key with the features of an expert; "" without experts.
        sparse: which layers have experts: all, those after the first dense ones, or each of some steps.
        scores: of experts, by their logits, where the file has no `scoring_func`; those by sigmoid have a bias.
        defaults: transformers' values of keys that a file may leave out. Other keys are required.
        head_norms: whether queries and keys are normalized. Otherwise the key `use_qk_norm` says so.
        names: other names of keys, those of a nested configuration behind its own and a dot; none for a key without
            a meaning for calls.
        layer_names: other names of the kinds of layers.
        own_keys: whether each query has its own key where the file states no number of key heads.
        other: the kind of the layers without full attention.
        rule: as of `LinearAttention`.
        rotates: whether queries and keys are rotated.
        gated: whether the attention's output has a gate.
        biases: the roles of the weights that have a bias with `attention_bias`.
        activation, post_norms, sinks: as of `ModelFacts`.
        differs: the parts of each of these models that the calls leave out.
    """

    attention: Literal["shared", "latent", "indexed"] = "shared"
    width: str = ""
    sparse: Literal["all", "later", "steps"] = "all"
    scores: Literal["softmax", "sigmoid"] = "softmax"
    defaults: dict[str, Any] = {}
    names: dict[str, list[str]] = {}
    layer_names: dict[str, str] = {}
    head_norms: bool = False
    own_keys: bool = False
    other: str = SLIDING
    rule: Literal["delta", "kimi", "mamba"] = "delta"
    rotates: bool = True
    gated: bool = False
    biases: tuple[str, ...] = ("qkv", "o_proj", "q_a", "kv_a", "q_kv_a")
    activation: Activation = "SwiGlu"
    post_norms: bool = False
    sinks: bool = False
    differs: tuple[str, ...] = ()


MOE_WIDTH, CYCLE = "moe_intermediate_size", "full_attention_interval"


def _read_kinds() -> dict[str, ModelKind]:
    found: dict[str, dict[str, Any]] = {}
    for name, own in read_yaml(_PATH, dict[str, dict[str, Any]]).items():
        base = found.get(own.pop("like", ""), {})
        found[name] = {**base, **own, "defaults": {**base.get("defaults", {}), **own.get("defaults", {})}}
    return msgspec.convert(found, dict[str, ModelKind])


#: The kinds of models by their `model_type`.
MODEL_KINDS: Mapping[str, ModelKind] = _read_kinds()
#: Models of several modalities whose `text_config` may lack a `model_type`.
TEXT_OF = {name: f"{name}_text" for name in ("gemma3", "qwen3_5", "qwen3_5_moe")} | {"kimi_k25": "kimi_k2"}
TEXT_OF |= dict.fromkeys(("minimax_m3_vl", "minimax_m3_vl_text"), "minimax_m3")

#: Modules by these names are in no quantized product of a step.
_NEVER_QUANTIZED = re.compile(
    r"(lm_head|embed|norm|router|e_score|vision|visual|image|mm_|mtp|shared_expert_gate|in_proj_[ab]|conv1d|indexer"
    r"|(^|[.*])gate(\.weight)?\$?$)"
)


class _Numbers(msgspec.Struct):
    num_bits: int | None = None
    type: str = "int"
    group_size: int | None = None

    @property
    def bits(self) -> float:
        """The bits of a weight, with a scale of 16 bits for each group."""
        return (self.num_bits or 16) + 16 / max(self.group_size or 1 << 30, 1)

    def __str__(self) -> str:
        in_groups = f" in groups of {self.group_size}" if self.group_size and self.group_size > 0 else ""
        return f"{'FP' if self.type == 'float' else 'INT'}{self.num_bits} weights{in_groups}"


class _Group(msgspec.Struct):
    weights: _Numbers | None = None
    input_activations: _Numbers | None = None


class Quantization(msgspec.Struct):
    """How a file says that weights are quantized; `config_groups` are the groups of layers of compressed-tensors."""

    quant_method: str = ""
    quant_algo: str = ""
    fmt: str = "e4m3"
    activation_scheme: str = "dynamic"
    weight_block_size: list[int] = []
    bits: int = 4
    config_groups: dict[str, _Group] = {}
    ignore: list[str] = []
    modules_to_not_convert: list[str] = []
    exclude_modules: list[str] = []
    kv_cache_scheme: _Numbers | None = None
    kv_cache_quant_algo: str = ""

    def dtype_and_weights(self) -> tuple[str, str, tuple[float, bool]]:
        """Returns the dtype of a step, "" if no row has it, how weights are stored, and `ModelFacts.stored_bits`."""
        method, algorithm = self.quant_method.lower(), self.quant_algo.upper()
        dtype, stored, bits = "", f"weights by quant_method {method[:60]!r}", 16.0
        if method == "fp8":
            in_blocks = f" in blocks of {'x'.join(map(str, self.weight_block_size))}" if self.weight_block_size else ""
            dtype = "FLOAT8_E4M3FN" if self.fmt.lower() in ("e4m3", "e4m3fn", "float8_e4m3fn") else ""
            stored, bits = f"FP8 weights{in_blocks}", 8
        elif method == "mxfp4":
            # A scale of 8 bits for 32 weights.
            return "", "MXFP4 experts", (4.25, True)
        elif method.startswith("modelopt"):
            dtype, stored = "FLOAT8_E4M3FN" if algorithm == "FP8" else "", f"{algorithm[:60] or method} weights"
            bits = 8 if "FP8" in algorithm else 4.5 if "4" in algorithm else 16
        elif method in ("awq", "gptq"):
            stored, bits = f"INT{self.bits} weights ({method})", self.bits + 16 / 128
        elif method == "compressed-tensors":
            groups = [(each.weights, each.input_activations) for each in self.config_groups.values() if each.weights]
            words = list(dict.fromkeys(str(weights) for weights, _ in groups))
            same = all(a and (a.num_bits, a.type) == (weights.num_bits, weights.type) for weights, a in groups)
            if same and len(words) == 1:
                dtype = {"FP8 weights": "FLOAT8_E4M3FN", "INT8 weights": "INT8"}.get(words[0], "")
            stored = " and ".join(words) or "weights of compressed-tensors"
            bits = max((weights.bits for weights, _ in groups), default=16)
        kept = (*self.ignore, *self.modules_to_not_convert, *self.exclude_modules)
        in_all = all(map(_NEVER_QUANTIZED.search, kept))
        return dtype, stored + ("" if in_all else " (not in all layers)"), (bits, not in_all)

    def scales(self) -> Literal["", "per_tensor", "blocks"]:
        """Returns `ModelFacts.scales`."""
        if self.weight_block_size:
            return "blocks" if self.weight_block_size == [128, 128] else ""
        # Engines compute a scale for each token where the file has none of the inputs.
        is_static = self.quant_method.lower() == "fp8" and self.activation_scheme.lower() == "static"
        return "per_tensor" if is_static or self.quant_algo.upper() == "FP8" else ""

    def cache_dtype(self) -> str:
        """Returns the dtype of the cache, FP8; "" for that of activations. Raises ValidationError for others."""
        scheme = self.kv_cache_scheme
        words = "FP8" if scheme is not None and (scheme.num_bits, scheme.type) == (8, "float") else str(scheme or "")
        words = (words or self.kv_cache_quant_algo).upper()
        if words not in ("", "FP8"):
            raise msgspec.ValidationError(f"the cache is quantized as {words[:60]}: rows have FP8 only")
        return "FLOAT8_E4M3FN" if words else ""


class Stored(msgspec.Struct):
    """How the weights of a model are stored."""

    quantization_config: Quantization
