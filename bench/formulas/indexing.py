"""Formulas of kernels that choose elements or write to chosen ones: by index, by mask, by order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy
import torch
from torch import Tensor

from opatlas.run.formula import At, per_element, per_row, to_float64
from opatlas.run.result_check import Picks


@per_element(exact=True)
def gather_rows(at: At, table: Tensor, indices: Tensor) -> Tensor:
    """Computes y[i, j, ..., c] = table[indices[i, j, ...], c]."""
    return table[indices[at[:-1]].to(torch.int64), at[-1]]


@per_element(exact=True)
def index(at: At, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Computes y[p ..., q ...] = x[..., indices 0 [p], indices 1 [p], ..., q ...]: numpy's indexing by arrays.

    The indexed axes are adjacent; the axes of the indices take their place.
    """
    leading = sum(tensor is None for tensor in indices)
    tensors = [tensor for tensor in indices if tensor is not None]
    rank = max(tensor.dim() for tensor in tensors)
    indexed = at[leading : leading + rank]
    chosen = []
    for tensor in tensors:
        own = indexed[rank - tensor.dim() :]
        within = tuple(i * (size != 1) for i, size in zip(own, tensor.shape, strict=True))
        chosen.append(tensor[within].to(torch.int64))
    source = (*at[:leading], *chosen, *at[leading + rank :])
    return x[source]


@per_element(exact=True)
def index_fill(at: At, x: Tensor, dim: int, indices: Tensor, value: float) -> Tensor:
    """Returns the value where the coordinate along `dim` is an index, else x."""
    filled = x[at].clone()
    filled[torch.isin(at[dim], indices)] = value
    return filled


@per_element(exact=True)
def masked_fill(at: At, x: Tensor, mask: Tensor, value: Tensor | float) -> Tensor:
    """Returns the value where the mask holds, else x."""
    kept = x[at].clone()
    kept[mask.expand(x.shape)[at]] = value
    return kept


@per_row("x")
def sort(x: Tensor, dim: int, descending: bool) -> tuple[Tensor, Picks]:
    """Returns the sorted numbers of a row, and their positions; equal numbers in any order."""
    assert dim == -1
    ascending = torch.from_numpy(numpy.sort(x.cpu().numpy(), axis=-1)).to(x.device)
    values = ascending.flip(-1) if descending else ascending
    return values, Picks(x, values, distinct=True)


@per_row("x")
def argmax(x: Tensor, dim: int) -> Picks:
    """Returns any index of the largest number of a row."""
    assert dim == -1
    return Picks(x, x.amax(dim=-1, keepdim=True))


@per_row("x")
def largest(x: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Picks]:
    """Returns the largest number of a row, and any index of it."""
    assert dim == -1
    value = x.amax(dim=-1, keepdim=True)
    return value, Picks(x, value)


@per_element(exact=True)
def index_select(at: At, x: Tensor, axis: int, indices: Tensor) -> Tensor:
    """Computes y[..., i, ...] = x[..., indices[i], ...]."""
    source = (*at[:axis], indices[at[axis]].to(torch.int64), *at[axis + 1 :])
    return x[source]


@per_element(exact=True)
def gather_elements(at: At, x: Tensor, axis: int, indices: Tensor) -> Tensor:
    """Computes y[..., i, ...] = x[..., indices[..., i, ...], ...]."""
    source = (*at[:axis], indices[at].to(torch.int64), *at[axis + 1 :])
    return x[source]


def _element_places(x: Tensor, axis: int, indices: Tensor, updates: Tensor | float) -> At:
    """Returns the coordinates of all written elements, in the order of the indices."""
    own = torch.unravel_index(torch.arange(indices.numel(), device=x.device), indices.shape)
    return (*own[:axis], indices.flatten().to(torch.int64), *own[axis + 1 :])


@per_element(exact=True, written=_element_places)
def scatter_elements(at: At, x: Tensor, axis: int, indices: Tensor, updates: Tensor | float) -> Tensor:
    """Computes y[..., indices[..., i, ...], ...] = updates[..., i, ...], and x elsewhere."""
    positions = flat(_element_places(x, axis, indices, updates), x.shape)
    values = torch.as_tensor(updates, dtype=x.dtype, device=x.device).expand(indices.shape)
    return overwrite(at, x, x.dim(), positions, lambda i: values[torch.unravel_index(i, indices.shape)])


@per_element(exact=True, written=lambda x, axis, indices, updates: (indices,))
def index_copy(at: At, x: Tensor, axis: int, indices: Tensor, updates: Tensor) -> Tensor:
    """Computes y[indices[i]] = updates[i], and x elsewhere."""
    return overwrite(at, x, 1, indices, lambda *source: updates[source])


def _position_places(cache: Tensor, indices: Tensor, updates: Tensor, axis: int) -> At:
    """Returns the coordinates of all written elements along the axes up to that of the positions."""
    own = torch.ones(updates.shape[: axis + 1 or None], device=cache.device).nonzero().unbind(-1)
    return (*own[:-1], own[-1] + indices[own[0]])


@per_element(exact=True, written=_position_places)
def scatter_update(at: At, cache: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    """Computes y[b, ..., indices[b] + i, ...] = updates[b, ..., i, ...], and the cache elsewhere."""
    axis += cache.dim()
    own = at[axis] - indices[at[0]]
    inside = (own >= 0) & (own < updates.shape[axis])
    source = (*at[:axis], own * inside, *at[axis + 1 :])
    return torch.where(inside, updates[source], cache[at])


def _row_places(x: Tensor, indices: Tensor, updates: Tensor) -> At:
    return tuple(indices.reshape(-1, indices.shape[-1]).to(torch.int64).T)


@per_element(exact=True, written=_row_places)
def scatter_nd_update(at: At, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Computes y[indices[i, ...]] = updates[i], and x elsewhere (TensorFlow's scatter_nd_update)."""
    axes = indices.shape[-1]
    rows = updates.reshape(-1, *x.shape[axes:])
    return overwrite(at, x, axes, flat(_row_places(x, indices, updates), x.shape), lambda *source: rows[source])


def _put_places(x: Tensor, indices: Sequence[Tensor | None], values: Tensor) -> At:
    """Returns the indices of all written elements; 0 along the axes before them, which are written whole."""
    tensors = torch.broadcast_tensors(*(index for index in indices if index is not None))
    flat = [index.flatten().to(torch.int64) for index in tensors]
    return (*[torch.zeros_like(flat[0])] * (len(indices) - len(flat)), *flat)


@per_element(exact=True, written=_put_places)
def index_put(at: At, x: Tensor, indices: Sequence[Tensor | None], values: Tensor) -> Tensor:
    """Computes y[a, indices 0 [p], ..., b] = values[a, p, b], and x elsewhere: numpy's assignment by arrays."""
    first = sum(index is None for index in indices)
    count = len(indices) - first
    shape = torch.broadcast_shapes(*(index.shape for index in indices if index is not None))
    whole = values.expand(*x.shape[:first], *shape, *x.shape[first + count :])

    def value_at(p: Tensor, *rest: Tensor) -> Tensor:
        source = (*rest[:first], *torch.unravel_index(p, shape), *rest[first:])
        return whole[source]

    # `overwrite` takes the indexed axes first.
    order = [*range(first, first + count), *range(first), *range(first + count, x.dim())]
    moved = x.permute(order)
    positions = flat(_put_places(x, indices, values)[first:], moved.shape)
    return overwrite(tuple(at[axis] for axis in order), moved, count, positions, value_at)


def flat(coordinates: At, shape: Sequence[int]) -> Tensor:
    """Returns the position of each element in the flattened axes of `coordinates`."""
    position = torch.zeros_like(coordinates[0])
    for index, size in zip(coordinates, shape, strict=False):
        position = position * size + index
    return position


def overwrite(at: At, target: Tensor, axes: int, positions: Tensor, value_at: Callable[..., Tensor]) -> Tensor:
    """Returns elements of `target` after writing `value_at(i, ...)` to positions[i] of its first `axes` axes, flat.

    `value_at` gets i and the coordinates along the other axes. The positions are distinct.
    """
    sizes = target.shape[:axes]
    writer = torch.full((prod(sizes),), -1, device=target.device)
    writer[positions.to(torch.int64)] = torch.arange(len(positions), device=target.device)
    i = writer[flat(at[:axes], sizes)]
    hit = i >= 0
    new = value_at(i[hit], *(index[hit] for index in at[axes:]))
    result = target[at].to(new.dtype)
    result[hit] = new
    return result


@per_row("x")
def top_k(x: Tensor, k: int, dim: int) -> tuple[Tensor, Picks]:
    """Returns the k largest numbers of a row, descending, and their positions; equal numbers in any order."""
    assert dim == -1
    values = x.sort(dim=-1, descending=True).values[:, :k]
    return values, Picks(x, values, distinct=True)


@per_row("logits", "p", "k")
def apply_top_k_top_p(logits: Tensor, p: Tensor | None = None, k: Tensor | None = None) -> Tensor:
    """Computes the nine steps of torch_npu.npu_top_k_top_p.

    A logit becomes minus infinity below the k-th largest logit, or where the sum of the probabilities in ascending
    order is at most 1 - p. The largest logit stays.
    """
    kept = logits.clone()
    for i, row in enumerate(logits):
        ascending = row.argsort(stable=True)
        remaining = row.clone()
        if k is not None:
            remaining[row < row[ascending[-int(k[i])]]] = -torch.inf
        if p is not None:
            powers = (remaining - remaining.max()).exp()[ascending]
            dropped = powers.cumsum(0) / powers.sum() <= 1 - p[i]
            dropped[-1] = False
            remaining[ascending[dropped]] = -torch.inf
        kept[i] = remaining
    return kept


@per_element(exact=True, terms=lambda x, *_: x.numel())
def histogram(at: At, x: Tensor, bins: int, least: float, largest: float) -> Tensor:
    """Counts the numbers of each of `bins` equal intervals; the last one has its upper end, too (aclnnHistc)."""
    place = ((to_float64(x.reshape(1, -1)) - least) * bins / (largest - least)).floor().clamp(max=bins - 1)
    return (place == at[0].unsqueeze(-1)).sum(dim=-1)


@per_element(exact=True)
def expand(at: At, batch: int, y: Tensor, x: Tensor, ends: Tensor, replace_from: int, by: int, most: int) -> Tensor:
    """Takes x of the sequence of each token: the number of sequences that end at it or before."""
    found = x[(ends.unsqueeze(-1) <= at[0]).sum(dim=0)]
    return found.masked_fill(found == replace_from, by)


@per_element(exact=True)
def prepare_inputs_padded(at: At, ends: Tensor, valid: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Counts a sequence's drafts and one token more, less those that are valid; of no drafts none is rejected."""
    drafts = ends[at] - ends[at[0] - 1] * (at[0] > 0)
    rejected = (drafts + 1 - valid[at]) * (drafts > 0)
    return starts[at[0] + 1] - 1 - rejected, rejected


@per_row("bonus", "drafted", "draft", "target", "recovered", "uniform")
def rejection_random_sample(
    drafted: Tensor, draft: Tensor | None, target: Tensor, bonus: Tensor, recovered: Tensor, uniform: Tensor
) -> Tensor:
    """Accepts tokens with p / q of at least a uniform number, up to the first other one (Leviathan et al. 2023)."""
    lines, found = torch.arange(len(bonus), device=bonus.device), bonus
    for j in reversed(range(drafted.shape[1])):
        place = lines, drafted[:, j] + j * (target.shape[1] // drafted.shape[1])
        accepted = target[place] >= uniform[:, j] * (1 if draft is None else draft[place])
        first, rest = drafted[:, j] * accepted + recovered[:, j] * ~accepted, found.masked_fill(~accepted[:, None], -1)
        found = torch.hstack([first[:, None], rest])
    return found


@per_row("target", "drafted", "draft", "noise")
def sample_recovered_tokens(drafted: Tensor, draft: Tensor | None, target: Tensor, noise: Tensor) -> Picks:
    """Picks the largest max(p - q, 0) / noise, which is exponential; without q the drafted token is left out."""
    left = (
        target * (torch.arange(target.shape[1], device=target.device) != drafted) if draft is None else target - draft
    )
    score = left * (left > 0) / noise
    return Picks(score, score.amax(dim=-1, keepdim=True))
