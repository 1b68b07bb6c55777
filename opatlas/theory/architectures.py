"""Architectures of the transformers package, built on torch's meta device, without weights and without network.

This is the only module of `opatlas.theory` that imports torch. The shapes of a model are taken from its modules: the
weight of every linear layer, and the stacked matrices of its experts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from opatlas.errors import OpAtlasError
from opatlas.theory.models import (
    Indexer,
    Latent,
    ModelFacts,
    RoutedExperts,
    TargetError,
    Weight,
    lm_head,
)

_INSTALL = "pip install 'opatlas[models]'"
#: The names that configurations have for the number of experts.
_EXPERT_COUNTS = ("n_routed_experts", "num_local_experts", "num_experts")

#: Keys of a configuration that do not change any shape.
_NOT_SHAPE_KEYS = frozenset(
    {
        *("auto_map", "quantization_config", "compression_config", "kernel_config", "use_kernels", "architectures"),
        *("_name_or_path", "name_or_path", "dtype", "torch_dtype", "custom_pipelines"),
    }
)

#: Modules that engines fuse, in this order, and the role of the fused weight.
_FUSED = {
    ("q_proj", "k_proj", "v_proj"): "qkv",
    ("gate_proj", "up_proj"): "gate_up",
    ("w1", "w3"): "gate_up",
    ("q_a_proj", "kv_a_proj_with_mqa"): "q_kv_a",
}
#: Modules by the last part of their name: the role, and the features that tensor parallelism divides.
_ROLES: dict[str, tuple[str, Literal["outputs", "inputs", "nothing"]]] = {
    "o_proj": ("o_proj", "inputs"),
    "out_proj": ("o_proj", "inputs"),
    "dense": ("o_proj", "inputs"),
    "down_proj": ("down", "inputs"),
    "w2": ("down", "inputs"),
    "fc2": ("down", "inputs"),
    "dense_4h_to_h": ("down", "inputs"),
    "q_a_proj": ("q_a", "nothing"),
    "kv_a_proj_with_mqa": ("kv_a", "nothing"),
    "q_b_proj": ("q_b", "outputs"),
    "kv_b_proj": ("kv_b", "outputs"),
    "q_proj": ("q", "outputs"),
    "k_proj": ("k", "outputs"),
    "v_proj": ("v", "outputs"),
    "qkv_proj": ("qkv", "outputs"),
    "query_key_value": ("qkv", "outputs"),
    "gate_up_proj": ("gate_up", "outputs"),
    "gate_proj": ("gate", "outputs"),
    "up_proj": ("up", "outputs"),
    "fc1": ("up", "outputs"),
    "dense_h_to_4h": ("up", "outputs"),
    "wq_b": ("indexer_q", "nothing"),
    "wk": ("indexer_k", "nothing"),
    "weights_proj": ("indexer_weights", "nothing"),
    "gate": ("router", "nothing"),
    "router": ("router", "nothing"),
}
_LAYER = re.compile(r"\.\d+(?=\.|$)")


@cache
def architectures() -> frozenset[str]:
    """Returns the names of transformers' text models; none if transformers is not installed. Does not import torch.

    Raises:
        OpAtlasError: transformers is installed and cannot be imported.
    """
    if find_spec("transformers") is None:
        return frozenset()
    _stay_offline()
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    except ImportError as error:
        problem = " ".join(str(error).split())
        raise OpAtlasError(f"transformers is installed and cannot be imported ({problem}): {_INSTALL}") from error
    return frozenset(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def load_architecture(name: str) -> ModelFacts:
    """Returns an architecture with the default sizes of transformers. Raises OpAtlasError."""
    return _model(name, {"model_type": name}, given=name)


def load_config_file(path: Path) -> ModelFacts:
    """Returns the model that a config.json describes.

    Raises:
        OpAtlasError: the file is not a model's config.json, or transformers is not installed.
    """
    try:
        whole = json.loads(path.read_text(encoding="utf-8-sig"))
        content = _shape_keys(whole)
    except RecursionError:
        raise TargetError("model", str(path), "nested too deep for a model's config.json") from None
    except (OSError, ValueError) as error:
        # UnicodeDecodeError and JSONDecodeError are ValueErrors; a number with too many digits raises one, too.
        raise TargetError("model", str(path), f"cannot be read as JSON ({error})") from None
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        raise TargetError("model", str(path), "no key 'model_type': give the config.json of a model")
    if find_spec("transformers") is None:
        raise TargetError(
            "model", str(path), f"transformers, which reads config.json files, is not installed: {_INSTALL}"
        )
    name = whole.get("_name_or_path")
    return _model(name if isinstance(name, str) and name else path.resolve().parent.name, content, given=str(path))


def _shape_keys(value: Any) -> Any:
    """Returns the parts of a configuration, and of the configurations inside it, that decide shapes.

    Leaves out the places of code and weights (also the names of kernels that transformers would download), the
    implementations of attention and experts (their packages may be missing), and the storage of weights.
    """
    if isinstance(value, list):
        return [_shape_keys(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _shape_keys(item)
        for key, item in value.items()
        if key not in _NOT_SHAPE_KEYS and "implementation" not in key and not (isinstance(item, str) and "/" in item)
    }


def _stay_offline() -> None:
    """Prevents downloads by transformers after its import."""
    os.environ["HF_HUB_OFFLINE"] = "1"


def _model(name: str, content: Mapping[str, Any], *, given: str) -> ModelFacts:
    """Returns a model; `given` is what the user named it by."""
    model_type = content["model_type"]
    settings = {key: value for key, value in content.items() if key != "model_type"}
    _stay_offline()
    try:
        # transformers imports torch's compiler, which fails while the meta device is the default (torch 2.6).
        import torch._dynamo
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.for_model(model_type, **settings)
        config = config.get_text_config()
        with torch.device("meta"):
            build: Any = AutoModelForCausalLM.from_config
            model = build(config)
        return model_facts(name, config, model)
    except Exception as error:
        # The code of an architecture may raise anything.
        problem = " ".join(str(error).split())[:300]
        raise TargetError(
            "model",
            given,
            f"transformers cannot build a {model_type} of this configuration "
            f"({type(error).__name__}: {problem}); give another config.json, or another version of transformers",
        ) from error


def model_facts(name: str, config: Any, model: Any) -> ModelFacts:
    """Returns the facts that the modules and the configuration of a model state.

    Args:
        config: a PretrainedConfig of text.
        model: its torch module, on any device.
    """
    heads = config.num_attention_heads
    hidden = config.hidden_size
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    latent = _latent(config)
    head_dim = latent.nope + latent.rope if latent else getattr(config, "head_dim", None) or hidden // heads
    modules = _shapes(model)
    weights = _weights(modules, (heads * head_dim, kv_heads * head_dim, kv_heads * head_dim), head_dim)
    vocab = modules["lm_head"].n if "lm_head" in modules else config.vocab_size
    experts = _experts(config, model)
    dense = [weight.k for weight in weights if weight.role == "down"]
    return ModelFacts(
        name,
        hidden,
        dense[0] if dense else 0,
        heads,
        kv_heads,
        head_dim,
        vocab,
        (*weights, lm_head(vocab, hidden)),
        head_norms=any(path.endswith(("q_norm", "q_layernorm")) for path, _ in model.named_modules()) and not latent,
        latent=latent,
        indexer=_indexer(config),
        experts=experts,
    )


class _Matrix(NamedTuple):
    """The sizes of a weight, and the number of layers with it."""

    n: int
    k: int
    layers: int


def _shapes(model: Any) -> dict[str, _Matrix]:
    """Returns each kind of linear layer and router, by its path without layer numbers."""
    found: dict[str, _Matrix] = {}
    for path, module in model.named_modules():
        weight = getattr(module, "weight", None)
        last = path.rpartition(".")[2]
        kind = type(module).__name__
        is_linear = kind.endswith(("Linear", "Router", "Gate", "Conv1D")) or last in ("gate", "router")
        if is_linear and weight is not None and weight.dim() == 2:
            # Conv1D, the linear layer of GPT-2, has a transposed weight.
            n, k = reversed(weight.shape) if kind == "Conv1D" else weight.shape
            kind_of_layer = _LAYER.sub(".*", path)
            before = found[kind_of_layer].layers if kind_of_layer in found else 0
            found[kind_of_layer] = _Matrix(int(n), int(k), before + 1)
    return found


def _weights(modules: Mapping[str, _Matrix], qkv: tuple[int, ...], head_dim: int) -> list[Weight]:
    children: dict[str, dict[str, _Matrix]] = {}
    for path, shape in modules.items():
        parent, _, last = path.rpartition(".")
        # transformers before 5 has a list of experts; later versions stack their matrices.
        if path != "lm_head" and not re.search(r"\.experts\.\*", path):
            children.setdefault(parent, {})[last] = shape
    found: list[Weight] = []
    for parent, of_parent in children.items():
        prefix = "shared_" if "shared_expert" in parent else ""
        rest = dict(of_parent)
        for names, role in _FUSED.items():
            if not all(name in rest for name in names) or len({rest[name].k for name in names}) > 1:
                continue
            parts = tuple(rest[name].n for name in names)
            cut: Literal["outputs", "nothing"] = "nothing" if role == "q_kv_a" else "outputs"
            least = head_dim if role == "qkv" else 1
            first = rest[names[0]]
            found.append(Weight(prefix + role, parts, first.k, cut, least, first.layers))
            if role != "q_kv_a":
                # Some engines multiply with q_a and kv_a one after the other, so both stay.
                rest = {name: shape for name, shape in rest.items() if name not in names}
        for last, (n, k, layers) in rest.items():
            role, of_role = _ROLES.get(last, (last, "nothing"))
            parts = (n,)
            if role == "qkv" and sum(qkv) == n:
                parts = qkv
            elif role == "gate_up":
                parts = (n // 2, n // 2)
            found.append(Weight(prefix + role, parts, k, of_role, head_dim if role == "qkv" else 1, layers))
    return list(dict.fromkeys(found))


def _latent(config: Any) -> Latent | None:
    if not getattr(config, "kv_lora_rank", None):
        return None
    q_lora = getattr(config, "q_lora_rank", None) or 0
    return Latent(q_lora, config.kv_lora_rank, config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim)


def _indexer(config: Any) -> Indexer | None:
    if not getattr(config, "index_topk", None):
        return None
    return Indexer(config.index_n_heads, config.index_head_dim, config.index_topk)


def _experts(config: Any, model: Any) -> RoutedExperts | None:
    """Returns the routed experts. Their matrices, (E, hidden, 2 width) or transposed, have the width."""
    count = next((value for name in _EXPERT_COUNTS if (value := getattr(config, name, None))), None)
    top_k = getattr(config, "num_experts_per_tok", None) or getattr(config, "moe_topk", None)
    if not count or not top_k:
        return None
    shared, width = 0, 0
    for path, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        if len(shape) == 3 and shape[0] == count and path.endswith(("down_proj", "down_proj.weight", "w2")):
            width = next((size for size in shape[1:] if size != config.hidden_size), config.hidden_size)
        elif len(shape) == 2 and re.search(r"\.experts\.\d+\.(down_proj|w2)\.weight$", path):
            width = shape[1]
        elif re.search(r"shared_experts?\.down_proj\.weight$", path):
            shared = shape[1]
    return RoutedExperts(int(count), int(width), int(top_k), int(shared)) if width else None
