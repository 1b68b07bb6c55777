"""Which of the shapes that models run are in the database, and how many of the wanted sizes of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from opatlas.store.database import Table
from opatlas.theory.catalog import Kernel
from opatlas.theory.match import KnownRow, Matcher, read_rows
from opatlas.theory.patterns import Pattern
from opatlas.theory.results import ModelCoverage, SizesOfAxis
from opatlas.theory.sources import Shape, Targets, shapes_of

#: Name and grid of an axis.
SizedAxis = tuple[str, tuple[int, ...]]


def coverage_of(kernel: Kernel, table: Table, targets: Targets) -> list[ModelCoverage]:
    """For each model what its shapes have of a table's rows; nothing for a kernel that no model bears on.

    Raises:
        TableError: a row of the table cannot be read.
    """
    rows = list(read_rows(table))
    found: dict[str, ModelCoverage] = {}
    sizes: dict[str, dict[SizedAxis, list[tuple[str, set[int]]]]] = {}
    for pattern in kernel.patterns:
        if not any(axis.source for axis in pattern.axes):
            continue
        shapes = shapes_of(pattern, targets)
        dims = [dim.variable for template in (*pattern.inputs, *pattern.outputs) for dim in template or ()]
        axes = [(axis.name, axis.grid) for axis in pattern.axes if not axis.source and axis.name in dims]
        by_shape = _sizes_by_shape(pattern, axes, shapes, rows)
        dtypes = ", ".join(dict.fromkeys(map(str, pattern.forms))) or pattern.name
        if not pattern.forms and not by_shape:
            # It is there for databases that have such rows.
            continue
        for number, shape in enumerate(shapes):
            of_shape = by_shape.get(number)
            for model in dict.fromkeys(origin.model for origin in shape.origins):
                coverage = found.setdefault(model, ModelCoverage(kernel.kernel_type, model))
                coverage.shapes += 1
                name = _name(shape, model)
                if of_shape is None:
                    coverage.missing.setdefault(name, []).append(dtypes)
                for axis in axes:
                    sizes.setdefault(model, {}).setdefault(axis, []).append((name, (of_shape or {}).get(axis, set())))
    for model, coverage in found.items():
        coverage.sizes = [_sizes_of(axis, of_shapes) for axis, of_shapes in sizes.get(model, {}).items()]
    return list(found.values())


def _sizes_by_shape(
    pattern: Pattern, axes: Sequence[SizedAxis], shapes: Sequence[Shape], rows: Iterable[KnownRow]
) -> dict[int, dict[SizedAxis, set[int]]]:
    """For each shape that some row has, the sizes of each axis that rows tell."""
    matcher = Matcher(pattern, shapes)
    found: dict[int, dict[SizedAxis, set[int]]] = {}
    for row in rows:
        match = matcher.match(row)
        if match is None:
            continue
        for number in match.shapes:
            of_shape = found.setdefault(number, {})
            for axis in axes:
                if axis[0] in match.sizes:
                    of_shape.setdefault(axis, set()).add(match.sizes[axis[0]])
    return found


def _sizes_of(axis: SizedAxis, of_shapes: Sequence[tuple[str, set[int]]]) -> SizesOfAxis:
    name, grid = axis
    first, last = grid[0], grid[-1]
    wanted = set(map(int.bit_length, grid))
    found = [len(wanted & set(map(int.bit_length, sizes))) for _, sizes in of_shapes]
    with_rows = [(shape, sizes) for shape, sizes in of_shapes if sizes]
    pairs = [pair for _, sizes in with_rows for pair in pairwise(sorted({first, *sizes, last}))]
    gap = max(pairs, key=lambda pair: pair[1] / max(pair[0], 1), default=(first, last))
    alone = [f"{shape}: {name} {min(sizes)}" for shape, sizes in with_rows if len(sizes) == 1 < len(wanted)]
    return SizesOfAxis(name, len(wanted), len(found), min(filter(None, found), default=0), sum(found), *gap, alone)


def _name(shape: Shape, model: str) -> str:
    origins = "; ".join(origin.what for origin in shape.origins if origin.model == model)
    return f"{origins}: {', '.join(f'{name} {value}' for name, value in shape.values.items())}"
