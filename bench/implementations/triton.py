"""Routing of experts and writes to latent caches as engines run them, in Triton kernels of our own.

Written for triton 3.3 to 3.9. The choice of experts is one kernel, the order by expert with the copies of tokens one up
to 4,096 copies and three beyond, the weighted sum one. Grouped products are those of other implementations.
"""

import torch
import triton
import triton.language as tl

from opatlas import Prepared, Unsupported, implements
from opatlas.run.implementation import Support

from ._calls import REAL, Gating, launched, takes

DISTRIBUTIONS = ("triton",)
DEVICES = ("cuda",)
_SUPPORT = Support("the Triton kernel")
#: Up to so many copies each one is compared with all others. Beyond, each block of copies counts its experts first.
_FEW, _MOST_BLOCKS = 4096, 64
#: The least room for experts in the counts: a call does not say how many there are.
_EXPERTS = 512
_NEVER = tl.constexpr(float("-inf"))


@triton.jit
def _choose(
    logits, bias, weights, chosen, experts,
    k: tl.constexpr, slots: tl.constexpr, width: tl.constexpr, groups: tl.constexpr, kept: tl.constexpr,
    best_two: tl.constexpr, sigmoid: tl.constexpr, has_bias: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    at, slot = tl.arange(0, width), tl.arange(0, slots)
    x = tl.load(logits + token * experts + at, mask=at < experts, other=_NEVER).to(tl.float32)
    powers = tl.exp(x - tl.max(x, 0))
    norm = 1 / (1 + tl.exp(-x)) if sigmoid else powers / tl.sum(powers, 0)
    score = norm
    if has_bias:
        score += tl.load(bias + at, mask=at < experts, other=0).to(tl.float32)
    score = tl.where(at < experts, score, _NEVER)
    if groups > 1:
        by_group, group = tl.reshape(score, (groups, width // groups)), tl.arange(0, groups)
        best = tl.max(by_group, 1)
        if best_two:
            is_best = tl.arange(0, width // groups)[None, :] == tl.argmax(by_group, 1)[:, None]
            best += tl.max(tl.where(is_best, _NEVER, by_group), 1)
        is_kept = group < 0
        for _ in tl.static_range(kept):
            is_next = group == tl.argmax(best, 0)
            is_kept, best = is_kept | is_next, tl.where(is_next, _NEVER, best)
        score = tl.reshape(tl.where(is_kept[:, None], by_group, _NEVER), (width,))
    values, numbers = tl.zeros((slots,), tl.float32), tl.zeros((slots,), tl.int32)
    for j in tl.static_range(k):
        number = tl.argmax(score, 0)
        numbers = tl.where(slot == j, number, numbers)
        values = tl.where(slot == j, tl.sum(tl.where(at == number, norm, 0.0), 0), values)
        score = tl.where(at == number, _NEVER, score)
    if sigmoid:
        values /= tl.sum(values, 0) + 1e-20
    tl.store(weights + token * k + slot, values, mask=slot < k)
    tl.store(chosen + token * k + slot, numbers, mask=slot < k)


@implements("MoeGatingTopK")
@takes
def moe_gating_top_k(call: Gating) -> Prepared:
    """Computes no normalized logits of all experts."""
    (tokens, experts), groups = call.x.shape, call.group_count
    _SUPPORT.expect_dtype(REAL, x=call.x)
    width = triton.next_power_of_2(experts)
    even = groups == 1 or (width == experts and groups & (groups - 1) == 0)
    _SUPPORT.expect(even, f"{experts} experts in {groups} groups", "powers of two of them")
    weights = call.x.new_empty(tokens, call.k)
    chosen = torch.empty(tokens, call.k, dtype=torch.int32, device=call.x.device)
    sizes = (call.k, triton.next_power_of_2(call.k), width, groups, call.k_group)
    how = (call.group_select_mode == 1, call.norm_type == 1, call.bias is not None)
    arguments = (call.x, call.x if call.bias is None else call.bias, weights, chosen, experts, *sizes, *how)
    return launched(lambda: _choose[tokens,](*arguments, num_warps=1), (weights, chosen, None))


@triton.jit
def _count(ids, counts, n, size: tl.constexpr, experts: tl.constexpr):
    block = tl.program_id(0)
    at = block * size + tl.arange(0, size)
    # Missing ids count as those of the last expert, whom no token chose.
    found = tl.histogram(tl.load(ids + at, mask=at < n, other=experts - 1).to(tl.int32), experts)
    tl.store(counts + block * experts + tl.arange(0, experts), found)


@triton.jit
def _place(counts, n, blocks: tl.constexpr, experts: tl.constexpr):
    block, expert = tl.arange(0, blocks)[:, None], tl.arange(0, experts)[None, :]
    found = tl.load(counts + block * experts + expert, mask=block < n, other=0)
    total = tl.sum(found, 0)
    first = (tl.cumsum(total, 0) - total)[None, :] + tl.cumsum(found, 0) - found
    tl.store(counts + block * experts + expert, first, mask=block < n)


@triton.jit
def _copy(
    tokens, ids, firsts, out, places, n, kept, copies, width,
    rows: tl.constexpr, size: tl.constexpr, experts: tl.constexpr, columns: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    own = tl.program_id(0) * rows + tl.arange(0, rows)
    mine = tl.load(ids + own, mask=own < n, other=0).to(tl.int32)
    place = tl.zeros((rows,), tl.int32)
    start, end = 0, n
    if experts:
        start = tl.program_id(0) * rows // size * size
        end = tl.minimum(n, start + size)
        place = tl.load(firsts + start // size * experts + mine)
    for first in range(start, end, step):
        other = first + tl.arange(0, step)
        theirs = tl.load(ids + other, mask=other < end, other=2147483647).to(tl.int32)[None, :]
        is_before = (theirs == mine[:, None]) & (other[None, :] < own[:, None])
        if not experts:
            is_before = is_before | (theirs < mine[:, None])
        place += tl.sum(is_before.to(tl.int32), 1)
    tl.store(places + own, place, mask=own < n)
    source, target = (own // copies).to(tl.int64)[:, None] * width, place.to(tl.int64)[:, None] * width
    is_kept = ((own < n) & (place < kept))[:, None]
    for first in range(0, width, columns):
        column = first + tl.arange(0, columns)[None, :]
        mask = is_kept & (column < width)
        tl.store(out + target + column, tl.load(tokens + source + column, mask=mask), mask=mask)


@implements("MoeTokenPermute")
def moe_token_permute(tokens: torch.Tensor, indices: torch.Tensor, num_out_tokens: int | None = None) -> Prepared:
    n, width = indices.numel(), tokens.shape[1]
    kept = n if num_out_tokens is None else num_out_tokens
    ids = indices.flatten()
    out, places = tokens.new_empty(kept, width), torch.empty(n, dtype=torch.int32, device=ids.device)
    size = max(1024, triton.next_power_of_2(triton.cdiv(n, _MOST_BLOCKS)))
    blocks = triton.cdiv(n, size)
    experts = 0 if n <= _FEW else max(_EXPERTS, triton.next_power_of_2(int(ids.max()) + 2))
    counts = torch.empty(blocks, max(experts, 1), dtype=torch.int32, device=ids.device)
    rows = min(triton.next_power_of_2(triton.cdiv(n, 512)), 8)
    arguments = (tokens, ids, counts, out, places, n, kept, n // max(len(tokens), 1), width)

    def launch() -> None:
        if experts:
            _count[blocks,](ids, counts, n, size, experts)
            _place[1,](counts, blocks, triton.next_power_of_2(blocks), experts, num_warps=16)
        _copy[triton.cdiv(n, rows),](*arguments, rows, size, experts, 4096 // rows, 1024 // rows)

    return launched(launch, (out, places))


@triton.jit
def _add(x, places, weights, out, width, k: tl.constexpr, columns: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    total = tl.zeros((columns,), tl.float32)
    for j in tl.static_range(k):
        row = tl.load(places + token * k + j).to(tl.int64) * width
        weight = tl.load(weights + token * k + j).to(tl.float32)
        total += tl.load(x + row + column, mask=column < width, other=0).to(tl.float32) * weight
    tl.store(out + token * width + column, total, mask=column < width)


@implements("MoeTokenUnpermute")
def moe_token_unpermute(
    permuted_tokens: torch.Tensor, sorted_indices: torch.Tensor, probs: torch.Tensor | None = None
) -> Prepared:
    if probs is None:
        raise Unsupported("no weights: the Triton kernel has weighted sums")
    (tokens, k), width = probs.shape, permuted_tokens.shape[1]
    out = permuted_tokens.new_empty(tokens, width)
    arguments = (permuted_tokens, sorted_indices, probs, out, width, k, 1024)
    return launched(lambda: _add[tokens, triton.cdiv(width, 1024)](*arguments), out)


@triton.jit
def _write_latent(
    kv, gamma, cos, sin, places, rotary_cache, latent_cache, epsilon,
    latent: tl.constexpr, rotary: tl.constexpr, width: tl.constexpr, pairs: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    place, own = tl.load(places + token).to(tl.int64), kv + token * (latent + rotary)
    at, pair, half = tl.arange(0, width), tl.arange(0, pairs), rotary // 2
    x = tl.load(own + at, mask=at < latent, other=0).to(tl.float32)
    x *= tl.rsqrt(tl.sum(x * x, 0) / latent + epsilon)
    x *= tl.load(gamma + at, mask=at < latent, other=0).to(tl.float32)
    tl.store(latent_cache + place * latent + at, x, mask=at < latent)
    is_pair, turned = pair < half, rotary_cache + place * rotary + pair
    first = tl.load(own + latent + 2 * pair, mask=is_pair).to(tl.float32)
    second = tl.load(own + latent + 2 * pair + 1, mask=is_pair).to(tl.float32)
    for i in tl.static_range(2):
        angle = token * rotary + i * half + pair
        c = tl.load(cos + angle, mask=is_pair).to(tl.float32)
        s = tl.load(sin + angle, mask=is_pair).to(tl.float32)
        tl.store(turned + i * half, (second * c + first * s) if i else (first * c - second * s), mask=is_pair)


@implements("KvRmsNormRopeCache")
def kv_rmsnorm_rope_cache(
    kv: torch.Tensor, gamma: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, index: torch.Tensor,
    k_cache: torch.Tensor, ckv_cache: torch.Tensor, *, epsilon: float, cache_mode: str, is_output_kv: bool,
) -> Prepared:  # fmt: skip
    """Writes the vectors of decoded tokens to the caches."""
    _SUPPORT.expect(not is_output_kv, "the written vectors as results", "the caches alone")
    latent, rotary = len(gamma), k_cache.shape[-1]
    angles = (each.expand(*kv.shape[:-1], rotary).contiguous() for each in (cos, sin))
    sizes = (latent, rotary, triton.next_power_of_2(latent), triton.next_power_of_2(rotary // 2))
    arguments = (kv.contiguous(), gamma, *angles, index, k_cache, ckv_cache, epsilon, *sizes)
    return launched(lambda: _write_latent[len(index),](*arguments), (k_cache, ckv_cache))
