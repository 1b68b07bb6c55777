"""FlagGems' Triton kernels, with the interface of flag_gems 5.0.2. The Ascend backend is not run by us.

The functions of bench/implementations/torch, whose operators FlagGems runs: it has kernels of torch's operators by
their names, in the variants of the device's backend. `flag_gems.enable()` would replace them in the whole process, the
check of results included. Kernels that torch has no operator for are called here. Not here are rotations in place, in
which a thread may read a feature that another one has overwritten, and GroupedMatmulSwigluQuant, for which FlagGems
quantizes rows to INT8 with several operators of torch.

The first call of a shape tunes the kernel. The tuned configurations and the generated code lie in a folder of the
system's temporary folder, one for each version of FlagGems, unless FLAGGEMS_CACHE_DIR names another: configurations of
an older version would choose the kernels otherwise.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from opatlas import Prepared, Unsupported, implements
from opatlas.run.implementation import Support
from opatlas.run.inputs.shape_rules import SCALE_BLOCK
from opatlas.run.kernel_call import OperatorMode, is_free

from . import _calls as calls
from .torch.fp8 import by_columns, real_scale

DISTRIBUTIONS = ("flag_gems", "sqlalchemy")
DEVICES = ("cuda", "npu")

try:
    _FOLDER = f"flag_gems-{version('flag_gems')}"
except PackageNotFoundError:
    _FOLDER = "flag_gems"
# FlagGems reads it when it is imported.
os.environ.setdefault("FLAGGEMS_CACHE_DIR", str(Path(tempfile.gettempdir()) / _FOLDER))
import flag_gems  # noqa: E402

SUPPORT = Support("FlagGems")
expect, expect_dtype = SUPPORT.expect, SUPPORT.expect_dtype
#: FlagGems' functions by the names of torch's operators ("add.Tensor"), which it registers in `enable`.
_OPERATORS: Mapping[str, Callable[..., Any]] = {name: function for name, function, *_ in flag_gems._FULL_CONFIG}

_QUANTIZED = (torch.int8, torch.float8_e4m3fn)
#: cutlass_scaled_mm takes rows and columns that are multiples of this.
_ALIGNED = 16
#: The TMA of a GPU takes rows that are multiples of 16 bytes.
_TMA_BYTES = 16
#: The parts of a latent head, and the numbers of heads, that flash_mla_sparse_fwd is written for.
_LATENT, _ROPE = 512, 64
_SPARSE_HEADS = (64, 128)


class _Gems(OperatorMode):
    """Runs the operators of torch that are called while it is active by FlagGems."""

    def make(self, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        if is_free(operator):
            return operator(*arguments, **keywords)
        name = f"{operator._schema.name.removeprefix('aten::')}.{operator._overloadname}"
        found = _OPERATORS.get(name.removesuffix(".default"))
        if found is None:
            raise Unsupported(f"{operator}: FlagGems has no kernel of this operator")
        return found(*arguments, **keywords)


def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function, whose operators FlagGems runs."""

    def kernel(*arguments: Any, **keywords: Any) -> Any:
        with _Gems():
            found = function(*arguments, **keywords)
        return replace(found, call=wrap(found.call)) if isinstance(found, Prepared) else found

    return kernel


@implements("RmsNorm")
def rms_norm(x: Tensor, gamma: Tensor, *, epsilon: float) -> tuple[Tensor, Tensor]:
    expect_dtype(calls.REAL, x=x)
    y, rstd = flag_gems.rms_norm_forward(x, [x.shape[-1]], gamma, epsilon)
    return y, rstd.view(*x.shape[:-1], 1)


@implements("AddRmsNorm")
def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> Prepared:
    """Works in place: x1 becomes y, x2 becomes the sum. Computes no reciprocal root mean square."""
    expect_dtype(calls.REAL, x=x1)
    return calls.launched(
        lambda: flag_gems.fused_add_rms_norm(x1, x2, [x1.shape[-1]], gamma, epsilon), (x1, None, x2), changes=(x1, x2)
    )


add_rms_norm_bias = implements("AddRmsNormBias")(calls.without_beta(add_rms_norm, SUPPORT))


@implements("LayerNormV4", "LayerNormV3", "LayerNormV3WithImplMode")
def layer_norm(
    x: Tensor, sizes: Sequence[int], gamma: Tensor, beta: Tensor, epsilon: float
) -> tuple[Tensor | None, ...]:
    """The statistics have the dtype of x. The row has them in FLOAT, so those in half precision are left out."""
    expect_dtype(calls.REAL, x=x)
    y, mean, rstd = flag_gems.layer_norm(x, sizes, gamma, beta, epsilon)
    if x.dtype is not torch.float32:
        return y, None, None
    shape = (*x.shape[: x.dim() - len(sizes)], *[1] * len(sizes))
    return y, mean.view(shape), rstd.view(shape)


@implements("SwiGlu")
def swiglu(x: Tensor, dim: int) -> Tensor:
    expect(dim in (-1, x.dim() - 1), f"axis {dim}", "the last axis")
    # FlagGems' kernel for both halves in one tensor takes CUDA only.
    return flag_gems.swiglu(x) if x.is_cuda else flag_gems.silu_and_mul(*x.chunk(2, -1))


@implements("ChunkGatedDeltaRule")
@calls.takes
def chunk_gated_delta_rule(call: calls.ChunkDeltaRule) -> Prepared:
    """The kernels of flash-linear-attention, one after the other."""
    import triton
    from flag_gems.fused.FLA import chunk_gated_delta_rule_fwd

    expect_dtype(calls.HALF, query=call.query)
    if call.query.is_cuda:
        # One of its kernels describes tensors to the TMA in memory that it asks for. The call itself is not kept.
        device = call.query.device
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=device))
    ends = torch.nn.functional.pad(call.actual_seq_lengths.cumsum(0), (1, 0))
    tokens = [x[None] for x in (call.query, call.key, call.value, call.g, call.beta)]
    state = call.initial_state.mT.float().contiguous()
    return Prepared(
        lambda: chunk_gated_delta_rule_fwd(*tokens, call.scale, state, True, ends),
        results=lambda found: (found[1][0], found[3].mT.to(call.initial_state.dtype)),
        converted=("states to FLOAT and (Dk, Dv)",),
    )


@implements("SparseFlashAttention")
@calls.takes
def sparse_flash_attention(call: calls.SparseFlashAttention) -> Prepared:
    query, key, query_rope, heads = call.query, call.key, call.query_rope, call.query.shape[1]
    expect_dtype((torch.bfloat16,), query=query)
    expect(heads in _SPARSE_HEADS, f"{heads} heads", " or ".join(map(str, _SPARSE_HEADS)))
    latent, rope = query.shape[-1], query_rope.shape[-1]
    expect((latent, rope) == (_LATENT, _ROPE), f"heads of {latent} and {rope}", f"heads of {_LATENT} and {_ROPE}")
    block_size, tokens = key.shape[1], torch.arange(len(query), device=query.device)
    ends = call.actual_seq_lengths_query
    owner = torch.searchsorted(ends, tokens.to(ends.dtype), right=True)
    chosen = call.sparse_indices[:, 0].long()
    blocks = call.block_table[owner].long().gather(1, chosen.clamp(min=0) // block_size)
    flat = (blocks * block_size + chosen % block_size).masked_fill(chosen < 0, -1).int().unsqueeze(1)
    q = torch.cat([query, query_rope], dim=-1)
    kv = torch.cat([key, call.key_rope], dim=-1).view(-1, 1, latent + rope)
    return Prepared(
        lambda: flag_gems.flash_mla_sparse_fwd(q, kv, flat, call.scale_value),
        results=lambda found: (found[0], None, None),
        converted=("queries and their rope part joined", "caches joined", "keys of the index to places in the cache"),
    )


@implements("QuantBatchMatmulV3")
@calls.takes
def quant_matmul(call: calls.QuantizedProduct) -> Prepared:
    """Calls a kernel for scales of rows and columns, or one for scales of blocks."""
    expect(call.x1.dim() == call.x2.dim() == 2, f"{call.x1.dim()} axes", "matrices of two axes")
    expect_dtype(_QUANTIZED, x1=call.x1, x2=call.x2)
    expect_dtype(calls.REAL, result=call.output_dtype)
    expect(call.offset is None, "an offset", "no offsets")
    small = call.group_sizes is not None and call.group_sizes[1] == 1
    expect(not small, "scales of groups along K", "scales of blocks, rows or columns")
    k, n = call.x2.shape
    expect(k % _ALIGNED == n % _ALIGNED == 0, f"K {k}, N {n}", f"multiples of {_ALIGNED}")
    _expect_bias(call.bias, call.group_sizes is not None)
    x1, bias, token = call.x1, None if call.bias is None else call.bias.reshape(-1), call.pertoken_scale
    if x1.is_cuda:
        major, minor = torch.cuda.get_device_capability(x1.device)
        expect(major == 9, f"compute capability {major}.{minor}", "cutlass_scaled_mm for 9.0")
    converted: list[str] = []
    x2 = by_columns(call.x2, converted, "weight to (N, K)")
    b_scale = real_scale(call.scale, converted)
    if token is None:
        converted.append("a scale of one for x1")
    a_scale = torch.ones(1, device=x1.device) if token is None else token
    c = torch.empty(len(x1), x2.shape[1], dtype=call.output_dtype, device=x1.device)
    return calls.launched(
        lambda: flag_gems.cutlass_scaled_mm(c, x1, x2, a_scale, b_scale, bias), c, converted=converted
    )


@implements("GroupedMatmul")
@calls.takes
def grouped_matmul(call: calls.GroupedProduct) -> Prepared:
    (rows,), (matrices,) = call.x, call.weight
    expect(call.antiquant_scale is None, "weights alone in few bits", "operands of one dtype")
    if rows.is_floating_point() and rows.dtype not in _QUANTIZED:
        return _grouped_real(rows, matrices, call)
    return _grouped_quantized(rows, matrices, call)


def _grouped_real(rows: Tensor, weight: Tensor, call: calls.GroupedProduct) -> Prepared:
    """Calls group_mm, one persistent kernel over all groups."""
    expect_dtype(calls.HALF, x=rows)
    expect(not call.bias, "a bias", "group_mm without a bias")
    expect(rows.is_cuda, f"a device of kind {rows.device.type}", "group_mm for CUDA")
    for name, size in (("K", weight.shape[1]), ("N", weight.shape[2])):
        expect(size * rows.element_size() % _TMA_BYTES == 0, f"{name} {size}", f"lines of {_TMA_BYTES} bytes each")
    converted = () if weight.is_contiguous() else ("weight to (E, K, N)",)
    weight = weight.contiguous()
    return Prepared(lambda: [flag_gems.group_mm(rows, weight, call.group_list)], converted=converted)


def _grouped_quantized(rows: Tensor, weight: Tensor, call: calls.GroupedProduct) -> Prepared:
    """Calls the kernel of a fused mixture of experts, with one expert for each row."""
    import triton.language as tl
    from flag_gems.fused.fused_moe import try_get_optimal_moe_config

    bias, scale, token = (given[0] if given else None for given in (call.bias, call.scale, call.per_token_scale))
    dtype, ends = call.output_dtype or rows.dtype, call.group_list
    expect_dtype(_QUANTIZED, x=rows, weight=weight)
    expect(scale is not None, "no scale", "products that are scaled")
    expect_dtype(calls.REAL, result=dtype)
    assert scale is not None
    of_blocks = scale.dim() == 3
    _expect_bias(bias, of_blocks)
    (m, _), (experts, k, n) = rows.shape, weight.shape
    converted = ["rows sorted into blocks"]
    b = by_columns(weight, converted, "weight to (E, N, K)").mT
    b_scale = real_scale(scale.mT if of_blocks else scale, converted)
    if token is None:
        converted.append("a scale of one for each row")
    of_rows = torch.ones(m, device=rows.device) if token is None else token
    a_scale = of_rows if of_blocks else of_rows[:, None]
    integers = rows.dtype is torch.int8
    kind = "int8_w8a8" if integers else "fp8_w8a8"
    block = [SCALE_BLOCK, SCALE_BLOCK] if of_blocks else None
    config = try_get_optimal_moe_config((experts, 2 * n, k), (experts, k, n), 1, kind, m, experts, block)
    size = config["BLOCK_SIZE_M"]
    # FlagGems has 48 for 33 to 48 rows of an expert.
    expect(size & (size - 1) == 0, f"{m // experts} rows of an expert", "blocks of rows that are powers of two")
    owners = torch.searchsorted(ends, torch.arange(m, dtype=ends.dtype, device=ends.device), right=True)
    ids, owned, padded = flag_gems.moe_align_block_size(owners.int()[:, None], size, experts)
    out = torch.empty(m, 1, n, dtype=dtype, device=rows.device)
    result = getattr(tl, str(dtype).removeprefix("torch."))
    arguments = (rows, b, out, a_scale, b_scale, None, ids, owned, padded, False, 1, config, result)
    how: dict[str, Any] = {"use_int8_w8a8": integers, "use_fp8_w8a8": not integers, "per_channel_quant": not of_blocks}
    how |= {"block_shape": block, "B_bias": bias}
    return calls.launched(
        lambda: flag_gems.invoke_fused_moe_triton_kernel(*arguments, **how), [out[:, 0]], converted=converted
    )


def _expect_bias(bias: Tensor | None, of_blocks: bool) -> None:
    """Refuses a bias that the kernels do not add."""
    expect(bias is None or bias.is_floating_point(), "a bias in int32", "a bias that is added after the scales")
    expect(bias is None or not of_blocks, "scales of blocks and a bias", "a bias with other scales")


@implements("DynamicQuant", "DynamicQuantAiCore")
def dynamic_quant(x: Tensor, *, smooth_scales: Tensor | None = None, dst_type: torch.dtype = torch.int8) -> Prepared:
    """Quantizes each row as one group, to FP8."""
    expect(smooth_scales is None, "smooth scales", "quantization without them")
    return _quantize_groups(x, x.shape[-1], dst_type, x.shape[:-1])


@implements("DynamicBlockQuant")
def dynamic_block_quant(x: Tensor, *, dst_type: torch.dtype, row_block_size: int, col_block_size: int) -> Prepared:
    expect(row_block_size == 1, f"blocks of {row_block_size} rows", "blocks of one row")
    expect(x.shape[-1] % col_block_size == 0, f"rows of {x.shape[-1]}", f"multiples of {col_block_size}")
    return _quantize_groups(x, col_block_size, dst_type, (*x.shape[:-1], x.shape[-1] // col_block_size))


def _quantize_groups(x: Tensor, size: int, dtype: torch.dtype, scales: Sequence[int]) -> Prepared:
    """Quantizes groups of `size` columns. The kernel takes x of two axes for any x, and reads the rows of no other."""
    expect_dtype(calls.REAL, x=x)
    expect_dtype((torch.float8_e4m3fn, torch.float8_e5m2), result=dtype)
    rows = x.flatten(0, -2)
    return Prepared(
        lambda: flag_gems.per_token_group_quant_fp8(rows, size, dtype=dtype),
        results=lambda found: (found[0].view(x.shape), found[1].view(*scales)),
    )
