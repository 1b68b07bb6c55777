"""Which of the shapes that models run are in the database, and how densely the sizes of each are covered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from database.store import Table
from shapes.catalog import Kernel
from shapes.match import KnownRow, Matcher, read_rows
from shapes.patterns import Pattern
from shapes.sources import Shape, Targets, shapes_of


@dataclass(frozen=True)
class Density:
    """How far apart the sizes of an axis are, where they are furthest apart.

    Attributes:
        axis: the variable.
        sizes: how many different ones the shape that has the fewest has.
        gap_from, gap_to: the neighbours with the largest difference, of any shape.
        ratio_from, ratio_to: those with the largest ratio.
    """

    axis: str
    sizes: int
    gap_from: int
    gap_to: int
    ratio_from: int
    ratio_to: int

    @property
    def gap(self) -> int:
        return self.gap_to - self.gap_from

    @property
    def ratio(self) -> float:
        return self.ratio_to / self.ratio_from


@dataclass
class ModelCoverage:
    """What a kernel type has of a model.

    Attributes:
        shapes: how many shapes the model gives it.
        missing: what is not in the database, as "gate_up, tp 8: n 4608, k 7168".
        densities: of the axes whose sizes a row tells; of the shapes that are there.
    """

    kernel_type: str
    model: str
    shapes: int = 0
    missing: list[str] = field(default_factory=list)
    densities: list[Density] = field(default_factory=list)

    @property
    def present(self) -> int:
        return self.shapes - len(self.missing)


def coverage_of(kernel: Kernel, table: Table, targets: Targets) -> list[ModelCoverage]:
    """For each model what its shapes have of a table's rows; nothing for a kernel that no model bears on.

    Raises:
        TableError: a row of the table cannot be read.
    """
    rows = list(read_rows(table))
    found: dict[str, ModelCoverage] = {}
    sizes: dict[str, dict[str, list[set[int]]]] = {}
    for pattern in kernel.patterns:
        if not any(axis.source for axis in pattern.axes):
            continue
        shapes = shapes_of(pattern, targets)
        by_shape = _sizes_by_shape(pattern, shapes, rows)
        if not pattern.forms and not by_shape:
            # It is there for databases that have such rows.
            continue
        for number, shape in enumerate(shapes):
            of_shape = by_shape.get(number)
            for model in dict.fromkeys(origin.model for origin in shape.origins):
                coverage = found.setdefault(model, ModelCoverage(kernel.kernel_type, model))
                coverage.shapes += 1
                if of_shape is None:
                    coverage.missing.append(_name(shape, model))
                    continue
                for axis, values in of_shape.items():
                    sizes.setdefault(model, {}).setdefault(axis, []).append(values)
    for model, coverage in found.items():
        coverage.densities = [_density(axis, values) for axis, values in sizes.get(model, {}).items()]
    return list(found.values())


def _sizes_by_shape(
    pattern: Pattern, shapes: Sequence[Shape], rows: Iterable[KnownRow]
) -> dict[int, dict[str, set[int]]]:
    """For each shape that some row has, the sizes of each axis that rows tell."""
    matcher = Matcher(pattern, shapes)
    axes = [axis.name for axis in pattern.axes if not axis.source]
    found: dict[int, dict[str, set[int]]] = {}
    for row in rows:
        match = matcher.match(row)
        if match is None:
            continue
        for number in match.shapes:
            of_shape = found.setdefault(number, {})
            for axis in axes:
                if axis in match.sizes:
                    of_shape.setdefault(axis, set()).add(match.sizes[axis])
    return found


def _density(axis: str, of_shapes: Sequence[set[int]]) -> Density:
    pairs = [pair for sizes in of_shapes for pair in pairwise(sorted(sizes))]
    only = min(of_shapes[0])
    gap = max(pairs, key=lambda pair: pair[1] - pair[0], default=(only, only))
    ratio = max(pairs, key=lambda pair: pair[1] / pair[0], default=(only, only))
    return Density(axis, min(map(len, of_shapes)), *gap, *ratio)


def _name(shape: Shape, model: str) -> str:
    origins = "; ".join(origin.what for origin in shape.origins if origin.model == model)
    return f"{origins}: {', '.join(f'{name} {value}' for name, value in shape.values.items())}"
