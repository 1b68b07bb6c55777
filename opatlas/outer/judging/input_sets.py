"""Inputs of a candidate that change between its calls, at the same addresses, without a sign that torch would count.

A candidate that keeps results finds them by something: the identity of a tensor, its address, its version counter, a
few of its elements. All of these may stay the same while values change here: `write` copies through `.data`, which
counts no version, and a variant differs from its base in one percent of the elements. `move` does the opposite: the
same values at new addresses. Around each tensor lies a margin of NaN, which a candidate sees if it reads too far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from opatlas.outer.judging.judgement import CandidateRejected, ErrorClass
from opatlas.outer.judging.results import same_bits

#: Bytes before and behind each tensor. A multiple of the alignment of torch's allocators.
MARGIN_BYTES = 4096
#: Byte of the margins of tensors that have no NaN.
_FILL = 0x7F
#: Share of the elements that a variant changes.
_SHARE = 0.01
#: Factors of the changed elements. Signs, zeros and ranges stay, so that a triangular matrix stays one.
_FACTORS = (0.5, 0.9)


class Variant(NamedTuple):
    """Names the values of one call.

    Attributes:
        base: number of the set of inputs.
        seed: chooses the changed elements; None: the values of the set itself.
    """

    base: int
    seed: int | None = None


@dataclass(frozen=True)
class _Set:
    """The arguments and the weights of one set.

    Attributes:
        leaves: the tensors and the other values in the arguments.
        structure: where the leaves lie in the arguments.
        variable: places of the leaves that a variant changes.
        weights: values of the candidate's parameters by name.
    """

    leaves: Sequence[Any]
    structure: TreeSpec
    variable: frozenset[int]
    weights: Mapping[str, torch.Tensor]


class InputSets:
    """The sets of inputs of a task, and the tensors with which a candidate is called.

    Attributes:
        arguments: the arguments of the next call. `write` and `move` change them.
    """

    def __init__(
        self,
        make: Callable[[int], Sequence[Any]],
        seeds: Sequence[int],
        weights: Mapping[str, torch.Tensor] | None = None,
        *,
        scales: bool = False,
        margins: bool = True,
    ) -> None:
        """
        Args:
            make: returns the arguments for a seed, on the device.
            seeds: a seed for each set.
            weights: the candidate's parameters by name. They change with the set; the first set has their values.
            scales: whether a variant changes all elements of a tensor by one factor, which keeps a matrix positive
                definite and boundaries in their order, in place of some elements.
            margins: whether tensors lie between margins, and so not at the beginning of their storage.
        """
        self._live_weights = dict(weights or {})
        originals = {name: tensor.detach().clone() for name, tensor in self._live_weights.items()}
        self._place = _with_margins if margins else _copied
        self._share = 1.0 if scales else _SHARE
        self._sets = []
        for number, seed in enumerate(seeds):
            leaves, structure = tree_flatten(list(make(seed)))
            own = originals
            if number:
                own = {
                    name: self._varied(each, seed + place) if _may_vary(each, scales) else each
                    for place, (name, each) in enumerate(originals.items())
                }
            variable = frozenset(place for place, leaf in enumerate(leaves) if _may_vary(leaf, scales))
            self._sets.append(_Set(leaves, structure, variable, own))
        self._live: list[Any] = []
        self.variant = Variant(0)
        self.move()

    def __len__(self) -> int:
        return len(self._sets)

    def write(self, variant: Variant) -> None:
        """Gives the arguments and the weights the values of a variant, without a new version."""
        self.variant = variant
        chosen = self._sets[variant.base]
        for place, value in enumerate(chosen.leaves):
            live = self._live[place]
            if isinstance(live, torch.Tensor) and isinstance(value, torch.Tensor) and _alike(live, value):
                _assign(live, value)
            else:
                self._live[place] = self._place(value)
            if variant.seed is not None and place in chosen.variable:
                vary(self._live[place], variant.seed + place, self._share)
        for name, weight in chosen.weights.items():
            _assign(self._live_weights[name], weight)
        self.arguments = tree_unflatten(self._live, chosen.structure)

    def move(self) -> None:
        """Puts the arguments at new addresses, with the values that they have."""
        former = self._live
        # The former tensors live until the new ones exist, so that no address is the same.
        self._live = [self._place(value) for value in self._sets[self.variant.base].leaves]
        self.write(self.variant)
        del former

    def values(self, variant: Variant, weights_of: int | None = None) -> tuple[list[Any], dict[str, torch.Tensor]]:
        """Returns new tensors with the arguments and the weights of a variant, for a reference.

        Args:
            variant: the variant.
            weights_of: the set whose weights are returned; None: that of the variant.
        """
        chosen = self._sets[variant.base]
        leaves = [_copied(value) for value in chosen.leaves]
        for place, leaf in enumerate(leaves):
            if variant.seed is not None and place in chosen.variable:
                vary(leaf, variant.seed + place, self._share)
        arguments = tree_unflatten(leaves, chosen.structure)
        weights = self._sets[variant.base if weights_of is None else weights_of].weights
        return arguments, {name: weight.clone() for name, weight in weights.items()}

    def _varied(self, tensor: torch.Tensor, seed: int) -> torch.Tensor:
        copy = tensor.clone()
        vary(copy, seed, self._share)
        return copy

    @property
    def has_weights(self) -> bool:
        """Whether the candidate has parameters that change with the set."""
        return bool(self._live_weights)

    def tensors(self) -> list[torch.Tensor]:
        """Returns the tensors among the arguments, in order."""
        return [leaf for leaf in self._live if isinstance(leaf, torch.Tensor)]

    def changed(self) -> set[int]:
        """Returns the numbers of the tensors that do not have the values that were written. Waits for the device."""
        return self.differing(self._live, self.variant)

    def differing(self, arguments: Any, variant: Variant) -> set[int]:
        """Returns the numbers of the tensors that do not have the values of a variant. Waits for the device."""
        chosen, numbers, number = self._sets[variant.base], set(), -1
        for place, (own, value) in enumerate(zip(tree_flatten(arguments)[0], chosen.leaves, strict=True)):
            if not isinstance(value, torch.Tensor):
                continue
            number += 1
            is_varied = variant.seed is not None and place in chosen.variable
            written = self._varied(value, (variant.seed or 0) + place) if is_varied else value
            if not same_bits(own, written):
                numbers.add(number)
        return numbers

    def expect_margins(self) -> None:
        """Raises CandidateRejected if something wrote outside a tensor. Waits for the device."""
        for number, tensor in enumerate(self.tensors()):
            if _has_margins(tensor) and not all(_is_untouched(part) for part in _margins(tensor)):
                raise CandidateRejected(
                    ErrorClass.HACK,
                    "out-of-bounds",
                    f"the candidate wrote outside the memory of input {number}: check the bounds of its stores",
                )


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized


def _span(tensor: torch.Tensor) -> int:
    """Returns the number of elements from the first to the last one in memory."""
    return sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the elements from the first to the last one in memory: an expanded tensor has few, a slice has gaps."""
    return tensor.as_strided((_span(tensor),), (1,))


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or one.layout != other.layout:
        return False
    return not _is_dense(one) or one.stride() == other.stride()


def _assign(live: torch.Tensor, value: torch.Tensor) -> None:
    """Copies values into a tensor of the same form. `.data` shares the memory but not the version counter."""
    if _is_dense(value) and value.numel() and live.stride() == value.stride():
        _memory(live.data).copy_(_memory(value))
    else:
        live.data.copy_(value)


def _may_vary(leaf: Any, scales: bool) -> bool:
    """Returns whether a variant may change a leaf: no integers, which may be indices.

    A change of some elements, in place of all of them, leaves symmetric matrices out.
    """
    if not isinstance(leaf, torch.Tensor) or not _is_dense(leaf) or not leaf.is_floating_point() or not leaf.numel():
        return False
    if _span(leaf) != leaf.numel():
        return False
    return scales or not (leaf.dim() == 2 and leaf.shape[0] == leaf.shape[1] > 1 and torch.equal(leaf, leaf.T))


def vary(tensor: torch.Tensor, seed: int, share: float = 1.0) -> None:
    """Multiplies a share of the elements, at random places, by one factor from a seed. Does not wait for the device."""
    data = _memory(tensor.data)
    places: Any = slice(None)
    if share < 1:
        generator = torch.Generator(device=data.device).manual_seed(seed)
        count = max(1, int(data.numel() * share))
        places = torch.randint(data.numel(), (count,), generator=generator, device=data.device)
    low, high = _FACTORS
    factor = low + (high - low) * (seed * 0x9E3779B1 % 0x10000 / 0x10000)
    # torch has no arithmetic of FP8. A place that occurs twice gets the same value twice.
    changed = (data[places].float() if data.element_size() == 1 else data[places]) * factor
    if data.element_size() == 1:
        data.view(torch.uint8)[places] = changed.to(data.dtype).view(torch.uint8)
    else:
        data[places] = changed


def _copied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _with_margins(value: Any) -> Any:
    """Returns a copy of a tensor that lies between two margins; another value as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    if not _is_dense(value) or not value.numel():
        return _copied(value)
    span = _span(value)
    margin = MARGIN_BYTES // value.element_size()
    buffer = torch.empty(span + 2 * margin, dtype=value.dtype, device=value.device)
    _fill(buffer)
    # Not a view: it has no base, and a version counter of its own.
    copy = torch.empty(0, dtype=value.dtype, device=value.device)
    copy.set_(buffer.untyped_storage(), margin, value.shape, value.stride())
    _memory(copy).copy_(_memory(value))
    return copy.requires_grad_(value.requires_grad)


def _fill(buffer: torch.Tensor) -> None:
    if (buffer.is_floating_point() or buffer.is_complex()) and buffer.element_size() > 1:
        buffer.fill_(torch.nan)
    else:
        buffer.view(torch.uint8).fill_(1 if buffer.dtype is torch.bool else _FILL)


def _has_margins(tensor: torch.Tensor) -> bool:
    return _is_dense(tensor) and tensor.storage_offset() == MARGIN_BYTES // tensor.element_size()


def _margins(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    memory = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
    margin = MARGIN_BYTES // tensor.element_size()
    yield memory[:margin]
    yield memory[-margin:]


def _is_untouched(part: torch.Tensor) -> bool:
    expected = torch.empty_like(part)
    _fill(expected)
    return same_bits(part, expected)
