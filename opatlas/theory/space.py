"""The space of rows that a pattern spans, for some models, forms and a memory budget.

The values of all axes make a grid. A point of the grid is legal where the conditions of the pattern hold and the
tensors fit the budget, which is computed for all points at once. Rows are made from legal points only, so no drawn
row is rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod

import numpy as np
import numpy.typing as npt

from opatlas.errors import OpAtlasError
from opatlas.row.slots import Slot, known_dtype
from opatlas.theory.patterns import NZ, Axis, Expression, Form, Ints, Lengths, Pattern, Template, nz_block
from opatlas.theory.rows import Batch, TheoryRow
from opatlas.theory.size_spread import OFFSETS, size_candidates, spread_sizes
from opatlas.theory.sources import SOURCES, Targets, interleave_models, missing_source, model_shapes

GB = 10**9
#: Bytes of the buffer that is written between samples to empty the last-level cache: twice the largest cache
#: (192 MB on an NPU, 50 MB on an H100, up to 256 MB for one core of a server's CPU).
FLUSH_BUFFER_BYTES = 512 * 10**6


def element_bytes(kernel_type: str, dtype: str) -> int:
    """Returns the bytes of an element.

    Raises:
        OpAtlasError: the dtype is unknown. With a guessed size, rows that do not fit could pass.
    """
    known = known_dtype(dtype)
    if known is None:
        raise OpAtlasError(
            f"a theory row of {kernel_type} has the dtype {dtype!r}, whose size is not known: "
            f"add it to opatlas/row/slots.py, or correct the row"
        )
    return known.bytes


def row_bytes(row: TheoryRow) -> int:
    """Returns the bytes of all input and output tensors as stored. Raises OpAtlasError."""
    return sum(
        prod(slot.shape) * element_bytes(row.kernel_type, slot.dtype)
        for slot in (*row.inputs, *row.outputs)
        if not slot.absent
    )


Array = npt.NDArray[np.int64]

#: Tile sizes of matrix units. Durations rise in steps at multiples of a tile.
TILES = (16, 32, 64, 128)
#: Number of codes of a free axis. A code chooses a size near a size of the grid: a code below _EDGES_FROM the size
#: itself, a code below _BETWEEN_FROM an edge of a tile or a neighbour of an edge, any other a size up to the next size
#: of the grid.
_CODES = 64
_EDGES_FROM = 32
_BETWEEN_FROM = _EDGES_FROM + len(TILES) * len(OFFSETS)
#: The golden ratio: the fractional parts of any number of multiples spread evenly over 0 ... 1.
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class SizedRows:
    """The rows of one form at sizes that are spread over the axes.

    Attributes:
        batch: the rows.
        shapes: the shape of each row, as a position in `Space.shapes`.
        turns: the place of each row in the order of importance of the rows of its shape.
    """

    batch: Batch
    shapes: Array
    turns: Array


class Space:
    """The rows of a kernel type by one pattern.

    Attributes:
        shapes: the shapes of models and generic shapes; one empty shape where no axis depends on models.
        missing_source: a source that none of the models has, so that there are no rows; otherwise "".
        over_budget: points left out because their tensors exceed the budget.
        smallest_over_budget: bytes of the tensors of the smallest of these points; 0 if there are none.
    """

    def __init__(
        self, kernel_type: str, pattern: Pattern, forms: Sequence[Form], targets: Targets, budget_bytes: int
    ) -> None:
        self.kernel_type = kernel_type
        self.pattern = pattern
        self.forms = tuple(forms)
        #: The bytes of the budget without the flush buffer.
        self._budget_bytes = budget_bytes - FLUSH_BUFFER_BYTES
        of_models = [axis for axis in pattern.axes if axis.source]
        self.missing_source = missing_source(pattern, targets)
        self.shapes = model_shapes(pattern, targets)
        self._grids = [axis for axis in pattern.axes if not axis.source]
        names = [name for axis in of_models for name in SOURCES[axis.source].names]
        self._of_shape: dict[str, Array] = {
            name: np.array([shape.values[name] for shape in self.shapes], dtype=np.int64) for name in names
        }
        mesh = np.meshgrid(*(np.array(axis.grid, dtype=np.int64) for axis in self._grids), indexing="ij")
        self._of_point: dict[str, Array] = {
            axis.name: values.ravel() for axis, values in zip(self._grids, mesh, strict=True)
        }
        self._points = mesh[0].size if mesh else 1
        self._free = [axis for axis in self._grids if axis.between]
        self.over_budget = 0
        self.smallest_over_budget = 0
        #: For each form the legal points, encoded as shape * points + point.
        self._legal: list[Array] = [self._points_within_budget(form) for form in self.forms]
        self._ends = np.cumsum([len(legal) for legal in self._legal])

    def __len__(self) -> int:
        """Returns the number of legal points of the grid, over all forms."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def batches(self, positions: Array | None = None) -> Iterable[Batch]:
        """Yields the rows at some positions of the grid, or all rows, one batch for each form."""
        for number, form in enumerate(self.forms):
            first = int(self._ends[number]) - len(self._legal[number])
            legal = self._legal[number]
            if positions is not None:
                legal = legal[positions[(positions >= first) & (positions < self._ends[number])] - first]
            if len(legal):
                yield self._batch(form, legal)

    def required(self) -> list[int]:
        """Returns the positions of the grid that every sample holds, the most important positions first.

        The order has three parts:

        - each shape once, with sizes and forms that vary from shape to shape, so that a small sample covers the ranges;
        - the smallest and the largest sizes of each shape and form;
        - the edges of tiles, each for one shape.

        Models alternate, so that a small sample has equally many shapes of each model.
        """
        # For each form (row) and shape (column): the number of positions, which are consecutive, and the first.
        counts = np.array([np.bincount(legal // self._points, minlength=len(self.shapes)) for legal in self._legal])
        starts = counts.cumsum().reshape(counts.shape) - counts
        in_turn = interleave_models(self.shapes)
        once = []
        for shape in in_turn:
            of_forms = counts[:, shape]
            forms = np.flatnonzero(of_forms)
            if len(forms):
                form = forms[shape % len(forms)]
                once.append(starts[form, shape] + int(of_forms[form] * (shape * _GOLDEN % 1)))
        edges = [self._edges(legal) + end - len(legal) for legal, end in zip(self._legal, self._ends, strict=True)]
        starts, counts = starts[:, in_turn], counts[:, in_turn]
        there = counts > 0
        groups = [np.array(once, dtype=np.int64), starts[there], (starts + counts - 1)[there], *edges]
        return list(dict.fromkeys(np.concatenate(groups).tolist()))

    def rows_of_sizes(self, count: int, *, edges: bool = True) -> list[SizedRows]:
        """Returns rows of each shape at `count` sizes of each axis of tokens, and with `edges` at the edges of tiles.

        The sizes are spread geometrically from the smallest to the largest that is legal and fits the budget. In a row
        of a size, the other axes have any legal values of their grids; these vary from row to row.

        Returns:
            The rows of each form that has any.
        """
        found = []
        # A pattern without an axis of tokens has its rows on its first axis.
        axes = self._free or self._grids[:1]
        for form, legal in zip(self.forms, self._legal, strict=True):
            if not len(legal):
                continue
            if not axes:
                found.append(SizedRows(self._batch(form, legal), legal // self._points, np.zeros_like(legal)))
                continue
            rows = np.array(
                [
                    (shape, turn * len(axes) + number, *sizes)
                    for number, axis in enumerate(axes)
                    for shape, turn, sizes in self._rows_along(axis, form, count, edges)
                ],
                dtype=np.int64,
            )
            env: dict[str, Ints] = {name: values[rows[:, 0]] for name, values in self._of_shape.items()}
            env |= {axis.name: rows[:, 2 + number] for number, axis in enumerate(self._grids)}
            found.append(SizedRows(self._batch_of(form, env, len(rows)), rows[:, 0], rows[:, 1]))
        return found

    def _rows_along(self, axis: Axis, form: Form, count: int, edges: bool) -> Iterable[tuple[int, int, list[int]]]:
        """Yields the shape, the turn and the sizes of all grids of the rows that `rows_of_sizes` has along an axis."""
        sizes = np.array(size_candidates(axis, count), dtype=np.int64)
        others = [each for each in self._grids if each is not axis]
        mesh = np.meshgrid(*(np.array(each.grid, dtype=np.int64) for each in others), indexing="ij")
        of_others: dict[str, Array] = {each.name: values.ravel() for each, values in zip(others, mesh, strict=True)}
        env: dict[str, Ints] = {name: values[:, None, None] for name, values in self._of_shape.items()}
        env |= {axis.name: sizes[None, :, None]}
        env |= {name: values[None, None, :] for name, values in of_others.items()}
        self._complete(env)
        whole = (len(self.shapes), len(sizes), prod(len(each.grid) for each in others))
        legal = np.broadcast_to(self._possible(form, env), whole) & (self._bytes(form, env) <= self._budget_bytes)
        for shape, of_shape in enumerate(legal):
            possible = np.flatnonzero(of_shape.any(axis=1))
            for turn, place in enumerate(spread_sizes(sizes[possible].tolist(), count, edges=edges)):
                index = int(possible[place])
                points = np.flatnonzero(of_shape[index])
                point = points[int(len(points) * ((turn + shape) * _GOLDEN % 1))]
                yield (
                    shape,
                    turn,
                    [int(sizes[index] if each is axis else of_others[each.name][point]) for each in self._grids],
                )

    @property
    def size(self) -> int:
        """The number of arguments that `row` accepts. Several arguments may give the same row."""
        codes: int = _CODES ** len(self._free)
        return len(self) * codes

    def row(self, number: int) -> TheoryRow:
        """Returns the row of a number below `size`. 0 gives the simplest row."""
        codes = _CODES ** len(self._free)
        # Neighbouring points are similar, so neighbouring numbers lead to distant points.
        position, code = divmod(number * self._stride % self.size, codes)
        which = int(np.searchsorted(self._ends, position, side="right"))
        legal = self._legal[which]
        flat = int(legal[position - (int(self._ends[which]) - len(legal))])
        shape, point = divmod(flat, self._points)
        env = dict(self.shapes[shape].values)
        env |= {name: int(values[point]) for name, values in self._of_point.items()}
        form = self.forms[which]
        drawn = dict(env)
        for axis in self._free:
            code, own = divmod(code, _CODES)
            drawn[axis.name] = _nearby_size(axis, env[axis.name], own)
        if drawn != env and self._fits(form, self._complete(drawn)):
            env = drawn
        return pattern_row(self.kernel_type, self.pattern, form, env)

    @cached_property
    def _stride(self) -> int:
        """The step between arguments of `row`. The step visits every row, and separates neighbouring arguments."""
        step = max(1, round(self.size * _GOLDEN))
        while gcd(step, self.size) > 1:
            step += 1
        return step

    def _points_within_budget(self, form: Form) -> Array:
        """Returns the legal points of a form, encoded as in `_legal`; counts the points that exceed the budget."""
        if self.missing_source:
            return np.empty(0, dtype=np.int64)
        env = self._complete(
            {name: values[:, None] for name, values in self._of_shape.items()}
            | {name: values[None, :] for name, values in self._of_point.items()}
        )
        whole = (len(self.shapes), self._points)
        possible = np.broadcast_to(self._possible(form, env), whole)
        fits = np.broadcast_to(self._bytes(form, env) <= self._budget_bytes, whole)
        too_large = possible & ~fits
        self.over_budget += int(np.count_nonzero(too_large))
        if too_large.any():
            smallest = int(np.broadcast_to(self._bytes(form, env), whole)[too_large].min())
            self.smallest_over_budget = min(self.smallest_over_budget or smallest, smallest)
        return np.flatnonzero(possible & fits)

    def _complete(self, env: dict[str, Ints]) -> dict[str, Ints]:
        """Adds the variables that the pattern computes."""
        return _complete(self.pattern, env)

    def _fits(self, form: Form, env: Mapping[str, Ints]) -> bool:
        return bool(self._possible(form, env)) and bool(self._bytes(form, env) <= self._budget_bytes)

    def _possible(self, form: Form, env: Mapping[str, Ints]) -> Ints:
        holds: Ints = np.True_
        for condition in self.pattern.where:
            holds = holds & condition.value(env)
        for templates, dtypes, formats in _slots_of(self.pattern, form):
            for template, dtype, name in zip(templates, dtypes, formats, strict=True):
                for dim in template or ():
                    holds = holds & (dim.value(env) > 0)
                if template and name == NZ:
                    rows, columns = nz_block(dtype)
                    holds = holds & (template[-2].value(env) % rows == 0) & (template[-1].value(env) % columns == 0)
        return holds

    def _bytes(self, form: Form, env: Mapping[str, Ints]) -> Ints:
        """Returns the bytes of all tensors."""
        total: Ints = 0
        for templates, dtypes, _ in _slots_of(self.pattern, form):
            for template, dtype in zip(templates, dtypes, strict=True):
                if template is not None:
                    size: Ints = element_bytes(self.kernel_type, dtype)
                    for dim in template:
                        size = size * dim.value(env)
                    total = total + size
        return total

    def _edges(self, legal: Array) -> Array:
        """Returns the points whose first free axis is at a tile's edge or next to one, each for another shape."""
        if not self._free or not len(legal):
            return np.empty(0, dtype=np.int64)
        sizes = self._of_point[self._free[0].name][legal % self._points]
        shapes = legal // self._points
        found = []
        wanted = [tile + offset for tile in TILES for offset in OFFSETS]
        for i, size in enumerate(wanted):
            at = np.flatnonzero(sizes == size)
            own = at[shapes[at] == i % len(self.shapes)]
            found += [int((own if len(own) else at)[0])] if len(at) else []
        return np.array(found, dtype=np.int64)

    def _batch(self, form: Form, legal: Array) -> Batch:
        shape, point = np.divmod(legal, self._points)
        env: dict[str, Ints] = {name: values[shape] for name, values in self._of_shape.items()}
        env |= {name: values[point] for name, values in self._of_point.items()}
        return self._batch_of(form, env, len(legal))

    def _batch_of(self, form: Form, env: dict[str, Ints], count: int) -> Batch:
        self._complete(env)
        slots = [
            tuple(_dims(template, dtype, name, env) for template, dtype, name in zip(*part, strict=True))
            for part in _slots_of(self.pattern, form)
        ]
        cells = {column: _cells(value, env) for column, value in self.pattern.cells.items()}
        return Batch(self.kernel_type, form, slots[0], slots[1], cells, count, self._bytes(form, env))


def pattern_row(kernel_type: str, pattern: Pattern, form: Form, sizes: Mapping[str, int]) -> TheoryRow:
    """Returns the row of a pattern with some sizes of its axes, whether or not the conditions of the pattern hold."""
    env = _complete(pattern, dict(sizes))
    inputs, outputs = (
        tuple(_slot(template, dtype, name, env) for template, dtype, name in zip(*part, strict=True))
        for part in _slots_of(pattern, form)
    )
    cells = tuple((column, _cell(value, env)) for column, value in pattern.cells.items())
    return TheoryRow(kernel_type, inputs, outputs, form.op_state, form.core, cells)


def _complete(pattern: Pattern, env: dict[str, Ints]) -> dict[str, Ints]:
    """Adds the variables that the pattern computes."""
    for name, expression in pattern.let.items():
        env[name] = expression.value(env)
    return env


def _slots_of(pattern: Pattern, form: Form) -> Iterable[tuple[tuple[Template, ...], tuple[str, ...], tuple[str, ...]]]:
    yield pattern.inputs, form.input_dtypes, form.input_formats
    yield pattern.outputs, form.output_dtypes, form.output_formats


def _nearby_size(axis: Axis, size: int, code: int) -> int:
    """Returns a size near a size of the grid; see _CODES."""
    if code < _EDGES_FROM:
        return size
    if code < _BETWEEN_FROM:
        tile, offset = divmod(code - _EDGES_FROM, len(OFFSETS))
        edge = -(-size // TILES[tile]) * TILES[tile] + OFFSETS[offset]
        return max(axis.grid[0], min(axis.grid[-1], edge))
    later = axis.grid.index(size) + 1
    step = axis.grid[later] - size if later < len(axis.grid) else 0
    return size + step * (code - _BETWEEN_FROM + 1) // (_CODES - _BETWEEN_FROM + 1)


def _dims(template: Template, dtype: str, name: str, env: Mapping[str, Ints]) -> tuple[Ints, ...] | None:
    """Returns the dimensions of a slot as stored; None if the slot is absent."""
    if template is None:
        return None
    dims = tuple(dim.value(env) for dim in template)
    if name == NZ and dims:
        rows, columns = nz_block(dtype)
        return (*dims[:-2], dims[-1] // columns, dims[-2] // rows, rows, columns)
    return dims


def _slot(template: Template, dtype: str, name: str, env: Mapping[str, int]) -> Slot:
    dims = _dims(template, dtype, name, env)
    return Slot((), "", "") if dims is None else Slot(dims, dtype, name)


def _cell(value: str | Expression | Lengths, env: Mapping[str, int]) -> str:
    if isinstance(value, Lengths):
        return value.text(value.count.value(env), value.each.value(env))
    return value if isinstance(value, str) else str(value.value(env))


def _cells(value: str | Expression | Lengths, env: Mapping[str, Ints]) -> str | Array | list[str]:
    """Returns the cells of a column: one text for all rows, numbers, or texts."""
    if isinstance(value, str):
        return value
    if isinstance(value, Expression):
        return np.asarray(value.value(env))
    count, each = np.broadcast_arrays(value.count.value(env), value.each.value(env))
    pairs, where = np.unique(np.stack([count, each]), axis=1, return_inverse=True)
    texts = [value.text(int(n), int(length)) for n, length in pairs.T]
    return [texts[i] for i in where.ravel()]
