"""Formulas of linear attention, whose state of fixed size takes the place of a cache."""

from __future__ import annotations

import torch
from torch import Tensor

from opatlas.run.formula import Draw, Part, parts


@parts()
def recurrent_gated_delta_rule(
    draw: Draw, query: Tensor, key: Tensor, value: Tensor, *, state: Tensor, scale: float, **of_tokens: Tensor
) -> tuple[Part, ...]:
    """Computes, token by token, S' = e^g S, S = S' + beta (v - S' k) k^T, o = scale S q (Yang et al. 2024).

    A sequence begins with the state of its first token, and stores one for each token. Other states stay.
    """
    beta, g, ssm_state_indices, own_lengths = (
        of_tokens[name] for name in ("beta", "g", "ssm_state_indices", "actual_seq_lengths")
    )
    lengths = [length for length in own_lengths.tolist() if length]
    heads, group, size = value.shape[1], value.shape[1] // key.shape[1], state.shape[-2:].numel()
    places, outs, states = [], [], []
    for number in draw(len(lengths) * heads, elements=max(lengths) * size, terms=max(lengths) * size):
        sequence, n = divmod(number, heads)
        first = sum(lengths[:sequence])
        s = state[ssm_state_indices[first], n].double()
        for t in range(first, first + lengths[sequence]):
            q, k = query[t, n // group].double(), key[t, n // group].double()
            s = s * g[t, n].double().exp()
            s = s + torch.outer(beta[t, n].double() * (value[t, n].double() - (s * k).sum(dim=-1)), k)
            places.append((t, n))
            states.append(s)
            outs.append(scale * (s * q).sum(dim=-1))
    # Of the places without a token some are checked, too.
    kept = [place for place in range(len(state)) if place not in set(ssm_state_indices.tolist())][:2]
    stored = [(int(ssm_state_indices[t]), n) for t, n in places] + [(place, n) for place in kept for n in range(heads)]
    states += [state[place, n].double() for place in kept for n in range(heads)]
    at, where = (torch.tensor(own, device=query.device).unbind(-1) for own in (places, stored))
    return Part(at, torch.stack(outs)), Part(where, torch.stack(states))
