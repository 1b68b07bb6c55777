"""Replays of rotary position embeddings, and of kernels that write and read paged caches."""

from __future__ import annotations

from math import gcd

from opatlas.row.columns import INPUT_DTYPES, INPUT_SHAPES, OUTPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.inputs import shape_rules
from opatlas.run.inputs.attention import split_evenly
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl

#: Assumption about the pairs of features, which a capture does not record.
_HALVES = "features half a head apart are turned together"

#: Rows of a table of angles of which the capture has the width only.
_LEAST_POSITIONS = 2048


@replays("RotaryPositionEmbedding", npu="torch_npu.npu_rotary_mul")
def test_rotary_mul(row, replay):
    row.expect_inputs(3)
    _expect_angles(row, [0], 1, 2)
    row.assume(_HALVES)
    replay(impl.rotary_mul, row.tensor(0), *_angles(row, 1, 2), expected=formulas.rotary_mul)


@replays("RotaryPositionEmbeddingGrad", npu="torch_npu.npu_rotary_mul_backward")
def test_rotary_mul_backward(row, replay):
    """Reads the slots gradient of y, cos, sin, and x if cos and sin have gradients too."""
    row.expect_inputs(3, 4)
    _expect_angles(row, [0], 1, 2)
    row.assume(_HALVES)
    x = row.tensor(3) if len(row.input_slots) == 4 else None
    if x is None and row.on_npu:
        raise Unsupported("torch_npu's call takes x and computes gradients of cos and sin, unlike this row's kernel")
    row.expect(x is None or row.shape(3) == row.shape(0), INPUT_SHAPES, "slot 3 (x) must have the shape of slot 0")
    replay(
        impl.rotary_mul_backward,
        row.tensor(0),
        x,
        row.tensor(1),
        row.tensor(2),
        # Without x, the output slots of cos and sin are empty.
        output_slots=[0] if x is None else [0, 1, 2],
        expected=formulas.rotary_mul_backward,
    )


@replays("InterleaveRope", npu="torch_npu.npu_interleave_rope")
def test_interleave_rope(row, replay):
    row.expect_inputs(3)
    _expect_angles(row, [0], 1, 2)
    replay(impl.interleave_rope, row.tensor(0), *_angles(row, 1, 2), expected=formulas.interleave_rope)


@replays("ApplyRotaryPosEmb", npu="torch_npu.npu_apply_rotary_pos_emb")
def test_apply_rotary_pos_emb(row, replay):
    """Works in place on query and key. The position of the axis of size 1 in the angles gives the layout."""
    row.expect_inputs(4)
    _expect_angles(row, [0, 1], 2, 3)
    axes = len(row.shape(0))
    row.expect(axes in (3, 4), INPUT_SHAPES, f"slot 0 has {axes} axes instead of 3 (TND) or 4")
    row.assume(_HALVES)
    layout = "TND" if axes == 3 else "BSND" if row.shape(2)[2] == 1 else "BNSD"
    replay(
        impl.apply_rotary_pos_emb,
        row.tensor(0),
        row.tensor(1),
        *_angles(row, 2, 3),
        layout=layout,
        mutates=[0, 1],
        expected=formulas.apply_rotary_pos_emb,
    )


@replays("_triton_rope", npu="torch.ops.vllm.npu_rotary_embedding")
def test_triton_rope(row, replay, custom_opp):
    """Works in place on query and key (tokens, heads, head size), with a table (positions, rotary size) of cos and sin.

    The capture of a Triton kernel has the first tensors only: the positions of the tokens are missing.
    """
    row.expect_inputs(3, 4)
    fits = row.input_slots[1].dtype == row.input_slots[0].dtype
    problem = "slot 1 must have the dtype of slot 0; captures of this Triton kernel hold meaningless dtypes there"
    row.expect(fits, INPUT_DTYPES, problem, "write the dtype of slot 0 for slot 1")
    tokens, _, head_size, _ = row.sizes("tokens,heads,head_size; tokens,kv_heads,head_size")
    row.assume(_HALVES)
    table = row.tensor(2)
    rotary_size = _expect_table(row, 2, head_size)
    operands = _positions(row, 3, tokens, table.shape[0]), row.tensor(0), row.tensor(1), table, head_size, rotary_size
    replay(impl.rotary_embedding, *operands, True, mutates=[1, 2], expected=formulas.rotary_embedding)


@replays("_triton_rope_siso", npu="vllm_ascend.ops.triton.rope.rope_forward_triton_siso")
def test_triton_rope_siso(row, replay, custom_opp):
    """Works in place on one tensor (tokens, heads, head size), with the table and the positions of `_triton_rope`."""
    row.expect_inputs(2, 3)
    tokens, _, head_size = row.sizes("tokens,heads,head_size")
    row.assume(_HALVES)
    rotary_size, x, table = _expect_table(row, 1, head_size), row.tensor(0), row.tensor(1)
    operands = x, None, None, table, _positions(row, 2, tokens, len(table)), rotary_size
    replay(impl.rope_siso, *operands, mutates=[0], expected=formulas.rope_siso)


@replays("split_qkv_rmsnorm_rope_kernel", npu="torch.ops.vllm.qkv_rmsnorm_rope")
def test_qkv_rmsnorm_rope(row, replay, custom_opp):
    """Reads the slots query, key and value of each token side by side; a table of cos and sin; positions.

    The outputs give the sizes of query and key. A capture lacks the weights of the two norms; an older capture also
    lacks the output of the values.
    """
    row.expect_inputs(2, 3)
    tokens, fused, query, key = row.sizes("tokens,fused -> tokens,query; tokens,key")
    problem = f"query, key (outputs 0 and 1) and values of the key's width do not add up to the input's {fused}"
    row.expect(fused == query + 2 * key, OUTPUT_SHAPES, problem)
    width = row.shape(1)[-1] if row.shape(1) else 0
    sizes = [size for size in range(max(width, 1), key + 1) if gcd(query, key) % size == 0]
    row.expect(sizes, INPUT_SHAPES, f"slot 1 has angles for {width} features, but all heads of the key have {key}")
    head_size = sizes[0]
    if len(sizes) > 1:
        row.assume(f"heads of {head_size} features")
    table = row.tensor(1, shape=(max(tokens, _LEAST_POSITIONS), width)) if len(row.shape(1)) == 1 else row.tensor(1)
    _expect_table(row, 1, head_size)
    weights = [row.tensor(0, 0.5, 1.5, shape=(head_size,)) for _ in range(2)]
    replay(
        impl.qkv_rmsnorm_rope,
        row.tensor(0),
        table,
        _positions(row, 2, tokens, table.shape[0]),
        *weights,
        query,
        key,
        head_size,
        1e-6,
        output_slots=[0, 1, 2 if len(row.output_slots) > 2 else None],
        expected=formulas.qkv_rmsnorm_rope,
    )


def _expect_angles(row, turned, cos, sin):
    """Refuses a row whose cos and sin do not broadcast to the rotated tensors."""
    for slot in turned:
        shape, angles = row.shape(slot), row.shape(cos)
        fits = shape and not shape[-1] % 2 and len(angles) == len(shape) and angles[-1] == shape[-1]
        problem = f"slot {slot} and slot {cos} (cos) must have as many axes and the same even number of features"
        row.expect(fits, INPUT_SHAPES, problem)
        fits = shape_rules.broadcast([shape, angles]) == shape
        row.expect(fits, INPUT_SHAPES, f"slot {cos} (cos) does not broadcast to slot {slot}")
    row.expect(row.shape(sin) == row.shape(cos), INPUT_SHAPES, f"slots {cos} (cos) and {sin} (sin) must have one shape")


def _angles(row, *slots):
    """Returns cos and sin as models have them: both features of a pair have one angle, so the halves are equal.

    Libraries for CUDA read one half only.
    """
    tensors = [row.tensor(slot) for slot in slots]
    for tensor in tensors:
        first, second = tensor.chunk(2, -1)
        second.copy_(first)
    return tensors


def _expect_table(row, slot, head_size):
    """Returns the width of a table of cos and sin, side by side. Refuses a table that is wider than a head."""
    shape = row.shape(slot)
    row.expect(
        1 <= len(shape) <= 2 and not shape[-1] % 2 and 0 < shape[-1] <= head_size,
        INPUT_SHAPES,
        f"slot {slot} must be (positions, rotary size), with an even rotary size of at most {head_size}, the head size",
    )
    return shape[-1]


def _positions(row, slot, tokens, below):
    """Returns the positions of the tokens: random if the row has their slot, else those of consecutive prompts."""
    if slot >= len(row.input_slots):
        row.assume("positions count the tokens")
        return impl.arange(tokens, device=row.device) % below
    row.expect_shape(slot, (tokens,), meaning="the position of each token")
    return row.indices(slot, below)


@replays("ReshapeAndCacheNdKernel", npu="torch_npu._npu_reshape_and_cache")
def test_reshape_and_cache(row, replay):
    """Reads the slots key and value (tokens, heads, size), caches (blocks, block size, heads, size), positions."""
    row.expect_inputs(5)
    if row.input_dtype(0) != row.input_dtype(2):
        raise Unsupported("a cache in another dtype than the keys is not replayed")
    *_, blocks, block_size = row.sizes(
        "tokens,heads,size; tokens,value_heads,value_size; blocks,block_size,heads,size"
        "; blocks,block_size,value_heads,value_size; tokens"
    )
    replay(
        impl.reshape_and_cache,
        *(row.tensor(slot) for slot in range(4)),
        row.indices(4, blocks * block_size, distinct=True),
        mutates=[2, 3],
        expected=formulas.reshape_and_cache,
    )


@replays("KvRmsNormRopeCache", npu="torch_npu.npu_kv_rmsnorm_rope_cache")
def test_kv_rmsnorm_rope_cache(row, replay):
    """Reads the slots kv (batch, 1, tokens, latent + rotary), gamma, cos, sin, positions, rotary cache, latent cache.

    In prefill, outputs 2 and 3 return the written vectors for attention.
    """
    if any(row.has(slot) for slot in range(7, len(row.input_slots))):
        raise Unsupported("quantized caches and separate values (slots 7 to 11) are not replayed")
    row.expect_slots(range(7), range(7, 12))
    batch, tokens, size, latent, cos, positions, blocks, block_size, rotary = row.sizes(
        "batch,1,tokens,size; latent; *angles; *angles; positions"
        "; blocks,block_size,1,rotary; blocks,block_size,1,latent"
    )
    fits = size == latent + rotary and rotary > 0 and not rotary % 2
    problem = (
        f"slot 0 (kv) has {size} features, which gamma (slot 1) and the even size of the rotary cache must add up to"
    )
    row.expect(fits, INPUT_SHAPES, problem)
    angles = (batch, 1, tokens, rotary)
    fits = len(cos) == 4 and cos[3] == rotary and shape_rules.broadcast([cos, angles]) == angles
    row.expect(fits, INPUT_SHAPES, f"slots 2 (cos) and 3 (sin) must have the shape {angles}, or 1 along an axis")
    row.expect(positions == batch * tokens, INPUT_SHAPES, "slot 4 must have a position for each token")
    is_output_kv = len(row.output_slots) > 2 and bool(row.output_slots[2].shape)
    replay(
        impl.kv_rmsnorm_rope_cache,
        *(row.tensor(slot) for slot in range(4)),
        row.indices(4, blocks * block_size, distinct=True),
        row.tensor(5),
        row.tensor(6),
        epsilon=1e-5,
        cache_mode="PA_BNSD",
        is_output_kv=is_output_kv,
        mutates=[5, 6],
        output_slots=range(4 if is_output_kv else 2),
        expected=formulas.kv_rmsnorm_rope_cache,
    )


@replays("PagedCacheLoadNdKernel", npu="torch_npu.atb.npu_paged_cache_load")
def test_paged_cache_load(row, replay):
    """Reads the slots caches of keys and values, block table, lengths, results, starts of the sequences.

    Equal lengths are assumed. One length more than there are sequences: the lengths are cumulative. With starts, the
    sequences end with the last block of their table.
    """
    row.expect_inputs(4, 6, 7)
    row.expect_dtype(2, "INT32")
    row.expect_dtype(3, "INT32")
    pages, block_size, *_, sequences, width, lengths, tokens = row.sizes(
        "pages,block_size,heads,size; pages,block_size,value_heads,value_size; sequences,blocks; lengths"
        " -> tokens,heads,size; tokens,value_heads,value_size"
    )
    fits = sequences and lengths in (sequences, sequences + 1)
    row.expect(
        fits, INPUT_SHAPES, "slot 3 must have a length for each sequence of slot 2, or one more for sums of lengths"
    )
    used = split_evenly(tokens, sequences)
    blocks = [-(-length // block_size) for length in used]
    problem = f"slot 2 has {width} blocks of {block_size}, but a sequence of {tokens} tokens needs {max(blocks)}"
    row.expect(max(blocks) <= width and pages, INPUT_SHAPES, problem)
    row.assume("the sequences are of one length")
    sums = lengths > sequences
    later = len(row.input_slots) == 7
    starts = [(width - count) * block_size for count in blocks]
    replay(
        impl.paged_cache_load,
        row.tensor(0),
        row.tensor(1),
        row.block_table((sequences, width), [width] * sequences if later else blocks, pages),
        row.numbers(3, [sum(used[:i]) for i in range(sequences + 1)] if sums else used),
        seq_starts=row.numbers(6, starts) if later else None,
        cumsum=sums,
        key=row.tensor(0, shape=row.output_shape(0)),
        value=row.tensor(1, shape=row.output_shape(1)),
        overwrites=["key", "value"],
        expected=formulas.paged_cache_load,
    )
