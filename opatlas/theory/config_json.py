"""The sizes of a model, read from the config.json that is published with it.

Only keys that are known to decide a call are read, for the kinds of models of `MODEL_KINDS`. A key that may decide a
call and is not read is refused, so that no step is that of another model. `ModelFacts.differs`
lists the calls that are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from opatlas.text import suggest
from opatlas.theory.model_kinds import INDEXER, LINEAR, MODEL_KINDS, MOE_WIDTH, SLIDING, TEXT_OF, read_quantization
from opatlas.theory.models import DeltaNet, Indexer, Latent, ModelFacts, RoutedExperts, TargetError, Weight, lm_head

#: The model has no more layers, and no larger size.
_MOST_LAYERS, _MOST = 10_000, 2**31
_REQUIRED = -1

#: Names for one thing.
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
_TOP_KS = ("num_experts_per_tok", "experts_per_token", "moe_topk")
_PREDICTIONS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "num_mtp_modules")
#: The file of modelopt next to a config.json.
_HF_QUANT_CONFIG = "hf_quant_config.json"

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
        *("moe_router_dtype", "moe_aux_loss_coef", "moe_router_enable_expert_bias", "experts_implementation"),
        *("index_share_for_mtp_iteration", "attn_output_gate", "rope_local_base_freq"),
    }
)
_FULL = frozenset({"full_attention", "attention", "indexed_attention", "deepseek_sparse_attention"})


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
    return _Reader(name, content, given or name).facts()


class _Reader:
    """Reads one configuration, and remembers which keys were read."""

    def __init__(self, name: str, content: Mapping[str, Any], given: str) -> None:
        self._name, self._whole, self._given = name, content, given
        text = content.get("text_config")
        self._text: Mapping[str, Any] = text if isinstance(text, dict) else content
        outer = content.get("model_type")
        model_type = self._text.get("model_type") or outer
        if not isinstance(model_type, str):
            self._refuse("no key 'model_type': give the config.json of a model")
        model_type = TEXT_OF.get(model_type, model_type)[:60]
        if model_type not in MODEL_KINDS:
            self._refuse(
                f"model_type {model_type!r} is not known{suggest(model_type, MODEL_KINDS)}: give a model of one of "
                f"{', '.join(MODEL_KINDS)}"
            )
        self._model_type, self._family = model_type, MODEL_KINDS[model_type]
        self._keys_read: set[str] = set()
        self._differs: list[str] = []

    def facts(self) -> ModelFacts:
        family = self._family
        self._layers = self._size("num_hidden_layers")
        if self._layers > _MOST_LAYERS:
            self._refuse(f"num_hidden_layers is {self._layers}: give at most {_MOST_LAYERS}")
        hidden, heads, vocab = (self._size(key) for key in ("hidden_size", "num_attention_heads", "vocab_size"))
        kinds = self._kinds_of_layers()
        delta = self._delta_net(kinds.count(LINEAR))
        latent = None if family.attention == "shared" else self._latent()
        indexer = self._indexer() if family.attention == "indexed" else None
        of_attention = self._layers - kinds.count(LINEAR)
        if latent is not None:
            kv_heads, head_dim = heads, latent.nope + latent.rope
            weights = _latent_weights(hidden, heads, latent, of_attention)
        else:
            kv_heads, head_dim = self._kv_heads(heads), self._head_dim(hidden, heads)
            kv = kv_heads * head_dim
            queries = heads * head_dim * (2 if family.gated else 1)
            weights = (
                Weight("qkv", (queries, kv, kv), hidden, "outputs", least=head_dim, calls=of_attention),
                Weight("o_proj", (hidden,), heads * head_dim, "inputs", calls=of_attention),
            )
            self._tell_rotation(head_dim)
        if indexer is not None and latent is not None:
            weights += _indexer_weights(hidden, latent, indexer)
        experts, sparse = self._experts()
        dense = self._layers - sparse
        intermediate = self._size("intermediate_size") if dense else 0
        weights += (
            *(_feed_forward(hidden, intermediate, dense) if dense else ()),
            *(_expert_weights(hidden, experts, sparse, self._has_shared_gate) if experts is not None else ()),
            *(_delta_weights(hidden, delta) if delta is not None else ()),
            lm_head(vocab, hidden),
        )
        head_norms = self._head_norms()
        self._tell_rest()
        dtype, stored = self._dtype()
        self._expect_known_keys()
        return ModelFacts(
            self._name,
            self._layers,
            hidden,
            intermediate,
            heads,
            kv_heads,
            head_dim,
            vocab,
            weights,
            head_norms=head_norms,
            latent=latent,
            indexer=indexer,
            experts=experts,
            delta=delta,
            gated_attention=family.gated,
            dtype=dtype,
            stored=stored,
            differs=tuple(self._differs),
        )

    def _refuse(self, problem: str) -> NoReturn:
        raise TargetError("model", self._given, problem)

    def _get(self, key: str, otherwise: Any = None) -> Any:
        """Returns the value of a key; that of the family's class if the key is missing."""
        self._keys_read.add(key)
        return self._text.get(key, self._family.defaults.get(key, otherwise))

    def _size(self, *keys: str, otherwise: int = _REQUIRED) -> int:
        """Returns the size that a key has, whatever the key is called; `otherwise` where none or null is there."""
        found = {key: value for key in keys if (value := self._get(key)) is not None}
        for key, value in found.items():
            if type(value) is not int or not (otherwise != 0) <= value <= _MOST:
                self._refuse(f"{key} is {json.dumps(value)[:60]}: give a whole number above 0")
        if len(set(found.values())) > 1:
            self._refuse(" and ".join(f"{key} {value}" for key, value in found.items()) + " differ: give one")
        if not found and otherwise == _REQUIRED:
            self._refuse(f"no key {keys[0]!r}, which decides calls: add it")
        return next(iter(found.values()), otherwise)

    def _list(self, key: str) -> list[str] | None:
        """Returns the values of a key for each layer; None if the key is missing."""
        value = self._get(key)
        if value is None:
            return None
        # A pattern is a text with a letter for each layer.
        if not isinstance(value, list | str) or len(value) != self._layers:
            self._refuse(f"{key} has no entry for each of the {self._layers} layers: give as many")
        return [str(each) for each in value]

    def _kinds_of_layers(self) -> list[str]:
        """Returns the kind of each layer's attention, and notes windows."""
        family, window = self._family, self._size("sliding_window", otherwise=0)
        if not self._get("use_sliding_window", True):
            window = 0
        kinds = self._list("layer_types")
        if family.cycle > 1:
            cycle = self._size("full_attention_interval", "sliding_window_pattern", otherwise=family.cycle)
            kinds = kinds or ["full_attention" if (i + 1) % cycle == 0 else family.other for i in range(self._layers)]
        first = self._size("max_window_layers", otherwise=0)
        kinds = kinds or [SLIDING if window and i >= first else "full_attention" for i in range(self._layers)]
        if unknown := {*kinds} - _FULL - {family.other, SLIDING}:
            self._refuse(f"layer_types has {min(unknown)[:60]!r}: no calls of this kind of layer are known")
        sliding = kinds.count(SLIDING)
        if sliding and not window:
            self._refuse("layer_types has sliding_attention, and sliding_window has no size: give one")
        if sliding:
            self._differs.append(f"{sliding} of {self._layers} layers see {window} tokens, answered as all tokens")
        if others := [kind for kind in self._list("attn_type_list") or () if kind != "1"]:
            self._refuse(f"attn_type_list has {others[0][:60]}: only 1, full attention, is known")
        return kinds

    def _kv_heads(self, heads: int) -> int:
        required = "num_key_value_heads" not in self._family.defaults
        kv_heads = self._size("num_key_value_heads", otherwise=_REQUIRED if required else heads)
        if heads % kv_heads:
            self._refuse(f"num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}")
        return kv_heads

    def _head_dim(self, hidden: int, heads: int) -> int:
        head_dim = self._size("head_dim", otherwise=0)
        if not head_dim and hidden % heads:
            self._refuse(f"num_attention_heads {heads} does not divide hidden_size {hidden}: give head_dim")
        return head_dim or hidden // heads

    def _head_norms(self) -> bool:
        stated = self._family.head_norms
        if self._get("qk_norm_type") not in (None, "per_head"):
            self._differs.append("norms over all heads are answered as norms of each head")
        return bool(self._get(stated, False)) if isinstance(stated, str) else stated

    def _latent(self) -> Latent:
        self._keys_read |= {"num_key_value_heads", "qk_head_dim", "head_dim"}
        q_lora = self._size("q_lora_rank", otherwise=_REQUIRED if self._family.attention == "indexed" else 0)
        sizes = [self._size(key) for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")]
        return Latent(q_lora, *sizes)

    def _indexer(self) -> Indexer:
        heads, head_dim, top_k = (self._size(key) for key in INDEXER)
        kinds = self._list("indexer_types") or self._list("index_topk_pattern")
        freq, offset = self._size("index_topk_freq", otherwise=1), self._size("index_skip_topk_offset", otherwise=2)
        kinds = kinds or ["F" if max(i - offset + 1, 0) % freq == 0 else "S" for i in range(self._layers)]
        if unknown := {*kinds} - {"full", "shared", "F", "S"}:
            self._refuse(f"a layer has the indexer {min(unknown)[:60]!r}: only full and shared are known")
        return Indexer(heads, head_dim, top_k, sum(kind in ("full", "F") for kind in kinds))

    def _experts(self) -> tuple[RoutedExperts | None, int]:
        """Returns the experts, and the number of layers that have some."""
        family = self._family
        if not family.width:
            return None, 0
        # Files state these also where no layer has experts.
        self._keys_read |= {"intermediate_size", *_TOP_KS, MOE_WIDTH, "n_shared_experts"}
        count = self._size(
            *_EXPERT_COUNTS, otherwise=0 if any(key in self._text for key in _EXPERT_COUNTS) else _REQUIRED
        )
        sparse = self._sparse_layers()
        if not count or not sparse:
            return None, 0
        if self._size("moe_layer_freq", otherwise=1) != 1:
            self._refuse(f"moe_layer_freq is {self._text['moe_layer_freq']}: only 1 is known")
        top_k, width = self._size(*_TOP_KS), self._size(family.width)
        if top_k > count:
            self._refuse(f"num_experts_per_tok is {top_k}, more than the {count} experts: give less")
        stated = self._size("shared_expert_intermediate_size", "shared_intermediate_size", otherwise=0)
        shared = stated or self._size("n_shared_experts", otherwise=0) * width
        return RoutedExperts(count, width, top_k, shared), sparse

    @property
    def _has_shared_gate(self) -> bool:
        return "shared_expert_intermediate_size" in self._text

    def _sparse_layers(self) -> int:
        kinds = self._list("mlp_layer_types")
        first, step = self._size("first_k_dense_replace", otherwise=0), self._size("decoder_sparse_step", otherwise=1)
        only = self._get("mlp_only_layers") or []
        if not isinstance(only, list):
            self._refuse(f"mlp_only_layers is {json.dumps(only)[:60]}: give a list")
        if kinds is None and self._family.sparse == "steps":
            kinds = ["sparse" if i not in only and (i + 1) % step == 0 else "dense" for i in range(self._layers)]
        elif kinds is None and self._family.sparse == "later":
            kinds = ["dense" if i < first else "sparse" for i in range(self._layers)]
        kinds = kinds or ["sparse"] * self._layers
        if unknown := {*kinds} - {"dense", "sparse"}:
            self._refuse(f"mlp_layer_types has {min(unknown)[:60]!r}: only dense and sparse are known")
        return kinds.count("sparse")

    def _delta_net(self, layers: int) -> DeltaNet | None:
        keys = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
        if self._family.other != LINEAR:
            return None
        sizes = [self._size(key) for key in (*keys, "linear_conv_kernel_dim")]
        return DeltaNet(layers, *sizes) if layers else None

    def _tell_rotation(self, head_dim: int) -> None:
        places = [self._text, *(self._text.get(key) for key in ("rope_parameters", "rope_scaling"))]
        stated = [
            each["partial_rotary_factor"]
            for each in places
            if isinstance(each, dict) and "partial_rotary_factor" in each
        ]
        factor = stated[-1] if stated else self._get("partial_rotary_factor", 1)
        if not isinstance(factor, int | float) or not 0 < factor <= 1:
            self._refuse(f"partial_rotary_factor is {json.dumps(factor)[:60]}: give a number above 0, at most 1")
        rotated = self._size("rotary_dim", otherwise=0) or int(head_dim * factor)
        if rotated != head_dim:
            self._differs.append(f"{rotated} of {head_dim} features of a head are rotated, answered as all")

    def _tell_rest(self) -> None:
        differs = self._differs
        differs += self._family.differs
        if self._get("attention_bias"):
            differs.append("no biases of attention")
        if self._get("mlp_bias"):
            differs.append("no biases of feed-forward networks")
        act = self._text.get("mlp_hidden_act") or self._text.get("hidden_activation") or self._get("hidden_act", "silu")
        if act == "relu2":
            self._refuse("the activation relu2 has no gate, which no calls are known of")
        if act not in ("silu", "swish"):
            differs.append(f"{str(act)[:60]} is answered as SwiGlu")
        for key in ("attn_logit_softcapping", "final_logit_softcapping"):
            if self._get(key):
                differs.append(f"no {key}")
        if any(isinstance(self._get(key), int) and self._get(key) for key in _PREDICTIONS):
            differs.append("no multi-token prediction")
        if self._text is not self._whole and any(key in self._whole for key in ("vision_config", "audio_config")):
            differs.append("text alone")

    def _expect_known_keys(self) -> None:
        for key, value in self._text.items():
            if key in self._keys_read or key in _MATTERS_NOT or not value or key.startswith("_"):
                continue
            if _MAY_MATTER.fullmatch(key):
                shown = json.dumps(value)[:60]
                self._refuse(
                    f"{key} is {shown}, which is not known of a {self._model_type} and may decide its calls: "
                    f"remove the key if it does not"
                )

    def _dtype(self) -> tuple[str, str]:
        """Returns the dtype of a step, "" if no row has it, and how the weights are stored if not in that dtype."""
        places = (self._text, self._whole)
        keys = ("quantization_config", "compression_config")
        found = next((place[key] for place in places for key in keys if place.get(key)), None)
        self._keys_read |= {*keys, "dtype", "torch_dtype"}
        if found is not None:
            if not isinstance(found, dict):
                self._refuse(f"quantization_config is {str(found)[:60]!r}: give its keys")
            if isinstance(inner := found.get("quantization"), dict):
                found = {**found, **inner}
            if found.get("kv_cache_scheme") or found.get("kv_cache_quant_algo"):
                self._differs.append("a quantized cache is answered as BF16")
            return read_quantization(found)
        word = next((place[key] for place in places for key in ("dtype", "torch_dtype") if place.get(key)), "bfloat16")
        dtype = {"bfloat16": "BF16", "float16": "FLOAT16"}.get(str(word).removeprefix("torch."), "")
        return dtype, "" if dtype else f"{str(word)[:60]} weights"


def _feed_forward(hidden: int, width: int, layers: int, prefix: str = "") -> Iterator[Weight]:
    """Yields the fused gate and up projection, and the down projection."""
    yield Weight(f"{prefix}gate_up", (width, width), hidden, "outputs", calls=layers)
    yield Weight(f"{prefix}down", (hidden,), width, "inputs", calls=layers)


def _expert_weights(hidden: int, experts: RoutedExperts, layers: int, gate: bool) -> Iterator[Weight]:
    """Yields the weights of layers with experts, without the matrices of the routed experts."""
    if experts.shared:
        yield from _feed_forward(hidden, experts.shared, layers, "shared_")
    yield Weight("router", (experts.count,), hidden, "nothing", calls=layers)
    if experts.shared and gate:
        yield Weight("shared_expert_gate", (1,), hidden, "nothing", calls=layers)


def _latent_weights(hidden: int, heads: int, latent: Latent, layers: int) -> tuple[Weight, ...]:
    """Returns the projections of multi-head latent attention.

    Every device has the compressions. Engines compute both in one product, or one after the other.
    """
    down, query = latent.kv_lora + latent.rope, heads * (latent.nope + latent.rope)
    kv_a = Weight("kv_a", (down,), hidden, "nothing", calls=layers)
    of_queries: Sequence[Weight] = (kv_a, Weight("q", (query,), hidden, "outputs", calls=layers))
    if latent.q_lora:
        of_queries = (
            Weight("q_a", (latent.q_lora,), hidden, "nothing", calls=layers),
            kv_a,
            Weight("q_kv_a", (latent.q_lora, down), hidden, "nothing", calls=layers),
            Weight("q_b", (query,), latent.q_lora, "outputs", calls=layers),
        )
    return (
        *of_queries,
        Weight("kv_b", (heads * (latent.nope + latent.value),), latent.kv_lora, "outputs", calls=layers),
        Weight("o_proj", (hidden,), heads * latent.value, "inputs", calls=layers),
    )


def _indexer_weights(hidden: int, latent: Latent, indexer: Indexer) -> tuple[Weight, ...]:
    return (
        Weight("indexer_q", (indexer.heads * indexer.head_dim,), latent.q_lora, "nothing", calls=indexer.layers),
        Weight("indexer_k", (indexer.head_dim,), hidden, "nothing", calls=indexer.layers),
        Weight("indexer_weights", (indexer.heads,), hidden, "nothing", calls=indexer.layers),
    )


def _delta_weights(hidden: int, delta: DeltaNet) -> tuple[Weight, ...]:
    key, value = delta.key_heads * delta.key_dim, delta.value_heads * delta.value_dim
    return (
        Weight("in_proj_qkvz", (key, key, value, value), hidden, "outputs", calls=delta.layers),
        Weight("in_proj_ba", (delta.value_heads, delta.value_heads), hidden, "outputs", calls=delta.layers),
        Weight("out_proj", (hidden,), value, "inputs", calls=delta.layers),
    )
