"""The names of --where: short names of typed columns of a table, and any other column by its slug."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from opatlas.arrays import Floats
from opatlas.data.manifest import run_id_time
from opatlas.errors import CellError
from opatlas.row.columns import CACHE_STATE, INSTRUMENT, QUALITY, RUN_ID
from opatlas.row.slots import Slot
from opatlas.row.status import Status
from opatlas.row.table import Row, RowTable
from opatlas.text import parse_real

_DAY_S = 86400.0

#: The values of `status`; the first value is that of a row that was never run.
STATUSES = ("none", *(status.value for status in Status))


@dataclass(frozen=True)
class Variable:
    """A variable.

    Attributes:
        values: returns the value of each row of a table, None where a row has none.
        is_text: whether values are texts, which a user may write without quotes.
    """

    values: Callable[[RowTable], Sequence[object]]
    is_text: bool = False


def values_of(table: RowTable, names: Iterable[str]) -> Mapping[str, Sequence[object]]:
    """Returns the values of some names for all rows of a table; None where a row has none."""
    by_slug = slugs(table)
    found: dict[str, Sequence[object]] = {}
    for name in names:
        if name in VARIABLES:
            found[name] = VARIABLES[name].values(table)
        else:
            found[name] = [_number_or_text(cell.strip()) for cell in table.cells(by_slug.get(name, ""))]
    return found


def slugs(table: RowTable) -> dict[str, str]:
    """Returns the columns of a table by their slugs: `average_duration_us` is `Average Duration(us)`."""
    return {re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_"): column for column in table.columns}


def _number_or_text(cell: str) -> float | str | None:
    """Returns the number in a cell, or its text; None for an empty cell."""
    number = parse_real(cell)
    return number if number is not None else cell or None


def _size(name: str, *, is_text: bool = False) -> Variable:
    """Returns a size by its name in `row_sizes`."""
    return Variable(
        lambda table: [None if size == "" else size for row in table for size in (row.sizes.get(name),)], is_text
    )


def _tensors(value: Callable[[Sequence[Slot], Sequence[Slot]], object], *, is_text: bool = False) -> Variable:
    """Returns a value of the inputs and outputs; rows with a malformed cell have no slots."""

    def of_row(row: Row) -> object:
        try:
            return value(*row.tensors)
        except CellError:
            return value((), ())

    return Variable(lambda table: [of_row(row) for row in table], is_text)


def _numbers(column: Callable[[RowTable], Floats]) -> Variable:
    return Variable(lambda table: [None if math.isnan(number) else number for number in column(table).tolist()])


def _cells(column: str, default: str | None = None) -> Variable:
    return Variable(lambda table: [cell.strip() or default for cell in table.cells(column)], is_text=True)


def _age_days(cell: str) -> float | None:
    began = run_id_time(cell.strip())
    return None if began is None else (time.time() - began) / _DAY_S


#: The variables by name. Any other name is the slug of a column of the CSV.
VARIABLES: Mapping[str, Variable] = {
    "type": Variable(lambda table: [table.kernel_type] * len(table), is_text=True),
    "dtype": _size("dtype", is_text=True),
    "dtypes": _tensors(lambda inputs, outputs: tuple(slot.dtype for slot in inputs), is_text=True),
    "format": _size("format", is_text=True),
    "formats": _tensors(lambda inputs, outputs: tuple(slot.format for slot in inputs), is_text=True),
    "inputs": _tensors(lambda inputs, outputs: tuple(slot.shape for slot in inputs)),
    "outputs": _tensors(lambda inputs, outputs: tuple(slot.shape for slot in outputs)),
    "m": _size("m"),
    "n": _size("n"),
    "k": _size("k"),
    "tokens": _tensors(lambda inputs, outputs: next((x.shape[0] for x in inputs[:1] if x.shape), None)),
    "elements": _tensors(lambda inputs, outputs: next((math.prod(x.shape) for x in outputs), None)),
    "bytes": _size("bytes"),
    "duration": _numbers(lambda table: table.replayed.us),
    "captured": _numbers(lambda table: table.captured.us),
    "noise": _numbers(lambda table: table.replayed.noise),
    "samples": _numbers(lambda table: table.replayed.samples),
    "age_days": Variable(lambda table: list(map(_age_days, table.cells(RUN_ID)))),
    "status": Variable(
        lambda table: [STATUSES[0] if status is None else status.value for status in table.statuses], is_text=True
    ),
    "quality": _cells(QUALITY),
    "cache": _cells(CACHE_STATE),
    "instrument": _cells(INSTRUMENT),
    "run": _cells(RUN_ID, "none"),
}
