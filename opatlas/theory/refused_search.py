"""Finds out by trying which shapes a kernel takes: one size at a time from a case that it takes, then together."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from opatlas.theory.refused_shapes import AXES, MoeShape

#: Whether a kernel takes a case. Asked at most once for each.
Try = Callable[[MoeShape], bool]


@dataclass(frozen=True)
class Axis:
    """What may be tried of one size.

    Attributes:
        least, most: no smaller and no larger one is tried.
        unit: sizes are multiples of it (the halves of a gated weight are equally wide).
    """

    least: int
    most: int
    unit: int = 1


class OutOfTime(Exception):
    """The time for trying is up; what was tried counts."""


class Search:
    """Tries cases, remembers the answers, and stops when it is told to."""

    def __init__(self, taken: Try, axes: Mapping[str, Axis], enough: Callable[[], bool]) -> None:
        """
        Args:
            axes: by name.
            enough: whether no further case is to be tried.
        """
        self._taken = taken
        self._axes = axes
        self._enough = enough
        self._known: dict[MoeShape, bool] = {}

    def run(self, base: MoeShape, together: int) -> None:
        """Tries as much as there is time for.

        Args:
            base: the case from which sizes are varied.
            together: how many cases are tried besides in which all sizes differ.
        """
        try:
            if not self._try(base):
                return
            ranges = {axis: self._along(base, axis) for axis in AXES}
            for shape in self._corners(ranges, together):
                self._try(shape)
        except OutOfTime:
            return

    def _along(self, base: MoeShape, name: str) -> range:
        """The sizes that are taken, as far as was tried: the smallest, the largest, and so many in between."""
        axis, middle = self._axes[name], getattr(base, name)

        def taken(size: int) -> bool:
            return self._try(replace(base, **{name: size}))

        step = axis.unit
        while middle + step <= axis.most and not taken(middle + step):
            step *= 2
            if step > middle:
                # None near is taken: perhaps some that are smaller.
                step = middle
                break
        high = self._last(middle, step, axis.most, taken)
        low = self._last(middle, -step, axis.least, taken)
        return range(low, high + 1, step)

    def _last(self, start: int, step: int, end: int, taken: Callable[[int], bool]) -> int:
        """The last size taken on the way from `start` to `end`: in growing strides, then by halving."""
        most = abs(end - start) // abs(step)
        good, stride, bad = 0, 1, most + 1
        while good < most:
            reach = min(good + stride, most)
            if not taken(start + reach * step):
                bad = reach
                break
            good, stride = reach, stride * 2
        while bad <= most and bad - good > 1:
            half = (good + bad) // 2
            if taken(start + half * step):
                good = half
            else:
                bad = half
        return start + good * step

    def _corners(self, ranges: Mapping[str, range], count: int) -> Iterator[MoeShape]:
        """All sizes at their largest, all at their smallest, then cases in between."""
        yield MoeShape(**{name: sizes[-1] for name, sizes in ranges.items()})
        yield MoeShape(**{name: sizes[0] for name, sizes in ranges.items()})
        drawn = random.Random(0)
        for _ in range(count):
            yield MoeShape(**{name: drawn.choice(sizes) for name, sizes in ranges.items()})

    def _try(self, shape: MoeShape) -> bool:
        if shape not in self._known:
            if self._enough():
                raise OutOfTime
            self._known[shape] = self._taken(shape)
        return self._known[shape]
