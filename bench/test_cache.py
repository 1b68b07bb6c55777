"""Replays of kernels that write and read paged caches of keys and values."""

from __future__ import annotations

from opatlas.engine.inputs import shape_rules
from opatlas.engine.inputs.sequences import expect_slots, split_evenly
from opatlas.engine.registry import replays
from opatlas.model.errors import Unsupported
from opatlas.model.schema import INPUT_SHAPES, OUTPUT_SHAPES

from . import formulas
from .implementations import torch as impl


@replays("ReshapeAndCacheNdKernel", npu="torch_npu._npu_reshape_and_cache")
def test_reshape_and_cache(row, replay):
    """Reads the slots key and value (tokens, heads, size), caches (blocks, block size, heads, size), positions."""
    row.expect_inputs(5)
    for new, cache in ((0, 2), (1, 3)):
        if len(row.shape(new)) != 3 or row.shape(cache)[2:] != row.shape(new)[1:] or len(row.shape(cache)) != 4:
            raise row.refuse(
                INPUT_SHAPES,
                f"slot {new} must have the shape (tokens, heads, size), and slot {cache}, its cache, the "
                "shape (blocks, block size, heads, size)",
                "correct one of the two shapes",
            )
    if not row.shape(0)[:1] == row.shape(1)[:1] == row.shape(4) or row.shape(2)[:2] != row.shape(3)[:2]:
        raise row.refuse(
            INPUT_SHAPES,
            "slots 0 (key), 1 (value) and 4 (positions) must have the same number of tokens, and both "
            "caches the same number of positions",
            "correct the shape that does not fit",
        )
    blocks, block_size = row.shape(2)[:2]
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
    expect_slots(row, range(7), range(7, 12))
    kv, gamma, cos = (row.shape(slot) for slot in range(3))
    if len(kv) != 4 or kv[1] != 1 or len(gamma) != 1 or gamma[0] >= kv[3] or (kv[3] - gamma[0]) % 2:
        raise row.refuse(
            INPUT_SHAPES,
            "slot 0 (kv) must have the shape (batch, 1, tokens, size), slot 1 (gamma) the size of the "
            "normalized part, and the rotated part an even size",
            "correct one of the two shapes",
        )
    batch, _, tokens, size = kv
    rotary = size - gamma[0]
    angles = (batch, 1, tokens, rotary)
    if cos != row.shape(3) or cos[-1:] != (rotary,) or shape_rules.broadcast([cos, angles]) != angles or len(cos) != 4:
        raise row.refuse(
            INPUT_SHAPES,
            f"slots 2 (cos) and 3 (sin) must have the shape {angles}, or 1 along an axis",
            "correct their shapes, or those of slots 0 and 1",
        )
    blocks = row.shape(5)[:2]
    if row.shape(5) != (*blocks, 1, rotary) or row.shape(6) != (*blocks, 1, gamma[0]):
        raise row.refuse(
            INPUT_SHAPES,
            f"slots 5 and 6 must be caches of the shapes (blocks, block size, 1, {rotary}) and (blocks, "
            f"block size, 1, {gamma[0]})",
            "correct their shapes",
        )
    row.expect_shape(4, (batch * tokens,), what="a position for each token")
    is_output_kv = len(row.output_slots) > 2 and bool(row.output_slots[2].shape)
    replay(
        impl.kv_rmsnorm_rope_cache,
        *(row.tensor(slot) for slot in range(4)),
        row.indices(4, blocks[0] * blocks[1], distinct=True),
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
    caches, results = (row.shape(0), row.shape(1)), (row.output_shape(0), row.output_shape(1))
    if any(len(cache) != 4 for cache in caches) or caches[0][:2] != caches[1][:2]:
        raise row.refuse(
            INPUT_SHAPES,
            "slots 0 and 1 must be caches (blocks, block size, heads, size) with the same number of positions",
            "correct one of the two shapes",
        )
    tokens = results[0][:1]
    if any(result != (*tokens, *cache[2:]) for result, cache in zip(results, caches, strict=True)):
        raise row.refuse(
            OUTPUT_SHAPES,
            "outputs 0 and 1 must have the shape (tokens, heads, size), with heads and size of the "
            "caches (slots 0 and 1)",
            "correct one of the shapes",
        )
    table, lengths = row.shape(2), row.shape(3)
    if len(table) != 2 or not table[0] or lengths not in ((table[0],), (table[0] + 1,)):
        raise row.refuse(
            INPUT_SHAPES,
            "slot 2 must be a block table (sequences, blocks), and slot 3 a length for each sequence, or "
            "one number more for cumulative lengths",
            "correct one of the two shapes",
        )
    (sequences, width), block_size = table, caches[0][1]
    used = split_evenly(tokens[0], sequences)
    blocks = [-(-length // block_size) for length in used]
    if max(blocks) > width or caches[0][0] < 1:
        raise row.refuse(
            INPUT_SHAPES,
            f"slot 2 has {width} blocks of {block_size} for a sequence, but the longest sequence of "
            f"{tokens[0]} tokens needs {max(blocks)}",
            "correct the block table, the cache, or the outputs",
        )
    row.assume("the sequences are of one length")
    sums = lengths[0] > sequences
    later = len(row.input_slots) == 7
    starts = [(width - count) * block_size for count in blocks]
    replay(
        impl.paged_cache_load,
        row.tensor(0),
        row.tensor(1),
        row.block_table(table, [width] * sequences if later else blocks, caches[0][0]),
        row.numbers(3, [sum(used[:i]) for i in range(sequences + 1)] if sums else used),
        seq_starts=row.numbers(6, starts) if later else None,
        cumsum=sums,
        key=row.tensor(0, shape=results[0]),
        value=row.tensor(1, shape=results[1]),
        overwrites=["key", "value"],
        expected=formulas.paged_cache_load,
    )
