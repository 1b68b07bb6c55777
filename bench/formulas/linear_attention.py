"""Formulas of linear attention, whose state of fixed size takes the place of a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor

from opatlas.run.formula import At, Draw, Part, parts, per_row

from ..implementations import _calls as calls


def _after_tokens(
    draw: Draw,
    tensors: Sequence[Tensor],
    lengths: Sequence[int],
    scale: float,
    begin: Callable[[int, Tensor], Tensor],
    *decays: Tensor | None,
    elements: int,
) -> Iterator[tuple[int, list[tuple[int, int]], Tensor, Tensor]]:
    """Yields for each token of drawn heads the sequence, token and heads, states S (H, Dv, Dk), results (H, Dv).

    S' = e^g S, S = S' + beta (v - S' k) k^T, o = scale S q (Yang et al. 2024). A decay g is that of a head, or of each
    feature of its keys (Kimi Linear, Moonshot 2025).

    Args:
        tensors: queries, keys, values, beta.
        begin: returns the state of some heads before the first token of a sequence.
        elements: the results of a token and a head that are checked.
    """
    query, key, value, beta = tensors
    heads, longest = value.shape[1], max(lengths)
    terms = longest * value.shape[-1] * key.shape[-1]
    numbers = draw(len(lengths) * heads, elements=longest * elements, terms=terms)
    for sequence in sorted({number // heads for number in numbers}):
        drawn = [number % heads for number in numbers if number // heads == sequence]
        own, first = torch.tensor(drawn, device=query.device), sum(lengths[:sequence])
        of_keys, s = own // (heads // key.shape[1]), begin(sequence, own).double()
        for t in range(first, first + lengths[sequence]):
            q, k = (x[t, of_keys].double().unsqueeze(-2) for x in (query, key))
            for g in decays:
                s = s if g is None else s * g[t, own].double().exp().reshape(len(own), 1, -1)
            error = value[t, own].double() - (s * k).sum(dim=-1)
            s = s + (beta[t, own].double().unsqueeze(-1) * error).unsqueeze(-1) * k
            yield sequence, [(t, n) for n in drawn], s, scale * (s * q).sum(dim=-1)


def _index(places: Sequence[tuple[int, int]], device: torch.device) -> At:
    index: At = torch.tensor(places, device=device).unbind(-1)
    return index


@parts()
@calls.takes
def recurrent_gated_delta_rule(draw: Draw, call: calls.RecurrentDeltaRule) -> tuple[Part, ...]:
    """Computes the delta rule token by token, and stores a state for each. Other states stay.

    A sequence begins with the state of its first token, or of the last one that was accepted.
    """
    query, state, stored_in, accepted = call.query, call.state, call.ssm_state_indices, call.num_accepted_tokens
    lengths = [length for length in call.actual_seq_lengths.tolist() if length]

    def begin(sequence: int, own: Tensor) -> Tensor:
        last = 1 if accepted is None else int(accepted[sequence])
        return state[stored_in[sum(lengths[:sequence]) + last - 1], own]

    size = state.shape[-2:].numel()
    tensors = (query, call.key, call.value, call.beta)
    after = _after_tokens(draw, tensors, lengths, call.scale, begin, call.g, call.gk, elements=size)
    _, places, states, outs = zip(*after, strict=True)
    at = list(chain(*places))
    # Of the places without a token some are checked, too.
    kept = [place for place in range(len(state)) if place not in set(stored_in.tolist())][:2]
    stored = [(int(stored_in[t]), n) for t, n in at]
    stored += [(place, n) for place in kept for n in range(call.value.shape[1])]
    whole = torch.cat([*states, *(state[place].double() for place in kept)])
    return Part(_index(at, query.device), torch.cat(outs)), Part(_index(stored, query.device), whole)


#: Kernels invert matrices of a chunk in half precision.
_STEPS_OF_CHUNKS = 4


def _of_prompts(draw: Draw, tensors: Sequence[Tensor], state: Tensor, scale: float, g: Tensor) -> tuple[Part, Part]:
    """Returns results, and the states after the last token of each sequence; all have one length."""
    lengths, elements = [len(tensors[0]) // len(state)] * len(state), tensors[2].shape[-1]
    at, outs, last = [], [], {}
    after = _after_tokens(draw, tensors, lengths, scale, lambda *own: state[own], g, elements=elements)
    for sequence, places, s, o in after:
        at += places
        outs.append(o)
        # Those of the last token stay.
        last[sequence] = [(sequence, n) for _, n in places], s
    ends, states = zip(*last.values(), strict=True)
    stored = Part(_index(list(chain(*ends)), state.device), torch.cat(states), steps=_STEPS_OF_CHUNKS)
    return Part(_index(at, state.device), torch.cat(outs), steps=_STEPS_OF_CHUNKS), stored


@parts()
@calls.takes
def chunk_gated_delta_rule(draw: Draw, call: calls.ChunkDeltaRule) -> tuple[Part, ...]:
    """Computes the delta rule token by token, and the state after the last token of each sequence."""
    tensors = (call.query, call.key, call.value, call.beta)
    return _of_prompts(draw, tensors, call.initial_state, call.scale, call.g)


@parts()
@calls.takes
def chunk_kda_fwd(draw: Draw, call: calls.ChunkKda) -> tuple[Part, ...]:
    """Computes the delta rule of tensors whose first axis is heads, with decays of each feature of keys."""
    q, k, v, g, beta = (x.transpose(0, 1) for x in (call.q, call.k, call.v, call.g, call.beta))
    return _of_prompts(draw, (q, k, v, beta), call.initial_state, call.scale, g)


#: Tokens whose decays together are in the range of float64.
_BLOCK = 64


@parts()
@calls.takes
def mamba_chunk_scan(draw: Draw, call: calls.ChunkScan) -> tuple[Part, ...]:
    """Computes `selective_state_update` for blocks of tokens, and the state after the last token of each sequence.

    With the sum G_t of the block's decays until t and the state S before the block, y_t - D x_t is e^G_t S q_t plus the
    sum over its tokens j <= t of e^(G_t - G_j) (q_t k_j) d_j x_j (Dao and Gu 2024).
    """
    x, state, heads, length = call.x, call.state, call.x.shape[1], len(call.x) // len(call.state)
    d = (1 + (call.dt.double() + call.dt_bias.double()).exp()).log()
    numbers = draw(len(state) * heads, elements=length * x.shape[-1], terms=length * state[0, 0].numel())
    drawn, outs, states = [divmod(number, heads) for number in numbers], [], []
    for sequence, n in drawn:
        own, group = slice(sequence * length, (sequence + 1) * length), n // (heads // call.keys.shape[1])
        whole = (call.queries[own, group], call.keys[own, group], x[own, n], d[own, n].unsqueeze(-1))
        s = state[sequence, n].double()
        for q, k, v, share in zip(*(part.double().split(_BLOCK) for part in whole), strict=True):
            order = torch.arange(len(q), device=x.device)
            seen = (order.unsqueeze(-1) >= order).double()
            until = torch.einsum("tj,jp->tp", seen, share * call.decay[n].double())
            pairs = (until - until.T).exp() * seen * torch.einsum("ti,ji->tj", q, k)
            y = torch.einsum("tj,jp->tp", pairs, share * v) + until.exp() * torch.einsum("pi,ti->tp", s, q)
            outs.append(y + call.skip[n].double() * v)
            s = until[-1].exp() * s + torch.einsum("tp,ti->pi", (until[-1] - until).exp() * share * v, k)
        states.append(s)
    at = [(sequence * length + t, n) for sequence, n in drawn for t in range(length)]
    results = Part(_index(at, x.device), torch.cat(outs), steps=_STEPS_OF_CHUNKS)
    return results, Part(_index(drawn, x.device), torch.stack(states), steps=_STEPS_OF_CHUNKS)


@parts()
@calls.takes
def causal_conv1d(draw: Draw, call: calls.CausalConv1d) -> tuple[Part, ...]:
    """Computes z / (1 + e^-z), z_t = b + sum_k w_k x_(t - K + 1 + k) for each feature; the state has x before x_0.

    Only a sequence whose mode is not 0 has such a state, others zeros.
    """
    x, weight, bias, initial = call.x, call.weight, call.bias_opt, call.initial_state_mode_opt
    starts, taps = call.query_start_loc_opt.tolist(), len(weight)
    at, outs = [], []
    for number in draw((len(starts) - 1) * x.shape[1], elements=starts[1], terms=starts[1] * taps):
        sequence, c = divmod(number, x.shape[1])
        before = call.conv_state[call.cache_indices_opt[sequence], :, c].double()
        if initial is not None and not initial[sequence]:
            before = before * 0
        tokens = range(starts[sequence], starts[sequence + 1])
        series = torch.cat([before[len(before) - taps + 1 :], x[tokens.start : tokens.stop, c].double()])
        windows = torch.stack([series[k : k + len(tokens)] for k in range(taps)], -1)
        z = (windows * weight[:, c].double()).sum(dim=-1)
        z = z if bias is None else z + bias[c].double()
        outs.append(z / (1 + (-z).exp()))
        at += [(t, c) for t in tokens]
    return (Part(_index(at, x.device), torch.cat(outs), steps=2),)


@per_row("x", "z")
def gated_rms_norm(x: Tensor, weight: Tensor, z: Tensor, *, eps: float) -> Tensor:
    """Returns x w / sqrt(mean(x^2) + eps), times z / (1 + e^-z) (Dao and Gu 2024)."""
    return x / ((x * x).sum(dim=-1, keepdim=True) / x.shape[-1] + eps) ** 0.5 * weight * z / (1 + (-z).exp())


@per_row("a", "b")
def gdn_gating(a_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the decay g = -e^A ln(1 + e^(a + bias)), and beta = 1 / (1 + e^-b) (Yang et al. 2024)."""
    return -a_log.exp() * (1 + (a + dt_bias).exp()).log(), 1 / (1 + (-b).exp())


@per_row("f")
def kda_gate(a_log: Tensor, f: Tensor, dt_bias: Tensor) -> Tensor:
    """Returns the decay g = -e^A ln(1 + e^(f + bias)) of each feature of a head (Kimi Linear, Moonshot 2025)."""
    return -(a_log.exp().repeat_interleave(f.shape[-1] // len(a_log))) * (1 + (f + dt_bias).exp()).log()


@parts()
@calls.takes
def selective_state_update(draw: Draw, call: calls.SelectiveUpdate) -> tuple[Part, ...]:
    """Computes S = e^(d a) S + d x k^T, y = S q + D x; d = ln(1 + e^(dt + bias)), head by head (Dao and Gu 2024)."""
    x, state, keys = call.x, call.state, call.keys
    batch, heads, _ = x.shape
    numbers = draw(batch * heads, elements=state.shape[-2:].numel(), terms=2 * state.shape[-2:].numel())
    sequence, n = (torch.tensor(numbers, device=x.device) // heads, torch.tensor(numbers, device=x.device) % heads)
    group, place = n // (heads // keys.shape[1]), call.state_batch_indices[sequence].long()
    d = (1 + (call.dt[sequence, n].double() + call.dt_bias[n].double()).exp()).log().reshape(-1, 1, 1)
    own = x[sequence, n].double().unsqueeze(-1)
    s = (d * call.decay[n].double().reshape(-1, 1, 1)).exp() * state[place, n].double()
    s = s + d * own * keys[sequence, group].double().unsqueeze(-2)
    y = (s * call.queries[sequence, group].double().unsqueeze(-2)).sum(dim=-1)
    y = y + (call.skip[n].double().reshape(-1, 1, 1) * own).squeeze(-1)
    return Part((sequence, n), y), Part((place, n), s)
