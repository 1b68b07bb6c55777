"""Kernels that are one call of FlagGems: elementwise, of order and choice, of data that move; norms and routing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flag_gems
import torch
from torch import Tensor

from opatlas import Prepared, Unsupported, implements

from .._calls import REAL, Gating, launched, takes, without_beta
from . import SUPPORT, expect, expect_dtype

Operand = Any
#: grouped_topk and topk_softmax choose no more experts, grouped_topk a power of two.
_MOST_EXPERTS = 32


add = implements("Add", "AddAiCore")(flag_gems.add)
sub = implements("Sub", "SubAiCore")(flag_gems.sub)
div = implements("RealDiv", "RealDivAiCore")(flag_gems.true_divide)
floor_divide = implements("FloorDiv", "FloorDivAiCore")(flag_gems.floor_divide)
remainder = implements("FloorMod", "FloorModAiCore")(flag_gems.remainder)
logical_and = implements("LogicalAnd", "LogicalAndAiCore")(flag_gems.logical_and)
logical_or = implements("LogicalOr", "LogicalOrAiCore")(flag_gems.logical_or)
mul = implements("Mul", "MulAiCore", "Muls", "MulsAiCore")(flag_gems.mul)


def _by_operand(of_tensors: Callable[..., Any], of_numbers: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that takes the form of a kernel for its second operand: a tensor, or a number."""

    def call(x: Tensor, y: Operand, *more: Operand) -> Any:
        return (of_tensors if isinstance(y, Tensor) else of_numbers)(x, y, *more)

    return call


power = implements("Pows", "PowsAiCore")(_by_operand(flag_gems.pow_tensor_tensor, flag_gems.pow_tensor_scalar))
eq = implements("Equal", "EqualAiCore")(_by_operand(flag_gems.eq, flag_gems.eq_scalar))
ne = implements("NotEqual", "NotEqualAiCore")(_by_operand(flag_gems.ne, flag_gems.ne_scalar))
gt = implements("Greater", "GreaterAiCore")(_by_operand(flag_gems.gt, flag_gems.gt_scalar))
ge = implements("GreaterEqual", "GreaterEqualAiCore")(_by_operand(flag_gems.ge, flag_gems.ge_scalar))
lt = implements("Less", "LessAiCore")(_by_operand(flag_gems.lt, flag_gems.lt_scalar))
clamp = implements("ClipByValueV2", "ClipByValueV2AiCore")(_by_operand(flag_gems.clamp_tensor, flag_gems.clamp))
neg = implements("Neg", "NegAiCore")(flag_gems.neg)
absolute = implements("Abs", "AbsAiCore")(flag_gems.abs)
relu = implements("Relu", "ReluAiCore")(flag_gems.relu)
log = implements("Log", "LogAiCore")(flag_gems.log)
exp = implements("Exp", "ExpAiCore")(flag_gems.exp)
square = implements("Square", "SquareAiCore")(flag_gems.square)
reciprocal = implements("Reciprocal", "ReciprocalAiCore")(flag_gems.reciprocal)
rsqrt = implements("Rsqrt", "RsqrtAiCore")(flag_gems.rsqrt)
sin = implements("Sin", "SinAiCore")(flag_gems.sin)
cos = implements("Cos", "CosAiCore")(flag_gems.cos)
logical_not = implements("LogicalNot", "LogicalNotAiCore")(flag_gems.logical_not)
where = implements("SelectV2", "SelectV2AiCore")(flag_gems.where_self)


@implements("MaskedFill", "MaskedFillAiCore")
def masked_fill_(x: Tensor, mask: Tensor, value: Operand) -> Prepared:
    """A value on the device is read in the set-up: FlagGems waits for it on the host in each call."""
    number = value.item() if isinstance(value, Tensor) else value
    return Prepared(lambda: flag_gems.masked_fill_(x, mask, number), changes=(x,))


@implements("Cast", "CastAiCore")
def to(x: Tensor, dtype: torch.dtype, *, copy: bool) -> Any:
    return flag_gems.to_copy(x, dtype=dtype)


@implements("ReduceSum", "ReduceSumOpAiCore", "ReduceSumD")
def reduce_sum(x: Tensor, axes: Any, keepdim: bool, *, dtype: torch.dtype) -> Any:
    return flag_gems.sum_dim(x, list(axes), keepdim, dtype=dtype)


@implements("ReduceMean", "ReduceMeanAiCore", "ReduceMeanD")
def reduce_mean(x: Tensor, axes: Any, keepdim: bool, *, dtype: torch.dtype) -> Any:
    return flag_gems.mean_dim(x, list(axes), keepdim, dtype=dtype)


@implements("Cumsum")
def cumsum(x: Tensor, dim: int, *, dtype: torch.dtype) -> Any:
    expect(x.dim() > 0, "no axes", "one axis or more")
    return flag_gems.cumsum(x, dim, dtype=dtype)


@implements("RmsNorm")
def rms_norm(x: Tensor, gamma: Tensor, *, epsilon: float) -> tuple[Tensor, Tensor]:
    expect_dtype(REAL, x=x)
    y, rstd = flag_gems.rms_norm_forward(x, [x.shape[-1]], gamma, epsilon)
    return y, rstd.view(*x.shape[:-1], 1)


@implements("AddRmsNorm")
def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> Prepared:
    """Works in place: x1 becomes y, x2 becomes the sum. Computes no reciprocal root mean square."""
    expect_dtype(REAL, x=x1)
    return launched(
        lambda: flag_gems.fused_add_rms_norm(x1, x2, [x1.shape[-1]], gamma, epsilon),
        (x1, None, x2),
        changes=(x1, x2),
    )


add_rms_norm_bias = implements("AddRmsNormBias")(without_beta(add_rms_norm, SUPPORT))


@implements("LayerNormV4", "LayerNormV3", "LayerNormV3WithImplMode")
def layer_norm(
    x: Tensor, sizes: Sequence[int], gamma: Tensor, beta: Tensor, epsilon: float
) -> tuple[Tensor | None, ...]:
    """The statistics have the dtype of x. The row has them in FLOAT, so those in half precision are left out."""
    expect_dtype(REAL, x=x)
    y, mean, rstd = flag_gems.layer_norm(x, sizes, gamma, beta, epsilon)
    if x.dtype is not torch.float32:
        return y, None, None
    shape = (*x.shape[: x.dim() - len(sizes)], *[1] * len(sizes))
    return y, mean.view(shape), rstd.view(shape)


@implements("SwiGlu")
def swiglu(x: Tensor, dim: int) -> Tensor:
    expect(dim in (-1, x.dim() - 1), f"axis {dim}", "the last axis")
    # FlagGems' kernel for both halves in one tensor takes CUDA only.
    result: Tensor = flag_gems.swiglu(x) if x.is_cuda else flag_gems.silu_and_mul(*x.chunk(2, -1))
    return result


softmax = implements("SoftmaxV2", "SoftmaxAiCore")(flag_gems.softmax)
silu = implements("Swish")(flag_gems.silu)


@implements("MoeGatingTopK")
@takes(Gating)
def moe_gating_top_k(call: Gating) -> Prepared:
    """FlagGems computes sigmoid scores in the dtype of the logits: in 16 bits it chooses other experts (5.0.2)."""
    x, k, bias = call.x, call.k, call.bias
    expect_dtype(REAL if call.norm_type == 0 else (torch.float32,), x=x)
    expect(k <= _MOST_EXPERTS, f"{k} experts of a token", f"up to {_MOST_EXPERTS}")
    how: dict[str, Any] = {"results": call.results, "converted": call.converted}
    if call.norm_type == 0:
        expect(bias is None and call.group_count == 1, "softmax with a bias or groups", "softmax over all experts")
        weights = torch.empty(len(x), k, device=x.device)
        experts, tokens = (torch.empty(len(x), k, dtype=torch.int32, device=x.device) for _ in range(2))
        return launched(lambda: flag_gems.topk_softmax(weights, experts, tokens, x, False), (weights, experts), **how)
    expect(k & (k - 1) == 0, f"{k} experts of a token", "powers of two")
    if bias is None:
        raise Unsupported("sigmoid without a bias: FlagGems has it with a bias")
    call.expect_groups_by_best_two(SUPPORT)
    own = bias.to(x.dtype)
    return Prepared(lambda: flag_gems.grouped_topk(x, call.group_count, call.k_group, k, True, 1.0, own, 1), **how)


@implements("Sort", "SortAiCore")
def sort(x: Tensor, *, dim: int, descending: bool) -> Any:
    return flag_gems.sort(x, dim, descending)


top_k = implements("TopKV2", "TopKV2AiCore")(flag_gems.topk)


@implements("ArgMaxV2", "ArgMaxV2AiCore")
def argmax(x: Tensor, dim: int) -> Any:
    expect(x.dim() > 0, "no axes", "one axis or more")
    return flag_gems.argmax(x, dim)


@implements("ArgMaxWithValue")
def largest(x: Tensor, dim: int, keepdim: bool) -> Any:
    return tuple(flag_gems.max_dim(x, dim, keepdim))


@implements("GatherV2", "GatherV2AiCore")
def embedding(table: Tensor, indices: Tensor) -> Any:
    expect(isinstance(indices, Tensor), "an axis that is chosen by a scalar", "rows of a table")
    return flag_gems.embedding(table, indices)


# FlagGems gathers along the last axis; for another axis, kernels that transpose are in the time.
index_select = implements("GatherV3", "GatherV3AiCore", "Gather")(flag_gems.index_select)
gather = implements("GatherElements", "GatherElementsV2")(flag_gems.gather)
index = implements("Index", "IndexAiCore")(flag_gems.index)
index_put = implements("IndexPutV2", "IndexPutV2AiCore")(flag_gems.index_put_)


@implements("ScatterNdUpdate", "ScatterNdUpdateAiCore")
def scatter_nd_update(x: Tensor, places: Tensor, updates: Tensor) -> Any:
    return flag_gems.index_put_(x, places.unbind(-1), updates)


@implements("ConcatD")
def concatenate(parts: Sequence[Tensor], dim: int) -> Any:
    expect(len(parts) > 1, "one tensor", "a kernel for two tensors or more")
    return flag_gems.cat(parts, dim)


stack = implements("Pack", "PackAiCore")(flag_gems.stack)
pad = implements("PadV3", "PadV3AiCore")(flag_gems.pad)
tile = implements("Tile", "TileAiCore")(flag_gems.tile)
copy_ = implements("TensorMove", "TensorMoveAiCore")(flag_gems.copy_)


@implements("Transpose", "TransposeAiCore")
def transpose(x: Tensor, permutation: Sequence[int]) -> Any:
    return _copied(x.permute(*permutation))


@implements("BroadcastTo", "BroadcastToAiCore")
def broadcast_to(x: Tensor, shape: Sequence[int]) -> Any:
    return _copied(x.expand(*shape))


@implements("Slice", "SliceAiCore")
def slice_copy(x: Tensor, offsets: Sequence[int], sizes: Sequence[int]) -> Any:
    return _copied(x[tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))])


def _copied(view: Tensor) -> Any:
    expect(not view.is_contiguous(), "a view that is contiguous", "a copy of other views")
    return flag_gems.contiguous(view)
