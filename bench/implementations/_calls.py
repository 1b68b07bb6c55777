"""The arguments of replays with many arguments, and the calls that several libraries have with one interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from opatlas import Prepared, Unsupported
from opatlas.run.implementation import Support

HALF = (torch.bfloat16, torch.float16)
REAL = (*HALF, torch.float32)

_Call = TypeVar("_Call")


def takes(arguments: Callable[..., _Call]) -> Callable[[Callable[[_Call], Any]], Callable[..., Any]]:
    """Lets a function take the arguments of a replay as one object of the class `arguments`."""
    return lambda function: lambda *positional, **named: function(arguments(*positional, **named))


def launched(launch: Callable[[], object], outputs: Any, **how: Any) -> Prepared:
    """Returns the call of a kernel that writes into `outputs`; `how` are further attributes of Prepared."""

    def call() -> Any:
        launch()
        return outputs

    return Prepared(call, **how)


@dataclass(frozen=True)
class Attention:
    """The arguments of FusedInferAttentionScore; see `fused_infer_attention_score` of torch."""

    query: Tensor
    key: Tensor
    value: Tensor
    num_heads: int
    scale: float
    input_layout: str
    num_key_value_heads: int
    actual_seq_lengths_kv: Sequence[int]
    actual_seq_lengths: Sequence[int] | None = None
    atten_mask: Tensor | None = None
    block_table: Tensor | None = None
    query_rope: Tensor | None = None
    key_rope: Tensor | None = None
    sparse_mode: int = 0
    block_size: int = 0
    softmax_lse_flag: bool = False

    @property
    def causal(self) -> bool:
        return self.sparse_mode == 3

    @property
    def query_starts(self) -> list[int]:
        """Returns the first token of each sequence, and the number of all tokens (TND)."""
        return [0, *(self.actual_seq_lengths or ())]


@dataclass(frozen=True)
class QuantizedProduct:
    """The arguments of QuantBatchMatmulV3; see `quant_matmul` of torch."""

    x1: Tensor
    x2: Tensor
    scale: Tensor
    output_dtype: torch.dtype
    offset: Tensor | None = None
    bias: Tensor | None = None
    pertoken_scale: Tensor | None = None
    group_sizes: Sequence[int] | None = None

    @property
    def flat_bias(self) -> Tensor | None:
        return None if self.bias is None else self.bias.reshape(-1)

    def expect_matrices(self, support: Support, dtypes: Mapping[str, Sequence[torch.dtype]], k: int, n: int) -> None:
        """Raises Unsupported for batches, an offset, dtypes other than these by name, and K and N that do not fit.

        Args:
            k, n: the numbers of which K and N are multiples.
        """
        support.expect(self.x1.dim() == self.x2.dim() == 2, f"{self.x1.dim()} axes", "matrices of two axes")
        found: dict[str, Tensor | torch.dtype] = {"x1": self.x1, "x2": self.x2, "result": self.output_dtype}
        for name, supported in dtypes.items():
            support.expect_dtype(supported, **{name: found[name]})
        support.expect(self.offset is None, "an offset", "no offsets")
        multiples = f"multiples of {k}" if k == n else f"multiples of {k} and {n}"
        rows, columns = self.x2.shape
        support.expect(rows % k == columns % n == 0, f"K {rows}, N {columns}", multiples)

    def expect_scales_of_lines(self, support: Support) -> None:
        """Raises Unsupported for scales of blocks, and for a bias in another dtype than the result."""
        support.expect(self.group_sizes is None, "scales of blocks", "scales of rows and columns here")
        if self.bias is not None:
            support.expect_dtype((self.output_dtype,), bias=self.bias)


@dataclass(frozen=True)
class GroupedProduct:
    """The arguments of GroupedMatmul; see `grouped_matmul` of torch."""

    x: Sequence[Tensor]
    weight: Sequence[Tensor]
    group_list: Tensor
    bias: Sequence[Tensor] | None = None
    scale: Sequence[Tensor] | None = None
    per_token_scale: Sequence[Tensor] | None = None
    split_item: int = 2
    group_type: int = 0
    group_list_type: int = 0
    output_dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Gating:
    """The arguments of MoeGatingTopK; see `moe_gating_top_k` of torch."""

    x: Tensor
    k: int
    bias: Tensor | None = None
    k_group: int = 1
    group_count: int = 1
    group_select_mode: int = 0
    norm_type: int = 0
    out_flag: bool = False

    @property
    def converted(self) -> Sequence[str]:
        return () if self.x.dtype is torch.float32 else ("weights to the dtype of the logits",)

    def results(self, found: Any) -> tuple[Tensor, Tensor, None]:
        """Returns weights in the dtype of the logits and experts, without the normalized logits."""
        return found[0].to(self.x.dtype), found[1], None

    def expect_groups_by_best_two(self, support: Support) -> None:
        best_two = self.group_count == 1 or self.group_select_mode == 1
        support.expect(best_two, "groups by their best expert", "groups by their best two")


def chosen_experts(library: Any, call: Gating, support: Support) -> Prepared:
    """Returns the call of the library's topk_softmax, or grouped_topk for sigmoid scores, in x's dtype.

    Raises:
        Unsupported: the library does not choose experts so.
    """
    x, k = call.x, call.k
    if call.norm_type == 0:
        plain = call.bias is None and call.group_count == 1
        support.expect(plain, "softmax with a bias or groups", "softmax over all experts")
        weights = torch.empty(len(x), k, device=x.device)
        experts, tokens = (torch.empty(len(x), k, dtype=torch.int32, device=x.device) for _ in range(2))
        return launched(
            lambda: library.topk_softmax(weights, experts, tokens, x, False),
            (weights, experts),
            results=call.results,
            converted=call.converted,
        )
    if call.bias is None:
        raise Unsupported(f"sigmoid without a bias: {support.library} has it with a bias")
    call.expect_groups_by_best_two(support)
    own = call.bias.to(x.dtype)
    return Prepared(
        lambda: library.grouped_topk(x, call.group_count, call.k_group, k, True, 1.0, own, 1),
        results=call.results,
        converted=call.converted,
    )


def written_to_cache(
    library: Any, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_indices: Tensor
) -> Prepared:
    """Returns the call of the library's reshape_and_cache_flash."""
    places, one = slot_indices.long(), torch.ones((), device=key.device)
    converted = () if slot_indices.dtype is torch.int64 else ("places to INT64",)
    return Prepared(
        lambda: library.reshape_and_cache_flash(key, value, key_cache, value_cache, places, "auto", one, one),
        converted=converted,
    )


def without_beta(add_rms_norm: Callable[..., Any], support: Support) -> Callable[..., Any]:
    """Returns the function of AddRmsNormBias of a library that has no beta."""

    def add_rms_norm_bias(x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float) -> Any:
        support.expect(beta is None, "a beta", "norms of a sum without beta")
        return add_rms_norm(x1, x2, gamma, epsilon)

    return add_rms_norm_bias
