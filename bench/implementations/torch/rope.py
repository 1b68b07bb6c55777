"""Rotary position embeddings (Su et al. 2021): pairs of features are rotated by angles that grow with the position.

Paged caches (blocks, block size, heads, size): position p is number p % block size of block p // block size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opatlas import Prepared

from .matmul import may_prepare
from .norm import rms_norm

Pair = tuple[Tensor, Tensor]


def pairs(x: Tensor, mode: str) -> Pair:
    """Returns views (..., D/2) of the first and second features of all pairs: half a head apart, or adjacent."""
    if mode != "half":
        return x[..., ::2], x[..., 1::2]
    first, second = x.chunk(2, -1)
    return first, second


def turn(x: Pair, cos: Pair, sin: Pair, result: Pair) -> None:
    """Writes (x1 cos - x2 sin, x2 cos + x1 sin) into the views of `result`, with cos and sin of each feature."""
    (x1, x2), (y1, y2) = x, result
    torch.mul(x1, cos[0], out=y1).addcmul_(x2, sin[0], value=-1)
    torch.mul(x2, cos[1], out=y2).addcmul_(x1, sin[1])


def rotary_mul(x: Tensor, cos: Tensor, sin: Tensor, rotary_mode: str = "half") -> Tensor:
    """Returns x (..., D), rotated; cos and sin broadcast to x."""
    y = torch.empty_like(x)
    turn(*(pairs(tensor, rotary_mode) for tensor in (x, cos, sin, y)))
    return y


def rotary_mul_backward(
    grad: Tensor, x: Tensor | None, cos: Tensor, sin: Tensor, rotary_mode: str = "half"
) -> tuple[Tensor | None, ...]:
    """Returns gradients of x and, if x is given, of cos and sin, from the gradient of the rotated x."""
    dx = torch.empty_like(grad)
    # Rotated back: by the same cosines, and the negative sines of the partners.
    sin1, sin2 = pairs(-sin, rotary_mode)
    turn(pairs(grad, rotary_mode), pairs(cos, rotary_mode), (sin2, sin1), pairs(dx, rotary_mode))
    if x is None:
        return dx, None, None
    axes = [axis for axis in range(x.dim()) if cos.shape[axis] != x.shape[axis]]
    turned = torch.empty_like(x)
    (x1, x2), (turned1, turned2) = pairs(x, rotary_mode), pairs(turned, rotary_mode)
    torch.neg(x2, out=turned1), turned2.copy_(x1)
    products = (grad * x, turned.mul_(grad))
    return dx, *(product.sum(axes, keepdim=True) if axes else product for product in products)


def interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns x (..., D) with adjacent pairs, rotated; the pairs of the result are half a head apart."""
    # Reordered first: a CPU takes five times as long to read every second number twice.
    return rotary_mul(torch.cat(pairs(x, "interleave"), dim=-1), cos, sin)


def apply_rotary_pos_emb(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, layout: str = "BSND", rotary_mode: str = "half"
) -> Pair:
    """Returns `rotary_mul` of query and key, in place; cos and sin have size 1 in the axis of heads of `layout`."""
    return (query.copy_(rotary_mul(query, cos, sin, rotary_mode)), key.copy_(rotary_mul(key, cos, sin, rotary_mode)))


def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    rotary_dim: int,
    is_neox_style: bool,
) -> Pair:
    """Rotates the first `rotary_dim` features of all heads of query and key (T, ...), in place.

    Row p of `cos_sin_cache` (P, rotary_dim) has the cosines of the pairs at position p, then the sines.
    """
    cos, sin = cos_sin_cache[positions].unsqueeze(-2).chunk(2, -1)
    mode = "half" if is_neox_style else "interleave"
    for x in (query, key):
        part = x.view(len(positions), x[:1].numel() // head_size, head_size)[..., :rotary_dim]
        turned = torch.empty_like(part)
        turn(pairs(part, mode), (cos, cos), (sin, sin), pairs(turned, mode))
        part.copy_(turned)
    return query, key


def rope_siso(x: Tensor, cos: None, sin: None, table: Tensor, positions: Tensor, width: int) -> Tensor:
    """Does `rotary_embedding` of one tensor (T, heads, head size), in place."""
    return rotary_embedding(positions, x, x[:, :0], table, x.shape[-1], width, True)[0]


def qkv_rmsnorm_rope(
    fused: Tensor,
    cos_sin_cache: Tensor,
    positions: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    q_hidden_size: int,
    kv_hidden_size: int,
    head_dim: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Splits (T, q + 2 kv) into query, key and value; normalizes and rotates each head of query and key."""
    query, key, value = fused.split([q_hidden_size, kv_hidden_size, kv_hidden_size], dim=-1)
    query, key = (
        rms_norm(x.unflatten(-1, (-1, head_dim)), weight, epsilon=eps)[0].flatten(-2)
        for x, weight in ((query, q_weight), (key, k_weight))
    )
    rotary_embedding(positions, query, key, cos_sin_cache, head_dim, cos_sin_cache.shape[-1], True)
    return query, key, value.contiguous()


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
