"""The variables of --where: short names for the cells of a row and for values computed from the cells."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from functools import cached_property

import pandas as pd

from opatlas.errors import CellError
from opatlas.model.quality import valid_duration
from opatlas.model.roofline import tensor_bytes
from opatlas.model.schema import (
    CACHE_STATE,
    INPUT_SLOTS,
    INSTRUMENT,
    MICROBENCH_SAMPLES,
    MICROBENCH_STD,
    OUTPUT_SLOTS,
    PROFILING_AVERAGE,
    RUN_ID,
    STATUS,
    Status,
)
from opatlas.model.sizes import grouped_sizes, product_sizes
from opatlas.model.slots import Slot, parse_slots
from opatlas.store.cells import duration_columns
from opatlas.store.manifest import run_id_time
from opatlas.text import parse_real

_DAY_S = 86400.0


class VariableKind(Enum):
    """The type of a variable's values."""

    NUMBER = auto()
    TEXT = auto()
    TEXTS = auto()
    SHAPES = auto()


#: The variables by name. Any other name is the slug of a column of the CSV.
VARIABLES: Mapping[str, VariableKind] = {
    "type": VariableKind.TEXT,
    "dtype": VariableKind.TEXT,
    "dtypes": VariableKind.TEXTS,
    "format": VariableKind.TEXT,
    "formats": VariableKind.TEXTS,
    "inputs": VariableKind.SHAPES,
    "outputs": VariableKind.SHAPES,
    "m": VariableKind.NUMBER,
    "n": VariableKind.NUMBER,
    "k": VariableKind.NUMBER,
    "tokens": VariableKind.NUMBER,
    "elements": VariableKind.NUMBER,
    "bytes": VariableKind.NUMBER,
    "duration": VariableKind.NUMBER,
    "captured": VariableKind.NUMBER,
    "noise": VariableKind.NUMBER,
    "samples": VariableKind.NUMBER,
    "age_days": VariableKind.NUMBER,
    "status": VariableKind.TEXT,
    "quality": VariableKind.TEXT,
    "cache": VariableKind.TEXT,
    "instrument": VariableKind.TEXT,
    "run": VariableKind.TEXT,
}
#: The values of `status`; the first value is that of a row that was never run.
STATUSES = ("none", *(status.value for status in Status))
#: Variables that are a column under another name.
_COLUMNS = {"cache": CACHE_STATE, "instrument": INSTRUMENT, "samples": MICROBENCH_SAMPLES}


def slug_of_column(column: str) -> str:
    """`Average Duration(us)` → `average_duration_us`."""
    return re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")


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
        cell = self.cell(self._by_slug.get(slug, ""), position)
        number = parse_real(cell)
        return number if number is not None else cell or None


class RowVariables:
    """The variables of one row. A call with a name returns the value, None where the row has no value."""

    def __init__(self, kernel_type: str, table: TableVariables, position: int) -> None:
        self._kernel_type = kernel_type
        self._table = table
        self._position = position

    def __call__(self, name: str) -> object:
        if name in VARIABLES and hasattr(type(self), f"_{name}"):
            return getattr(self, f"_{name}")
        column = _COLUMNS.get(name)
        return self._table.by_slug(slug_of_column(column) if column else name, self._position)

    def _cell(self, column: str) -> str:
        return self._table.cell(column, self._position)

    @cached_property
    def _tensors(self) -> tuple[Sequence[Slot], Sequence[Slot]]:
        """The inputs and outputs; empty where one of their cells is malformed."""
        try:
            return self._slots(INPUT_SLOTS), self._slots(OUTPUT_SLOTS)
        except CellError:
            return (), ()

    def _slots(self, columns: tuple[str, str, str]) -> Sequence[Slot]:
        shapes, dtypes, formats = map(self._cell, columns)
        return parse_slots(shapes, dtypes, formats, columns)

    @property
    def _type(self) -> str:
        return self._kernel_type

    @property
    def _dtype(self) -> str | None:
        return next((slot.dtype for slot in self._tensors[0][:1] if slot.dtype), None)

    @property
    def _dtypes(self) -> tuple[str, ...]:
        return tuple(slot.dtype for slot in self._tensors[0])

    @property
    def _format(self) -> str | None:
        return next((slot.format for slot in self._tensors[0][:1] if slot.format), None)

    @property
    def _formats(self) -> tuple[str, ...]:
        return tuple(slot.format for slot in self._tensors[0])

    @property
    def _inputs(self) -> tuple[tuple[int, ...], ...]:
        return tuple(slot.shape for slot in self._tensors[0])

    @property
    def _outputs(self) -> tuple[tuple[int, ...], ...]:
        return tuple(slot.shape for slot in self._tensors[1])

    @property
    def _tokens(self) -> int | None:
        return next((slot.shape[0] for slot in self._tensors[0][:1] if slot.shape), None)

    @property
    def _elements(self) -> int | None:
        return next((math.prod(slot.shape) for slot in self._tensors[1][:1]), None)

    @property
    def _bytes(self) -> int | None:
        inputs, outputs = self._tensors
        return tensor_bytes((*inputs, *outputs)) if inputs or outputs else None

    @cached_property
    def _product(self) -> tuple[int | None, int | None, int | None]:
        """M, N and K of a product, in a batch of each; of experts with the M of all. None if the row does not tell."""
        inputs, outputs = self._tensors
        sizes = product_sizes(self._kernel_type, inputs, outputs) or grouped_sizes(self._kernel_type, inputs)
        return (None, None, None) if sizes is None else (sizes.m, sizes.n, sizes.k)

    @property
    def _m(self) -> int | None:
        return self._product[0]

    @property
    def _n(self) -> int | None:
        return self._product[1]

    @property
    def _k(self) -> int | None:
        return self._product[2]

    @property
    def _duration(self) -> float | None:
        return valid_duration(self._cell(duration_columns(self._kernel_type)[0]))

    @property
    def _captured(self) -> float | None:
        return valid_duration(self._cell(PROFILING_AVERAGE))

    @property
    def _noise(self) -> float | None:
        mean, deviation = self._duration, parse_real(self._cell(MICROBENCH_STD))
        return deviation / mean if mean and deviation is not None else None

    @property
    def _status(self) -> str:
        status = Status.from_cell(self._cell(STATUS))
        return STATUSES[0] if status is None else status.value

    @property
    def _run(self) -> str:
        return self._cell(RUN_ID) or "none"

    @property
    def _age_days(self) -> float | None:
        began = run_id_time(self._cell(RUN_ID))
        return None if began is None else (time.time() - began) / _DAY_S
