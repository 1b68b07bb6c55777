"""The facts about a model that theory rows need: its weights, and how serving engines divide them among devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from typing import Literal

from opatlas.errors import UsageError
from opatlas.theory.model_parts import BlockIndexer, Indexer, Latent, LinearAttention, RoutedExperts

#: Engines pad the rows of the LM head to a multiple of this (vLLM's VocabParallelEmbedding).
_VOCAB_MULTIPLE = 64
#: dtypes of activations.
ACTIVATIONS = ("BF16", "FLOAT16")
#: Default sizes of tensor and of expert parallelism. A model takes the sizes that divide its heads and experts.
TP_SIZES = (1, 2, 4, 8, 16)
EP_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

Activation = Literal["SwiGlu", "GeGluV2", "ClippedSwiglu", "Relu2"]


class TargetError(UsageError):
    """A model, or a size of parallelism, that has no shapes. The caller names the option that gave the value.

    Attributes:
        argument: "model", "tp" or "ep".
        value: the value, as the user gave it.
        problem: the problem with the value.
    """

    def __init__(self, argument: Literal["model", "tp", "ep"], value: str, problem: str) -> None:
        self.argument, self.value, self.problem = argument, value, problem
        super().__init__(f"{value}: {problem}" if argument == "model" else f"{argument} {value}: {problem}")


@dataclass(frozen=True)
class Linear:
    """A weight matrix on one device, with `n` output features and `k` input features, and its calls in a step."""

    name: str
    n: int
    k: int
    calls: int = 1


@dataclass(frozen=True)
class Weight:
    """A weight of the whole model.

    Attributes:
        role: "qkv", "o_proj", "gate_up" and so on.
        parts: output features; one number for each of the matrices that engines fuse into one.
        k: input features.
        cut: the features that tensor parallelism divides.
        calls: how often a forward pass multiplies with a weight of this kind: once in each layer that has one.
        least: the smallest number of output features of a part on a device. A head that several devices share stays
            whole.
    """

    role: str
    parts: tuple[int, ...]
    k: int
    cut: Literal["outputs", "inputs", "nothing"]
    calls: int = 1
    least: int = 1

    def on_device(self, tp: int) -> Linear | None:
        """Returns the matrix that one of `tp` devices holds; None if `tp` does not divide the weight."""
        n = sum(self.parts)
        if self.cut == "inputs":
            return None if self.k % tp else Linear(self.role, n, self.k // tp, self.calls)
        if self.cut == "nothing" or tp == 1:
            return Linear(self.role, n, self.k, self.calls)
        if any(part % tp and part > self.least * tp for part in self.parts):
            return None
        n = sum(max(part // tp, self.least) for part in self.parts)
        return Linear(self.role, n, self.k, self.calls)


@dataclass(frozen=True)
class ModelFacts:
    """The architecture of a model.

    Attributes:
        name: the publisher's name of the model.
        layers: the number of layers.
        hidden: features of the residual stream.
        intermediate: features of the dense feed-forward network; 0 if there is none.
        heads, kv_heads: attention heads of queries, and of keys and values.
        head_dim: features of a head; `heads * head_dim` may differ from `hidden`.
        vocab: rows of the embedding table and outputs of the LM head.
        head_norms: whether queries and keys are normalized, each head alone unless `joint_norms`.
        joint_norms: whether one norm is over all heads.
        rotated: the features of a head that rotary embedding rotates.
        biases: the roles of the weights with a bias.
        activation: the kernel type of the feed-forward network's gate; "Relu2" is the square of a ReLU, without a gate.
        post_norms: whether results of attention and feed-forward network are normalized, too; the embedding is scaled.
        latent, indexer, blocks, experts, linear_attention: None where the model does not have the part.
        sliding: the layers whose queries see a window of keys, and its tokens.
        sinks: whether attention has one more score for each head, without a value.
        gated_attention: whether the output of attention is multiplied with a gate, which the queries' product computes.
        dtype: the dtype of a step unless another one is asked for; "" where no row has that of the weights.
        stored: how the published weights are stored, where not in `dtype` alone.
        stored_bits: of a published weight with its scales, and whether those of experts alone have as few.
        scales: of weights in FP8 and of their inputs: "per_tensor", or "blocks" of 128; "" for one of each token.
        tied: whether the LM head has the weights of the embedding.
        cache_dtype: of keys and values in the cache; "" for that of activations.
        differs: the parts of the model that the calls leave out, or have in another way.
        positions: lines of the table of rotary embedding.
        feed_forwards: layers that are a feed-forward network alone, others being none; 0 where each layer has one.
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    head_norms: bool = False
    joint_norms: bool = False
    rotated: int = 0
    biases: tuple[str, ...] = ()
    activation: Activation = "SwiGlu"
    post_norms: bool = False
    latent: Latent | None = None
    indexer: Indexer | None = None
    blocks: BlockIndexer | None = None
    experts: RoutedExperts | None = None
    linear_attention: LinearAttention | None = None
    sliding: tuple[int, int] = (0, 0)
    sinks: bool = False
    gated_attention: bool = False
    dtype: str = "BF16"
    stored: str = ""
    stored_bits: tuple[float, bool] = (16, False)
    scales: Literal["", "per_tensor", "blocks"] = ""
    tied: bool = False
    cache_dtype: str = ""
    differs: tuple[str, ...] = ()
    positions: int = 40960
    feed_forwards: int = 0

    @property
    def gates(self) -> bool:
        """Whether feed-forward networks have a gate."""
        return self.activation != "Relu2"

    @property
    def mixers(self) -> int:
        """The number of layers with attention, or what takes its place."""
        return self.layers - self.feed_forwards

    @property
    def attention_layers(self) -> int:
        """The number of layers with attention."""
        return self.mixers - (self.linear_attention.layers if self.linear_attention is not None else 0)

    @property
    def dense_layers(self) -> int:
        """The number of layers with a feed-forward network that all tokens pass alone."""
        return (self.feed_forwards or self.layers) - (self.experts.layers if self.experts is not None else 0)

    @cached_property
    def weights(self) -> tuple[Weight, ...]:
        """All matrices of linear layers, each kind once, without the matrices of routed experts."""
        return tuple(self._weights())

    def _weights(self) -> Iterator[Weight]:
        hidden = self.hidden
        if self.latent is not None:
            yield from self._latent_weights(self.latent)
        else:
            queries, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
            with_gate = queries * (2 if self.gated_attention else 1)
            yield Weight("qkv", (with_gate, kv, kv), hidden, "outputs", self.attention_layers, least=self.head_dim)
            yield Weight("o_proj", (hidden,), queries, "inputs", self.attention_layers)
        if (blocks := self.blocks) is not None:
            of_queries, width = blocks.index_n_heads * blocks.index_head_dim, blocks.index_head_dim
            yield Weight("indexer_qk", (of_queries, width), hidden, "outputs", blocks.layers, least=width)
        if self.indexer is not None and self.latent is not None:
            of_queries = self.indexer.index_n_heads * self.indexer.index_head_dim
            yield Weight("indexer_q", (of_queries,), self.latent.q_lora_rank, "nothing", self.indexer.layers)
            yield Weight("indexer_k", (self.indexer.index_head_dim,), hidden, "nothing", self.indexer.layers)
            yield Weight("indexer_weights", (self.indexer.index_n_heads,), hidden, "nothing", self.indexer.layers)
        if self.dense_layers:
            yield from self._feed_forward("", self.intermediate, self.dense_layers)
        if (experts := self.experts) is not None:
            if experts.shared:
                yield from self._feed_forward("shared_", experts.shared, experts.layers)
            yield Weight("router", (experts.count,), hidden, "nothing", experts.layers)
            if experts.latent:
                yield Weight("experts_in", (experts.latent,), hidden, "nothing", experts.layers)
                yield Weight("experts_out", (hidden,), experts.latent, "nothing", experts.layers)
            if experts.shared and experts.shared_gate:
                yield Weight("shared_expert_gate", (1,), hidden, "nothing", experts.layers)
        if (own := self.linear_attention) is not None:
            for role, parts, k in own.products:
                yield Weight(role, parts, k or hidden, "nothing" if role.endswith("_a") else "outputs", own.layers)
            yield Weight("out_proj", (hidden,), own.values, "inputs", own.layers)
        yield Weight("lm_head", (-(-self.vocab // _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE,), hidden, "outputs")

    def _feed_forward(self, prefix: str, width: int, layers: int) -> Iterator[Weight]:
        """Yields the fused gate and up projection, or the latter alone, and the down projection."""
        fused = ("gate_up", (width, width)) if self.gates else ("up", (width,))
        yield Weight(f"{prefix}{fused[0]}", fused[1], self.hidden, "outputs", layers)
        yield Weight(f"{prefix}down", (self.hidden,), width, "inputs", layers)

    def _latent_weights(self, latent: Latent) -> Iterator[Weight]:
        """Yields the projections of multi-head latent attention.

        Every device has the compressions. Engines compute both in one product, or one after the other.
        """
        layers = self.attention_layers
        down, query = (
            latent.kv_lora_rank + latent.qk_rope_head_dim,
            self.heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim),
        )
        if latent.q_lora_rank:
            yield Weight("q_a", (latent.q_lora_rank,), self.hidden, "nothing", layers)
        yield Weight("kv_a", (down,), self.hidden, "nothing", layers)
        if latent.q_lora_rank:
            yield Weight("q_kv_a", (latent.q_lora_rank, down), self.hidden, "nothing", layers)
            yield Weight("q_b", (query,), latent.q_lora_rank, "outputs", layers)
        else:
            yield Weight("q", (query,), self.hidden, "outputs", layers)
        yield Weight(
            "kv_b",
            (self.heads * (latent.qk_nope_head_dim + latent.v_head_dim),),
            latent.kv_lora_rank,
            "outputs",
            layers,
        )
        yield Weight("o_proj", (self.hidden,), self.heads * latent.v_head_dim, "inputs", layers)

    def differences(self, dtype: str) -> tuple[str, ...]:
        """Returns how a step with this dtype differs from one of the published model."""
        scales = " with a scale for each token" if dtype not in ACTIVATIONS else ""
        is_own = not self.stored or (self.scales and dtype == "FLOAT8_E4M3FN")
        stored = () if is_own else (f"{self.stored} are answered as {dtype}{scales}",)
        one_scale = self.scales == "per_tensor" and self.experts is not None and dtype == "FLOAT8_E4M3FN"
        experts = ("products of experts are answered with a scale for each token",) if one_scale else ()
        biases = ("biases count only where rows have them",) if self.biases and dtype in ACTIVATIONS else ()
        biases = biases or (("no biases",) if self.biases else ())
        sinks = ("sinks count only where rows have them",) if self.sinks else ()
        return (*stored, *experts, *biases, *sinks, *self.differs)

    def tp_sizes(self, wanted: Sequence[int] = TP_SIZES) -> tuple[int, ...]:
        """Returns the sizes of tensor parallelism among `wanted` that divide the heads and all weights."""
        return tuple(
            tp
            for tp in wanted
            if not any(
                heads % tp
                for heads in (self.heads, self.linear_attention.linear_num_key_heads if self.linear_attention else tp)
            )
            and all(weight.on_device(tp) for weight in self.weights)
        )

    def expect_division(self, tp: int, ep: int, replicas: int = 1) -> None:
        """Checks that `tp` devices can share a layer, and `ep` devices the experts of replicas of the attention.

        Raises:
            UsageError: the sizes do not divide the model.
        """
        if not self.tp_sizes((tp,)):
            sizes = ", ".join(map(str, self.tp_sizes(range(1, 65))))
            raise TargetError("tp", str(tp), f"does not divide {self.name}: give one of {sizes}")
        if self.experts is None:
            if ep > 1:
                raise TargetError("ep", str(ep), f"{self.name} has no experts: give 1")
            return
        if ep > 1 and (ep != tp * replicas or self.experts.count % ep):
            raise UsageError(
                f"ep {ep} with tp {tp}{f' and dp {replicas}' if replicas > 1 else ''}: {self.name} has "
                f"{self.experts.count} experts: give 1, or a multiple of tp that divides their number, which is tp x dp"
            )
        if ep == 1 and self.experts.width % (tp * replicas):
            raise UsageError(
                f"tp {tp} with dp {replicas} does not divide the {self.experts.width} features of an expert of "
                f"{self.name}: give another tp, or divide the experts with ep"
            )

    def ep_sizes(self, wanted: Sequence[int] = EP_SIZES) -> tuple[int, ...]:
        """Returns the sizes of expert parallelism among `wanted` that divide the experts."""
        return tuple(ep for ep in wanted if self.experts is not None and self.experts.count % ep == 0)

    def linears(self, tp: int) -> tuple[Linear, ...]:
        """Returns the matrices of one of `tp` devices, without the matrices of routed experts."""
        return tuple(linear for weight in self.weights if (linear := weight.on_device(tp)) is not None)

    def kv_heads_on_device(self, tp: int) -> int:
        """Returns the key heads of one of `tp` devices; devices share heads where `tp` exceeds their number."""
        return max(1, self.kv_heads // tp)

    def expert_shares(self, tp_sizes: Sequence[int], ep_sizes: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
        """Returns (experts, width of each, ep) of one device for each way to divide the experts.

        Expert parallelism divides the number of experts, tensor parallelism their width. An engine uses one of both.
        """
        if self.experts is None:
            return ()
        count, width = self.experts.count, self.experts.width
        shares = {(count // ep, width): ep for ep in self.ep_sizes(ep_sizes)}
        for tp in self.tp_sizes(tp_sizes):
            if width % tp == 0:
                shares.setdefault((count, width // tp), 1)
        return tuple((*share, ep) for share, ep in shares.items())


@cache
def built_in_models() -> tuple[ModelFacts, ...]:
    """Returns the models of shapes/models.py, which theory rows take their shapes from by default."""
    models: tuple[ModelFacts, ...] = import_module("opatlas.shapes.models").BUILT_IN
    return models


@cache
def models_by_name() -> Mapping[str, ModelFacts]:
    """Returns all models of shapes/models.py by their full and their short names, in lower case."""
    models: Mapping[str, ModelFacts] = import_module("opatlas.shapes.models").BY_NAME
    return models
