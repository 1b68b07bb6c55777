"""The space of rows that a pattern spans, for some models, forms and a memory budget.

The values of all axes make a grid. A point of the grid is legal where the conditions of the pattern hold and the
tensors fit the budget, which is computed for all points at once. Rows are made from legal points only, so no drawn
row is rejected. A row with other sizes than those of the grid is made from a point and sizes near it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from opatlas.errors import OpAtlasError
from opatlas.row.columns import BASE
from opatlas.row.signature import signature
from opatlas.row.slots import known_dtype
from opatlas.theory.catalog import built_in_catalog
from opatlas.theory.patterns import NZ, Axis, Expression, Form, Ints, Lengths, Pattern, Template, nz_block
from opatlas.theory.sources import SOURCES, Targets, interleave_models, missing_source, model_shapes

GB = 10**9
#: Bytes of the buffer that is written between samples to empty the last-level cache: twice the largest cache
#: (192 MB on an NPU, 50 MB on an H100, up to 256 MB for one core of a server's CPU).
FLUSH_BUFFER_BYTES = 512 * 10**6
#: Tile sizes of matrix units. Durations rise in steps at multiples of a tile.
TILES = (16, 32, 64, 128)
#: Offsets of sizes at the edge of a tile and next to it.
OFFSETS = (-1, 0, 1)
#: The golden ratio: the fractional parts of any number of multiples spread evenly over 0 ... 1.
_GOLDEN = 0.6180339887498949
#: Dtypes that profilers write with the prefix DT_; FLOAT and the integers have none.
_PREFIXED = frozenset({"BF16"})
_TEXT = pa.large_string()

Array = npt.NDArray[np.int64]
#: The cells of a column: one text for all rows, a number for each, or a text for each.
Cells = str | Array | list[str]


@dataclass(frozen=True)
class TheoryRow:
    """A call of a kernel that no profiler has recorded.

    Attributes:
        kernel_type: the profiler's name of the kernel, which is also the name of its CSV.
        cells: the base columns, and further ones such as the Runtime columns of attention kernels.
        bytes: bytes of all input and output tensors as stored.
    """

    kernel_type: str
    cells: Mapping[str, str]
    bytes: int

    def signature(self) -> str:
        """Returns the signature of the row (opatlas/row/signature.py)."""
        return signature(self.kernel_type, self.cells)


@dataclass(frozen=True)
class Batch:
    """Many rows of one form, with the bytes of the tensors of each."""

    frame: pd.DataFrame
    bytes: Array


@dataclass(frozen=True)
class Near:
    """How a size of an axis lies near one of the grid: at the edge of a tile, or on the way to the next size.

    Attributes:
        tile: the size becomes the next multiple of it; 0: not.
        offset: is added to this multiple.
        part: the part of the way to the next size of the grid.
    """

    tile: int = 0
    offset: int = 0
    part: float = 0.0

    def size(self, axis: Axis, size: int) -> int:
        """Returns the size near a size of the grid."""
        if self.tile:
            return max(axis.grid[0], min(axis.grid[-1], -(-size // self.tile) * self.tile + self.offset))
        later = axis.grid.index(size) + 1
        return size + int((axis.grid[later] - size) * self.part) if later < len(axis.grid) else size


class Space:
    """The rows of a kernel type by one pattern.

    Attributes:
        shapes: the shapes of models and generic shapes; one empty shape where no axis depends on models.
        free: the axes on which sizes between those of the grid are useful too.
        missing_source: a source that none of the models has, so that there are no rows; otherwise "".
        over_budget: points left out because their tensors exceed the budget.
        smallest_over_budget: bytes of the tensors of the smallest of these points; 0 if there are none.
    """

    def __init__(
        self, kernel_type: str, pattern: Pattern, forms: Sequence[Form], targets: Targets, budget_bytes: int
    ) -> None:
        """Raises OpAtlasError for a dtype whose size is not known."""
        self.kernel_type = kernel_type
        self.pattern = pattern
        self.forms = tuple(forms)
        #: The bytes of the budget without the flush buffer.
        self._budget_bytes = budget_bytes - FLUSH_BUFFER_BYTES
        self.missing_source = missing_source(pattern, targets)
        self.shapes = model_shapes(pattern, targets)
        grids = [axis for axis in pattern.axes if not axis.source]
        names = [name for axis in pattern.axes if axis.source for name in SOURCES[axis.source]]
        self._of_shape: dict[str, Array] = {
            name: np.array([shape.values[name] for shape in self.shapes], dtype=np.int64) for name in names
        }
        mesh = np.meshgrid(*(np.array(axis.grid, dtype=np.int64) for axis in grids), indexing="ij")
        self._of_point: dict[str, Array] = {axis.name: sizes.ravel() for axis, sizes in zip(grids, mesh, strict=True)}
        self._points = mesh[0].size if mesh else 1
        self.free = [axis for axis in grids if axis.between]
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
        for form, legal, end in zip(self.forms, self._legal, self._ends.tolist(), strict=True):
            first = end - len(legal)
            if positions is not None:
                legal = legal[positions[(positions >= first) & (positions < end)] - first]
            if not len(legal):
                continue
            shape, point = np.divmod(legal, self._points)
            env: dict[str, Ints] = {name: sizes[shape] for name, sizes in self._of_shape.items()}
            env |= {name: sizes[point] for name, sizes in self._of_point.items()}
            columns = pattern_columns(self.pattern, form, env)
            frame = pd.DataFrame({name: _column(cells, len(legal)) for name, cells in columns.items()})
            sizes = np.broadcast_to(tensor_bytes(self.kernel_type, self.pattern, form, env), len(legal))
            yield Batch(frame, sizes)

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

    def row(self, position: int, near: Sequence[Near] = ()) -> TheoryRow:
        """Returns the row at a position of the grid, or near it.

        Args:
            near: for each of the `free` axes, how its size lies near that of the grid. Where the row would not be
                legal, the sizes are those of the grid.
        """
        which = int(np.searchsorted(self._ends, position, side="right"))
        form, legal = self.forms[which], self._legal[which]
        shape, point = divmod(int(legal[position - (int(self._ends[which]) - len(legal))]), self._points)
        sizes = dict(self.shapes[shape].values)
        sizes |= {name: int(values[point]) for name, values in self._of_point.items()}
        close = {axis.name: each.size(axis, sizes[axis.name]) for axis, each in zip(self.free, near, strict=False)}
        env = _complete(self.pattern, {**sizes, **close})
        if bool(_is_possible(self.pattern, form, env)) and self._bytes(form, env) <= self._budget_bytes:
            sizes |= close
        return pattern_row(self.kernel_type, self.pattern, form, sizes)

    def _points_within_budget(self, form: Form) -> Array:
        """Returns the legal points of a form, encoded as in `_legal`; counts the points that exceed the budget."""
        if self.missing_source:
            return np.empty(0, dtype=np.int64)
        env = _complete(
            self.pattern,
            {name: sizes[:, None] for name, sizes in self._of_shape.items()}
            | {name: sizes[None, :] for name, sizes in self._of_point.items()},
        )
        whole = (len(self.shapes), self._points)
        possible = np.broadcast_to(_is_possible(self.pattern, form, env), whole)
        bytes_ = np.broadcast_to(self._bytes(form, env), whole)
        too_large = bytes_[possible & (bytes_ > self._budget_bytes)]
        if len(too_large):
            self.over_budget += len(too_large)
            smallest = int(too_large.min())
            self.smallest_over_budget = min(self.smallest_over_budget or smallest, smallest)
        return np.flatnonzero(possible & (bytes_ <= self._budget_bytes))

    def _bytes(self, form: Form, env: Mapping[str, Ints]) -> Ints:
        return tensor_bytes(self.kernel_type, self.pattern, form, env)

    def _edges(self, legal: Array) -> Array:
        """Returns the points whose first free axis is at a tile's edge or next to one, each for another shape."""
        if not self.free or not len(legal):
            return np.empty(0, dtype=np.int64)
        sizes = self._of_point[self.free[0].name][legal % self._points]
        shapes = legal // self._points
        found = []
        wanted = [tile + offset for tile in TILES for offset in OFFSETS]
        for i, size in enumerate(wanted):
            at = np.flatnonzero(sizes == size)
            own = at[shapes[at] == i % len(self.shapes)]
            found += [int((own if len(own) else at)[0])] if len(at) else []
        return np.array(found, dtype=np.int64)


def pattern_row(kernel_type: str, pattern: Pattern, form: Form, sizes: Mapping[str, int]) -> TheoryRow:
    """Returns the row of a pattern with some sizes of its axes, whether or not the conditions of the pattern hold.

    Raises:
        OpAtlasError: the size of a dtype is not known.
    """
    env = dict[str, Ints](sizes)
    cells = {name: str(cell) for name, cell in pattern_columns(pattern, form, env).items()}
    return TheoryRow(kernel_type, cells, int(tensor_bytes(kernel_type, pattern, form, env)))


def call_cells(
    kernel_type: str, pattern: str, sizes: Mapping[str, int], *, dtype: str, nz: bool = False
) -> Mapping[str, str]:
    """Returns the cells of the row of a call by a pattern of the catalog.

    Args:
        sizes: the axes of the pattern, such as `m`, `n` and `k`.
        dtype: of an input.
        nz: whether the weight is in FRACTAL_NZ, as only NPUs have it; else all tensors are in ND.

    Raises:
        OpAtlasError: the pattern has no form with this dtype.
    """
    found = built_in_catalog().kernel(kernel_type).pattern(pattern)
    forms = [form for form in found.forms if dtype in form.input_dtypes and (not nz or NZ in form.input_formats)]
    if not forms:
        raise OpAtlasError(f"{kernel_type}: the catalog has no call with {dtype}{f' and {NZ}' if nz else ''}")
    return pattern_row(kernel_type, found, forms[0] if nz else forms[0].in_nd(), sizes).cells


def pattern_columns(pattern: Pattern, form: Form, env: dict[str, Ints]) -> dict[str, Cells]:
    """Returns the cells of one row, or of many, by the sizes of the axes: numbers, or arrays of numbers."""
    _complete(pattern, env)
    columns: list[Cells] = [form.op_state, form.core]
    for templates, dtypes, formats in _slots_of(pattern, form):
        slots = [_dims(*slot, env) for slot in zip(templates, dtypes, formats, strict=True)]
        columns.append(_shapes_cell(slots))
        columns.append(";".join((f"DT_{name}" if name in _PREFIXED else name) or "DT_UNDEFINED" for name in dtypes))
        columns.append(";".join(name or "NULL" for name in formats))
    return {**dict(zip(BASE, columns, strict=True)), **{name: _cell(cell, env) for name, cell in pattern.cells.items()}}


def tensor_bytes(kernel_type: str, pattern: Pattern, form: Form, env: Mapping[str, Ints]) -> Ints:
    """Returns the bytes of all tensors. `env` has the sizes of the axes and those that the pattern computes.

    Raises:
        OpAtlasError: a dtype is unknown. With a guessed size, rows that do not fit could pass.
    """
    total: Ints = 0
    for templates, dtypes, _ in _slots_of(pattern, form):
        for template, dtype in zip(templates, dtypes, strict=True):
            if template is None:
                continue
            known = known_dtype(dtype)
            if known is None:
                raise OpAtlasError(f"a theory row of {kernel_type} has the unknown dtype {dtype!r}: correct it")
            size: Ints = known.bytes
            for dim in template:
                size = size * dim.value(env)
            total = total + size
    return total


def _complete(pattern: Pattern, env: dict[str, Ints]) -> dict[str, Ints]:
    """Adds the variables that the pattern computes."""
    for name, expression in pattern.let.items():
        env[name] = expression.value(env)
    return env


def _is_possible(pattern: Pattern, form: Form, env: Mapping[str, Ints]) -> Ints:
    """Returns whether the conditions hold, dimensions are above 0, and blocks of FRACTAL_NZ divide the matrices."""
    holds: Ints = np.True_
    for condition in pattern.where:
        holds = holds & condition.value(env)
    for templates, dtypes, formats in _slots_of(pattern, form):
        for template, dtype, name in zip(templates, dtypes, formats, strict=True):
            for dim in template or ():
                holds = holds & (dim.value(env) > 0)
            if template and name == NZ:
                rows, columns = nz_block(dtype)
                holds = holds & (template[-2].value(env) % rows == 0) & (template[-1].value(env) % columns == 0)
    return holds


def _slots_of(pattern: Pattern, form: Form) -> Iterable[tuple[tuple[Template, ...], tuple[str, ...], tuple[str, ...]]]:
    yield pattern.inputs, form.input_dtypes, form.input_formats
    yield pattern.outputs, form.output_dtypes, form.output_formats


def _dims(template: Template, dtype: str, name: str, env: Mapping[str, Ints]) -> tuple[Ints, ...]:
    """Returns the dimensions of a slot as stored; none for an absent slot and for a scalar."""
    dims = tuple(dim.value(env) for dim in template or ())
    if name == NZ and dims:
        rows, columns = nz_block(dtype)
        return (*dims[:-2], dims[-1] // columns, dims[-2] // rows, rows, columns)
    return dims


def _shapes_cell(slots: Sequence[tuple[Ints, ...]]) -> Cells:
    """Returns `136,7168;7168,3584`, or a list of such texts where a dimension is an array."""
    pieces: list[Any] = []
    known: dict[int, pa.LargeStringArray] = {}
    text = ""
    for i, dims in enumerate(slots):
        text += ";" if i else ""
        for j, dim in enumerate(dims):
            text += "," if j else ""
            if not isinstance(dim, np.ndarray):
                text += str(dim)
                continue
            if id(dim) not in known:
                known[id(dim)] = pa.array(dim).cast(_TEXT)
            pieces += [pa.scalar(text, type=_TEXT), known[id(dim)]]
            text = ""
    if not pieces:
        return text
    joined = pc.binary_join_element_wise(*pieces, pa.scalar(text, type=_TEXT), pa.scalar("", type=_TEXT))
    cells: list[str] = joined.to_pylist()
    return cells


def _cell(value: str | Expression | Lengths, env: Mapping[str, Ints]) -> Cells:
    if isinstance(value, str):
        return value
    if isinstance(value, Expression):
        number = value.value(env)
        return number if isinstance(number, np.ndarray) else str(number)
    count, each = value.count.value(env), value.each.value(env)
    if not isinstance(count, np.ndarray) and not isinstance(each, np.ndarray):
        return value.text(count, each)
    pairs, where = np.unique(np.stack(np.broadcast_arrays(count, each)), axis=1, return_inverse=True)
    texts = [value.text(int(n), int(length)) for n, length in pairs.T]
    return [texts[i] for i in where.ravel()]


def _column(cells: Cells, count: int) -> list[str]:
    if isinstance(cells, str):
        return [cells] * count
    return list(map(str, cells.tolist())) if isinstance(cells, np.ndarray) else cells
