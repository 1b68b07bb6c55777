"""Paged caches (blocks, block size, heads, size): position p is number p % block size of block p // block size."""

from __future__ import annotations

import torch
from torch import Tensor

from opatlas import Prepared

from .norm import rms_norm
from .preparing import may_prepare
from .rope import interleave_rope


def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_indices: Tensor
) -> Prepared | None:
    """Writes the key and value of each token (T, heads, size) to its position in the caches."""
    if may_prepare(key):
        slots = slot_indices.long()
        keys, values = key_cache.flatten(0, 1), value_cache.flatten(0, 1)

        def write() -> tuple[Tensor, Tensor]:
            keys.index_copy_(0, slots, key)
            values.index_copy_(0, slots, value)
            return key_cache, value_cache

        return Prepared(write, converted=("positions to int64",))
    key_cache.flatten(0, 1)[slot_indices] = key
    value_cache.flatten(0, 1)[slot_indices] = value
    return None


def kv_rmsnorm_rope_cache(
    kv: Tensor,
    gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    k_cache: Tensor,
    ckv_cache: Tensor,
    *,
    epsilon: float,
    cache_mode: str,
    is_output_kv: bool,
) -> tuple[Tensor, ...]:
    """Normalizes the first part of kv (B, 1, S, latent + rotary), rotates the rest, and writes both to the caches.

    Returns both caches and, with is_output_kv, the written vectors: (B, 1, S, rotary) and (B, 1, S, latent).
    """
    latent = gamma.shape[0]
    turned = interleave_rope(kv[..., latent:], cos, sin)
    normalized, _ = rms_norm(kv[..., :latent], gamma, epsilon=epsilon)
    k_cache.flatten(0, 1)[index] = turned.view(-1, 1, turned.shape[-1])
    ckv_cache.flatten(0, 1)[index] = normalized.view(-1, 1, latent)
    return (k_cache, ckv_cache, turned, normalized) if is_output_kv else (k_cache, ckv_cache)


def paged_cache_load(
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    seq_starts: Tensor | None,
    cumsum: bool,
    key: Tensor,
    value: Tensor,
) -> tuple[Tensor, Tensor] | Prepared:
    """Copies sequences from the pages of a table (sequences, blocks), one after the other.

    On a GPU the positions of the tokens in the caches are found in set-up; the NPU's kernel finds them itself.

    Args:
        context_lens: number of tokens of each sequence; with cumsum, 0 and the cumulative numbers.
        seq_starts: first token of each sequence.
        key, value: results, (tokens, heads, size).
    """
    lengths = context_lens.diff() if cumsum else context_lens
    firsts = context_lens[:-1] if cumsum else lengths.cumsum(0) - lengths
    if seq_starts is not None:
        firsts = firsts - seq_starts
    tokens, block_size = key.shape[0], key_cache.shape[1]
    sequence = torch.repeat_interleave(lengths, output_size=tokens)
    position = torch.arange(tokens, device=key.device) - firsts[sequence]
    slots = block_table[sequence, position // block_size] * block_size + position % block_size

    def load() -> tuple[Tensor, Tensor]:
        torch.index_select(key_cache.flatten(0, 1), 0, slots, out=key)
        torch.index_select(value_cache.flatten(0, 1), 0, slots, out=value)
        return key, value

    return Prepared(load, converted=("block table and lengths to positions",)) if may_prepare(key) else load()
