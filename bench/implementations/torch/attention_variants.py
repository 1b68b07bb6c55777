"""Linear attention, and attention over sequences of one length and in training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .attention import SCORES, attend, attend_with_lse, has_flash_kernel

#: Tokens of a chunk of linear attention, whose states are not computed.
_CHUNK = 64


def flash_attention_score(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    *,
    atten_mask: Tensor | None = None,
    scale: float,
    sparse_mode: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the result in the layout of the queries, (S, B, N x D) or another, and float32 statistics (B, N, S, 8).

    The mask tensor is not read: masks are causal. The statistics are a number m and the sum of exp(score - m), eight
    times each. The fused kernels give the log-sum-exp, which is taken for m; the sum is 1 then. The backward kernel
    needs no more.
    """
    width = _width(query, head_num, input_layout)
    q, k, v = (_split_heads(x, input_layout, width) for x in (query, key, value))
    out, lse = attend_with_lse(q, k, v, scale=scale, causal=atten_mask is not None)
    highest = lse[..., None].expand(*lse.shape, 8).contiguous()
    return _join_heads(out, input_layout), highest, torch.ones_like(highest)


def recurrent_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    state: Tensor,
    beta: Tensor,
    scale: float,
    actual_seq_lengths: Tensor,
    ssm_state_indices: Tensor,
    num_accepted_tokens: Tensor | None = None,
    g: Tensor | None = None,
    gk: Tensor | None = None,
) -> Tensor:
    """Returns linear attention of a few tokens (T, Nv, Dv), and stores the state of each token in its place.

    The sequences are of one length. A state is (Nv, Dv, Dk); e^g is its decay, e^gk that of each feature of keys, beta
    the share of a value that counts. A sequence begins with the state of the last accepted token, by default the first.
    """
    batch = len(actual_seq_lengths)
    batch -= len(query) % batch > 0
    group = value.shape[1] // key.shape[1]
    q, k = (x.float().unflatten(0, (batch, -1)).repeat_interleave(group, 2) for x in (query, key))
    v, share = (x.float().unflatten(0, (batch, -1)) for x in (value, beta))
    decays = [x.float().exp().view(*v.shape[:3], 1, -1) for x in (g, gk) if x is not None]
    places = ssm_state_indices.view(batch, -1).long()
    begin = places[:, :1] if num_accepted_tokens is None else places.gather(1, num_accepted_tokens[:, None].long() - 1)
    own, outs = state[begin[:, 0]].float(), []
    for i in range(q.shape[1]):
        for decay in decays:
            own = own * decay[:, i]
        difference = v[:, i] - torch.matmul(own, k[:, i, :, :, None]).squeeze(-1)
        own = own + (difference * share[:, i, :, None])[..., None] * k[:, i, :, None]
        outs.append(torch.matmul(own, q[:, i, :, :, None]).squeeze(-1) * scale)
        state[places[:, i]] = own.to(state.dtype)
    return torch.stack(outs, 1).flatten(0, 1).to(query.dtype)


def chunk_gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, *, beta: Tensor, initial_state: Tensor, scale: float, g: Tensor, **_: Any
) -> tuple[Tensor, Tensor]:
    """Returns linear attention of prompts (T, Nv, Dv), and the states (B, Nv, Dv, Dk) after their last tokens.

    The sequences are of one length. Within a chunk, tokens are changed by those before them all at once.
    """
    out, own = _in_chunks(query, key, value, g, initial_state, beta)
    return (out * scale).to(query.dtype), own.to(initial_state.dtype)


def _in_chunks(q: Tensor, k: Tensor, v: Tensor, g: Tensor, own: Tensor, share: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns results (T, Nv, Dv) and last states, in float32. Without `share`, values count as they are.

    A decay of each feature, g (T, Nv, Dk), must not add up to -80 in a chunk.
    """
    batch, length = len(own), len(q) // len(own)

    def chunks(x: Tensor) -> Tensor:
        """Returns (B, heads, chunks, tokens of a chunk, features)."""
        x = x.float().view(batch, length, x.shape[1], -1).transpose(1, 2)
        padded: Tensor = functional.pad(x, (0, 0, 0, -length % _CHUNK)).unflatten(2, (-1, _CHUNK))
        return padded

    q, k = (chunks(x).repeat_interleave(v.shape[1] // x.shape[1], 1) for x in (q, k))
    values, until, removed = chunks(v), chunks(g).cumsum(-2), None
    decay = (until - until.mT).tril().exp().tril() if g.dim() == 2 else None

    def decayed(x: Tensor) -> Tensor:
        """Returns the products with k of no later tokens."""
        if decay is None:
            return torch.matmul(x * until.exp(), (k / until.exp()).mT).tril_()
        return torch.matmul(x, k.mT).mul_(decay)

    if share is not None:
        weights = chunks(share)
        mixed = decayed(weights * k).tril(-1) + torch.eye(_CHUNK, device=q.device)
        both = torch.cat([weights * values, weights * until.exp() * k], -1)
        values, removed = torch.linalg.solve_triangular(mixed, both, upper=False).split([v.shape[-1], k.shape[-1]], -1)
    inside, own, outs = decayed(q), own.float(), []
    for i in range(q.shape[2]):
        new = values[:, :, i] if removed is None else values[:, :, i] - torch.matmul(removed[:, :, i], own.mT)
        from_state = torch.matmul(q[:, :, i] * until[:, :, i].exp(), own.mT)
        outs.append(from_state + torch.matmul(inside[:, :, i], new))
        last = until[:, :, i, -1:]
        own = own * last.exp() + torch.matmul(new.mT, k[:, :, i] * (last - until[:, :, i]).exp())
    return torch.cat(outs, 2)[:, :, :length].transpose(1, 2).flatten(0, 1), own


def chunk_kda_fwd(*tokens: Any, initial_state: Tensor, **of_npu: Any) -> tuple[Tensor | None, ...]:
    """Returns `chunk_gated_delta_rule` of (heads, T, ...), with decays (Nv, T, Dk), and ten results for training."""
    q, k, v, g, beta = (x.transpose(0, 1) for x in tokens[:5])
    out, own = _in_chunks(q, k, v, g, initial_state, beta)
    return (out * tokens[5]).to(q.dtype), own.to(initial_state.dtype), *[None] * 10


def mamba_chunk_scan(*tensors: Tensor) -> tuple[Tensor, Tensor]:
    """Returns results of prompts (T, heads, P), and states (B, heads, P, N); see `selective_state_update`."""
    x, dt, decay, keys, queries, skip, dt_bias, state = tensors
    step = functional.softplus(dt.float() + dt_bias.float())
    y, own = _in_chunks(queries, keys, step[..., None] * x, step * decay.float(), state, None)
    return y.addcmul_(skip.float()[:, None], x.float()).to(x.dtype), own.to(state.dtype)


def causal_conv1d(
    output: Tensor, x: Tensor, weight: Tensor, conv_state: Tensor, bias_opt: Tensor | None, *others: Any
) -> Tensor:
    """Returns SiLU of a convolution of each feature of (T, C) with `weight` (K, C); states (places, K - 1, C) are x.

    The sequences are of one length.
    """
    _, cache_indices_opt, initial_state_mode_opt, *_ = others
    places = cache_indices_opt.long()
    before = conv_state[places]
    if initial_state_mode_opt is not None:
        before = before * (initial_state_mode_opt != 0).view(-1, 1, 1)
    whole = torch.cat([before, x.unflatten(0, (len(places), -1))], 1)
    kernel = weight.T.unsqueeze(1).to(whole.dtype)
    found = functional.conv1d(whole.mT, kernel, bias_opt, groups=x.shape[1])
    conv_state[places] = whole[:, -conv_state.shape[1] :]
    output.copy_(functional.silu(found).mT.flatten(0, 1))
    return output


def gated_rms_norm(x: Tensor, weight: Tensor, z: Tensor, *, eps: float) -> Tensor:
    """Returns the norm of each row of (..., N), times SiLU of z."""
    return (
        functional.rms_norm(x.float(), weight.shape, weight.float(), eps).mul_(functional.silu(z.float())).to(x.dtype)
    )


def gdn_gating(a_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Maps (T, heads) to decays in float32, and to shares of values."""
    return functional.softplus(a.float() + dt_bias.float()).mul_(-torch.exp(a_log.float())), torch.sigmoid(b)


def kda_gate(a_log: Tensor, f: Tensor, dt_bias: Tensor) -> Tensor:
    """Maps (T, heads x features) to decays in float32; A is that of a head."""
    by_head = functional.softplus(f.float() + dt_bias.float()).unflatten(-1, (len(a_log), -1))
    return by_head.mul_(-torch.exp(a_log.float())[:, None]).flatten(1)


def selective_state_update(x: Tensor, dt: Tensor, decay: Tensor, *tensors: Tensor, state: Tensor) -> Tensor:
    """Maps a token (B, heads, P) of each sequence to (B, heads, P), and changes its state (heads, P, N) in its place.

    Keys and queries are (B, groups, N), B and C in the paper.
    """
    keys, queries, skip, dt_bias, state_batch_indices = tensors
    places, group = state_batch_indices.long(), x.shape[1] // keys.shape[1]
    keys, queries = (part.float().repeat_interleave(group, 1) for part in (keys, queries))
    step = functional.softplus(dt.float() + dt_bias.float())[..., None]
    own = state[places].float() * torch.exp(step * decay.float()[:, None])[..., None]
    own = own + (step * x.float())[..., None] * keys[:, :, None]
    state[places] = own.to(state.dtype)
    y = torch.matmul(own, queries[..., None]).squeeze(-1)
    return y.addcmul_(skip.float()[:, None], x.float()).to(x.dtype)


def dense_attention(
    query: Tensor, *others: Tensor, num_heads: int, scale_value: float, input_layout: str, **call: Any
) -> Tensor:
    """Returns attention over sequences of one length, in the layout of the queries.

    The mask is not read: that of several queries is causal, that of one query hides no key.
    """
    width = _width(query, num_heads, input_layout)
    q, k, v = (_split_heads(x, input_layout, width) for x in (query, *others))
    causal = call.get("atten_mask") is not None and q.shape[2] > 1
    return _join_heads(attend(q, k, v, scale=scale_value, causal=causal), input_layout)


def flash_attention_grad(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    *,
    atten_mask: Tensor | None = None,
    softmax_max: Tensor,
    softmax_sum: Tensor,
    attention_in: Tensor,
    scale_value: float,
    sparse_mode: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns gradients of queries, keys and values, in their shapes; see `flash_attention_score`."""
    width = _width(query, head_num, input_layout)
    q, k, v, grad, out = (_split_heads(x, input_layout, width) for x in (query, key, value, dy, attention_in))
    lse = softmax_max[..., 0] + softmax_sum[..., 0].log()
    causal = atten_mask is not None
    if has_flash_kernel(q):
        # Lengths of packed sequences are not defined here; the random state is not read without dropout.
        state = torch.empty(0, dtype=torch.uint64, device=q.device)
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, state, state, scale=scale_value
        )
    else:
        heads, kv_heads = q.shape[1], k.shape[1]
        k, v = (x.repeat_interleave(heads // kv_heads, 1) if heads != kv_heads else x for x in (k, v))
        dq, dk, dv = _unfused_grad(grad, q, k, v, out, lse, scale_value, causal)
        if heads != kv_heads:
            dk, dv = (x.unflatten(1, (kv_heads, heads // kv_heads)).sum(2) for x in (dk, dv))
    dq, dk, dv = (_join_heads(x.to(query.dtype), input_layout) for x in (dq, dk, dv))
    return dq, dk, dv


def _unfused_grad(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns gradients of (B, N, S, D) with equal heads, by the fused kernel of the CPU, or some queries at a time."""
    if q.device.type == "cpu":
        # This kernel took 11 s in half precision, and 0.9 s in float32.
        fused: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad.float(), q.float(), k.float(), v.float(), out.float(), lse, 0.0, causal, scale=scale
        )
        return fused
    keys, values = k.float(), v.float()
    dq, dk, dv = (torch.zeros_like(x, dtype=torch.float32) for x in (q, k, v))
    delta = (grad.float() * out.float()).sum(dim=-1, keepdim=True)
    step = max(1, SCORES // max(1, q.shape[0] * q.shape[1] * k.shape[2]))
    for first in range(0, q.shape[2], step):
        own = slice(first, min(first + step, q.shape[2]))
        seen = slice(0, own.stop if causal else k.shape[2])
        part_q, part_grad = q[:, :, own].float(), grad[:, :, own].float()
        scores = torch.matmul(part_q, keys[:, :, seen].mT).mul_(scale)
        if causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu_(first + 1)
            scores.masked_fill_(later, -torch.inf)
        shares = scores.sub_(lse[:, :, own, None]).exp_()
        dv[:, :, seen] += torch.matmul(shares.mT, part_grad)
        slopes = torch.matmul(part_grad, values[:, :, seen].mT).sub_(delta[:, :, own]).mul_(shares).mul_(scale)
        dq[:, :, own] = torch.matmul(slopes, keys[:, :, seen])
        dk[:, :, seen] += torch.matmul(slopes.mT, part_q)
    return dq, dk, dv


def _width(query: Tensor, head_num: int, layout: str) -> int:
    return query.shape[-1] if "D" in layout else query.shape[-1] // head_num


def _split_heads(x: Tensor, layout: str, width: int) -> Tensor:
    """Returns a view (B, N, S, D)."""
    if layout == "BNSD":
        return x
    x = x if layout == "BSND" else x.unflatten(-1, (-1, width))
    return x.permute(1, 2, 0, 3) if layout == "SBH" else x.transpose(1, 2)


def _join_heads(x: Tensor, layout: str) -> Tensor:
    """Returns (B, N, S, D) in the layout of a call."""
    if layout == "BNSD":
        return x.contiguous()
    x = x.permute(2, 0, 1, 3) if layout == "SBH" else x.transpose(1, 2)
    return x.contiguous() if layout == "BSND" else x.flatten(-2)
