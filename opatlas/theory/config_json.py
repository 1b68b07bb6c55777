"""The sizes of a model, read from the config.json that is published with it.

Only keys that are known to decide a call are read: those of the structs of model_kinds.py, and of `Latent`, `Indexer`,
`BlockIndexer` and `LinearAttention`. A key that may decide a call and is not read is refused, so that no step is that
of another model.
`ModelFacts.differs` lists the calls that are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import ValidationError

from opatlas.text import suggest
from opatlas.theory import model_kinds
from opatlas.theory.model_kinds import FULL, LINEAR, MLP, MODEL_KINDS, MOE, SLIDING, EveryKind, LayerKinds, ModelKind
from opatlas.theory.model_parts import BlockIndexer, Indexer, Latent, LinearAttention, RoutedExperts
from opatlas.theory.models import ModelFacts, TargetError

_Struct = TypeVar("_Struct", bound=msgspec.Struct)

#: Other names of keys.
_ALIASES = {
    **dict.fromkeys(("num_local_experts", "n_routed_experts"), "num_experts"),
    **dict.fromkeys(("experts_per_token", "num_experts_per_token", "moe_topk"), "num_experts_per_tok"),
    **dict.fromkeys(("num_mtp_layers", "mtp_num_hidden_layers", "num_mtp_modules"), "num_nextn_predict_layers"),
    "sliding_window_pattern": "full_attention_interval",
    "num_shared_experts": "n_shared_experts",
    "moe_router_activation_func": "scoring_func",
    "model_max_length": "max_position_embeddings",
}
#: A key with one of these names may decide a call.
_MAY_MATTER = re.compile(
    r"(index|linear|mamba|moe|compress|hc|o|q|qk|kv|v|ssm|conv|num|n|shared|attn|attention|mlp|mixer|expert|experts)_.*"
    r"|.*_(sizes?|dims?|ranks?|heads|layers|windows?|experts|groups|ratios?|freq|pattern|types?|bias|norm|gate|interval)"
    r"|.*(sliding|window|sparse|hybrid|recurrent|latent|compress).*"
)
#: Keys with these names that decide none.
_MATTERS_NOT = frozenset(
    {
        *("model_type", "problem_type", "position_embedding_type", "rope_type", "ep_size", "chunk_size_feed_forward"),
        *("n_group", "topk_group", "num_key_value_groups", "num_labels", "num_beams", "num_beam_groups"),
        *("num_return_sequences", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "max_window_layers"),
        *("attention_dropout", "attn_implementation", "attn_pdrop", "attention_probs_dropout_prob"),
        *("mamba_ssm_dtype", "mtp_transformer_layers", "mlp_intermediate_size", "use_routing_bias", "shared_moe_mode"),
        *("num_expert_group", "moe_renormalize"),
        *("moe_router_dtype", "moe_aux_loss_coef", "moe_router_enable_expert_bias", "experts_implementation"),
        *("index_share_for_mtp_iteration", "attn_output_gate", "rope_local_base_freq", "compression_config"),
    }
)
#: Files of latent attention state these, which follow from the other sizes.
_OF_LATENT = frozenset({"num_key_value_heads", "qk_head_dim", "head_dim"})
_FULL_KINDS = frozenset({FULL, "attention", "indexed_attention", "deepseek_sparse_attention"})
#: The file of modelopt next to a config.json.
_HF_QUANT_CONFIG = "hf_quant_config.json"


def load_config_file(path: Path) -> ModelFacts:
    """Returns the model that a config.json describes.

    Raises:
        TargetError: the file is not a config.json of a known kind of model.
    """
    content = _read_json(path)
    extra = path.with_name(_HF_QUANT_CONFIG)
    if "quantization_config" not in content and extra.is_file():
        content = {**content, "quantization_config": {**_read_json(extra), "quant_method": "modelopt"}}
    name = content.get("_name_or_path")
    return read_config(name if isinstance(name, str) and name else path.resolve().parent.name, content, str(path))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        # Some files have NaN and Infinity, which msgspec does not read.
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise TargetError("model", str(path), "nested too deep for a model's config.json") from None
    except (OSError, ValueError) as error:
        # UnicodeDecodeError and JSONDecodeError are ValueErrors; a number with too many digits raises one, too.
        raise TargetError("model", str(path), f"cannot be read as JSON ({error})") from None
    if not isinstance(content, dict):
        raise TargetError("model", str(path), "holds no keys: give the config.json of a model")
    return content


def read_config(name: str, content: Mapping[str, Any], given: str = "") -> ModelFacts:
    """Returns the model of a configuration.

    Args:
        name: the model's name.
        content: the configuration, as in config.json.
        given: the model as the user named it.

    Raises:
        TargetError: the configuration is none of a known kind of model, or has keys that may matter and are unknown.
    """
    text = content.get("text_config")
    text = text if isinstance(text, dict) else content
    try:
        return _facts(name, text, content)
    except (ValidationError, UnicodeError) as error:
        # JSON may hold half of a surrogate pair.
        raise TargetError("model", given or name, str(error)) from None


def _facts(name: str, text: Mapping[str, Any], whole: Mapping[str, Any]) -> ModelFacts:
    """Raises ValidationError with the key, as all functions below."""
    kind = _kind(text.get("model_type") or whole.get("model_type"))
    is_nested, text = text is not whole, dict(_flat(text, kind))
    keys = _keys(text, kind)
    base = msgspec.convert(keys, EveryKind)
    structs: list[type[msgspec.Struct]] = [EveryKind]

    def part(struct: type[_Struct]) -> _Struct:
        structs.append(struct)
        return msgspec.convert(keys, struct)

    layers, hidden, heads = base.num_hidden_layers, base.hidden_size, base.num_attention_heads
    cycle = part(model_kinds.Cycle).full_attention_interval if model_kinds.CYCLE in kind.defaults else 0
    kinds = _kinds_of_layers(base, kind, cycle)
    sliding, alone = kinds.count(SLIDING), kinds.count(MLP) + kinds.count(MOE)
    if kind.attention == "shared":
        latent, indexer = None, None
        shared = part(model_kinds.SharedKeys)
        kv_heads, head_dim = shared.num_key_value_heads, _head_dim(shared, heads, hidden)
        rotated = _rotated(shared, head_dim, text)
    else:
        latent = part(Latent)
        kv_heads, head_dim = heads, latent.qk_nope_head_dim + latent.qk_rope_head_dim
        rotated, is_indexed = latent.qk_rope_head_dim, kind.attention == "indexed"
        indexer = _indexer(part(Indexer), part(model_kinds.IndexedLayers), layers) if is_indexed else None
        _expect(latent.q_lora_rank or not is_indexed, "q_lora_rank")
    own, blocks = None, None
    if others := kinds.count(kind.other) if kind.other != SLIDING else 0:
        if kind.other == model_kinds.BLOCKS:
            blocks = msgspec.structs.replace(part(BlockIndexer), layers=others)
        else:
            own = msgspec.structs.replace(part(LinearAttention), layers=others, rule=kind.rule)
    experts = _experts(part(model_kinds.Experts), base, kind, kinds) if kind.width else None
    sparse = experts.layers if experts is not None else 0
    _expect(base.intermediate_size or sparse == (alone or layers), "intermediate_size")
    biases = kind.biases if base.attention_bias else ()
    differs = (*kind.differs, *_other_differences(base, kind, is_nested, whole))
    _expect_known_keys(text, {*kind.defaults, *kind.names, *(_OF_LATENT if latent else ()), *_names(structs)})
    return ModelFacts(
        name,
        layers,
        hidden,
        base.intermediate_size if sparse < (alone or layers) else 0,
        heads,
        kv_heads,
        head_dim,
        base.vocab_size,
        head_norms=kind.head_norms or bool(keys.get("use_qk_norm")),
        joint_norms=base.qk_norm_type != "per_head",
        rotated=rotated if kind.rotates else 0,
        biases=(*biases, *(("gate_up", "down") if base.mlp_bias else ())),
        activation=kind.activation,
        post_norms=kind.post_norms,
        latent=latent,
        indexer=indexer,
        blocks=blocks,
        experts=experts,
        linear_attention=own,
        sliding=(sliding, base.sliding_window if sliding else 0),
        gated_attention=kind.gated,
        tied=base.tie_word_embeddings,
        sinks=kind.sinks,
        differs=differs,
        positions=base.max_position_embeddings or ModelFacts.positions,
        feed_forwards=alone,
        **_dtype((text, whole)),
    )


def _kind(model_type: object) -> ModelKind:
    if not isinstance(model_type, str):
        raise ValidationError("no key 'model_type': give the config.json of a model")
    model_type = model_kinds.TEXT_OF.get(model_type, model_type)[:60]
    if model_type not in MODEL_KINDS:
        raise ValidationError(
            f"model_type {model_type!r} is not known{suggest(model_type, MODEL_KINDS)}: give a model of one of "
            f"{', '.join(MODEL_KINDS)}"
        )
    return MODEL_KINDS[model_type]


def _flat(text: Mapping[str, Any], kind: ModelKind) -> Iterable[tuple[str, Any]]:
    """Yields the keys of a configuration; those of one in it that the kind reads behind its own key and a dot."""
    read = {key.partition(".")[0] for key in kind.names if "." in key}
    for key, value in text.items():
        if key in read and isinstance(value, dict):
            yield from ((f"{key}.{inner}", each) for inner, each in value.items())
        else:
            yield key, value


def _keys(text: Mapping[str, Any], kind: ModelKind) -> dict[str, Any]:
    """Returns the keys of a configuration and the defaults of its kind, each by one name. One with null is absent."""
    found: dict[str, Any] = {}
    for key, value in text.items():
        for own in kind.names.get(key, [_ALIASES.get(key, key)]):
            if value is not None and found.get(own) is not None and found[own] != value:
                raise ValidationError(f"{own} {found[own]} and {key} {value} differ: give one")
            found[own] = value if value is not None else found.get(own)
    for key, value in kind.defaults.items():
        found.setdefault(key, value)
    if found.get("num_key_value_heads") is None and kind.own_keys:
        found["num_key_value_heads"] = found.get("num_attention_heads")
    return {key: value for key, value in found.items() if value is not None}


def _expect(value: int, key: str) -> None:
    if not value:
        raise ValidationError(f"no key {key!r}, which decides calls: add it")


def _names(structs: Iterable[type[msgspec.Struct]]) -> set[str]:
    """Returns the keys that structs have in a configuration."""
    return {each.encode_name for struct in structs for each in msgspec.structs.fields(struct)}


def _each_layer(key: str, kinds: LayerKinds, layers: int, known: Iterable[str]) -> list[str]:
    """Returns the kind of each layer; nothing where a file does not list them."""
    if kinds and len(kinds) != layers:
        raise ValidationError(f"{key} has no entry for each of the {layers} layers: give as many")
    if unknown := {str(kind) for kind in kinds} - {*known}:
        raise ValidationError(f"{key} has {min(unknown)[:60]!r}: no calls of this kind of layer are known")
    return [str(kind) for kind in kinds]


def _kinds_of_layers(base: EveryKind, kind: ModelKind, cycle: int) -> list[str]:
    """Returns the kind of each layer's attention. One layer of `cycle` has full attention."""
    layers, window = base.num_hidden_layers, base.sliding_window if base.use_sliding_window else 0
    known = {*_FULL_KINDS, SLIDING, kind.other, *kind.layer_names, *kind.layer_names.values()}
    listed = base.layer_types
    if not listed and base.kda_layers:
        listed = [LINEAR if i + 1 in base.kda_layers else FULL for i in range(layers)]
    kinds = [kind.layer_names.get(each, each) for each in _each_layer("layer_types", listed, layers, known)]
    if not kinds and cycle:
        kinds = [FULL if (i + 1) % cycle == 0 else kind.other for i in range(layers)]
    _expect(len(kinds) or kind.other != LINEAR, "layer_types")
    kinds = kinds or [SLIDING if window and i >= base.max_window_layers else FULL for i in range(layers)]
    if SLIDING in kinds and not window:
        raise ValidationError("layer_types has sliding_attention, and sliding_window has no size: give one")
    _each_layer("attn_type_list", base.attn_type_list, layers, ["1"])
    return kinds


def _head_dim(shared: model_kinds.SharedKeys, heads: int, hidden: int) -> int:
    if heads % shared.num_key_value_heads:
        problem = f"num_key_value_heads {shared.num_key_value_heads} does not divide num_attention_heads {heads}"
        raise ValidationError(problem)
    if not shared.head_dim and hidden % heads:
        raise ValidationError(f"num_attention_heads {heads} does not divide hidden_size {hidden}: give head_dim")
    return shared.head_dim or hidden // heads


def _rotated(shared: model_kinds.SharedKeys, head_dim: int, text: Mapping[str, Any]) -> int:
    """Returns the features of a head that the rotary embedding rotates."""
    factor: Any = shared.partial_rotary_factor
    for nested in (text.get("rope_parameters"), text.get("rope_scaling")):
        factor = nested.get("partial_rotary_factor", factor) if isinstance(nested, dict) else factor
    if not isinstance(factor, int | float) or not 0 < factor <= 1:
        raise ValidationError(f"partial_rotary_factor is {json.dumps(factor)[:60]}: give a number above 0, at most 1")
    return shared.rotary_dim or int(head_dim * factor)


def _indexer(indexer: Indexer, chosen: model_kinds.IndexedLayers, layers: int) -> Indexer:
    known = ("full", "shared", "F", "S")
    kinds = _each_layer("indexer_types", chosen.indexer_types, layers, known)
    kinds = kinds or _each_layer("index_topk_pattern", chosen.index_topk_pattern, layers, known)
    first, step = chosen.index_skip_topk_offset - 1, chosen.index_topk_freq
    kinds = kinds or ["S" if max(i - first, 0) % step else "F" for i in range(layers)]
    return msgspec.structs.replace(indexer, layers=sum(kind in ("full", "F") for kind in kinds))


def _experts(stated: model_kinds.Experts, base: EveryKind, kind: ModelKind, own: list[str]) -> RoutedExperts | None:
    layers, count, top_k = base.num_hidden_layers, stated.num_experts, stated.num_experts_per_tok
    listed = [("dense", "sparse")[each] for each in stated.moe_layer_freq] if stated.moe_layer_freq != 1 else []
    kinds = _each_layer("mlp_layer_types", [*stated.mlp_layer_types] or [*listed], layers, ("dense", "sparse"))
    if MLP in kind.layer_names.values():
        sparse = own.count(MOE)
        _expect(count or not sparse, "num_experts")
    elif kinds:
        sparse = kinds.count("sparse")
    elif kind.sparse == "steps":
        step, dense = stated.decoder_sparse_step, stated.mlp_only_layers
        sparse = sum((i + 1) % step == 0 and i not in dense for i in range(layers))
    else:
        sparse = max(layers - stated.first_k_dense_replace, 0) if kind.sparse == "later" else layers
    if not count or not sparse:
        return None
    width = stated.moe_intermediate_size if kind.width == model_kinds.MOE_WIDTH else base.intermediate_size
    _expect(width, kind.width)
    _expect(top_k, "num_experts_per_tok")
    if top_k > count:
        raise ValidationError(f"num_experts_per_tok is {top_k}, more than the {count} experts: give less")
    gated = stated.shared_expert_intermediate_size
    shared = gated or stated.shared_intermediate_size or stated.n_shared_experts * width
    by_softmax = (stated.scoring_func or kind.scores) == "softmax"
    return RoutedExperts(count, width, top_k, sparse, shared, bool(gated), stated.routed_latent_size, by_softmax)


def _other_differences(base: EveryKind, kind: ModelKind, nested: bool, whole: Mapping[str, Any]) -> Iterable[str]:
    """Yields further parts of a model that its calls leave out, or have in another way."""
    act = base.mlp_hidden_act or base.hidden_activation or base.hidden_act
    if (act == "relu2") != (kind.activation == "Relu2"):
        raise ValidationError(f"the activation {act[:60]} is not that of its kind: no calls of it are known")
    if act not in ("silu", "swish") and kind.activation == "SwiGlu":
        yield f"{act[:60]} is answered as SwiGlu"
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(base, key):
            yield f"no {key}"
    if base.num_nextn_predict_layers:
        yield "no multi-token prediction"
    if nested and any(key in whole for key in ("vision_config", "audio_config")):
        yield "text alone"


def _expect_known_keys(text: Mapping[str, Any], known: set[str]) -> None:
    for key, value in text.items():
        if not value or key.startswith("_") or key in _MATTERS_NOT or _ALIASES.get(key, key) in known:
            continue
        if _MAY_MATTER.fullmatch(key.rpartition(".")[2]):
            raise ValidationError(f"{key} {json.dumps(value)[:60]} is not known: remove it if it decides no call")


def _dtype(places: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns how weights and the cache are stored, as attributes of `ModelFacts`."""
    keys = ("quantization_config", "compression_config")
    found = next((place[key] for place in places for key in keys if place.get(key)), None)
    if found is not None:
        if isinstance(found, dict):
            found = {key: value for key, value in found.items() if value is not None}
            found |= inner if isinstance(inner := found.get("quantization"), dict) else {}
        stated = msgspec.convert({"quantization_config": found}, model_kinds.Stored).quantization_config
        dtype, words, bits = stated.dtype_and_weights()
        how = {"dtype": dtype, "stored": words, "stored_bits": bits, "cache_dtype": stated.cache_dtype()}
        return {**how, "scales": stated.scales() if dtype == "FLOAT8_E4M3FN" else ""}
    word = next((place[key] for place in places for key in ("dtype", "torch_dtype") if place.get(key)), "bfloat16")
    word = str(word).removeprefix("torch.")
    dtype = {"bfloat16": "BF16", "float16": "FLOAT16"}.get(word, "")
    stored = "" if dtype else f"{word[:60]} weights"
    return {"dtype": dtype, "stored": stored, "stored_bits": (32 if word == "float32" else 16, False)}
