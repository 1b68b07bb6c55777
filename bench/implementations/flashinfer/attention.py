"""Attention over sequences of different lengths: packed, in pages, or latent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import flashinfer
import torch

from opatlas import Prepared, implements

from .._layouts import int32
from .common import HALF, expect, expect_dtype, words, workspace

#: Head sizes of queries and keys, and of values, that attention on Hopper is compiled for.
_ATTENTION_SIZES = ((64, 64), (128, 128), (256, 256), (192, 128))
#: Numbers of keys and of sequences that the buffers of FlashInfer's wrappers hold, without a check.
_MOST_KEYS, _MOST_SEQUENCES = 16 << 20, 32767
#: Threads of a block that merges the heads of a token.
_THREADS = 1024
_FROM_BASE_2 = "log-sum-exp from base 2"


@implements("FusedInferAttentionScore")
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int],
    block_table: torch.Tensor | None = None,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    num_heads: int,
    scale: float,
    input_layout: str,
    num_key_value_heads: int,
    sparse_mode: int = 0,
    block_size: int = 0,
    softmax_lse_flag: bool = False,
) -> Prepared:
    """Packed sequences, sequences in pages, or absorbed latent attention in pages."""
    expect_dtype(HALF, query=query)
    expect_dtype((query.dtype,), key=key, value=value)
    causal, with_lse, ends = sparse_mode == 3, softmax_lse_flag, actual_seq_lengths
    if block_table is None:
        assert ends is not None
        return _packed(
            *_with_rope(query, query_rope, key, key_rope),
            value,
            [0, *ends],
            [0, *actual_seq_lengths_kv],
            causal=causal,
            scale=scale,
            with_lse=with_lse,
        )
    pages = _Pages(block_table, actual_seq_lengths_kv, block_size)
    if query_rope is not None and key_rope is not None:
        expect(value is key and num_key_value_heads == 1, "latent attention", "keys as values, and one head of them")
        return _latent(query, query_rope, key, key_rope, pages, scale=scale, with_lse=with_lse)
    assert ends is not None
    layout = "NHD" if key.dim() == 3 else "HND"
    if layout == "NHD":
        key, value = (x.unflatten(-1, (num_key_value_heads, -1)) for x in (key, value))
    return _paged(query, (key, value), layout, [0, *ends], pages, causal=causal, scale=scale, with_lse=with_lse)


class _Pages:
    """The blocks of each sequence, as FlashInfer's `plan` takes them.

    Attributes:
        starts: the place of the first block of each sequence among `blocks`, and the end.
        blocks: numbers of the blocks of all sequences.
        last: number of keys in the last block of each sequence.
        lengths: number of keys of each sequence.
    """

    def __init__(self, table: torch.Tensor, lengths: Sequence[int], block_size: int) -> None:
        _expect_sequences(len(lengths), sum(lengths))
        self.block_size = block_size
        self.lengths = int32(lengths, table.device)
        used = (self.lengths + block_size - 1) // block_size
        self.starts = torch.nn.functional.pad(used.cumsum(0, dtype=torch.int32), (1, 0))
        self.blocks = table[torch.arange(table.shape[1], device=table.device) < used[:, None]].int()
        self.last = (self.lengths - 1) % block_size + 1


def _packed(
    q: torch.Tensor,
    k: torch.Tensor,
    value: torch.Tensor,
    q_starts: Sequence[int],
    kv_starts: Sequence[int],
    *,
    causal: bool,
    scale: float,
    with_lse: bool,
) -> Prepared:
    """Returns the call for queries (T, N, D) and keys (T', H, D) of sequences one after the other."""
    wrapper = _plan_packed(q, k, value, q_starts, kv_starts, causal=causal, scale=scale)
    converted = ("queries and keys with their rope part in one tensor",) if q.shape[-1] != value.shape[-1] else ()
    return Prepared(
        lambda: wrapper.run(q, k, value, return_lse=with_lse, enable_pdl=False),
        results=_with_natural_lse if with_lse else None,
        converted=(*converted, _FROM_BASE_2) if with_lse else converted,
    )


def _plan_packed(
    q: torch.Tensor,
    k: torch.Tensor,
    value: torch.Tensor,
    q_starts: Sequence[int],
    kv_starts: Sequence[int],
    *,
    causal: bool,
    scale: float,
) -> Any:
    _expect_attention_sizes(q.shape[-1], value.shape[-1])
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace(q.device), "NHD")
    wrapper.plan(
        int32(q_starts, q.device),
        int32(kv_starts, q.device),
        q.shape[1],
        k.shape[1],
        q.shape[2],
        value.shape[2],
        causal=causal,
        sm_scale=scale,
        q_data_type=q.dtype,
        kv_data_type=k.dtype,
    )
    return wrapper


def _paged(
    q: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    layout: str,
    q_starts: Sequence[int],
    pages: _Pages,
    *,
    causal: bool,
    scale: float,
    with_lse: bool,
) -> Prepared:
    """Returns the call for queries (T, N, D), and pages (blocks, size, H, D) in "NHD" or (blocks, H, size, D)."""
    (_, heads, head_size), kv_heads = q.shape, caches[0].shape[2 if layout == "NHD" else 1]
    _expect_attention_sizes(head_size, caches[1].shape[-1])
    plan = {"sm_scale": scale, "q_data_type": q.dtype, "kv_data_type": caches[0].dtype}
    sizes = (heads, kv_heads, head_size, pages.block_size)
    if all(end - start == 1 for start, end in pairwise(q_starts)):
        # Tensor cores are worth it for many queries to a key; vLLM and SGLang choose in the same way.
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace(q.device), layout, use_tensor_cores=heads // kv_heads >= 4
        )
        wrapper.plan(pages.starts, pages.blocks, pages.last, *sizes, **plan)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(q.device), layout)
        wrapper.plan(int32(q_starts, q.device), pages.starts, pages.blocks, pages.last, *sizes, causal=causal, **plan)
    return Prepared(
        lambda: wrapper.run(q, caches, return_lse=with_lse, enable_pdl=False),
        results=_with_natural_lse if with_lse else None,
        converted=(_FROM_BASE_2,) if with_lse else (),
    )


def _latent(
    query: torch.Tensor,
    query_rope: torch.Tensor,
    cache: torch.Tensor,
    key_rope: torch.Tensor,
    pages: _Pages,
    *,
    scale: float,
    with_lse: bool,
) -> Prepared:
    """Returns the call for queries (B, N, S, D) and a cache whose entries are keys and values; results (N, B, S, D)."""
    (batch, heads, length, latent), rope = query.shape, query_rope.shape[-1]
    expect((latent, rope) == (512, 64), f"latent size {latent} + {rope}", "512 + 64")
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace(query.device), backend="auto")
    wrapper.plan(
        int32(range(0, (batch + 1) * length, length), query.device),
        pages.starts,
        pages.blocks,
        pages.lengths,
        heads,
        latent,
        rope,
        pages.block_size,
        False,
        scale,
        query.dtype,
        cache.dtype,
    )
    q, q_rope = (x.transpose(1, 2).reshape(batch * length, heads, -1) for x in (query, query_rope))
    k, k_rope = (x.view(-1, pages.block_size, x.shape[-1]) for x in (cache, key_rope))

    converted = () if length == 1 else ("queries to (tokens, heads, D)",)

    def results(found: Any) -> Any:
        out, lse = found if with_lse else (found, None)
        by_heads = out.view(batch, length, heads, latent).permute(2, 0, 1, 3)
        return by_heads, None if lse is None else lse.view(batch, length, heads, 1).transpose(1, 2)

    return Prepared(
        lambda: wrapper.run(q, q_rope, k, k_rope, return_lse=with_lse, return_lse_base_on_e=True),
        results=results,
        converted=(*converted, "result from (tokens, heads, D)"),
    )


@implements("RINGMLAPrefillBF16Kernel")
def ring_mla(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    k_nope: torch.Tensor,
    k_rope: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    seqlen: torch.Tensor,
    head_num: int,
    kv_head_num: int,
    *,
    pre_out: torch.Tensor | None = None,
    prev_lse: torch.Tensor | None = None,
    qk_scale: float,
    kernel_type: str,
    mask_type: str,
    input_layout: str,
    calc_type: str,
) -> Prepared:
    """Attention, and in a later step a second kernel that merges its result with the earlier one."""
    expect_dtype(HALF, queries=q_nope)
    expect_dtype((q_nope.dtype,), keys=k_nope, values=value)
    q, k = _with_rope(q_nope, q_rope, k_nope, k_rope)
    lengths = seqlen.reshape(-1, seqlen.shape[-1]).tolist()
    q_starts, kv_starts = ([sum(own[:i]) for i in range(len(own) + 1)] for own in (lengths[0], lengths[-1]))
    wrapper = _plan_packed(q, k, value, q_starts, kv_starts, causal=mask_type == "mask_type_triu", scale=qk_scale)
    earlier = None
    if pre_out is not None and prev_lse is not None:
        # A block merges all heads of a token, with 8 elements for each thread: more heads are those of more tokens.
        folded = (-1, math.gcd(head_num, _THREADS * 8 // value.shape[-1]))
        earlier = (pre_out.view(*folded, value.shape[-1]), (prev_lse.T.contiguous() / math.log(2)).view(folded))

    def call() -> Any:
        out, lse = wrapper.run(q, k, value, return_lse=True, enable_pdl=False)
        if earlier is None:
            return out, lse
        own = out.view(earlier[0].shape), lse.view(earlier[1].shape)
        merged, merged_lse = flashinfer.merge_state(*earlier, *own)
        return merged.view(out.shape), merged_lse.view(lse.shape)

    return Prepared(
        call,
        results=lambda found: (found[0], (found[1] * math.log(2)).T),
        converted=(
            "queries and keys with their rope part in one tensor",
            "log-sum-exp from base 2 and (tokens, heads)",
        ),
    )


def _with_rope(
    query: torch.Tensor, query_rope: torch.Tensor | None, key: torch.Tensor, key_rope: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    if query_rope is None or key_rope is None:
        return query, key
    return torch.cat([query, query_rope], dim=-1), torch.cat([key, key_rope], dim=-1)


def _with_natural_lse(found: Any) -> Any:
    """Returns the result, and log-sum-exps (T, N) of base 2 as natural logarithms (T, N, 1)."""
    out, lse = found
    return out, (lse * math.log(2)).unsqueeze(-1)


def _expect_attention_sizes(query: int, value: int) -> None:
    named = words([str(q) if q == v else f"{q} with values of {v}" for q, v in _ATTENTION_SIZES])
    expect((query, value) in _ATTENTION_SIZES, f"head size {query}, values of {value}", named)


def _expect_sequences(count: int, keys: int) -> None:
    expect(count <= _MOST_SEQUENCES, f"{count} sequences", f"up to {_MOST_SEQUENCES}")
    expect(keys <= _MOST_KEYS, f"{keys} keys", f"up to {_MOST_KEYS} of all sequences together")
