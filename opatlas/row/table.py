"""The rows of a kernel type: their cells as text, and typed columns, which are computed when they are first needed.

A cell keeps its exact text. What a cell means (a duration, a status, a tensor) is decided here and in the files that
this one imports, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from opatlas.row import columns as col
from opatlas.row.communication import RowKind, is_communication, row_kind
from opatlas.row.quality import Duration, Durations, Floats, Quality, Source, is_composition, valid_duration
from opatlas.row.roofline import row_sizes
from opatlas.row.signature import make_case_id, signatures_of
from opatlas.row.slots import SHAPES_OF, Slot, normal_words, row_slots, strip_quotes
from opatlas.row.status import Status
from opatlas.text import parse_real, parse_whole

if TYPE_CHECKING:
    import pandas as pd

_Cells = TypeVar("_Cells", bound=Hashable)
_Meaning = TypeVar("_Meaning")

_OF_CALL = frozenset({*col.BASE, *col.RUNTIME, *col.MESSAGE})
#: The line of the first row of a CSV; the header is line 1.
FIRST_LINE = 2


class RowTable:
    """The rows of one kernel type.

    Attributes:
        kernel_type: the kernel type.
        path: the CSV.
        columns: the names of the columns, in the order of the file.
    """

    def __init__(self, kernel_type: str, path: Path, cells: pd.DataFrame | pa.Table) -> None:
        """`cells` is a table of Arrow or pandas that holds text only."""
        self.kernel_type = kernel_type
        self.path = path
        #: The cells as a table of Arrow.
        self.arrow: Any = cells if isinstance(cells, pa.Table) else _arrow(cells)
        self.columns: list[str] = list(self.arrow.column_names)
        self._cells: dict[str, list[str]] = {}
        self._numbers: dict[str, Floats] = {}
        self._words: dict[str, list[tuple[str, ...]]] = {}

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The cells as a table of pandas, which takes most of the time of a short command."""
        return self.arrow.to_pandas()

    def rows(self, positions: Sequence[int] | None = None) -> Iterator[dict[str, str]]:
        """Yields the cells of some rows, or of all, by column."""
        part = self.arrow if positions is None else self.arrow.take(position_array(positions))
        columns = [column.to_pylist() for column in part.columns]
        for row in zip(*columns, strict=True) if columns else [()] * len(self):
            yield dict(zip(self.columns, row, strict=True))

    def without(self, positions: Collection[int]) -> RowTable:
        """Returns the table without some rows."""
        kept = [position for position in range(len(self)) if position not in positions]
        return RowTable(self.kernel_type, self.path, self.arrow.take(position_array(kept)))

    def identities(self) -> list[Mapping[str, str]]:
        """Returns the rows without durations, replayed or captured, and without statuses; each signature once."""
        kind = self.kind
        measured = {*kind.duration_columns, *col.POOLED}
        kept = [
            name
            for name in self.columns
            if not (name in measured or kind.is_measured(name) or col.is_profiling_column(name))
        ]
        return [{name: row[name] for name in kept} for row in self.rows(list(self.by_signature.values()))]

    def with_captured(self, captured: RowTable) -> RowTable:
        """Returns the rows with the captured durations that another table has for them."""
        first = captured.by_signature
        columns = {name: self.cells(name) for name in self.columns if not col.is_profiling_column(name)}
        for name in filter(col.is_profiling_column, captured.columns):
            theirs = captured.cells(name)
            columns[name] = [theirs[first[each]] if each in first else "" for each in self.signatures]
        arrays = {name: pa.array(cells, type=pa.string()) for name, cells in columns.items()}
        return RowTable(self.kernel_type, self.path, pa.table(arrays))

    def without_derived(self) -> RowTable:
        """Returns the table without all that was computed from it: it takes less memory until that is asked again."""
        return RowTable(self.kernel_type, self.path, self.arrow)

    @property
    def kind(self) -> RowKind:
        """Rows of a kernel, or messages of a collective."""
        return row_kind(self.kernel_type)

    def cells(self, column: str) -> list[str]:
        """Returns the cells of a column, which must not be changed; empty cells if the file lacks the column."""
        found = self._cells.get(column)
        if found is None:
            if column not in self.columns:
                return self._nothing
            found = self._cells[column] = _shared(self.arrow.column(column).to_pylist())
        return found

    @cached_property
    def _nothing(self) -> list[str]:
        """The cells of any column that the file lacks."""
        return [""] * len(self)

    def numbers(self, column: str) -> Floats:
        """Returns the numbers of a column; NaN for a cell that is not a finite number, and for a missing column."""
        if column not in self._numbers:
            values = [parse_real(cell) if cell else None for cell in self.cells(column)]
            found = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
            self._numbers[column] = np.where(np.isfinite(found), found, np.nan)
        return self._numbers[column]

    def durations_us(self, column: str) -> Floats:
        """Returns the durations of a column in microseconds; NaN for a cell that is no valid duration."""
        values = [valid_duration(cell) if cell else None for cell in self.cells(column)]
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    def words(self, column: str) -> list[tuple[str, ...]]:
        """Returns the words of each cell of a column: those of equal cells are equal, however they are written."""
        if column not in self._words:
            names = dict.fromkeys((column, SHAPES_OF.get(column, column)))
            rows = zip(*map(self.cells, names), strict=True)
            self._words[column] = [
                normal_words(self.kernel_type, column, dict(zip(names, row, strict=True))) for row in rows
            ]
        return self._words[column]

    @cached_property
    def call_cells(self) -> Mapping[str, list[str]]:
        """The columns that describe the call of a row: its tensors, its lengths, its message."""
        return {name: self.cells(name) for name in self.columns if name in _OF_CALL}

    @cached_property
    def signatures(self) -> list[str]:
        """The signature of each row."""
        return signatures_of(self.kernel_type, self.columns, self.cells)

    @cached_property
    def by_signature(self) -> Mapping[str, int]:
        """The position of the first row of each signature, which replays and ingests fill, in the order of the rows."""
        found: dict[str, int] = {}
        for i, signature in enumerate(self.signatures):
            found.setdefault(signature, i)
        return found

    @cached_property
    def replayed(self) -> Durations:
        """The durations that replays measured."""
        return self._replayed(self.kind.duration_columns[0])

    def _replayed(self, column: str) -> Durations:
        kind = self.kind
        none = np.full(len(self), np.nan)
        us, least_us = self.durations_us(column), self.durations_us(col.MICROBENCH_MIN)
        std_us = _not_negative(self.numbers(col.MICROBENCH_STD))
        if kind.is_message:
            # Its duration is a median, which the stall of a rank in one sample does not move.
            std_us = np.where(std_us > us - least_us, us - least_us, std_us)
        return Durations(
            Source.REPLAYED,
            us,
            none if kind.is_message else self.durations_us(col.MICROBENCH_MEDIAN),
            least_us,
            std_us,
            self.numbers(col.MICROBENCH_SAMPLES),
            _each(Quality.from_cell, self.cells(col.QUALITY)),
            _each(_composed, zip(self.cells(col.QUALITY), self.cells(col.STAND_IN), strict=True)),
            self.cells(col.RUN_ID),
            self.cells(col.CACHE_STATE),
            self.cells(col.INSTRUMENT),
        )

    @cached_property
    def captured(self) -> Durations:
        """The durations that captures measured."""
        return Durations(
            Source.CAPTURED,
            self.durations_us(col.PROFILING_AVERAGE),
            self.durations_us(col.PROFILING_MEDIAN),
            np.full(len(self), np.nan),
            _not_negative(self.numbers(col.PROFILING_STD)),
            self.numbers(col.PROFILING_SAMPLES),
            [Quality.BIMODAL if cell.strip() else None for cell in self.cells(col.PROFILING_POPULATIONS)],
            [False] * len(self),
            self.cells(col.PROFILING_RUN_ID),
            self._nothing,
            self._nothing,
        )

    @property
    def captured_time_us(self) -> float | None:
        """The device time of all captured launches; None if a captured duration lacks the number of its launches."""
        captured = self.captured
        times = (captured.us * captured.samples)[captured.known].tolist()
        return None if any(map(math.isnan, times)) else sum(times)

    @cached_property
    def durations(self) -> Sequence[Durations]:
        """All durations, in the order in which they answer: replayed, for a message that of other tools, captured."""
        others = [self._replayed(col.AVERAGE)] if self.kind.is_message else []
        return [self.replayed, *others, self.captured]

    @cached_property
    def machines(self) -> list[tuple[int | None, float | None]]:
        """The number of machines that replayed each row, and their spread as a share; None if the row does not say.

        The pooled cells of a row whose duration was replaced since do not count.
        """
        columns = (col.RUN_ID, col.POOLED_RUN_DURATIONS, col.POOLED_MACHINES, col.POOLED_SPREAD)
        return [
            (parse_whole(count), _share(percent)) if run_id and run_id in runs else (None, None)
            for run_id, runs, count, percent in zip(*map(self.cells, columns), strict=True)
        ]

    @cached_property
    def statuses(self) -> list[Status | None]:
        """The result of the last run of each row; None for a row that never ran."""
        return _each(Status.from_cell, self.cells(col.STATUS))

    @cached_property
    def titles(self) -> list[str]:
        """The name of each row for people: its input shapes, or its message."""
        if not is_communication(self.kernel_type):
            return [strip_quotes(cell) for cell in self.cells(col.INPUT_SHAPES)]
        messages = zip(
            *map(self.cells, (col.MESSAGE_BYTES, col.NUM_DEVICES, col.DTYPE, col.TOPOLOGY_TIER)), strict=True
        )
        return [f"{size} bytes, {devices} devices, {dtype}, tier {tier}" for size, devices, dtype, tier in messages]

    def row(self, position: int) -> Row:
        """Returns the row at a position, from 0."""
        return Row(self, position)

    def __iter__(self) -> Iterator[Row]:
        return (Row(self, position) for position in range(len(self)))


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table: nothing is copied."""

    table: RowTable
    position: int

    @property
    def kernel_type(self) -> str:
        return self.table.kernel_type

    @property
    def cells(self) -> dict[str, str]:
        """All cells by column."""
        return {name: self.table.cells(name)[self.position] for name in self.table.columns}

    def cell(self, column: str) -> str:
        """Returns a cell without blanks around it; "" if the file lacks the column."""
        return self.table.cells(column)[self.position].strip()

    @property
    def signature(self) -> str:
        return self.table.signatures[self.position]

    @property
    def case_id(self) -> str:
        """The id of the row, as pytest has it."""
        return make_case_id(self.kernel_type, self.signature)

    @property
    def place(self) -> str:
        """`MatMulV2.csv:457`."""
        return f"{self.table.path.name}:{self.position + FIRST_LINE}"

    @property
    def tensors(self) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
        """The input and the output tensors. Raises CellError."""
        return row_slots(self.kernel_type, self._call_cells)

    @property
    def sizes(self) -> dict[str, object]:
        """The sizes of the row by the names of the field (`row_sizes`)."""
        return row_sizes(self.kernel_type, self._call_cells)

    @property
    def _call_cells(self) -> dict[str, str]:
        return {name: cells[self.position] for name, cells in self.table.call_cells.items()}

    @property
    def replayed(self) -> Duration | None:
        """The duration of a replay."""
        return self.table.replayed[self.position]

    @property
    def captured(self) -> Duration | None:
        """The duration of captures."""
        return self.table.captured[self.position]

    @property
    def status(self) -> Status | None:
        """The result of the last run; None if the row never ran."""
        return self.table.statuses[self.position]

    @property
    def crashes(self) -> int:
        """The number of consecutive sessions in which the row crashed or timed out."""
        return parse_whole(self.cell(col.CRASHES_IN_A_ROW)) or 0


def position_array(positions: Sequence[int]) -> Any:
    """Returns positions as an array of Arrow. `pa.array` would import pandas."""
    return pa.Array.from_buffers(pa.int64(), len(positions), [None, pa.py_buffer(np.array(positions, np.int64))])


def _arrow(frame: pd.DataFrame) -> Any:
    return pa.table({str(name): pa.array(frame[name].tolist(), type=pa.string()) for name in frame.columns})


def _shared(cells: list[str]) -> list[str]:
    """Returns the cells with one object for equal cells: most columns repeat a few words."""
    known: dict[str, str] = {}
    return list(map(known.setdefault, cells, cells))


def _each(meaning: Callable[[_Cells], _Meaning], cells: Iterable[_Cells]) -> list[_Meaning]:
    """Returns the meaning of each cell; most columns repeat a few words."""
    known = cache(meaning)
    return list(map(known, cells))


def _composed(cells: tuple[str, str]) -> bool | None:
    """Returns whether a replay timed a composition; None for a row with neither cell."""
    quality, stand_in = cells
    return is_composition(quality, stand_in) if quality.strip() or stand_in.strip() else None


def _not_negative(numbers: Floats) -> Floats:
    return np.where(numbers >= 0, numbers, np.nan)


def _share(percent: str) -> float | None:
    """Returns a cell in percent as a share; None unless it is a finite number of at least 0."""
    value = parse_real(percent)
    return value / 100 if value is not None and 0 <= value < np.inf else None
