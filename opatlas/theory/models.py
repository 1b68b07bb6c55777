"""What theory rows need to know of a model: its weights, and how a serving engine cuts them up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Literal

#: Rows of the LM head are a multiple of this before they are cut (vLLM's VocabParallelEmbedding).
_VOCAB_MULTIPLE = 64
#: A model's sizes of tensor and of expert parallelism where nobody says other ones; those that its
#: heads and experts can be divided by are taken.
TP_SIZES = (1, 2, 4, 8, 16)
EP_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Linear:
    """A weight of (n, k) on one device: `n` output features, `k` input features."""

    name: str
    n: int
    k: int


@dataclass(frozen=True)
class Weight:
    """A weight of the whole model.

    Attributes:
        role: "qkv", "o_proj", "gate_up" ...
        parts: output features; of several matrices that engines fuse into one, each one's.
        k: input features.
        cut: what tensor parallelism divides: the output features, the input features, or nothing.
        least: output features that no part gets less of: those of a head that several devices share.
    """

    role: str
    parts: tuple[int, ...]
    k: int
    cut: Literal["outputs", "inputs", "nothing"]
    least: int = 1

    def on_device(self, tp: int) -> Linear | None:
        """What one of `tp` devices holds; None where it cannot be divided so."""
        n = sum(self.parts)
        if self.cut == "inputs":
            return None if self.k % tp else Linear(self.role, n, self.k // tp)
        if self.cut == "nothing" or tp == 1:
            return Linear(self.role, n, self.k)
        if any(part % tp and part > self.least * tp for part in self.parts):
            return None
        return Linear(self.role, sum(max(part // tp, self.least) for part in self.parts), self.k)


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: ranks of the compressed queries and keys, and a head's features.

    Attributes:
        q_lora: 0 where queries are not compressed.
        nope, rope: features of a query or key without and with a rotary embedding.
        value: features of a value.
    """

    q_lora: int
    kv_lora: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True)
class Indexer:
    """Sparse attention's choice of `top_k` keys, by heads of its own."""

    heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True)
class RoutedExperts:
    """Routed experts of `width` each, `top_k` of which see a token; `shared` is the width of those that all see."""

    count: int
    width: int
    top_k: int
    shared: int = 0


@dataclass(frozen=True)
class ModelFacts:
    """An architecture.

    Attributes:
        name: as its publisher calls it.
        hidden, intermediate: widths of the residual stream and of the dense feed-forward network; the
            latter 0 where there is none.
        heads, kv_heads: attention heads of queries, and of keys and values.
        head_dim: width of one head; `heads * head_dim` need not be `hidden`.
        vocab: rows of the embedding table, and outputs of the LM head.
        head_norms: queries and keys are normalized head by head.
        latent, indexer, experts: None where the model has no such thing.
        weights: all matrices of its linear layers, each kind once, but those of routed experts.
    """

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    weights: tuple[Weight, ...]
    head_norms: bool = False
    latent: Latent | None = None
    indexer: Indexer | None = None
    experts: RoutedExperts | None = None

    def tp_sizes(self, wanted: Sequence[int] = TP_SIZES) -> tuple[int, ...]:
        """Those of the wanted sizes that the heads, and all weights, can be divided by."""
        return tuple(
            tp for tp in wanted if self.heads % tp == 0 and all(weight.on_device(tp) for weight in self.weights)
        )

    def ep_sizes(self, wanted: Sequence[int] = EP_SIZES) -> tuple[int, ...]:
        """Those of the wanted sizes that the experts can be divided by."""
        return tuple(ep for ep in wanted if self.experts is not None and self.experts.count % ep == 0)

    def linears(self, tp: int) -> tuple[Linear, ...]:
        """The matrices that one of `tp` devices multiplies with, without those of routed experts."""
        return tuple(linear for weight in self.weights if (linear := weight.on_device(tp)) is not None)

    def kv_heads_on_device(self, tp: int) -> int:
        """Several devices share a head of keys where there are more devices than such heads."""
        return max(1, self.kv_heads // tp)

    def expert_shares(self, tp_sizes: Sequence[int], ep_sizes: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
        """(experts, their width, ep) on one device: expert parallelism divides their number, tensor parallelism
        their width; an engine does one or the other."""
        if self.experts is None:
            return ()
        count, width = self.experts.count, self.experts.width
        shares = {(count // ep, width): ep for ep in self.ep_sizes(ep_sizes)}
        for tp in self.tp_sizes(tp_sizes):
            if width % tp == 0:
                shares.setdefault((count, width // tp), 1)
        return tuple((*share, ep) for share, ep in shares.items())


def lm_head(vocab: int, hidden: int) -> Weight:
    return Weight("lm_head", (-(-vocab // _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE,), hidden, "outputs")


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
