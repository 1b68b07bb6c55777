"""The coverage of models by the rows of a database: which shapes have rows, and at how many sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter

from opatlas.row.table import RowTable
from opatlas.text import pluralize
from opatlas.theory.catalog import CatalogKernel
from opatlas.theory.known_rows import Matcher, Tensors, read_tensors
from opatlas.theory.patterns import Axis, Pattern
from opatlas.theory.sources import Shape, Targets, model_shapes

#: Sizes of an axis of tokens that interpolation between the rows of a shape needs.
ENOUGH_SIZES = 16


@dataclass(frozen=True)
class ShapeCoverage:
    """The rows of a model's shape.

    Attributes:
        name: the parts of the model with these sizes, as "gate_up, tp 8: n 4608, k 7168".
        calls: calls in a step, for each way to divide the model ("tp 8", or "" for a part that every device has).
        has_rows: whether there are any.
        sizes: different sizes of its axis of tokens, of the dtypes with the most; of several axes, of that with the
            fewest. 0 if the sizes do not follow from the rows.
        wanted: the sizes that are enough; 0 if they do not follow from the rows.
        gap_from, gap_to: the neighbouring sizes with the largest ratio. The ends of the grid count as neighbours.
        dtypes: the dtypes of the catalog.
    """

    name: str
    calls: Mapping[str, int]
    has_rows: bool
    sizes: int
    wanted: int
    gap_from: int = 0
    gap_to: int = 0
    dtypes: str = ""

    @property
    def is_enough(self) -> bool:
        return self.has_rows and self.sizes >= self.wanted

    def __str__(self) -> str:
        count = pluralize(self.sizes, "size") if self.wanted and self.has_rows else "no row"
        return f"{self.name}: {count}"


@dataclass(frozen=True)
class ModelCoverage:
    """The coverage of a model's shapes by the rows of a kernel type."""

    kernel_type: str
    model: str
    shapes: Sequence[ShapeCoverage] = ()


#: For each combination of dtypes, the sizes of each axis.
_Sizes = dict[tuple[str, ...], dict[str, set[int]]]


def model_coverage(
    kernel: CatalogKernel, table: RowTable, targets: Targets, sizes: int = ENOUGH_SIZES
) -> list[ModelCoverage]:
    """Returns the coverage of each model's shapes by the rows of a table; nothing if no axis depends on models.

    Args:
        sizes: the number of sizes of its axis of tokens that are enough for a shape.

    Raises:
        TableError: a row of the table cannot be read.
    """
    rows = read_tensors(table)
    found: dict[str, dict[Hashable, ShapeCoverage]] = {}
    for pattern in kernel.patterns:
        if not any(axis.source for axis in pattern.axes):
            continue
        shapes = model_shapes(pattern, targets)
        dims = {dim.variable for template in (*pattern.inputs, *pattern.outputs) for dim in template or ()}
        axes = [axis for axis in pattern.axes if axis.between and axis.name in dims]
        by_shape = _sizes_by_shape(pattern, axes, shapes, rows)
        if not pattern.forms and not by_shape:
            # A pattern without forms only describes rows that a database may have.
            continue
        dtypes = ", ".join(dict.fromkeys(map(str, pattern.forms))) or pattern.name
        # Patterns that differ in scales, bias and the order of axes only are one shape, covered by the pattern with the
        # most sizes.
        operands = str([sorted(dim.text for dim in slot or ()) for slot in (*pattern.inputs[:2], *pattern.outputs[:1])])
        for number, shape in enumerate(shapes):
            for model in dict.fromkeys(origin.model for origin in shape.origins):
                coverage = _shape_coverage(_name(shape, model), axes, by_shape.get(number), sizes)
                calls: Counter[str] = Counter()
                for origin in shape.origins:
                    calls[origin.division] += origin.calls if origin.model == model else 0
                of_model, key = found.setdefault(model, {}), (operands, tuple(shape.values.items()))
                if key not in of_model or coverage.sizes > of_model[key].sizes:
                    of_model[key] = replace(coverage, calls=dict(+calls), dtypes=dtypes)
    return [ModelCoverage(kernel.kernel_type, model, list(shapes.values())) for model, shapes in found.items()]


def _sizes_by_shape(
    pattern: Pattern, axes: Sequence[Axis], shapes: Sequence[Shape], rows: Iterable[Tensors]
) -> dict[int, _Sizes]:
    """Returns for each shape with a row the sizes that its rows have."""
    matcher = Matcher(pattern, shapes)
    found: dict[int, _Sizes] = {}
    for row in rows:
        match = matcher.match(row)
        if match is None:
            continue
        dtypes = tuple(dtype for words in row for _, dtype, _ in words)
        for number in match.shapes:
            of_dtypes = found.setdefault(number, {}).setdefault(dtypes, {})
            for axis in axes:
                if axis.name in match.sizes:
                    of_dtypes.setdefault(axis.name, set()).add(match.sizes[axis.name])
    return found


def _shape_coverage(name: str, axes: Sequence[Axis], found: _Sizes | None, sizes: int) -> ShapeCoverage:
    """Returns the coverage by the dtypes with the most sizes, on the axis with the fewest."""
    counted = [
        min(
            ((len(of_axis), axis, of_axis) for axis in axes for of_axis in (of_dtypes.get(axis.name, set()),)),
            key=itemgetter(0),
        )
        for of_dtypes in (found or {}).values()
        if axes
    ]
    if not counted:
        wanted = min((min(sizes, axis.grid[-1] - axis.grid[0] + 1) for axis in axes), default=0)
        return ShapeCoverage(name, {}, found is not None, 0, wanted)
    count, axis, of_axis = max(counted, key=itemgetter(0))
    first, last = axis.grid[0], axis.grid[-1]
    gap = max(pairwise(sorted({first, *of_axis, last})), key=lambda pair: pair[1] / max(pair[0], 1))
    return ShapeCoverage(name, {}, True, count, min(sizes, last - first + 1), *gap)


def _name(shape: Shape, model: str) -> str:
    """Returns the parts of a model with a shape, as "gate_up, tp 8: n 4608, k 7168"."""
    sizes: dict[str, list[str]] = {}
    for origin in shape.origins:
        if origin.model == model:
            kind, _, size = origin.division.partition(" ")
            sizes.setdefault(f"{origin.part}, {kind} " if kind else origin.part, []).append(size)
    parts = "; ".join(part + ", ".join(of_part) for part, of_part in sizes.items())
    return f"{parts}: {', '.join(f'{name} {value}' for name, value in shape.values.items())}"
