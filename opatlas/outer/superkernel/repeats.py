"""Layers of a model, found by the repeated sequence of kernel types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opatlas.outer.superkernel.kernel_types import Module, is_attention, is_normalization, module_of_type

#: The longest sequence that is searched for: a step of a model with 100 layers of 100 kernels.
_MOST_PERIOD = 10_000
#: Kinds of layers in a model: those with experts, dense ones, and others.
_MOST_KINDS = 4
_NORMALIZATION = "normalization"


@dataclass(frozen=True)
class Repeat:
    """A sequence that occurs `count` times in a row, from `start` on."""

    start: int
    period: int
    count: int

    @property
    def length(self) -> int:
        """The length of all occurrences together."""
        return self.period * self.count


@dataclass(frozen=True)
class Layer:
    """One layer: the range `start` to before `stop` of a sequence, and the number of its kind."""

    start: int
    stop: int
    kind: int


def longest_repeat(codes: np.ndarray) -> Repeat | None:
    """Returns the repeat that covers the most of a sequence, the shortest period of those; None if nothing repeats.

    A period is at least 2: the same kernel in a row is no layer.
    """
    best: Repeat | None = None
    for period in range(2, min(len(codes) // 2, _MOST_PERIOD) + 1):
        equal = codes[:-period] == codes[period:]
        covered = best.length if best else 0
        if best is not None and covered + best.period > len(codes):
            # What is left is less than one occurrence.
            break
        if int(np.count_nonzero(equal)) + period <= covered:
            continue
        differs = np.flatnonzero(~equal)
        borders = np.concatenate(([-1], differs, [len(equal)]))
        lengths = np.diff(borders) - 1
        longest = int(lengths.argmax())
        count = int(lengths[longest]) // period + 1
        if count >= 2 and period * count > covered:
            best = Repeat(int(borders[longest]) + 1, period, count)
    return best


def find_layers(kernel_types: Sequence[str]) -> tuple[Layer, ...]:
    """Returns the layers in a sequence of kernel types, ordered, of up to four kinds; none where nothing repeats.

    A layer begins with the first normalization after its last kernel of experts or of a feed-forward network, where it
    has such kernels. Normalizations count as equal: the first layer adds no residual to its first one.
    """
    names = [_NORMALIZATION if is_normalization(name) else name for name in kernel_types]
    number = {name: index for index, name in enumerate(dict.fromkeys(names))}
    codes = np.array([number[name] for name in names], dtype=np.int64)
    attends = np.array([is_attention(name) for name in kernel_types], dtype=bool)
    layers: list[Layer] = []
    rest = codes.copy()
    for kind in range(_MOST_KINDS):
        found = _innermost(rest, attends)
        if found is None or (kind and not attends[found.start : found.start + found.period].any()):
            break
        first = found.start + _offset_of_start(kernel_types[found.start : found.start + found.period])
        # The sequence that begins there may be that of the next period.
        pattern = codes[first : first + found.period]
        if len(pattern) < found.period:
            break
        for start in _occurrences(rest, pattern):
            layers.append(Layer(start, start + found.period, kind))
            # Never equal to anything else.
            rest[start : start + found.period] = -1 - np.arange(start, start + found.period)
    return tuple(sorted(layers, key=lambda layer: layer.start))


def _innermost(codes: np.ndarray, attends: np.ndarray) -> Repeat | None:
    """Returns the shortest sequence with an attention that repeats: a layer within the repeated steps."""
    found = longest_repeat(codes)
    while found is not None:
        element = slice(found.start, found.start + found.period)
        inner = longest_repeat(codes[element])
        if inner is None or 2 * inner.length < found.period:
            return found
        start = found.start + inner.start
        if attends[element].any() and not attends[start : start + inner.period].any():
            return found
        found = Repeat(start, inner.period, inner.count)
    return None


def _offset_of_start(kernel_types: Sequence[str]) -> int:
    """Returns where a layer begins within one period of the sequence."""
    feed_forward = [
        index for index, name in enumerate(kernel_types) if module_of_type(name) in (Module.MOE, Module.FFN)
    ]
    if not feed_forward:
        return 0
    for step in range(1, len(kernel_types) + 1):
        index = (feed_forward[-1] + step) % len(kernel_types)
        if is_normalization(kernel_types[index]):
            return index
    return 0


def _occurrences(codes: np.ndarray, pattern: np.ndarray) -> list[int]:
    """Returns the starts of the occurrences of a sequence, from left to right, without overlaps."""
    places = len(codes) - len(pattern) + 1
    fits = np.ones(max(places, 0), dtype=bool)
    for offset, code in enumerate(pattern):
        fits &= codes[offset : offset + places] == code
    found: list[int] = []
    for start in np.flatnonzero(fits).tolist():
        if not found or start >= found[-1] + len(pattern):
            found.append(start)
    return found
