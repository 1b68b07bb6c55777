"""Attention over sequences of different lengths, in pages or packed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from opatlas import Prepared

from .._calls import Attention, RingMla, differences, int32, takes
from .matmul import may_prepare

#: Maximum number of scores at a time without a fused kernel: 256 MiB in float32.
SCORES = 1 << 26
#: Maximum number of elements of keys in a batch of sequences.
_GATHERED = 1 << 26


@takes
def fused_infer_attention_score(call: Attention) -> tuple[Tensor, Tensor] | Prepared:
    """Returns attention of each sequence; sequences of equal lengths make a batch.

    Packed sequences with heads of one width are one call of FlashAttention-2 on a GPU.

    Shapes: queries (T, N, D), or (B, N, S, D) with results (N, B, S, D); keys and values (T, H, D),
    or pages (blocks, block size, H x D) or (blocks, H, block size, D). The mask tensor is not read:
    `sparse_mode` 3 is causal, with 4 a query sees its own key and `pre_tokens` before it. A sink (N,) is a score of
    each head without a value. Second result: the log-sum-exp in float32, (T, N, 1) or (B, N, S, 1), empty unless
    requested.
    """
    query, key, value, key_rope, block_table = call.query, call.key, call.value, call.key_rope, call.block_table
    kv_ends, kv_heads, sink = call.actual_seq_lengths_kv, call.num_key_value_heads, call.learnable_sink
    with_lse = call.softmax_lse_flag
    window = call.pre_tokens if call.sparse_mode == 4 else None
    if (
        may_prepare(query)
        and call.input_layout == "TND"
        and block_table is None
        and call.query_rope is None
        and key.shape == value.shape
        and has_flash_kernel(query)
        and call.actual_seq_lengths
    ):
        return _packed_flash_attention(call, call.actual_seq_lengths, window)
    if call.query_rope is not None and key_rope is not None:
        query = torch.cat([query, call.query_rope], dim=-1)
    tokens = query if call.input_layout == "TND" else query.transpose(1, 2).flatten(0, 1)
    ends = call.actual_seq_lengths or range(query.shape[-2], len(tokens) + 1, query.shape[-2])
    own_kv = kv_ends if block_table is not None else differences(kv_ends)
    width = value.shape[-1] // (kv_heads if value.dim() == 3 and block_table is not None else 1)
    out = tokens.new_empty(len(tokens), call.num_heads, width)
    lse = torch.empty(len(tokens) if with_lse else 0, call.num_heads, 1, device=query.device)
    for q_length, kv_length, members in length_batches(differences(ends), own_kv, kv_heads * key.shape[-1]):
        rows = stretches([ends[i] - q_length for i in members], q_length, query.device)
        q = tokens[rows].transpose(1, 2)
        if block_table is not None:
            table = block_table[members, : math.ceil(kv_length / call.block_size)].long()
            stored = partial(pages, table=table, length=kv_length, heads=kv_heads)
        else:
            positions = stretches([kv_ends[i] - kv_length for i in members], kv_length, query.device)
            stored = partial(_pack, positions=positions)
        # A cache may be in FP8.
        k = stored(key).to(q.dtype) if key_rope is None else torch.cat([stored(key), stored(key_rope)], dim=-1)
        # In absorbed latent attention the values are the first numbers of the keys.
        v = k if value is key else stored(value).to(q.dtype)
        if window is not None:
            k, v = (x[:, :, -(q_length + window) :] for x in (k, v))
        if with_lse or sink is not None:
            result, sums = attend_with_lse(q, k, v, scale=call.scale, causal=call.causal, window=window)
            if with_lse:
                lse[rows] = sums.transpose(1, 2)[..., None].to(lse.dtype)
            if sink is not None:
                result = _with_sink(result.transpose(1, 2), sums.transpose(1, 2), sink).transpose(1, 2)
        else:
            result = attend(q, k, v, scale=call.scale, causal=call.causal, window=window)
        out[rows] = result.transpose(1, 2)[..., :width]
    if call.input_layout == "TND":
        return out, lse if with_lse else lse.reshape(0)
    sequences, _, length = query.shape[:3]
    lse = lse.view(sequences, length, call.num_heads, 1).transpose(1, 2).contiguous() if with_lse else lse.reshape(0)
    return out.view(sequences, length, call.num_heads, width).permute(2, 0, 1, 3).contiguous(), lse


def _packed_flash_attention(call: Attention, q_ends: Sequence[int], window: int | None) -> Prepared:
    """Prepares attention of packed sequences (T, N, D), with the log-sum-exp (T, N, 1) or nothing.

    `torch.nn.attention.varlen` has the same operator, which it follows with a second kernel.
    """
    both, sink, with_lse = (q_ends, call.actual_seq_lengths_kv), call.learnable_sink, call.softmax_lse_flag
    steps = [int32([0, *ends], call.query.device) for ends in both]
    longest = [max(differences(ends)) for ends in both]
    sides = {} if window is None else {"window_size_left": window, "window_size_right": 0}

    tensors = (call.query, call.key, call.value, *steps)

    def launch() -> tuple[Tensor, Tensor | None]:
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            *tensors, *longest, 0.0, call.causal, False, scale=call.scale, **sides
        )
        return out if sink is None else _with_sink(out, of_tokens(lse), sink), lse if with_lse else None

    def of_tokens(lse: Tensor) -> Tensor:
        if lse.dim() == 3:
            # Up to torch 2.6 a sequence after the other, (B, N, longest).
            own = zip(lse, differences(q_ends), strict=True)
            lse = torch.cat([of_one[:, :length] for of_one, length in own], dim=-1)
        return lse.mT

    def with_last_axis(found: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor]:
        out, lse = found
        return out, out.new_empty(0, dtype=torch.float32) if lse is None else of_tokens(lse).unsqueeze(-1).contiguous()

    return Prepared(launch, results=with_last_axis, converted=("log-sum-exp to (T, N, 1)",) if with_lse else ())


def _with_sink(out: Tensor, lse: Tensor, sink: Tensor) -> Tensor:
    """Returns results (..., N, D) of attention with one more score, given the log-sum-exps (..., N) of the others."""
    return (out * torch.sigmoid(lse - sink).unsqueeze(-1)).to(out.dtype)


@takes
def ring_mla(call: RingMla) -> tuple[Tensor, Tensor]:
    """Computes a step of ring attention over (T, heads, D) tokens: (T, N, Dv) and the log-sum-exp (N, T).

    The attention of this step is merged with `pre_out` and `prev_lse`. `seqlen` is on the host: (sequences,), or
    (2, sequences) where keys have other lengths.
    """
    lengths = call.seqlen.reshape(-1, call.seqlen.shape[-1]).tolist()
    q, k = torch.cat([call.q_nope, call.q_rope], dim=-1), torch.cat([call.k_nope, call.k_rope], dim=-1)
    outs, sums = [], []
    pieces = zip(q.split(lengths[0]), k.split(lengths[-1]), call.value.split(lengths[-1]), strict=True)
    for own_q, own_k, own_v in pieces:
        batch = [tensor.transpose(0, 1)[None] for tensor in (own_q, own_k, own_v)]
        out, lse = attend_with_lse(*batch, scale=call.qk_scale, causal=call.mask_type == "mask_type_triu")
        outs.append(out[0].transpose(0, 1))
        sums.append(lse[0])
    out, lse = torch.cat(outs), torch.cat(sums, dim=-1)
    if call.pre_out is None or call.prev_lse is None:
        return out.contiguous(), lse
    both = torch.logaddexp(lse, call.prev_lse)
    old, new = ((part - both).exp().T[..., None] for part in (call.prev_lse, lse))
    return (call.pre_out * old + out * new).to(call.pre_out.dtype), both


def attend(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, window: int | None = None) -> Tensor:
    """Maps (B, N, S, D), (B, H, T, D) and (B, H, T, Dv) to (B, N, S, Dv); the last query sees all keys.

    N is a multiple of H. With a window, of at least T - S keys, a query sees its own and so many before it.
    """
    q, shape, causal = _fold_heads(q, k, causal)
    square = q.shape[2] == k.shape[2] and window is None
    width = v.shape[-1]
    if q.device.type == "cpu":
        # The fused kernel takes one width; for two widths torch takes a kernel that is three times slower.
        v = _widen(v, q.shape[-1])
    out = functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=_corner(q, k, window) if causal and not square else None,
        is_causal=causal and square,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out[..., :width].reshape(*shape, width)


def attend_with_lse(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, window: int | None = None
) -> tuple[Tensor, Tensor]:
    """Returns `attend`, and the log-sum-exp of the scores, (B, N, S) in float32.

    torch's public function does not return the log-sum-exp; its kernels do.
    """
    q, shape, causal = _fold_heads(q, k, causal)
    square = q.shape[2] == k.shape[2] and window is None
    width = v.shape[-1]
    if q.device.type == "cpu":
        mask = None
        if causal and not square:
            seen = _corner(q, k, window)
            mask = torch.zeros(seen.shape, dtype=q.dtype).masked_fill_(~seen, -math.inf)
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) if group > 1 else x for x in (k, v))
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, _widen(v, q.shape[-1]), 0.0, causal and square, attn_mask=mask, scale=scale
        )
    elif has_flash_kernel(q) and (square or not causal):
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
            q, k, _widen(v, q.shape[-1]), 0.0, causal, scale=scale
        )
    else:
        out, highest, total = plain_attention(q, k, v, scale=scale, causal=causal, window=window)
        lse = highest + total.log()
    return out[..., :width].reshape(*shape, width), lse.reshape(shape)


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, window: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns `attend`, cut to Dv, with the largest score and the sum of exp(score - largest), (B, N, S) in float32.

    Made of ordinary operators of torch, for devices and shapes that no fused kernel takes.
    """
    group = q.shape[1] // k.shape[1]
    keys, values = (x.float().repeat_interleave(group, 1) for x in (k, v))
    offset = k.shape[2] - q.shape[2]
    step = max(1, SCORES // max(1, q.shape[0] * q.shape[1] * k.shape[2]))
    outs, highs, totals = [], [], []
    for first in range(0, q.shape[2], step):
        piece = q[:, :, first : first + step].float()
        seen = first + piece.shape[2] + offset if causal else k.shape[2]
        scores = torch.matmul(piece, keys[:, :, :seen].mT).mul_(scale)
        if causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu_(first + offset + 1)
            scores.masked_fill_(later, -math.inf)
        if causal and window is not None:
            earlier = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril_(
                first + offset - window - 1
            )
            scores.masked_fill_(earlier, -math.inf)
        highest = scores.amax(dim=-1)
        powers = scores.sub_(highest[..., None]).exp_()
        total = powers.sum(dim=-1)
        outs.append((torch.matmul(powers, values[:, :, :seen]) / total[..., None]).to(q.dtype))
        highs.append(highest)
        totals.append(total)
    return torch.cat(outs, 2), torch.cat(highs, 2), torch.cat(totals, 2)


def pages(cache: Tensor, table: Tensor, length: int, heads: int) -> Tensor:
    """Returns the first `length` tokens of each line of a block table: (sequences, heads, length, D).

    Args:
        cache: (blocks, block size, heads x D), or (blocks, heads, block size, D).
        table: (sequences, blocks that hold the tokens).
    """
    found = cache[table]
    if cache.dim() == 4:
        return found.transpose(1, 2).flatten(2, 3)[:, :, :length]
    tokens = found.flatten(1, 2)[:, :length]
    return tokens.view(*tokens.shape[:2], heads, -1).transpose(1, 2)


def _fold_heads(q: Tensor, k: Tensor, causal: bool) -> tuple[Tensor, tuple[int, ...], bool]:
    """Folds heads that share keys into tokens, for queries of one token; returns also (B, N, S), causal."""
    shape = tuple(q.shape[:3])
    if q.shape[2] > 1:
        return q, shape, causal
    return q.reshape(q.shape[0], k.shape[1], -1, q.shape[-1]), shape, False


def has_flash_kernel(q: Tensor) -> bool:
    """Returns whether torch's FlashAttention-2 is compiled for these tensors."""
    return q.is_cuda and q.dtype in (torch.bfloat16, torch.float16) and q.shape[-1] <= 256 and q.shape[-1] % 8 == 0


def _widen(v: Tensor, width: int) -> Tensor:
    return v if v.shape[-1] == width else functional.pad(v, (0, width - v.shape[-1]))


def _corner(q: Tensor, k: Tensor, window: int | None = None) -> Tensor:
    """Returns the causal mask whose last query sees all keys; on CUDA as a type that torch's flash kernel knows.

    With a window a query sees its own key and so many before it.
    """
    if q.is_cuda and window is None:
        # Imported here, because it imports torch's compiler, which takes a second.
        from torch.nn.attention.bias import causal_lower_right

        return causal_lower_right(q.shape[2], k.shape[2])
    own = k.shape[2] - q.shape[2]
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril_(own)
    return seen if window is None else seen.triu_(own - window)


def _pack(tokens: Tensor, positions: Tensor) -> Tensor:
    """Maps (T, heads, D) to (sequences, heads, length, D)."""
    return tokens[positions].transpose(1, 2)


def length_batches(
    q_lengths: Sequence[int], kv_lengths: Sequence[int], width: int
) -> Iterator[tuple[int, int, list[int]]]:
    """Yields batches of sequences of equal lengths, of at most `_GATHERED` elements of keys.

    Yields:
        Number of queries, number of keys (of `width` elements each), numbers of the sequences.
    """
    found: dict[tuple[int, int], list[int]] = {}
    for number, lengths in enumerate(zip(q_lengths, kv_lengths, strict=True)):
        found.setdefault(lengths, []).append(number)
    for (q_length, kv_length), members in found.items():
        step = max(1, _GATHERED // (kv_length * width))
        for first in range(0, len(members), step):
            yield q_length, kv_length, members[first : first + step]


def stretches(starts: Sequence[int], length: int, device: torch.device) -> Tensor:
    """Returns the numbers from each start on, (starts, length)."""
    return torch.tensor(starts, device=device)[:, None] + torch.arange(length, device=device)


def attention_update(lse: Sequence[Tensor], local_out: Sequence[Tensor], update_type: int) -> tuple[Tensor, Tensor]:
    """Merges results (N, D) of attention over parts, with their log-sum-exps (N).

    With `update_type` an NPU decides whether to return the log-sum-exps over all parts.
    """
    sums = torch.stack([tensor.float() for tensor in lse])
    total = torch.logsumexp(sums, 0)
    shares = (sums - total).exp_().unsqueeze(-1)
    result = torch.zeros_like(local_out[0], dtype=torch.float32)
    for share, part in zip(shares, local_out, strict=True):
        result.addcmul_(share, part.float())
    return result.to(local_out[0].dtype), total
