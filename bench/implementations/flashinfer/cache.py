"""Paged caches (blocks, block size, heads, size)."""

from __future__ import annotations

import flashinfer
import torch

from opatlas import Prepared, implements

from .._layouts import int32
from .common import HALF, HEAD_SIZES, expect, expect_dtype, words

#: Threads of a block, which writes all heads of a token.
_MOST_THREADS = 1024


@implements("ReshapeAndCacheNdKernel")
def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> Prepared:
    """Any places are those of one sequence that has all blocks in order."""
    (blocks, block_size, heads, head_size), device = key_cache.shape, key.device
    expect_dtype(HALF, key=key)
    expect_dtype((key.dtype,), value=value, key_cache=key_cache, value_cache=value_cache)
    expect(head_size in HEAD_SIZES, f"head size {head_size}", words(HEAD_SIZES))
    expect(value_cache.shape == key_cache.shape, f"values of size {value.shape[-1]}", f"the keys' size {head_size}")
    most = _MOST_THREADS * max(8, head_size // 32) // head_size
    expect(heads <= most, f"{heads} heads", f"up to {most} of size {head_size}")
    places, sequence = slot_indices.int(), torch.zeros(len(key), dtype=torch.int32, device=device)
    order = torch.arange(blocks, dtype=torch.int32, device=device)
    ends, last = (int32(numbers, device) for numbers in ([0, blocks], [block_size]))
    return Prepared(
        lambda: flashinfer.page.append_paged_kv_cache(
            key, value, sequence, places, (key_cache, value_cache), order, ends, last, "NHD"
        ),
        converted=() if slot_indices.dtype == torch.int32 else ("places to INT32",),
    )
