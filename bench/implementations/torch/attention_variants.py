"""Linear attention, and attention over sequences of one length and in training."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .. import _calls as calls
from .attention import SCORES, attend, attend_with_lse, has_flash_kernel

#: Tokens of a chunk of linear attention, whose states are not computed.
_CHUNK = 64


@calls.takes
def flash_attention_score(call: calls.FlashAttention) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the result in the layout of the queries, (S, B, N x D) or another, and float32 statistics (B, N, S, 8).

    The mask tensor is not read: masks are causal. The statistics are a number m and the sum of exp(score - m), eight
    times each. The fused kernels give the log-sum-exp, which is taken for m; the sum is 1 then. The backward kernel
    needs no more.
    """
    width = _width(call.query, call.head_num, call.input_layout)
    q, k, v = (_split_heads(x, call.input_layout, width) for x in (call.query, call.key, call.value))
    out, lse = attend_with_lse(q, k, v, scale=call.scale, causal=call.atten_mask is not None)
    highest = lse[..., None].expand(*lse.shape, 8).contiguous()
    return _join_heads(out, call.input_layout), highest, torch.ones_like(highest)


@calls.takes
def recurrent_gated_delta_rule(call: calls.RecurrentDeltaRule) -> Tensor:
    """Returns linear attention of a few tokens (T, Nv, Dv), and stores the state of each token in its place.

    The sequences are of one length. A state is (Nv, Dv, Dk); e^g is its decay, e^gk that of each feature of keys, beta
    the share of a value that counts. A sequence begins with the state of the last accepted token, by default the first.
    """
    query, key, value, state, accepted = call.query, call.key, call.value, call.state, call.num_accepted_tokens
    batch = len(call.actual_seq_lengths)
    batch -= len(query) % batch > 0
    group = value.shape[1] // key.shape[1]
    q, k = (x.float().unflatten(0, (batch, -1)).repeat_interleave(group, 2) for x in (query, key))
    v, share = (x.float().unflatten(0, (batch, -1)) for x in (value, call.beta))
    decays = [x.float().exp().view(*v.shape[:3], 1, -1) for x in (call.g, call.gk) if x is not None]
    places = call.ssm_state_indices.view(batch, -1).long()
    begin = places[:, :1] if accepted is None else places.gather(1, accepted[:, None].long() - 1)
    own, outs = state[begin[:, 0]].float(), []
    for i in range(q.shape[1]):
        for decay in decays:
            own = own * decay[:, i]
        difference = v[:, i] - torch.matmul(own, k[:, i, :, :, None]).squeeze(-1)
        own = own + (difference * share[:, i, :, None])[..., None] * k[:, i, :, None]
        outs.append(torch.matmul(own, q[:, i, :, :, None]).squeeze(-1) * call.scale)
        state[places[:, i]] = own.to(state.dtype)
    return torch.stack(outs, 1).flatten(0, 1).to(query.dtype)


@calls.takes
def chunk_gated_delta_rule(call: calls.ChunkDeltaRule) -> tuple[Tensor, Tensor]:
    """Returns linear attention of prompts (T, Nv, Dv), and the states (B, Nv, Dv, Dk) after their last tokens.

    The sequences are of one length. Within a chunk, tokens are changed by those before them all at once.
    """
    out, own = _in_chunks(call.query, call.key, call.value, call.g, call.initial_state, call.beta)
    return (out * call.scale).to(call.query.dtype), own.to(call.initial_state.dtype)


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


@calls.takes
def chunk_kda_fwd(call: calls.ChunkKda) -> tuple[Tensor | None, ...]:
    """Returns `chunk_gated_delta_rule` of (heads, T, ...), with decays (Nv, T, Dk), and ten results for training."""
    q, k, v, g, beta = (x.transpose(0, 1) for x in (call.q, call.k, call.v, call.g, call.beta))
    out, own = _in_chunks(q, k, v, g, call.initial_state, beta)
    return (out * call.scale).to(q.dtype), own.to(call.initial_state.dtype), *[None] * 10


@calls.takes
def mamba_chunk_scan(call: calls.ChunkScan) -> tuple[Tensor, Tensor]:
    """Returns results of prompts (T, heads, P), and states (B, heads, P, N); see `selective_state_update`."""
    step = functional.softplus(call.dt.float() + call.dt_bias.float())
    y, own = _in_chunks(call.queries, call.keys, step[..., None] * call.x, step * call.decay.float(), call.state, None)
    return y.addcmul_(call.skip.float()[:, None], call.x.float()).to(call.x.dtype), own.to(call.state.dtype)


@calls.takes
def causal_conv1d(call: calls.CausalConv1d) -> Tensor:
    """Returns SiLU of a convolution of each feature of (T, C) with `weight` (K, C); states (places, K - 1, C) are x.

    The sequences are of one length.
    """
    x, conv_state, initial = call.x, call.conv_state, call.initial_state_mode_opt
    places = call.cache_indices_opt.long()
    before = conv_state[places]
    if initial is not None:
        before = before * (initial != 0).view(-1, 1, 1)
    whole = torch.cat([before, x.unflatten(0, (len(places), -1))], 1)
    kernel = call.weight.T.unsqueeze(1).to(whole.dtype)
    found = functional.conv1d(whole.mT, kernel, call.bias_opt, groups=x.shape[1])
    conv_state[places] = whole[:, -conv_state.shape[1] :]
    call.output.copy_(functional.silu(found).mT.flatten(0, 1))
    return call.output


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


@calls.takes
def selective_state_update(call: calls.SelectiveUpdate) -> Tensor:
    """Maps a token (B, heads, P) of each sequence to (B, heads, P), and changes its state (heads, P, N) in its place.

    Keys and queries are (B, groups, N), B and C in the paper.
    """
    x, state = call.x, call.state
    places, group = call.state_batch_indices.long(), x.shape[1] // call.keys.shape[1]
    keys, queries = (part.float().repeat_interleave(group, 1) for part in (call.keys, call.queries))
    step = functional.softplus(call.dt.float() + call.dt_bias.float())[..., None]
    own = state[places].float() * torch.exp(step * call.decay.float()[:, None])[..., None]
    own = own + (step * x.float())[..., None] * keys[:, :, None]
    state[places] = own.to(state.dtype)
    y = torch.matmul(own, queries[..., None]).squeeze(-1)
    return y.addcmul_(call.skip.float()[:, None], x.float()).to(x.dtype)


@calls.takes
def dense_attention(call: calls.DenseAttention) -> Tensor:
    """Returns attention over sequences of one length, in the layout of the queries.

    The mask is not read: that of several queries is causal, that of one query hides no key.
    """
    width = _width(call.query, call.num_heads, call.input_layout)
    q, k, v = (_split_heads(x, call.input_layout, width) for x in (call.query, call.key, call.value))
    causal = call.atten_mask is not None and q.shape[2] > 1
    return _join_heads(attend(q, k, v, scale=call.scale_value, causal=causal), call.input_layout)


@calls.takes
def flash_attention_grad(call: calls.FlashAttentionGrad) -> tuple[Tensor, Tensor, Tensor]:
    """Returns gradients of queries, keys and values, in their shapes; see `flash_attention_score`."""
    layout, scale = call.input_layout, call.scale_value
    width, given = _width(call.query, call.head_num, layout), (call.query, call.key, call.value, call.dy)
    q, k, v, grad, out = (_split_heads(x, layout, width) for x in (*given, call.attention_in))
    lse = call.softmax_max[..., 0] + call.softmax_sum[..., 0].log()
    causal = call.atten_mask is not None
    if has_flash_kernel(q):
        # Lengths of packed sequences are not defined here; the random state is not read without dropout.
        state = torch.empty(0, dtype=torch.uint64, device=q.device)
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, state, state, scale=scale
        )
    else:
        heads, kv_heads = q.shape[1], k.shape[1]
        k, v = (x.repeat_interleave(heads // kv_heads, 1) if heads != kv_heads else x for x in (k, v))
        dq, dk, dv = _unfused_grad(grad, q, k, v, out, lse, scale, causal)
        if heads != kv_heads:
            dk, dv = (x.unflatten(1, (kv_heads, heads // kv_heads)).sum(2) for x in (dk, dv))
    dq, dk, dv = (_join_heads(x.to(call.query.dtype), layout) for x in (dq, dk, dv))
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
