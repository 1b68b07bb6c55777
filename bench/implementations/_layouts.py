"""Layouts that libraries share, made from the arguments of replays."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from opatlas import Unsupported
from opatlas.run.implementation import Support

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
    raise Unsupported(
        f"angles {tuple(cos.shape)} for {tuple(x.shape)}: {support.library} has angles for two heads or more of a token"
    )


def tokens_by_heads(x: Tensor, heads: int, support: Support) -> Tensor:
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


def contiguous_tokens_by_heads(x: Tensor, heads: int, support: Support) -> Tensor:
    """Returns a contiguous view (tokens, heads, D) of x, whose heads are the axis `heads`.

    Raises:
        Unsupported: the heads of x lie before its tokens.
    """
    by_heads = x.movedim(heads, -2)
    support.expect(by_heads.is_contiguous(), f"shape {tuple(x.shape)}, heads before tokens", "tokens before heads")
    return by_heads.view(-1, *by_heads.shape[-2:])


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
    """Returns a weight (K, N) that is stored as (N, K), and notes a conversion."""
    if weight.stride(0) == 1:
        return weight
    converted.append("weight to (N, K)")
    return weight.mT.contiguous().mT


def int32(numbers: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(list(numbers), dtype=torch.int32, device=device)


def differences(ends: Sequence[int]) -> list[int]:
    """Returns the lengths of sequences that end at `ends`."""
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
