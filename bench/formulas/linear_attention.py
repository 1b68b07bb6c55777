"""Formulas of linear attention, whose state of fixed size takes the place of a cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from opatlas.run.formula import Draw, Part, parts, per_row


def _after_tokens(
    tokens: Iterable[int],
    heads: Tensor,
    s: Tensor,
    scale: float,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    *decays: Tensor | None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the state S (H, Dv, Dk) after each token, and its result (H, Dv), for some heads.

    S' = e^g S, S = S' + beta (v - S' k) k^T, o = scale S q (Yang et al. 2024). A decay g is that of a head, or of each
    feature of its keys (Kimi Linear, Moonshot 2025).
    """
    of_keys = heads // (value.shape[1] // key.shape[1])
    for t in tokens:
        q, k = (x[t, of_keys].double().unsqueeze(-2) for x in (query, key))
        for g in decays:
            s = s if g is None else s * g[t, heads].double().exp().reshape(len(heads), 1, -1)
        error = value[t, heads].double() - (s * k).sum(dim=-1)
        s = s + (beta[t, heads].double().unsqueeze(-1) * error).unsqueeze(-1) * k
        yield s, scale * (s * q).sum(dim=-1)


@parts()
def recurrent_gated_delta_rule(
    draw: Draw,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    state: Tensor,
    scale: float,
    num_accepted_tokens: Tensor | None = None,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    **of_tokens: Tensor,
) -> tuple[Part, ...]:
    """Computes the delta rule token by token, and stores a state for each. Other states stay.

    A sequence begins with the state of its first token, or of the last one that was accepted.
    """
    beta, ssm_state_indices, own_lengths = (
        of_tokens[name] for name in ("beta", "ssm_state_indices", "actual_seq_lengths")
    )
    lengths = [length for length in own_lengths.tolist() if length]
    heads, size = value.shape[1], state.shape[-2:].numel()
    places, outs, states = [], [], []
    for number in draw(len(lengths) * heads, elements=max(lengths) * size, terms=max(lengths) * size):
        sequence, n = divmod(number, heads)
        first = sum(lengths[:sequence])
        begin = first if num_accepted_tokens is None else first + int(num_accepted_tokens[sequence]) - 1
        own, tokens = torch.tensor([n], device=query.device), range(first, first + lengths[sequence])
        s = state[ssm_state_indices[begin], own].double()
        after = _after_tokens(tokens, own, s, scale, query, key, value, beta, g, gk)
        for t, (stored_state, o) in zip(tokens, after, strict=True):
            places.append((t, n))
            states.append(stored_state[0])
            outs.append(o[0])
    # Of the places without a token some are checked, too.
    kept = [place for place in range(len(state)) if place not in set(ssm_state_indices.tolist())][:2]
    stored = [(int(ssm_state_indices[t]), n) for t, n in places] + [(place, n) for place in kept for n in range(heads)]
    states += [state[place, n].double() for place in kept for n in range(heads)]
    at, where = (torch.tensor(own, device=query.device).unbind(-1) for own in (places, stored))
    return Part(at, torch.stack(outs)), Part(where, torch.stack(states))


#: Kernels invert matrices of a chunk in half precision.
_STEPS_OF_CHUNKS = 4


@parts()
def chunk_gated_delta_rule(
    draw: Draw,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    beta: Tensor,
    initial_state: Tensor,
    actual_seq_lengths: Tensor,
    scale: float,
    g: Tensor,
) -> tuple[Part, ...]:
    """Computes the delta rule token by token, and the state after the last token of each sequence."""
    lengths, heads, size = actual_seq_lengths.tolist(), value.shape[1], initial_state.shape[-2:].numel()
    numbers = draw(len(lengths) * heads, elements=max(lengths) * value.shape[-1], terms=max(lengths) * size)
    places, ends, outs, states = [], [], [], []
    for sequence in sorted({number // heads for number in numbers}):
        drawn = [number % heads for number in numbers if number // heads == sequence]
        own = torch.tensor(drawn, device=query.device)
        first = sum(lengths[:sequence])
        tokens, s = range(first, first + lengths[sequence]), initial_state[sequence, own].double()
        after = _after_tokens(tokens, own, s, scale, query, key, value, beta, g)
        for t, (s, o) in zip(tokens, after, strict=True):  # noqa: B007
            outs.append(o)
            places += [(t, n) for n in drawn]
        states.append(s)
        ends += [(sequence, n) for n in drawn]
    at, where = (torch.tensor(own, device=query.device).unbind(-1) for own in (places, ends))
    return (
        Part(at, torch.cat(outs), steps=_STEPS_OF_CHUNKS),
        Part(where, torch.cat(states), steps=_STEPS_OF_CHUNKS),
    )


@parts()
def causal_conv1d(
    draw: Draw,
    output: Tensor,
    x: Tensor,
    weight: Tensor,
    conv_state: Tensor,
    bias_opt: Tensor | None,
    query_start_loc_opt: Tensor,
    cache_indices_opt: Tensor,
    initial_state_mode_opt: Tensor | None,
    *unused: object,
) -> tuple[Part, ...]:
    """Computes z / (1 + e^-z), z_t = b + sum_k w_k x_(t - K + 1 + k) for each feature; the state has x before x_0.

    Only a sequence whose mode is not 0 has such a state, others zeros.
    """
    starts, taps = query_start_loc_opt.tolist(), len(weight)
    at, outs = [], []
    for number in draw((len(starts) - 1) * x.shape[1], elements=starts[1], terms=starts[1] * taps):
        sequence, c = divmod(number, x.shape[1])
        before = conv_state[cache_indices_opt[sequence], :, c].double()
        if initial_state_mode_opt is not None and not initial_state_mode_opt[sequence]:
            before = before * 0
        tokens = range(starts[sequence], starts[sequence + 1])
        series = torch.cat([before[len(before) - taps + 1 :], x[tokens.start : tokens.stop, c].double()])
        windows = torch.stack([series[k : k + len(tokens)] for k in range(taps)], -1)
        z = (windows * weight[:, c].double()).sum(dim=-1)
        z = z if bias_opt is None else z + bias_opt[c].double()
        outs.append(z / (1 + (-z).exp()))
        at += [(t, c) for t in tokens]
    return (Part(torch.tensor(at, device=x.device).unbind(-1), torch.cat(outs), steps=2),)


@per_row("x", "z")
def gated_rms_norm(x: Tensor, weight: Tensor, z: Tensor, *, eps: float) -> Tensor:
    """Returns x w / sqrt(mean(x^2) + eps), times z / (1 + e^-z) (Dao and Gu 2024)."""
    return x / ((x * x).sum(dim=-1, keepdim=True) / x.shape[-1] + eps) ** 0.5 * weight * z / (1 + (-z).exp())


@per_row("a", "b")
def gdn_gating(a_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the decay g = -e^A ln(1 + e^(a + bias)), and beta = 1 / (1 + e^-b) (Yang et al. 2024)."""
    return -a_log.exp() * (1 + (a + dt_bias).exp()).log(), 1 / (1 + (-b).exp())


@parts()
def selective_state_update(
    draw: Draw,
    x: Tensor,
    dt: Tensor,
    decay: Tensor,
    keys: Tensor,
    queries: Tensor,
    skip: Tensor,
    dt_bias: Tensor,
    state_batch_indices: Tensor,
    *,
    state: Tensor,
) -> tuple[Part, ...]:
    """Computes S = e^(d a) S + d x k^T, y = S q + D x; d = ln(1 + e^(dt + bias)), head by head (Dao and Gu 2024)."""
    batch, heads, _ = x.shape
    numbers = draw(batch * heads, elements=state.shape[-2:].numel(), terms=2 * state.shape[-2:].numel())
    sequence, n = (torch.tensor(numbers, device=x.device) // heads, torch.tensor(numbers, device=x.device) % heads)
    group, place = n // (heads // keys.shape[1]), state_batch_indices[sequence].long()
    d = (1 + (dt[sequence, n].double() + dt_bias[n].double()).exp()).log().reshape(-1, 1, 1)
    own = x[sequence, n].double().unsqueeze(-1)
    s = (d * decay[n].double().reshape(-1, 1, 1)).exp() * state[place, n].double()
    s = s + d * own * keys[sequence, group].double().unsqueeze(-2)
    y = (s * queries[sequence, group].double().unsqueeze(-2)).sum(dim=-1)
    y = y + (skip[n].double().reshape(-1, 1, 1) * own).squeeze(-1)
    return Part((sequence, n), y), Part((place, n), s)
