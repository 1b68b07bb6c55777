"""Kernels that move data, where torch itself may return views, or choose elements by index or order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def slice_copy(x: Tensor, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Returns the block of `sizes` that starts at `offsets`."""
    block = x[tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))]
    return block.clone(memory_format=torch.contiguous_format)


def strided_slice(x: Tensor, begin: Sequence[int], end: Sequence[int], strides: Sequence[int]) -> Tensor:
    """Returns the elements of each axis from `begin` to before `end`, `strides` apart."""
    return x[tuple(map(slice, begin, end, strides))].clone(memory_format=torch.contiguous_format)


def transpose_copy(x: Tensor, permutation: Sequence[int]) -> Tensor:
    """Permutes the axes: axis i of the result is axis permutation[i] of x."""
    return x.permute(*permutation).clone(memory_format=torch.contiguous_format)


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns x, repeated along its axes of size 1 and along new leading axes."""
    return x.expand(*shape).clone(memory_format=torch.contiguous_format)


def format_cast(x: Tensor, destination: Tensor) -> Tensor:
    """Returns x in the layout of `destination`, whose values do not count; the numbers of axes give the layouts.

    NC1HWC0 has 5 axes and its plain tensor 4; FRACTAL_Z has 4 and 4; FRACTAL_NZ has two more than its plain tensor.
    """
    match destination.dim() - x.dim():
        case 1:
            return _to_nc1hwc0(x, destination.shape)
        case -1:
            return _from_nc1hwc0(x, destination.shape)
        case 2:
            return _to_nz(x, destination.shape)
        case -2:
            return _from_nz(x, destination.shape)
    if _is_fractal_z(destination.shape, x.shape):
        return _to_fractal_z(x, destination.shape)
    return _from_fractal_z(x, destination.shape)


def strided_copy(x: Tensor, shape: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """Returns a contiguous copy of a view."""
    return torch.as_strided(x, shape, stride, offset).clone(memory_format=torch.contiguous_format)


def _pad(x: Tensor, padding: tuple[int, ...]) -> Tensor:
    # torch's pad copies x also without padding.
    return functional.pad(x, padding) if any(padding) else x


def _to_nc1hwc0(x: Tensor, shape: torch.Size) -> Tensor:
    n, c1, h, w, c0 = shape
    padded = _pad(x, (0, 0, 0, 0, 0, c1 * c0 - x.shape[1]))
    return padded.reshape(n, c1, c0, h, w).permute(0, 1, 3, 4, 2).contiguous()


def _from_nc1hwc0(x: Tensor, shape: torch.Size) -> Tensor:
    n, c, h, w = shape
    return x.permute(0, 1, 4, 2, 3).reshape(n, -1, h, w)[:, :c].contiguous()


def _is_fractal_z(stored: torch.Size, plain: torch.Size) -> bool:
    o, c, h, w = plain
    positions, o1, o0, c0 = stored
    return (positions, o1, o0) == (-(-c // c0) * h * w, -(-o // 16), 16)


def _to_fractal_z(x: Tensor, shape: torch.Size) -> Tensor:
    o, c, h, w = x.shape
    positions, o1, o0, c0 = shape
    c1 = positions // (h * w)
    padded = _pad(x, (0, 0, 0, 0, 0, c1 * c0 - c, 0, o1 * o0 - o))
    return padded.reshape(o1, o0, c1, c0, h, w).permute(2, 4, 5, 0, 1, 3).reshape(shape).contiguous()


def _from_fractal_z(x: Tensor, shape: torch.Size) -> Tensor:
    o, c, h, w = shape
    _, o1, o0, c0 = x.shape
    blocks = x.reshape(-1, h, w, o1, o0, c0).permute(3, 4, 0, 5, 1, 2)
    return blocks.reshape(o1 * o0, -1, h, w)[:o, :c].contiguous()


def _to_nz(x: Tensor, shape: torch.Size) -> Tensor:
    *batch, k1, m1, m0, k0 = shape
    m, k = x.shape[-2:]
    padded = _pad(x, (0, k1 * k0 - k, 0, m1 * m0 - m))
    return padded.reshape(*batch, m1, m0, k1, k0).movedim(-2, -4).contiguous()


def _from_nz(x: Tensor, shape: torch.Size) -> Tensor:
    *batch, m, k = shape
    _, m1, m0, _ = x.shape[-4:]
    return x.movedim(-4, -2).reshape(*batch, m1 * m0, -1)[..., :m, :k].contiguous()


index = torch.ops.aten.index.Tensor


def index_fill(x: Tensor, dim: int, indices: Tensor, value: float) -> Tensor:
    """Calls torch.index_fill with indices of any integer type."""
    return torch.index_fill(x, dim, indices.long(), value)


def argmax(x: Tensor, dim: int) -> Tensor:
    """Calls torch.argmax, in float32 where that is faster."""
    if x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16):
        # On a CPU torch compares half types one by one; float32 is two to four times as fast.
        x = x.float()
    return torch.argmax(x, dim)


index_put = torch.ops.aten.index_put_.default


def scatter_nd_update(target: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Writes updates (..., rest) to the positions of target (first k axes, rest) in indices (..., k)."""
    return target.index_put_(indices.unbind(-1), updates)


def scatter_update(cache: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    """Writes updates (B, ...) into the cache (B, ...) from position indices (B) of each line on along `axis`."""
    places = [1] * cache.dim()
    places[axis] = -1
    own = torch.arange(updates.shape[axis], device=cache.device).view(places)
    first = indices.long().view(-1, *[1] * (cache.dim() - 1))
    return cache.scatter_(axis, (first + own).expand(updates.shape), updates)


top_k = torch.topk


def apply_top_k_top_p(logits: Tensor, p: Tensor | None = None, k: Tensor | None = None) -> Tensor:
    """Keeps of the logits (B, V) the k (B) largest, and of these the top share p (B); others become minus infinity.

    The time includes the sort, for which the NPU call launches another kernel.
    """
    values, order = logits.float().sort(dim=-1, stable=True)
    if k is not None:
        least = values.gather(-1, (values.shape[-1] - k.long()).unsqueeze(-1))
        values.masked_fill_(values < least, -torch.inf)
    if p is not None:
        below = values.softmax(dim=-1).cumsum_(dim=-1) <= 1 - p.float().unsqueeze(-1)
        below[..., -1] = False
        values.masked_fill_(below, -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, values.to(logits.dtype))


def histc(x: Tensor, bins: int, least: float, largest: float) -> Tensor:
    """Returns the number of elements in each of `bins` equal intervals, in x's dtype. CPUs count real numbers alone."""
    return torch.histc(x if x.is_cuda else x.float(), bins, least, largest).to(x.dtype)


def expand_triton(batch: int, y: Tensor, x: Tensor, ends: Tensor, replace_from: int, by: int, most: int) -> None:
    """Writes into y (T) number i of x (B) for each token of sequence i, and `by` for `replace_from`."""
    counts = ends.diff(prepend=ends.new_zeros(1))
    y.copy_(torch.where(x == replace_from, by, x).repeat_interleave(counts, output_size=len(y)))


def prepare_inputs_padded(ends: Tensor, valid: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the place of the last valid token of each sequence (B), and the number of rejected ones."""
    drafts = ends.diff(prepend=ends.new_zeros(1))
    rejected = torch.where(drafts > 0, drafts + 1 - valid, 0)
    return starts[1:] - 1 - rejected, rejected


def rejection_random_sample(
    drafted: Tensor, draft: Tensor | None, target: Tensor, bonus: Tensor, recovered: Tensor, uniform: Tensor
) -> Tensor:
    """Returns tokens (B, S + 1): of S drafted ones those that are accepted, a recovered one or `bonus` (B, 1), then -1.

    The probabilities are (B S, V), those of the draft None where it is sure; all others (B S).
    """
    own = drafted.long().unsqueeze(-1)
    share = target.gather(-1, own) if draft is None else target.gather(-1, own) / draft.gather(-1, own)
    accepted = (share.squeeze(-1) >= uniform).view(len(bonus), -1)
    tokens = torch.where(accepted, drafted.view_as(accepted), recovered.view_as(accepted))
    written = torch.nn.functional.pad(accepted.int().cumprod(-1), (1, 0), value=1)
    return torch.cat([tokens, bonus], -1).masked_fill(written == 0, -1)


def sample_recovered_tokens(drafted: Tensor, draft: Tensor | None, target: Tensor, noise: Tensor) -> Tensor:
    """Returns a token in place of each drafted one (B S), by probabilities (B S, V) and noise (B, S, V)."""
    left = target.scatter(-1, drafted.long().unsqueeze(-1), 0) if draft is None else (target - draft).clamp_(min=0)
    return (left.view_as(noise) / noise).argmax(-1).flatten().to(drafted.dtype)
