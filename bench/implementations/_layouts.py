"""What libraries share: layouts, made from the arguments of replays, and calls of the same interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from opatlas import Prepared, Unsupported
from opatlas.run.implementation import Support


def axis_of_heads(x: torch.Tensor, cos: torch.Tensor, support: Support) -> int:
    """Returns the axis of x along which all heads of a token have one angle: the last but one, or one before.

    Raises:
        Unsupported: no axis of this kind has two heads or more.
    """
    for axis in range(x.dim() - 2, 0, -1):
        if cos.shape[axis] == 1 < x.shape[axis]:
            return axis
    raise Unsupported(
        f"angles {tuple(cos.shape)} for {tuple(x.shape)}: {support.library} has angles for two heads or more of a token"
    )


def tokens_by_heads(x: torch.Tensor, heads: int, support: Support) -> torch.Tensor:
    """Returns a view (tokens, heads, D) of x, whose heads are the axis `heads`.

    Raises:
        Unsupported: the tokens of x have no single stride.
    """
    by_heads = x.movedim(heads, -2)
    try:
        return by_heads.view(-1, *by_heads.shape[-2:])
    except RuntimeError:
        raise Unsupported(
            f"shape {tuple(x.shape)}, heads before tokens: {support.library} has one stride between tokens"
        ) from None


def contiguous_tokens_by_heads(x: torch.Tensor, heads: int, support: Support) -> torch.Tensor:
    """Returns a contiguous view (tokens, heads, D) of x, whose heads are the axis `heads`.

    Raises:
        Unsupported: the heads of x lie before its tokens.
    """
    by_heads = x.movedim(heads, -2)
    support.expect(by_heads.is_contiguous(), f"shape {tuple(x.shape)}, heads before tokens", "tokens before heads")
    return by_heads.view(-1, *by_heads.shape[-2:])


def rows_of_tokens(
    x: torch.Tensor, cos: torch.Tensor, heads: int, support: Support, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
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


def table_of_pairs(cos: torch.Tensor, sin: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns a table (rows, D): the cosines of the D / 2 pairs of features, then their sines."""
    pairs = cos.shape[-1] // 2
    return torch.cat([angles[..., :pairs].reshape(-1, pairs).to(dtype) for angles in (cos, sin)], dim=-1)


def real_scale(scale: torch.Tensor, converted: list[str]) -> torch.Tensor:
    """Returns a scale in float32, contiguous, and notes a conversion. A packed scale (INT64) is in its lower half."""
    if scale.dtype is torch.float32:
        return scale.contiguous()
    converted.append("scale to FLOAT")
    return scale.float() if scale.is_floating_point() else scale.view(torch.float32)[..., ::2].contiguous()


def pairs_in_halves(x: torch.Tensor) -> torch.Tensor:
    """Returns x with the two features of each pair half a head apart, which are side by side in x."""
    return torch.cat([x[..., ::2], x[..., 1::2]], dim=-1)


def weight_by_columns(weight: torch.Tensor, converted: list[str]) -> torch.Tensor:
    """Returns a weight (K, N) that is stored as (N, K), and notes a conversion."""
    if weight.stride(0) == 1:
        return weight
    converted.append("weight to (N, K)")
    return weight.mT.contiguous().mT


def int32(numbers: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(list(numbers), dtype=torch.int32, device=device)


def written_to_cache(
    library: Any,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> Prepared:
    """Returns the call of the library's reshape_and_cache_flash."""
    places, one = slot_indices.long(), torch.ones((), device=key.device)
    converted = () if slot_indices.dtype is torch.int64 else ("places to INT64",)
    return Prepared(
        lambda: library.reshape_and_cache_flash(key, value, key_cache, value_cache, places, "auto", one, one),
        converted=converted,
    )


def chosen_experts(
    library: Any,
    x: torch.Tensor,
    k: int,
    norm_type: int,
    bias: torch.Tensor | None,
    groups: tuple[int, int, int],
    support: Support,
) -> Prepared:
    """Returns the call of the library's topk_softmax, or grouped_topk for sigmoid scores, in x's dtype.

    Args:
        groups: the chosen groups, all groups, and how groups are selected.

    Raises:
        Unsupported: the library does not choose experts so.
    """
    k_group, group_count, group_select_mode = groups
    if norm_type == 0:
        support.expect(bias is None and group_count == 1, "softmax with a bias or groups", "softmax over all experts")
        weights = torch.empty(len(x), k, device=x.device)
        experts, tokens = (torch.empty(len(x), k, dtype=torch.int32, device=x.device) for _ in range(2))

        def choose() -> Any:
            library.topk_softmax(weights, experts, tokens, x, False)
            return weights, experts

    else:
        if bias is None:
            raise Unsupported(f"sigmoid without a bias: {support.library} has it with a bias")
        best_two = group_count == 1 or group_select_mode == 1
        support.expect(best_two, "groups by their best expert", "groups by their best two")
        own = bias.to(x.dtype)

        def choose() -> Any:
            return library.grouped_topk(x, group_count, k_group, k, True, 1.0, own, 1)

    converted = () if x.dtype is torch.float32 else ("weights to the dtype of the logits",)
    return Prepared(choose, results=lambda found: (found[0].to(x.dtype), found[1], None), converted=converted)


def without_beta(add_rms_norm: Callable[..., Any], support: Support) -> Callable[..., Any]:
    """Returns the function of AddRmsNormBias of a library that has no beta."""

    def add_rms_norm_bias(
        x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor | None, epsilon: float
    ) -> Any:
        support.expect(beta is None, "a beta", "norms of a sum without beta")
        return add_rms_norm(x1, x2, gamma, epsilon)

    return add_rms_norm_bias
