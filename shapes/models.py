"""What theory rows need to know of a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Linear:
    """A weight of (n, k): `n` output features, `k` input features."""

    name: str
    n: int
    k: int


@dataclass(frozen=True)
class ModelFacts:
    """A dense transformer with grouped-query attention and a gated feed-forward network.

    Attributes:
        name: as its publisher calls it.
        hidden, intermediate: widths of the residual stream and of the feed-forward network.
        heads, kv_heads: attention heads of queries, and of keys and values.
        head_dim: width of one head; `heads * head_dim` need not be `hidden`.
        vocab: rows of the embedding table, and outputs of the LM head.
    """

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    def layer_linears(self) -> tuple[Linear, ...]:
        """The matrix products of one layer on one device, fused as serving engines fuse them."""
        return (
            Linear("qkv", (self.heads + 2 * self.kv_heads) * self.head_dim, self.hidden),
            Linear("o_proj", self.hidden, self.heads * self.head_dim),
            Linear("gate_up", 2 * self.intermediate, self.hidden),
            Linear("down", self.hidden, self.intermediate),
        )

    def lm_head(self) -> Linear:
        return Linear("lm_head", self.vocab, self.hidden)


#: From the model's config.json.
QWEN3_0_6B = ModelFacts(
    name="Qwen/Qwen3-0.6B", hidden=1024, intermediate=3072, heads=16, kv_heads=8, head_dim=128, vocab=151936
)
