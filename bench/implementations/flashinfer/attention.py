"""Attention over sequences of different lengths, packed, in pages, or latent; rotary embeddings; writes to caches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import flashinfer
import torch
from torch import Tensor

from opatlas import Prepared, implements

from .. import _calls as calls
from . import HEAD_SIZES, SUPPORT, expect, expect_dtype, words, workspace

#: Head sizes of queries and keys, and of values, that attention on Hopper is compiled for.
_ATTENTION_SIZES = ((64, 64), (128, 128), (256, 256), (192, 128))
#: The size of heads of gpt-oss, whose attention has sinks.
_SINK_SIZE = 64
#: Numbers of keys and of sequences that the buffers of FlashInfer's wrappers hold, without a check.
_MOST_KEYS, _MOST_SEQUENCES = 16 << 20, 32767
#: Threads of a block that merges the heads of a token.
_THREADS = 1024
#: Threads of a block, which writes all heads of a token to a cache.
_MOST_THREADS = 1024
_WORKSPACE = 256 << 20
_TABLE = "cos and sin to a table in FLOAT"
_FROM_BASE_2 = "log-sum-exp from base 2"
_JOINED = "queries and keys with their rope part in one tensor"


@implements("FusedInferAttentionScore")
@calls.takes
def attention(call: calls.Attention) -> Prepared:
    """Packed sequences, sequences in pages, or absorbed latent attention in pages."""
    query, key, value = call.query, call.key, call.value
    expect_dtype(calls.HALF, query=query)
    expect_dtype((query.dtype, *calls.FP8), key=key)
    expect_dtype((key.dtype,), value=value)
    if call.block_table is None:
        return _packed(call, *_with_rope(query, call.query_rope, key, call.key_rope))
    pages = _Pages(call.block_table, call.actual_seq_lengths_kv, call.block_size)
    if call.query_rope is not None and call.key_rope is not None:
        one_head = value is key and call.num_key_value_heads == 1
        expect(one_head, "latent attention", "keys as values, and one head of them")
        return _latent(call, call.query_rope, call.key_rope, pages)
    return _paged(call, pages)


class _Pages:
    """The blocks of each sequence, as FlashInfer's `plan` takes them.

    Attributes:
        starts: the place of the first block of each sequence among `blocks`, and the end.
        blocks: numbers of the blocks of all sequences.
        last: number of keys in the last block of each sequence.
        lengths: number of keys of each sequence.
    """

    def __init__(self, table: Tensor, lengths: Sequence[int], block_size: int) -> None:
        _expect_sequences(len(lengths), sum(lengths))
        self.block_size = block_size
        self.lengths = calls.int32(lengths, table.device)
        used = (self.lengths + block_size - 1) // block_size
        self.starts = torch.nn.functional.pad(used.cumsum(0, dtype=torch.int32), (1, 0))
        self.blocks = table[torch.arange(table.shape[1], device=table.device) < used[:, None]].int()
        self.last = (self.lengths - 1) % block_size + 1


def _packed(call: calls.Attention, q: Tensor, k: Tensor) -> Prepared:
    """Returns the call for queries (T, N, D) and keys (T', H, D) of sequences one after the other."""
    kv_starts, value, with_lse = [0, *call.actual_seq_lengths_kv], call.value, call.softmax_lse_flag
    if call.learnable_sink is not None:
        # That wrapper has pages alone: each key is one.
        blocks, last = (torch.arange(len(k), device=k.device).int(), calls.int32([1] * (len(kv_starts) - 1), k.device))
        indices = (calls.int32(kv_starts, k.device), blocks, last)
        return _with_sinks(call, call.learnable_sink, (k[:, None], value[:, None]), "NHD", indices)
    how = {"causal": call.causal, "sm_scale": call.scale, "window_left": call.window}
    wrapper = _plan_packed(q, k, value, _query_starts(call), kv_starts, **how)
    converted = (_JOINED,) if q.shape[-1] != value.shape[-1] else ()
    return Prepared(
        lambda: wrapper.run(q, k, value, return_lse=with_lse, enable_pdl=False),
        results=_with_natural_lse if with_lse else None,
        converted=(*converted, _FROM_BASE_2) if with_lse else converted,
    )


def _plan_packed(q: Tensor, k: Tensor, v: Tensor, q_starts: Sequence[int], kv_starts: Sequence[int], **how: Any) -> Any:
    _expect_attention_sizes(q.shape[-1], v.shape[-1])
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace(q.device), "NHD")
    starts = (calls.int32(own, q.device) for own in (q_starts, kv_starts))
    sizes = (q.shape[1], k.shape[1], q.shape[2], v.shape[2])
    wrapper.plan(*starts, *sizes, q_data_type=q.dtype, kv_data_type=k.dtype, **how)
    return wrapper


def _query_starts(call: calls.Attention) -> list[int]:
    return [0, *(call.actual_seq_lengths or ())]


def _paged(call: calls.Attention, pages: _Pages) -> Prepared:
    """Returns the call for queries (T, N, D), and pages (blocks, size, H D) or (blocks, H, size, D)."""
    q, kv_heads, with_lse = call.query, call.num_key_value_heads, call.softmax_lse_flag
    starts = _query_starts(call)
    (_, heads, head_size), layout = q.shape, "NHD" if call.key.dim() == 3 else "HND"
    keys, values = (x.unflatten(-1, (kv_heads, -1)) if layout == "NHD" else x for x in (call.key, call.value))
    caches = keys, values
    _expect_attention_sizes(head_size, caches[1].shape[-1])
    plan = {"sm_scale": call.scale, "window_left": call.window, "q_data_type": q.dtype, "kv_data_type": call.key.dtype}
    sizes = (heads, kv_heads, head_size, pages.block_size)
    indices = (pages.starts, pages.blocks, pages.last)
    if call.learnable_sink is not None:
        return _with_sinks(call, call.learnable_sink, caches, layout, indices)
    if all(end - start == 1 for start, end in pairwise(starts)):
        if call.key.dtype is torch.float8_e4m3fn and not with_lse and call.window < 0 and _is_hopper(q.device):
            return _in_fp8(call, caches, layout)
        # Tensor cores are worth it for many queries to a key; vLLM and SGLang choose in the same way.
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace(q.device), layout, use_tensor_cores=heads // kv_heads >= 4
        )
        wrapper.plan(*indices, *sizes, **plan)
    else:
        plan["causal"] = call.causal
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(q.device), layout)
        wrapper.plan(calls.int32(starts, q.device), *indices, *sizes, **plan)
    return Prepared(
        lambda: wrapper.run(q, caches, return_lse=with_lse, enable_pdl=False),
        results=_with_natural_lse if with_lse else None,
        converted=(_FROM_BASE_2,) if with_lse else (),
    )


def _with_sinks(
    call: calls.Attention, sink: Tensor, caches: tuple[Tensor, Tensor], layout: str, indices: Sequence[Tensor]
) -> Prepared:
    """Returns the call of attention with one more score for each head, whose kernel is compiled at its first use.

    Args:
        caches: keys and values (pages, size, H, D), or (pages, H, size, D) as `layout` says.
        indices: starts, blocks and last of `_Pages`.
    """
    q, key, sink = call.query, caches[0], sink.float()
    # The name of the compiled kernel does not tell the size of heads: another size would be given this kernel.
    expect(q.shape[-1] == _SINK_SIZE, f"sinks of heads of {q.shape[-1]}", f"those of {_SINK_SIZE}")
    expect(key.dtype == q.dtype and not call.softmax_lse_flag, "sinks with FP8 or a log-sum-exp", "sinks without")
    kinds: dict[str, Any] = {"q_data_type": q.dtype, "kv_data_type": key.dtype, "window_left": call.window}
    wrapper = flashinfer.BatchAttentionWithAttentionSinkWrapper(
        workspace(q.device), layout, head_dim_qk=_SINK_SIZE, head_dim_vo=_SINK_SIZE, **kinds
    )
    kv_heads, size = (key.shape[1 + layout.index(letter)] for letter in "HN")
    starts = calls.int32(_query_starts(call), q.device)
    sizes = (q.shape[1], kv_heads, _SINK_SIZE, size)
    wrapper.plan(starts, *indices, *sizes, causal=call.causal, sm_scale=call.scale, **kinds)
    return Prepared(lambda: wrapper.run(q, caches, sink, call.scale, enable_pdl=False))


def _is_hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] == 9


def _in_fp8(call: calls.Attention, caches: tuple[Tensor, ...], layout: str) -> Prepared:
    """Returns the call of TensorRT-LLM's kernel for one query of each sequence, which multiplies in FP8."""
    q, table = call.query, call.block_table
    assert table is not None
    out, lengths = q.new_empty(q.shape), calls.int32(call.actual_seq_lengths_kv, q.device)
    # The kernel finds zeros at its first call, and leaves them.
    space = torch.zeros(_WORKSPACE, dtype=torch.uint8, device=q.device)
    sizes = (max(call.actual_seq_lengths_kv), call.scale, 1.0)
    how: dict[str, Any] = {"out": out, "kv_layout": layout, "backend": "xqa", "enable_pdl": False}
    decode, blocks = flashinfer.decode.trtllm_batch_decode_with_kv_cache, table.int().contiguous()
    # The kernel reads queries one after the other; those of a step are columns of a product.
    return calls.launched(lambda: decode(q.contiguous(), caches, space, blocks, lengths, *sizes, **how), out)


def _latent(call: calls.Attention, query_rope: Tensor, key_rope: Tensor, pages: _Pages) -> Prepared:
    """Returns the call for queries (B, N, S, D) and a cache whose entries are keys and values; results (N, B, S, D)."""
    (batch, heads, length, latent), rope = call.query.shape, query_rope.shape[-1]
    device, size, with_lse = call.query.device, pages.block_size, call.softmax_lse_flag
    expect((latent, rope) == (512, 64), f"latent size {latent} + {rope}", "512 + 64")
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace(device), backend="auto")
    starts = calls.int32(range(0, (batch + 1) * length, length), device)
    how = (heads, latent, rope, size, False, call.scale, call.query.dtype, call.key.dtype)
    wrapper.plan(starts, pages.starts, pages.blocks, pages.lengths, *how)
    q, q_rope = (x.transpose(1, 2).reshape(batch * length, heads, -1) for x in (call.query, query_rope))
    k, k_rope = (x.view(-1, size, x.shape[-1]) for x in (call.key, key_rope))

    def results(found: Any) -> Any:
        out, lse = found if with_lse else (found, None)
        by_heads = out.view(batch, length, heads, latent).permute(2, 0, 1, 3)
        return by_heads, None if lse is None else lse.view(batch, length, heads, 1).transpose(1, 2)

    converted = () if length == 1 else ("queries to (tokens, heads, D)",)
    return Prepared(
        lambda: wrapper.run(q, q_rope, k, k_rope, return_lse=with_lse, return_lse_base_on_e=True),
        results=results,
        converted=(*converted, "result from (tokens, heads, D)"),
    )


@implements("RINGMLAPrefillBF16Kernel")
@calls.takes
def ring_mla(call: calls.RingMla) -> Prepared:
    """Attention, and in a later step a second kernel that merges its result with the earlier one."""
    value, pre_out, prev_lse = call.value, call.pre_out, call.prev_lse
    expect_dtype(calls.HALF, queries=call.q_nope)
    expect_dtype((call.q_nope.dtype,), keys=call.k_nope, values=value)
    q, k = _with_rope(call.q_nope, call.q_rope, call.k_nope, call.k_rope)
    lengths = call.seqlen.reshape(-1, call.seqlen.shape[-1]).tolist()
    q_starts, kv_starts = ([sum(own[:i]) for i in range(len(own) + 1)] for own in (lengths[0], lengths[-1]))
    how = {"causal": call.mask_type == "mask_type_triu", "sm_scale": call.qk_scale}
    wrapper = _plan_packed(q, k, value, q_starts, kv_starts, **how)
    earlier = None
    if pre_out is not None and prev_lse is not None:
        # A block merges all heads of a token, with 8 elements for each thread: more heads are those of more tokens.
        folded = (-1, math.gcd(call.head_num, _THREADS * 8 // value.shape[-1]))
        earlier = (pre_out.view(*folded, value.shape[-1]), (prev_lse.T.contiguous() / math.log(2)).view(folded))

    def attend() -> Any:
        out, lse = wrapper.run(q, k, value, return_lse=True, enable_pdl=False)
        if earlier is None:
            return out, lse
        own = out.view(earlier[0].shape), lse.view(earlier[1].shape)
        merged, merged_lse = flashinfer.merge_state(*earlier, *own)
        return merged.view(out.shape), merged_lse.view(lse.shape)

    return Prepared(
        attend,
        results=lambda found: (found[0], (found[1] * math.log(2)).T),
        converted=(_JOINED, "log-sum-exp from base 2 and (tokens, heads)"),
    )


def _with_rope(query: Tensor, query_rope: Tensor | None, key: Tensor, key_rope: Tensor | None) -> tuple[Tensor, Tensor]:
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


@implements("ApplyRotaryPosEmb")
def apply_rotary_pos_emb(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *, layout: str) -> Prepared:
    heads = calls.HEADS[layout]
    q, k = (calls.tokens_by_heads(x, heads, SUPPORT) for x in (query, key))
    return _rotated(*_angles(query, cos, sin, heads), q, k, converted=(_TABLE,))


@implements("RotaryPositionEmbedding")
def rotary_mul(x: Tensor, cos: Tensor, sin: Tensor) -> Prepared:
    """Works in place; the last head serves as the key, which the kernel requires."""
    return _one_tensor(x, cos, sin)


@implements("InterleaveRope")
def interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Prepared:
    """Works in place as `rotary_mul`. The features of a pair stay side by side; the row has them half a head apart."""
    return _one_tensor(x, cos, sin, adjacent=True)


@implements("_triton_rope")
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, table: Tensor, head_size: int, rotary_size: int, is_neox: bool
) -> Prepared:
    """The table has the row's dtype on an NPU, and FLOAT here: twice as many bytes are read for an angle."""
    converted = () if table.dtype == torch.float32 else ("table of cos and sin to FLOAT",)
    q, k = (x.view(len(positions), -1, head_size) for x in (query, key))
    return _rotated(table.float(), positions.contiguous(), q, k, adjacent=not is_neox, converted=converted)


@implements("ReshapeAndCacheNdKernel")
def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_indices: Tensor
) -> Prepared:
    """Any places are those of one sequence that has all blocks in order."""
    (blocks, block_size, heads, head_size), device = key_cache.shape, key.device
    expect_dtype(calls.HALF, key=key)
    expect_dtype((key.dtype,), value=value, key_cache=key_cache, value_cache=value_cache)
    expect(head_size in HEAD_SIZES, f"head size {head_size}", words(HEAD_SIZES))
    expect(value_cache.shape == key_cache.shape, f"values of size {value.shape[-1]}", f"the keys' size {head_size}")
    most = _MOST_THREADS * max(8, head_size // 32) // head_size
    expect(heads <= most, f"{heads} heads", f"up to {most} of size {head_size}")
    places, sequence = slot_indices.int(), torch.zeros(len(key), dtype=torch.int32, device=device)
    order = torch.arange(blocks, dtype=torch.int32, device=device)
    ends, last = (calls.int32(numbers, device) for numbers in ([0, blocks], [block_size]))
    caches = (key_cache, value_cache)
    return Prepared(
        lambda: flashinfer.page.append_paged_kv_cache(key, value, sequence, places, caches, order, ends, last, "NHD"),
        converted=() if slot_indices.dtype == torch.int32 else ("places to INT32",),
    )


def _one_tensor(x: Tensor, cos: Tensor, sin: Tensor, adjacent: bool = False) -> Prepared:
    heads = calls.axis_of_heads(x, cos, SUPPORT)
    tokens = calls.tokens_by_heads(x, heads, SUPPORT)
    expect(tokens.shape[1] > 1, "1 head", "queries and keys, which are two heads or more")
    converted = (_TABLE, "pairs of the result to halves of a head") if adjacent else (_TABLE,)
    angles = _angles(x, cos, sin, heads)
    return _rotated(*angles, tokens[:, :-1], tokens[:, -1:], changed=x, adjacent=adjacent, converted=converted)


def _rotated(
    table: Tensor,
    positions: Tensor,
    q: Tensor,
    k: Tensor,
    *,
    changed: Tensor | None = None,
    adjacent: bool = False,
    converted: Sequence[str],
) -> Prepared:
    """Returns the call that rotates queries and keys (tokens, heads, D) in place, by `table` (positions, width).

    Args:
        changed: the tensor that both are views of, and that is the result; None: the two tensors that the replay
            declares as changed.
        adjacent: whether the features of a pair are side by side.
    """
    head_size, width = q.shape[-1], table.shape[-1]
    expect_dtype(calls.HALF, query=q)
    expect_dtype((q.dtype,), key=k)
    expect(len(q) == len(k), f"{len(q)} tokens of queries and {len(k)} of keys", "as many of both")
    expect(head_size in HEAD_SIZES, f"head size {head_size}", words(HEAD_SIZES))
    least = 2 * max(8, head_size // 32)
    expect(width % least == 0, f"{width} rotated features of {head_size}", f"multiples of {least}")
    rotate = flashinfer.rope.apply_rope_with_cos_sin_cache_inplace
    return calls.launched(
        lambda: rotate(positions, q, k, head_size, table, not adjacent),
        changed,
        changes=() if changed is None else (changed,),
        results=calls.pairs_in_halves if adjacent and changed is not None else None,
        converted=converted,
    )


def _angles(x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Returns a float32 table (rows, D) of cosines and sines of the pairs, and the row of each token of x."""
    return calls.table_of_pairs(cos, sin, torch.float32), calls.rows_of_tokens(x, cos, heads, SUPPORT, torch.int32)
