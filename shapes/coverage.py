"""Which of the shapes that models run are in the database, and how densely the sizes of each are covered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from database.store import Table
from shapes.catalog import Kernel
from shapes.match import KnownRow, Matcher, read_rows
from shapes.patterns import Pattern
from shapes.results import Density, ModelCoverage
from shapes.sources import Shape, Targets, shapes_of


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
