"""The variables of --where: short names for the cells of a row and for values computed from the cells."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from opatlas.data.cells import duration_columns
from opatlas.data.manifest import run_id_time
from opatlas.errors import CellError
from opatlas.row.columns import (
    CACHE_STATE,
    INPUT_SLOTS,
    INSTRUMENT,
    MICROBENCH_SAMPLES,
    MICROBENCH_STD,
    OUTPUT_SLOTS,
    PROFILING_AVERAGE,
    QUALITY,
    RUN_ID,
    STATUS,
    Status,
)
from opatlas.row.quality import valid_duration
from opatlas.row.roofline import tensor_bytes
from opatlas.row.sizes import grouped_sizes, product_sizes
from opatlas.row.slots import Slot, row_slots
from opatlas.text import parse_real

_DAY_S = 86400.0


#: The values of `status`; the first value is that of a row that was never run.
STATUSES = ("none", *(status.value for status in Status))


def slug_of_column(column: str) -> str:
    """`Average Duration(us)` → `average_duration_us`."""
    return re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")


def _number_or_text(cell: str) -> float | str | None:
    """Returns the number in a cell, or its text; None for an empty cell."""
    number = parse_real(cell)
    return number if number is not None else cell or None


class TableVariables:
    """The variables of the rows of one table."""

    def __init__(self, kernel_type: str, frame: pd.DataFrame) -> None:
        self._kernel_type = kernel_type
        self._frame = frame
        self._columns: dict[str, Sequence[str]] = {}
        self._by_slug = {slug_of_column(column): column for column in frame.columns}

    @property
    def slugs(self) -> list[str]:
        """The slugs of the columns."""
        return list(self._by_slug)

    def cell(self, column: str, position: int) -> str:
        """Returns a cell without blanks around it; "" where the table lacks the column."""
        if column not in self._columns:
            self._columns[column] = self._frame[column].tolist() if column in self._frame.columns else ()
        cells = self._columns[column]
        return cells[position].strip() if cells else ""

    def row(self, position: int) -> RowVariables:
        """Returns the variables of a row."""
        return RowVariables(self._kernel_type, self, position)

    def by_slug(self, slug: str, position: int) -> float | str | None:
        """Returns a cell by the slug of its column, a number if it is one; None where it is empty or missing."""
        return _number_or_text(self.cell(self._by_slug.get(slug, ""), position))


class RowVariables:
    """The variables of one row. A call with a name returns the value, None where the row has no value."""

    def __init__(self, kernel_type: str, table: TableVariables, position: int) -> None:
        self.kernel_type = kernel_type
        self._table = table
        self._position = position

    def __call__(self, name: str) -> object:
        variable = VARIABLES.get(name)
        return self._table.by_slug(name, self._position) if variable is None else variable.value(self)

    def cell(self, column: str) -> str:
        """Returns a cell; "" where the table lacks the column."""
        return self._table.cell(column, self._position)

    @cached_property
    def tensors(self) -> tuple[Sequence[Slot], Sequence[Slot]]:
        """The inputs and outputs; empty where one of their cells is malformed."""
        try:
            cells = {column: self.cell(column) for column in (*INPUT_SLOTS, *OUTPUT_SLOTS)}
            return row_slots(self.kernel_type, cells)
        except CellError:
            return (), ()

    @property
    def inputs(self) -> Sequence[Slot]:
        """The input slots."""
        return self.tensors[0]

    @cached_property
    def product(self) -> tuple[int | None, int | None, int | None]:
        """M, N and K of a product, in a batch of each; of experts with the M of all. None if the row does not tell."""
        inputs, outputs = self.tensors
        sizes = product_sizes(self.kernel_type, inputs, outputs) or grouped_sizes(self.kernel_type, inputs)
        return (None, None, None) if sizes is None else (sizes.m, sizes.n, sizes.k)

    @property
    def duration(self) -> float | None:
        """The replayed duration."""
        return valid_duration(self.cell(duration_columns(self.kernel_type)[0]))


def _bytes(row: RowVariables) -> int | None:
    inputs, outputs = row.tensors
    return tensor_bytes((*inputs, *outputs)) if inputs or outputs else None


def _noise(row: RowVariables) -> float | None:
    mean, deviation = row.duration, parse_real(row.cell(MICROBENCH_STD))
    return deviation / mean if mean and deviation is not None else None


def _status(row: RowVariables) -> str:
    status = Status.from_cell(row.cell(STATUS))
    return STATUSES[0] if status is None else status.value


def _age_days(row: RowVariables) -> float | None:
    began = run_id_time(row.cell(RUN_ID))
    return None if began is None else (time.time() - began) / _DAY_S


@dataclass(frozen=True)
class Variable:
    """A variable.

    Attributes:
        value: returns the value of a row, None where the row has none.
        is_text: whether values are texts, which a user may write without quotes.
    """

    value: Callable[[RowVariables], object]
    is_text: bool = False


def _first(texts: Iterable[str]) -> str | None:
    return next(iter(texts), None) or None


#: The variables by name. Any other name is the slug of a column of the CSV.
VARIABLES: Mapping[str, Variable] = {
    "type": Variable(lambda row: row.kernel_type, is_text=True),
    "dtype": Variable(lambda row: _first(slot.dtype for slot in row.inputs), is_text=True),
    "dtypes": Variable(lambda row: tuple(slot.dtype for slot in row.inputs), is_text=True),
    "format": Variable(lambda row: _first(slot.format for slot in row.inputs), is_text=True),
    "formats": Variable(lambda row: tuple(slot.format for slot in row.inputs), is_text=True),
    "inputs": Variable(lambda row: tuple(slot.shape for slot in row.inputs)),
    "outputs": Variable(lambda row: tuple(slot.shape for slot in row.tensors[1])),
    "m": Variable(lambda row: row.product[0]),
    "n": Variable(lambda row: row.product[1]),
    "k": Variable(lambda row: row.product[2]),
    "tokens": Variable(lambda row: next((x.shape[0] for x in row.inputs[:1] if x.shape), None)),
    "elements": Variable(lambda row: next((math.prod(x.shape) for x in row.tensors[1]), None)),
    "bytes": Variable(_bytes),
    "duration": Variable(lambda row: row.duration),
    "captured": Variable(lambda row: valid_duration(row.cell(PROFILING_AVERAGE))),
    "noise": Variable(_noise),
    "samples": Variable(lambda row: _number_or_text(row.cell(MICROBENCH_SAMPLES))),
    "age_days": Variable(_age_days),
    "status": Variable(_status, is_text=True),
    "quality": Variable(lambda row: row.cell(QUALITY) or None, is_text=True),
    "cache": Variable(lambda row: row.cell(CACHE_STATE) or None, is_text=True),
    "instrument": Variable(lambda row: row.cell(INSTRUMENT) or None, is_text=True),
    "run": Variable(lambda row: row.cell(RUN_ID) or "none", is_text=True),
}
