"""Replays of kernels that write and read paged caches of keys and values."""

from __future__ import annotations

from opatlas.row.columns import INPUT_SHAPES, OUTPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.inputs import shape_rules
from opatlas.run.inputs.sequences import expect_slots, split_evenly
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl


@replays("ReshapeAndCacheNdKernel", npu="torch_npu._npu_reshape_and_cache")
def test_reshape_and_cache(row, replay):
    """Reads the slots key and value (tokens, heads, size), caches (blocks, block size, heads, size), positions."""
    row.expect_inputs(5)
    for new, cache in ((0, 2), (1, 3)):
        row.expect(
            len(row.shape(new)) == 3 and row.shape(cache)[2:] == row.shape(new)[1:] and len(row.shape(cache)) == 4,
            INPUT_SHAPES,
            f"slot {new} must be (tokens, heads, size), and slot {cache}, its cache, (blocks, block size, heads, size)",
        )
    row.expect(
        row.shape(0)[:1] == row.shape(1)[:1] == row.shape(4) and row.shape(2)[:2] == row.shape(3)[:2],
        INPUT_SHAPES,
        "slots 0, 1 and 4 must have the same number of tokens, and both caches the same number of positions",
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
    row.expect(
        len(kv) == 4 and kv[1] == 1 and len(gamma) == 1 and gamma[0] < kv[3] and not (kv[3] - gamma[0]) % 2,
        INPUT_SHAPES,
        "slot 0 (kv) must be (batch, 1, tokens, size), of which gamma (slot 1) leaves an even size to rotate",
    )
    batch, _, tokens, size = kv
    rotary = size - gamma[0]
    angles = (batch, 1, tokens, rotary)
    row.expect(
        len(cos) == 4 and cos == row.shape(3) and cos[3] == rotary and shape_rules.broadcast([cos, angles]) == angles,
        INPUT_SHAPES,
        f"slots 2 (cos) and 3 (sin) must have the shape {angles}, or 1 along an axis",
    )
    blocks = row.shape(5)[:2]
    row.expect_shape(5, (*blocks, 1, rotary), meaning="the rotary cache")
    row.expect_shape(6, (*blocks, 1, gamma[0]), meaning="the latent cache")
    row.expect_shape(4, (batch * tokens,), meaning="a position for each token")
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
    row.expect(
        len(caches[0]) == len(caches[1]) == 4 and caches[0][:2] == caches[1][:2],
        INPUT_SHAPES,
        "slots 0 and 1 must be caches (blocks, block size, heads, size) with the same number of positions",
    )
    tokens = results[0][:1]
    row.expect(
        results == tuple((*tokens, *cache[2:]) for cache in caches),
        OUTPUT_SHAPES,
        "outputs 0 and 1 must have the shape (tokens, heads, size), with heads and size of the caches",
    )
    table, lengths = row.shape(2), row.shape(3)
    row.expect(
        len(table) == 2 and table[0] and lengths in ((table[0],), (table[0] + 1,)),
        INPUT_SHAPES,
        "slot 2 must be (sequences, blocks), and slot 3 a length for each sequence, or one more for sums of lengths",
    )
    (sequences, width), block_size = table, caches[0][1]
    used = split_evenly(tokens[0], sequences)
    blocks = [-(-length // block_size) for length in used]
    row.expect(
        max(blocks) <= width and caches[0][0] >= 1,
        INPUT_SHAPES,
        f"slot 2 has {width} blocks of {block_size}, but a sequence of {tokens[0]} tokens needs {max(blocks)}",
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
