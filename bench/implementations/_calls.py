"""What libraries share: the arguments of replays with many of them, calls of one interface, and layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from opatlas import Prepared, Unsupported
from opatlas.run.implementation import Support

HALF = (torch.bfloat16, torch.float16)
REAL = (*HALF, torch.float32)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)

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
    pre_tokens: int = 0
    next_tokens: int = 0
    learnable_sink: Tensor | None = None

    @property
    def causal(self) -> bool:
        return self.sparse_mode > 0

    @property
    def window(self) -> int:
        """Returns how many keys before its own a query sees; -1 for all."""
        return self.pre_tokens if self.sparse_mode == 4 else -1

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


def without_beta(add_rms_norm: Callable[..., Any], support: Support) -> Callable[..., Any]:
    """Returns the function of AddRmsNormBias of a library that has no beta."""

    def add_rms_norm_bias(x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float) -> Any:
        support.expect(beta is None, "a beta", "norms of a sum without beta")
        return add_rms_norm(x1, x2, gamma, epsilon)

    return add_rms_norm_bias


#: The axis of the heads in the layouts of ApplyRotaryPosEmb.
HEADS = {"TND": 1, "BSND": 2, "BNSD": 1}


def axis_of_heads(x: Tensor, cos: Tensor, support: Support) -> int:
    """Returns the axis of x along which all heads of a token have one angle: the last but one, or one before.

    Raises:
        Unsupported: no axis of this kind has two heads or more.
    """
    for axis in range(x.dim() - 2, 0, -1):
        if cos.shape[axis] == 1 < x.shape[axis]:
            return axis
    raise Unsupported(f"angles {tuple(cos.shape)} for {tuple(x.shape)}: {support.library} needs two heads or more")


def tokens_by_heads(x: Tensor, heads: int, support: Support) -> Tensor:
    """Returns a view (tokens, heads, D) of x, whose heads are the axis `heads`.

    Raises:
        Unsupported: the tokens of x have no single stride.
    """
    by_heads = x.movedim(heads, -2)
    try:
        return by_heads.view(-1, *by_heads.shape[-2:])
    except RuntimeError:
        raise Unsupported(f"shape {tuple(x.shape)}: {support.library} has one stride between tokens") from None


def rows_of_tokens(x: Tensor, cos: Tensor, heads: int, support: Support, dtype: torch.dtype = torch.int64) -> Tensor:
    """Returns for each token of x the number of its angles, as a row of cos (rows, D).

    Args:
        cos: x's shape with size 1 along the heads, and along other axes on which the angles do not depend.
        heads: the axis of the heads.

    Raises:
        Unsupported: the heads of a token have angles of their own.
    """
    support.expect(cos.shape[heads] == 1, f"angles {tuple(cos.shape)}", "angles for all heads of a token")
    rows = torch.arange(cos.shape[:-1].numel(), dtype=dtype, device=x.device).view(cos.shape[:-1])
    tokens = [1 if axis == heads else size for axis, size in enumerate(x.shape[:-1])]
    return rows.expand(tokens).reshape(-1)


def table_of_pairs(cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns a table (rows, D): the cosines of the D / 2 pairs of features, then their sines."""
    pairs = cos.shape[-1] // 2
    return torch.cat([angles[..., :pairs].reshape(-1, pairs).to(dtype) for angles in (cos, sin)], dim=-1)


def real_scale(scale: Tensor, converted: list[str]) -> Tensor:
    """Returns a scale in float32, contiguous, and notes a conversion. A packed scale (INT64) is in its lower half."""
    if scale.dtype is torch.float32:
        return scale.contiguous()
    converted.append("scale to FLOAT")
    return scale.float() if scale.is_floating_point() else scale.view(torch.float32)[..., ::2].contiguous()


def pairs_in_halves(x: Tensor) -> Tensor:
    """Returns x with the two features of each pair half a head apart, which are side by side in x."""
    return torch.cat([x[..., ::2], x[..., 1::2]], dim=-1)


def weight_by_columns(weight: Tensor, converted: list[str]) -> Tensor:
    """Returns a weight (K, N), or weights (E, K, N), stored as (N, K) each, and notes a conversion."""
    if weight.mT.is_contiguous():
        return weight
    converted.append("weight to (N, K)" if weight.dim() == 2 else "weight to (E, N, K)")
    return weight.mT.contiguous().mT


def int32(numbers: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(list(numbers), dtype=torch.int32, device=device)


def differences(ends: Sequence[int]) -> list[int]:
    """Returns the lengths of sequences that end at `ends`."""
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
