"""The table from operators of torch, as a trace of torch.profiler names them, to the kernel types whose rows they are.

Operators of aten, of vLLM (`_C`, `_moe_C`, ...), of SGLang (`sgl_kernel`; `aiter` on GPUs of AMD) and of torch.compile.
Their arguments are in the order of their schemas; an operator in place (`aten::mul_`) is the one without the
underscore, a wrapper of SGLang's profiler (`sglang_profiler::attention_..._100`) the one without its number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from opatlas.capture import operator_rows as rows
from opatlas.capture.launches import SkipReason
from opatlas.capture.operator_rows import (
    GAPS,
    CapturedRow,
    LeftOut,
    NoRow,
    Operator,
    OperatorCall,
    RowMaker,
    Tensor,
    layout,
    numbers,
    pointwise,
)
from opatlas.row import columns as col
from opatlas.row.attention import Sequences, batch_cells, keys_of, queries_of, row_key

#: It has the engine's cache.
CACHE_OPERATOR = "_C_cache_ops::reshape_and_cache_flash"
#: The mask that stands for a causal mask of any lengths, and the number of slots of FusedInferAttentionScore.
_CAUSAL_MASK, _ATTENTION_SLOTS = (2048, 2048), 31


def _product(call: OperatorCall) -> CapturedRow:
    """`mm`: A (M, K), B (K, N); `addmm`: a bias, A, B, factors. A weight that is stored as (N, K) is written so."""
    biases = [call.tensor(0)] if call.name == "aten::addmm" else []
    a, b = call.tensor(len(biases)), call.tensor(len(biases) + 1)
    call.expect(all(each.shape == b.shape[1:] for each in biases), "a bias that is no row")
    call.expect(not biases or all(call.value(at) in (None, 1) for at in (3, 4)), "factors of the sum")
    call.expect(not a.strides or a.strides[1] == 1 or a.shape[1] == 1, "a transposed first factor")
    weight = _weight(call, a, b, by_columns=True)
    return call.row("MatMulV2", [a, weight, *biases], [a.like(a.shape[0], b.shape[1])])


def _weight(call: OperatorCall, a: Tensor, b: Tensor, *, by_columns: bool) -> Tensor:
    """Returns B (..., K, N) as it is stored: (..., N, K) if its columns are contiguous.

    Args:
        by_columns: how a replay reads a square matrix.
    """
    call.tell(GAPS, not (a.contiguous and b.dense))
    *batch, k, n = b.shape
    stored = bool(b.strides) and b.strides[-2] == 1 and (b.strides[-1] != 1 or n == 1)
    call.tell("a square matrix in the other order", k == n and stored != by_columns)
    return b.like(*batch, n, k) if stored else b


def _batch_product(call: OperatorCall) -> CapturedRow:
    """`bmm`: A (B, M, K), B (B, K, N); `baddbmm`: an input, A, B, factors, the first 0."""
    added = call.name == "aten::baddbmm"
    call.expect(not added or call.value(3) == 0, "a sum with a product")
    a, b = call.tensor(added), call.tensor(1 + added)
    weight = _weight(call, a, b, by_columns=False)
    return call.row("BatchMatMulV2", [a, weight], [a.like(*a.shape[:-1], b.shape[-1])])


def _scaled_product(first: int, dtype: int) -> RowMaker:
    """Returns the maker of rows of a quantized product: A (M, K), B (K, N), a scale of each, from argument `first` on.

    `dtype` is the argument with the output's dtype, or the output.
    """

    def make(call: OperatorCall) -> CapturedRow:
        a, b, of_a, of_b = (call.tensor(first + at) for at in range(4))
        (m, k), n = a.shape, b.shape[1]
        blocks = (-(-k // 128), -(-n // 128))
        in_blocks = math.prod(of_b.shape) not in (1, n)
        fits = not in_blocks or (of_a.shape, of_b.shape) in [((m, blocks[0]), blocks), ((m, blocks[0]), blocks[::-1])]
        call.expect(fits, "scales of other blocks than 128")
        call.tell("one scale for the weight", math.prod(of_b.shape) == 1 < n)
        scales = [of_b.like(*blocks[::-1]), of_a] if in_blocks else [of_b.like(n), of_a.like(m)]
        weight = _weight(call, a, b, by_columns=False) if in_blocks else b
        result = call.tensor(dtype).dtype if call.has(dtype) else call.dtype(dtype, Tensor((), "BF16"))
        return call.row("QuantBatchMatmulV3", [a, weight, *scales], [a.like(m, n, dtype=result)])

    return make


def _grouped_product(call: OperatorCall) -> CapturedRow:
    """`_grouped_mm`: A (M, K), B (E, K, N), the end of each group. How many rows a group has is not told.

    A weight that is stored as (E, N, K) is written as steps of models have it, and told.
    """
    a, b, ends = (call.tensor(at) for at in range(3))
    call.expect(len(a.shape) == 2 and len(b.shape) == 3, "groups of columns")
    call.tell("the sizes of groups")
    call.tell("weights of experts in the other order", _weight(call, a, b, by_columns=False).shape != b.shape)
    slots = [a, b.like(*b.shape), *[None] * 5, numbers(ends.shape[0]), None]
    return call.row("GroupedMatmul", slots, [a.like(a.shape[0], b.shape[2])])


def _convolution(call: OperatorCall) -> CapturedRow:
    """`cudnn_convolution`: images, weight, padding, stride, dilation, groups."""
    x, weight, (padding, stride, dilation, groups) = call.told(0), call.told(1), map(call.value, range(2, 6))
    (count, channels, *sizes), (made, _, *kernel) = x.shape, weight.shape
    call.expect(len(sizes) == 2 and groups in (1, channels) and dilation == [1, 1], "groups, dilation or other axes")
    windows = zip(sizes, kernel, padding, stride, strict=True)
    result = x.like(count, made, *((size + 2 * edge - own) // step + 1 for size, own, edge, step in windows))
    formats = {col.INPUT_FORMATS: "NCHW;NCHW", col.OUTPUT_FORMATS: "NCHW"}
    return call.row("Conv2D" if groups == 1 else "DepthwiseConv2D", [x, weight], [result], formats)


def _gathered(kernel_type: str, index: int) -> RowMaker:
    """Returns the maker of rows of a table whose lines (axis 0) are gathered; argument `index` has their numbers."""

    def make(call: OperatorCall) -> CapturedRow:
        table, lines = call.tensor(0), math.prod(call.tensor(index).shape)
        call.expect(index == 1 or call.value(1) == 0, "another axis than the first")
        listed = numbers(lines, call.tensor(index).dtype)
        return call.row(kernel_type, [table, listed, numbers(1)], [table.like(lines, *table.shape[1:])])

    return make


def _put(call: OperatorCall) -> CapturedRow:
    """`index_put_`: x, index tensors, values. The index has no shapes: in a list x it is that of the values."""
    call.expect(
        len(call.tensor(0).shape) == len(call.tensor(2).shape) == 1, "index tensors, whose shapes a trace lacks"
    )
    return layout("IndexPutV2", "0; 2; [1]; [1]; 2:INT64 -> 0")(call)


def _count_up(call: OperatorCall) -> CapturedRow:
    """`arange`: start, end, step, output."""
    (start, end, step), of = (call.value(at) for at in range(3)), call.tensor(3)
    return call.row("Range", [of.like()] * 3, [of.like(math.ceil((end - start) / step))])


def _rope(call: OperatorCall) -> CapturedRow:
    """`rotary_embedding`: positions, queries and keys in place, the size of a head, a table of cos and sin."""
    tokens, size = math.prod(call.tensor(0).shape), call.value(3)
    turned = [each.like(tokens, math.prod(each.shape) // (tokens * size), size) for each in map(call.tensor, (1, 2))]
    return call.row("_triton_rope", [*turned, call.tensor(4)], turned)


def _attention(causal: int, bias: int | None = None) -> RowMaker:
    """Returns the maker of rows of attention: queries, keys and values (B, N, S, D); `causal` and `bias` are arguments.

    All sequences have one length, so the row has them one after the other. With a mask of its own a call is a row of
    the kernel type that has masks, of training.
    """

    def make(call: OperatorCall) -> CapturedRow:
        q, k, v = tensors = [call.tensor(at) for at in range(3)]
        batch, heads, queries, _ = q.shape
        if bias is not None and call.has(bias):
            mask, sums = call.tensor(bias), Tensor((batch, heads, queries, 8), "FLOAT")
            call.expect(queries == k.shape[2] and mask.shape[-1] == queries, "a mask for other keys than queries")
            call.tell("a mask that is added to the scores", mask.dtype != "BOOL")
            slots = [*tensors, None, None, None, mask.like(*mask.shape, dtype="BOOL")]
            return call.row("FlashAttentionScore", slots, [sums, sums, None, q.like(*q.shape[:3], v.shape[3])])
        keys, masked = k.shape[2], call.value(causal) is True and queries > 1
        call.expect(not masked or queries == keys, "a causal mask for more keys than queries")
        packed = [each.like(each.shape[0] * each.shape[2], each.shape[1], each.shape[3]) for each in tensors]
        return _attention_row(call, packed, [Sequences(batch, queries, keys)], v.shape[3], masked)

    return make


def _attention_row(
    call: OperatorCall,
    qkv: Sequence[Tensor],
    batch: Sequence[Sequences] | int,
    width: int,
    masked: bool = True,
    table: Tensor | None = None,
) -> CapturedRow:
    """Returns a row of FusedInferAttentionScore: queries, keys and values, in pages if there is a table of them.

    Of a batch whose lengths are not known, `batch` is the number of its sequences. Its row says that, and nothing else:
    records fill the other cells, and a further capture adds to the rows that they filled.
    """
    count = batch if isinstance(batch, int) else len(keys_of(batch))
    mask = Tensor(_CAUSAL_MASK, "INT8") if masked else None
    slots = [*qkv, None, mask, numbers(count), numbers(count), *[None] * 7, table]
    result = qkv[0].like(*qkv[0].shape[:2], width)
    row = call.row("FusedInferAttentionScore", slots + [None] * (_ATTENTION_SLOTS - len(slots)), [result])
    key = row_key(row.cells)
    lengths = dict([col.WITHOUT_LENGTHS]) if isinstance(batch, int) else key and batch_cells(key, batch)
    return replace(row, cells={**row.cells, **(lengths or {})})


def _lengths_on_device(call: OperatorCall) -> CapturedRow:
    """Attention to sequences of several lengths, on the device: queries (T, N, D), keys and values, their ends.

    Keys are in pages (blocks, block size, N, D) with a table of them, or (T, N, D). The places of arguments change
    between versions, so they are found by axes and dtypes.
    """
    q, k, v, *others = call.tensors()
    q = q.like(math.prod(q.shape[:-2]), *q.shape[-2:])
    of_axes = {len(each.shape): each for each in reversed(others) if each.dtype == "INT32"}
    fits = len(k.shape) == 4 if 2 in of_axes else len(k.shape) == 3 and 1 in of_axes
    call.expect(fits, "neither keys in pages nor the ends of sequences")
    if 2 in of_axes:
        return _attention_to_pages(call, q, k, v, of_axes[2])
    packed = [q, k.like(*k.shape), v.like(*v.shape)]
    return _attention_row(call, packed, of_axes[1].shape[0] - 1, v.shape[2])


def _attention_to_pages(call: OperatorCall, q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> CapturedRow:
    # A cache has pages for all steps of an engine; of those a row keeps as many as the table can name.
    (blocks, size, heads, _), pages = k.shape, table.shape
    caches = [each.like(min(blocks, math.prod(pages)), size, heads * each.shape[3]) for each in (k, v)]
    return _attention_row(call, [q, *caches], pages[0], q.shape[2], table=table)


def attention_of_batch(operator: Operator, cache: Operator, batch: Sequence[Sequences]) -> CapturedRow:
    """Returns the row of attention as one operator (queries, keys and values (T, N, D)) of a batch; `cache` is a call
    of CACHE_OPERATOR. Prompts alone are packed. More tokens than those of the batch fill a graph. Raises NoRow.
    """
    call, pages = OperatorCall(operator, ()), OperatorCall(cache, ()).tensor(2)
    queries, keys = queries_of(batch), keys_of(batch)
    q, k, v = (each.like(sum(queries), *each.shape[1:]) for each in map(call.tensor, range(3)))
    call.expect(sum(queries) <= call.tensor(0).shape[0] and len(q.shape) == len(k.shape) == 3, "fewer tokens")
    table = None
    if queries != keys:
        size, dtype = pages.shape[1], pages.dtype.replace("UINT8", "FLOAT8_E4M3FN")
        table = Tensor((len(keys), -(-max(keys) // size)), "INT32")
        k, v = (Tensor((math.prod(table.shape), size, math.prod(each.shape[1:])), dtype) for each in (k, v))
    return _attention_row(call, [q, k, v], batch, q.shape[2], table=table)


def _pages_in_one_list(call: OperatorCall) -> CapturedRow:
    """`paged_attention_ragged`: result, workspace, queries, caches, ends of sequences in a list of pages, the list, ...

    A graph is captured with a list for the largest batch, whose size the next argument has: a line of the table is the
    share of a sequence.
    """
    _, _, q, k, v, ends, pages, largest_batch, *_ = call.tensors()
    table = pages.like(ends.shape[0] - 1, -(-pages.shape[0] // largest_batch.shape[0]))
    return _attention_to_pages(call, q, k, v, table)


def _pages_of_one_token(call: OperatorCall) -> CapturedRow:
    """`mha_batch_prefill`: queries, caches (tokens, N, D), ends, ends in a list of tokens, the list, most of each."""
    q, k, v, ends = (call.tensor(at) for at in range(4))
    k, v = (each.like(each.shape[0], 1, *each.shape[1:]) for each in (k, v))
    return _attention_to_pages(call, q, k, v, ends.like(ends.shape[0] - 1, call.value(7)))


def _store(call: OperatorCall) -> CapturedRow:
    """`store_cache`: keys and values (T, N x D), caches (tokens, N x D), slots. N is not told: a line is one head."""
    k, v, *caches = [call.told(at) for at in range(4)]
    new = [each.like(each.shape[0], 1, each.shape[1]) for each in (k, v)]
    stored = [each.like(each.shape[0], 1, 1, each.shape[1]) for each in caches]
    return call.row("ReshapeAndCacheNdKernel", [*new, *stored, numbers(call.tensor(4).shape[0], "INT32")], stored)


def _pad(call: OperatorCall) -> CapturedRow:
    """`constant_pad_nd`: x, elements before and after each axis, from the last one on."""
    x, padding = call.told(0), call.value(1)
    call.expect(not any(padding[::2]) and min(padding) >= 0, "padding before an axis, or a cut")
    after = [*[0] * (len(x.shape) - len(padding) // 2), *padding[:0:-2]]
    return call.row("PadV3", [x, numbers(2 * len(x.shape)), x.like()], [x.like(*map(int.__add__, x.shape, after))])


_NORM = layout("RmsNorm", "1; 2 -> 0; 1.rows")
_ADD_NORM = layout("AddRmsNorm", "0; 1; 2 -> 0; 0.rows; 0")
_SWIGLU = layout("SwiGlu", "1 -> 0")
_TOKEN_QUANT = layout("DynamicQuant", "1 -> 0; 2.flat")
_BLOCK_QUANT = layout("DynamicBlockQuant", "0 -> 1; 2")
_COMPARED = {"eq": "Equal", "ne": "NotEqual", "gt": "Greater", "ge": "GreaterEqual", "lt": "Less", "le": "LessEqual"}
_COMPARED |= {"logical_and": "LogicalAnd", "logical_or": "LogicalOr"}
#: Functions of one tensor whose kernel types have their names.
_UNARY = ("abs", "cos", "exp", "log", "neg", "reciprocal", "relu", "rsqrt", "sigmoid", "sin", "sqrt", "tanh")

#: The operators whose calls have rows.
OPERATORS: Mapping[str, RowMaker] = {
    # Products.
    "aten::mm": _product,
    "aten::addmm": _product,
    "aten::bmm": _batch_product,
    "aten::baddbmm": _batch_product,
    "aten::_grouped_mm": _grouped_product,
    "aten::_scaled_mm": _scaled_product(0, dtype=6),
    "_C::cutlass_scaled_mm": _scaled_product(1, dtype=0),
    "sgl_kernel::fp8_scaled_mm": _scaled_product(0, dtype=4),
    "sgl_kernel::int8_scaled_mm": _scaled_product(0, dtype=4),
    "aten::cudnn_convolution": _convolution,
    # Attention.
    "aten::_scaled_dot_product_flash_attention": _attention(causal=4),
    "aten::_scaled_dot_product_efficient_attention": _attention(causal=6, bias=3),
    "aten::_scaled_dot_product_cudnn_attention": _attention(causal=6, bias=3),
    "_vllm_fa2_C::varlen_fwd": _lengths_on_device,
    "_vllm_fa3_C::fwd": _lengths_on_device,
    "sgl_kernel::fwd": _lengths_on_device,
    "flash_attn::_flash_attn_varlen_forward": _lengths_on_device,
    "sglang_profiler::attention_paged_attention_ragged": _pages_in_one_list,
    "aiter::mha_batch_prefill": _pages_of_one_token,
    # Norms and activations.
    "aten::_fused_rms_norm": layout("RmsNorm", "0; 2 -> 0; 0.rows", ones=True),
    "aten::native_layer_norm": layout("LayerNormV4", "0; [1]:INT32; 2; 3 -> 0; 0.rows; 0.rows", ones=True),
    "_C::rms_norm": _NORM,
    "sgl_kernel::rmsnorm": _NORM,
    "sgl_kernel::gemma_rmsnorm": _NORM,
    "aiter::rmsnorm": _NORM,
    "aiter::rms_norm": layout("RmsNorm", "0; 1 -> 0; 0.rows"),
    "_C::fused_add_rms_norm": _ADD_NORM,
    "sgl_kernel::fused_add_rmsnorm": _ADD_NORM,
    "sgl_kernel::gemma_fused_add_rmsnorm": _ADD_NORM,
    "aiter::rmsnorm2d_fwd_with_add_ck": layout("AddRmsNorm", "1; 2; 4 -> 0; 0.rows; 3"),
    "aiter::add_rmsnorm": layout("AddRmsNorm", "1; 2; 4 -> 0; 0.rows; 3"),
    "_C::silu_and_mul": _SWIGLU,
    "sgl_kernel::silu_and_mul": _SWIGLU,
    # Elementwise.
    **{f"aten::{name}": pointwise(name.capitalize(), 1) for name in _UNARY},
    **{f"aten::{name}": pointwise(kernel_type, result="BOOL") for name, kernel_type in _COMPARED.items()},
    "aten::silu": pointwise("Swish", 1),
    "aten::logical_not": pointwise("LogicalNot", 1, result="BOOL"),
    "aten::bitwise_not": pointwise("LogicalNot", 1, of="BOOL"),
    "aten::bitwise_and": pointwise("LogicalAnd", of="BOOL"),
    "aten::bitwise_or": pointwise("LogicalOr", of="BOOL"),
    "aten::add": pointwise("Add", scale=2),
    "aten::sub": pointwise("Sub", scale=2),
    "aten::rsub": pointwise("Sub", scale=2),
    "aten::mul": pointwise("Mul", by_number="Muls"),
    "aten::div": pointwise("RealDiv"),
    "aten::pow": rows.power,
    "aten::floor_divide": pointwise("FloorDiv"),
    "aten::remainder": pointwise("FloorMod"),
    "aten::maximum": pointwise("Maximum"),
    "aten::minimum": pointwise("Minimum"),
    "aten::gelu": rows.gelu,
    "aten::where": pointwise("SelectV2", 3),
    "aten::clamp": layout("ClipByValueV2", "0; =0; =0 -> 0", ones=True),
    "aten::masked_fill": layout("MaskedFill", "0; 1; =0 -> 0", ones=True),
    # Movement.
    "aten::copy_": rows.copy,
    "aten::cat": rows.concatenation,
    "aten::constant_pad_nd": _pad,
    "aten::fill_": layout("Fill", "0.rank; =0 -> 0"),
    "aten::zero_": layout("Fill", "0.rank; =0 -> 0"),
    "aten::arange": _count_up,
    "aten::tril": layout("Tril", "0 -> 0", ones=True),
    "aten::triu": layout("Triu", "0 -> 0", ones=True),
    # Along rows.
    "aten::_softmax": layout("SoftmaxV2", "0 -> 0", ones=True, last=1),
    "aten::_log_softmax": layout("LogSoftmaxV2", "0 -> 0", ones=True, last=1),
    "aten::topk": layout("TopKV2", "0; =:INT32 -> 0.last1; 0.last1:INT32", ones=True, last=2),
    "aten::sort": layout("Sort", "0 -> 0; 0:INT32", ones=True, last=1),
    "aten::argmax": layout("ArgMaxV2", "0; = -> 0.tokens:INT32", ones=True, last=1),
    "aten::max": layout("ArgMaxWithValue", "0 -> 0.tokens:INT32; 0.tokens@0", ones=True, last=1),
    "aten::cumsum": rows.cumulative,
    "aten::mean": rows.reduction("ReduceMean"),
    "aten::sum": rows.reduction("ReduceSum"),
    "_moe_C::moe_sum": layout("ReduceSum", "0; [1] -> 1"),
    # Elements that are chosen.
    "aten::embedding": _gathered("GatherV2", 1),
    "aten::index_select": _gathered("GatherV3", 2),
    "aten::gather": layout("GatherElementsV2", "0; 2 -> 2@0"),
    "aten::scatter_": layout("ScatterElementsV2", "0; 2; =0 -> 0"),
    "aten::_index_put_impl_": _put,
    # Rotation and caches.
    "_C::rotary_embedding": _rope,
    "sgl_kernel::rotary_embedding": _rope,
    CACHE_OPERATOR: layout("ReshapeAndCacheNdKernel", "0; 1; 2; 3; 4:INT32 -> 2; 3"),
    "sglang::store_cache": _store,
    # Routing and quantization.
    "_moe_C::topk_softmax": layout("MoeGatingTopK", "3 -> 0@3; 1:INT32"),
    "sgl_kernel::topk_softmax": layout("MoeGatingTopK", "2 -> 0@2; 1:INT32"),
    "_moe_C::grouped_topk": layout("MoeGatingTopK", "0; 6@0 -> 0.last3; 0.last3:INT32"),
    "sgl_kernel::moe_fused_gate": layout("MoeGatingTopK", "0; 1@0 -> 0.last4; 0.last4:INT32"),
    "_C::dynamic_per_token_scaled_fp8_quant": _TOKEN_QUANT,
    "_C::dynamic_scaled_int8_quant": _TOKEN_QUANT,
    "sgl_kernel::sgl_per_token_quant_fp8": layout("DynamicQuant", "0 -> 1; 2.flat"),
    "_C::per_token_group_fp8_quant": _BLOCK_QUANT,
    "sgl_kernel::sgl_per_token_group_quant_fp8": _BLOCK_QUANT,
}

_NO_INDICES = LeftOut(SkipReason.UNKNOWN_LAYOUT, "index tensors, whose shapes a trace lacks")
_NO_CACHE = LeftOut(SkipReason.NO_LENGTHS, "neither lengths nor the shape of the cache")
EXPERTS = LeftOut(SkipReason.FUSED, "what sorts the tokens of a mixture of experts")
#: Operators whose calls have no row, by the start of their names.
_NO_ROW: Mapping[str, LeftOut] = {
    "vllm::moe_forward": LeftOut(SkipReason.FUSED, "a mixture of experts without its weights"),
    **{f"{engine}::{where}place_fused_experts": EXPERTS for engine in ("vllm", "sglang") for where in ("in", "out")},
    "vllm::unified_": _NO_CACHE,
    "aten::_flash_attention_forward": _NO_CACHE,
    "aten::index": _NO_INDICES,
    **dict.fromkeys(
        ("vllm::all_", "vllm::reduce_scatter", "_C_custom_ar::", "symm_mem::", "sgl_kernel::all_reduce"),
        LeftOut(SkipReason.OTHER_COLLECTIVE, "a collective of the engine"),
    ),
}

#: Operators of aten that launch kernels through others of the table, which belong to them.
_OUTER = frozenset(
    f"aten::{name}" for name in ("embedding", "index_select", "sort", "topk", "cumsum", "constant_pad_nd")
)
_SDPA, _COMPILED = "aten::_scaled_dot_product_", "triton_"


def is_known(name: str) -> bool:
    """Returns whether the table has an operator, with a row or with the reason why there is none."""
    return _maker(name) is not None or _left_out(name) is not None


def wins_over_inner(name: str) -> bool:
    """Returns whether an operator is the row of all kernels that known operators inside it launch."""
    return name in _OUTER or (name in OPERATORS and (name.startswith(_SDPA) or not name.startswith("aten::")))


def row_of(operator: Operator, kernels: Sequence[str]) -> CapturedRow | LeftOut:
    """Returns the row of a call, or why it has none.

    Args:
        kernels: the names of the kernels, copies and fills that the call launched, in their order.
    """
    maker = _maker(operator.name)
    if maker is None:
        return _left_out(operator.name) or LeftOut(SkipReason.NO_OPERATOR, operator.name)
    try:
        return maker(OperatorCall(operator, kernels))
    except NoRow as no_row:
        return LeftOut(SkipReason.UNKNOWN_LAYOUT, str(no_row))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return LeftOut(SkipReason.UNKNOWN_LAYOUT, "arguments as no known version of the operator has them")


def _maker(name: str) -> RowMaker | None:
    if name.startswith(_COMPILED):
        # A kernel of torch.compile is a type of its own: all its tensors are inputs, as results are among them.
        return lambda call: call.row(name, call.tensors(), [])
    if name.startswith("sglang_profiler::"):
        name = name.rstrip("0123456789").removesuffix("_")
    return OPERATORS.get(name) or (OPERATORS.get(name.removesuffix("_")) if name.startswith("aten::") else None)


def _left_out(name: str) -> LeftOut | None:
    return next((reason for start, reason in _NO_ROW.items() if name.startswith(start)), None)
