"""The parts of a model that not every model has: latent attention, indexers, linear attention, experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Annotated, Literal

import msgspec

#: A size of a model, and one that may be absent. No model has a larger one.
Size = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
OptionalSize = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class Latent(msgspec.Struct, frozen=True):
    """Multi-head latent attention, by the keys of config.json: ranks of compressed tensors, and features of a head.

    Attributes:
        q_lora_rank: 0 where queries are not compressed.
        qk_nope_head_dim, qk_rope_head_dim: features of a query or key without and with rotary embedding.
    """

    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size
    q_lora_rank: OptionalSize = 0


class Indexer(msgspec.Struct, frozen=True):
    """The heads with which sparse attention selects `index_topk` keys for each query, by the keys of config.json.

    Attributes:
        layers: the layers that select keys. The others take those of a layer before them.
    """

    index_n_heads: Size
    index_head_dim: Size
    index_topk: Size
    layers: int = 0


class BlockIndexer(msgspec.Struct, frozen=True):
    """The heads with which sparse attention selects blocks of keys for each key head, by the keys of config.json.

    Attributes:
        layers: the layers with one.
    """

    index_n_heads: Size
    index_head_dim: Size
    index_topk_blocks: Size
    index_block_size: Literal[128] = 128
    layers: int = 0


class LinearAttention(msgspec.Struct, frozen=True):
    """Layers with a state in place of a cache, by the keys of config.json.

    Attributes:
        linear_num_key_heads, linear_key_head_dim: groups and width of the state in Mamba2.
        linear_conv_kernel_dim: tokens that the convolution before the rule sees.
        rule: how a token changes the state: gated delta rule, Kimi's delta attention, Mamba2.
        layers: the layers with one.
    """

    linear_num_key_heads: Size
    linear_num_value_heads: Size
    linear_key_head_dim: Size
    linear_value_head_dim: Size
    linear_conv_kernel_dim: Size
    rule: Literal["delta", "kimi", "mamba"] = "delta"
    layers: int = 0

    @property
    def keys(self) -> int:
        """The features of all keys, and of all queries."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def values(self) -> int:
        """The features of all values."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    def sizes(self, tp: int) -> tuple[int, ...]:
        """Returns the catalog's q, r, d, dv and taps of one of `tp` devices."""
        keys, values = self.linear_num_key_heads, self.linear_num_value_heads
        widths = self.linear_key_head_dim, self.linear_value_head_dim
        return keys // tp, values // keys, *widths, self.linear_conv_kernel_dim

    def norm(self, tp: int) -> tuple[int, int]:
        """Returns the rows and the width of the norm of a token's results: of heads, in Mamba2 of groups."""
        keys, each, _, width, _ = self.sizes(tp)
        return (keys, each * width) if self.rule == "mamba" else (keys * each, width)

    @property
    def products(self) -> Iterator[tuple[str, tuple[int, ...], int]]:
        """The products of its input: role, parts, input features; 0 for those of the stream."""
        heads, keys, values, width = self.linear_num_value_heads, self.keys, self.values, self.linear_value_head_dim
        if self.rule == "kimi":
            # Decays and gates are compressed to the features of a head.
            yield from (("in_proj_qkv", (keys, keys, values), 0), ("in_proj_b", (heads,), 0), ("f_a", (width,), 0))
            yield from (("f_b", (keys,), width), ("g_a", (width,), 0), ("g_b", (values,), width))
        elif self.rule == "mamba":
            yield "in_proj", (values, values, keys, keys, heads), 0
        else:
            yield from (("in_proj_qkvz", (keys, keys, values, values), 0), ("in_proj_ba", (heads, heads), 0))


@dataclass(frozen=True)
class RoutedExperts:
    """The experts of mixture-of-experts layers.

    Attributes:
        count: routed experts.
        width: intermediate features of each routed expert.
        top_k: routed experts of each token.
        layers: the layers with experts.
        shared: intermediate features of the experts that process all tokens; 0 if there are none.
        shared_gate: whether the output of these experts has a gate.
        latent: features that tokens have at the experts; 0 for those of the stream.
        by_softmax: whether the scores of experts are a softmax of the logits; else sigmoids, chosen with a bias.
    """

    count: int
    width: int
    top_k: int
    layers: int
    shared: int = 0
    shared_gate: bool = False
    latent: int = 0
    by_softmax: bool = False

    def of_busiest(self, tokens: int, ep: int) -> tuple[int, int]:
        """Returns the rows of that of `ep` devices which has most, and its experts with rows: medians, chosen randomly.

        Args:
            tokens: of all devices.
        """
        above, own = NormalDist().inv_cdf(0.5 ** (1 / ep)), self.count // ep
        rows, some = tokens * self.top_k / ep, 1 - (1 - self.top_k / self.count) ** tokens
        chosen = some * own + above * sqrt(some * own * (1 - some))
        return round(rows + above * sqrt(rows * (1 - 1 / ep))), min(max(round(chosen), 1), own)
