"""Products of matrices, plain, batched, quantized and grouped by experts, and quantization to FP8.

GroupedMatmulSwigluQuant is not here: FlagGems quantizes rows to INT8 with several operators of torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import flag_gems
import torch
import triton.language as tl
from flag_gems.fused.fused_moe import try_get_optimal_moe_config
from torch import Tensor

from opatlas import Prepared, implements
from opatlas.run.inputs.shape_rules import SCALE_BLOCK

from .._calls import HALF, REAL, GroupedProduct, QuantizedProduct, launched, real_scale, takes, weight_by_columns
from . import expect, expect_dtype

_QUANTIZED = (torch.int8, torch.float8_e4m3fn)
_TRITON = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
#: cutlass_scaled_mm takes rows and columns that are multiples of this.
_ALIGNED = 16
#: The TMA of a GPU takes rows that are multiples of 16 bytes.
_TMA_BYTES = 16


@implements("MatMulV2", "MatMulV3", "MatMulCommon", "MatMul")
def linear(a: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    expect_dtype(REAL, a=a)
    result: Tensor = flag_gems.mm(a, weight.mT) if bias is None else flag_gems.addmm(bias, a, weight.mT)
    return result


@implements("BatchMatMulV2", "BatchMatMulV3", "BatchMatMul", "BatchMatMulNd")
def batch_matmul(a: Tensor, b: Tensor) -> Prepared:
    expect_dtype(REAL, a=a)
    batch = a.shape[:-2]
    expect(batch == b.shape[:-2] and len(batch) > 0, f"batches {tuple(batch)} and {tuple(b.shape[:-2])}", "equal ones")
    left, right = a.flatten(0, -3), b.flatten(0, -3)
    return Prepared(lambda: flag_gems.bmm(left, right), results=lambda product: product.unflatten(0, batch))


@implements("QuantBatchMatmulV3")
@takes(QuantizedProduct)
def quant_matmul(call: QuantizedProduct) -> Prepared:
    """Calls a kernel for scales of rows and columns, or one for scales of blocks."""
    expect(call.x1.dim() == call.x2.dim() == 2, f"{call.x1.dim()} axes", "matrices of two axes")
    expect_dtype(_QUANTIZED, x1=call.x1, x2=call.x2)
    expect_dtype(tuple(_TRITON), result=call.output_dtype)
    expect(call.offset is None, "an offset", "no offsets")
    k, n = call.x2.shape
    expect(k % _ALIGNED == n % _ALIGNED == 0, f"K {k}, N {n}", f"multiples of {_ALIGNED}")
    _expect_bias(call.bias, call.group_sizes is not None)
    x1, bias, token = call.x1, None if call.bias is None else call.bias.reshape(-1), call.pertoken_scale
    if x1.is_cuda:
        major, minor = torch.cuda.get_device_capability(x1.device)
        expect(major == 9, f"compute capability {major}.{minor}", "cutlass_scaled_mm for 9.0")
    converted: list[str] = []
    x2, b_scale = weight_by_columns(call.x2, converted), real_scale(call.scale, converted)
    if token is None:
        converted.append("a scale of one for x1")
    a_scale = torch.ones(1, device=x1.device) if token is None else token
    c = torch.empty(len(x1), x2.shape[1], dtype=call.output_dtype, device=x1.device)
    return launched(lambda: flag_gems.cutlass_scaled_mm(c, x1, x2, a_scale, b_scale, bias), c, converted=converted)


@implements("GroupedMatmul")
@takes(GroupedProduct)
def grouped_matmul(call: GroupedProduct) -> Prepared:
    (rows,), (matrices,) = call.x, call.weight
    if rows.is_floating_point() and rows.dtype not in _QUANTIZED:
        return _grouped_real(rows, matrices, call)
    return _grouped_quantized(rows, matrices, call)


def _grouped_real(rows: Tensor, weight: Tensor, call: GroupedProduct) -> Prepared:
    """Calls group_mm, one persistent kernel over all groups."""
    expect_dtype(HALF, x=rows)
    expect(not call.bias, "a bias", "group_mm without a bias")
    expect(rows.is_cuda, f"a device of kind {rows.device.type}", "group_mm for CUDA")
    for name, size in (("K", weight.shape[1]), ("N", weight.shape[2])):
        expect(size * rows.element_size() % _TMA_BYTES == 0, f"{name} {size}", f"lines of {_TMA_BYTES} bytes each")
    converted = () if weight.is_contiguous() else ("weight to (E, K, N)",)
    weight = weight.contiguous()
    return Prepared(lambda: [flag_gems.group_mm(rows, weight, call.group_list)], converted=converted)


def _grouped_quantized(rows: Tensor, weight: Tensor, call: GroupedProduct) -> Prepared:
    """Calls the kernel of a fused mixture of experts, with one expert for each row."""
    bias, scale, token = (given[0] if given else None for given in (call.bias, call.scale, call.per_token_scale))
    dtype, ends = call.output_dtype or rows.dtype, call.group_list
    expect_dtype(_QUANTIZED, x=rows, weight=weight)
    expect(scale is not None, "no scale", "products that are scaled")
    expect_dtype(tuple(_TRITON), result=dtype)
    assert scale is not None
    of_blocks = scale.dim() == 3
    _expect_bias(bias, of_blocks)
    (m, _), (experts, k, n) = rows.shape, weight.shape
    converted = ["rows sorted into blocks"]
    if not weight.mT.is_contiguous():
        converted.append("weight to (E, N, K)")
    b, b_scale = weight.mT.contiguous(), real_scale(scale.mT if of_blocks else scale, converted)
    if token is None:
        converted.append("a scale of one for each row")
    of_rows = torch.ones(m, device=rows.device) if token is None else token
    a_scale = of_rows if of_blocks else of_rows[:, None]
    kind = "int8_w8a8" if rows.dtype is torch.int8 else "fp8_w8a8"
    block = [SCALE_BLOCK, SCALE_BLOCK] if of_blocks else None
    config = try_get_optimal_moe_config((experts, 2 * n, k), (experts, k, n), 1, kind, m, experts, block)
    size = config["BLOCK_SIZE_M"]
    # FlagGems has 48 for 33 to 48 rows of an expert.
    expect(size & (size - 1) == 0, f"{m // experts} rows of an expert", "blocks of rows that are powers of two")
    owners = torch.searchsorted(ends, torch.arange(m, dtype=ends.dtype, device=ends.device), right=True)
    ids, owned, padded = flag_gems.moe_align_block_size(owners.int()[:, None], size, experts)
    out = torch.empty(m, 1, n, dtype=dtype, device=rows.device)
    arguments = (rows, b, out, a_scale, b_scale, None, ids, owned, padded, False, 1, config, _TRITON[dtype])
    how = {
        "use_int8_w8a8": rows.dtype is torch.int8,
        "use_fp8_w8a8": rows.dtype is not torch.int8,
        "per_channel_quant": not of_blocks,
        "block_shape": block,
        "B_bias": bias,
    }
    return launched(
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
    expect_dtype(REAL, x=x)
    expect_dtype((torch.float8_e4m3fn, torch.float8_e5m2), result=dtype)
    rows = x.flatten(0, -2)
    return Prepared(
        lambda: flag_gems.per_token_group_quant_fp8(rows, size, dtype=dtype),
        results=lambda found: (found[0].view(x.shape), found[1].view(*scales)),
    )
