"""Groups the launches of one capture by their cells, and counts all rows.

Blocks are grouped by their dictionary codes, without a Python object for each launch. Of a launch only the duration
is kept: 8 bytes (12 while its file is read), for the exact median.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

import numpy as np
import pyarrow as pa

from opatlas.capture.capture_reader import TYPE, Capture, Chunk
from opatlas.errors import CellError
from opatlas.row.columns import (
    ACCELERATOR_CORE,
    BASE,
    INPUT_SHAPES,
    INPUT_SLOTS,
    OP_STATE,
    OUTPUT_SHAPES,
    OUTPUT_SLOTS,
    is_file_name,
)
from opatlas.row.communication import BY_KERNEL_TYPE, is_communication
from opatlas.row.quality import LONGEST_US
from opatlas.row.signature import normalized_kernel_type, signature
from opatlas.row.slots import EMPTY_WORDS, slot_words, split_cell, strip_quotes, unknown_dtypes
from opatlas.text import parse_real, parse_whole

#: Characters of an invalid cell in a message.
_SHOWN = 200
#: The columns that group the launches of a block. Not OP State: the same kernel is `static` or `dynamic` depending on
#: its compilation, and the contract groups both.
_KEY = (TYPE, ACCELERATOR_CORE, *INPUT_SLOTS, *OUTPUT_SLOTS)
#: Invalid durations of a file that are reported with their lines.
_DURATIONS_NAMED = 100
_CORRECT = "correct the cell, then ingest all captures of the database again, with --replace"
_ONE_COMMA = re.compile("[0-9]+,[0-9]+")
_COLLECTIVE_CORES = frozenset({"HCCL", "COMMUNICATION"})


class SkipReason(Enum):
    """Why a launch is not in the database."""

    COLLECTIVE = "collectives (hcom_*), which opatlas collectives measures"
    OTHER_COLLECTIVE = "communication that opatlas collectives does not measure"
    NO_INPUT_SHAPES = "no input shapes (N/A)"
    NO_KERNEL_TYPE = "kernel type not recorded"
    INVALID_DURATION = "duration not a number above zero"
    IMPOSSIBLE_DURATION = "duration of more than an hour, which no launch takes (a counter that wrapped)"
    MALFORMED = "malformed rows"
    BAD_DIMENSION = "a dimension that is no whole number"
    BAD_KERNEL_TYPE = "a kernel type that cannot name a file"


_SHAPELESS = (SkipReason.NO_INPUT_SHAPES, SkipReason.NO_KERNEL_TYPE)


@dataclass
class LaunchCounts:
    """The rows of captures: `rows` is `ingested` plus all of `left_out`.

    Attributes:
        invalid_durations: file, line and text of the first duration of each file that is empty, N/A or zero.
        impossible_durations: the same of the first that is too long.
        shapeless: launches without input shapes or kernel type, which are left out, by the profiler's kernel type.
        shapeless_us, ingested_us: device time of these launches, and of the ingested ones.
    """

    rows: int = 0
    ingested: int = 0
    left_out: Counter[SkipReason] = field(default_factory=Counter)
    unknown_dtypes: Counter[str] = field(default_factory=Counter)
    invalid_durations: list[str] = field(default_factory=list)
    impossible_durations: list[str] = field(default_factory=list)
    shapeless: Counter[str] = field(default_factory=Counter)
    shapeless_us: Counter[str] = field(default_factory=Counter)
    ingested_us: float = 0.0


@dataclass(frozen=True)
class LaunchGroup:
    """The launches of a file with identical cells.

    Attributes:
        left_out: why these launches do not count; None if they do.
    """

    kernel_type: str
    signature: str
    cells: Mapping[str, str]
    left_out: SkipReason | None
    unknown_dtypes: tuple[str, ...]


class CaptureLaunches:
    """The launches of one capture, grouped by their cells."""

    def __init__(self, capture: Capture, on_block: Callable[[int], None]) -> None:
        self.path = capture.path
        self.account = LaunchCounts()
        self._header = capture.header
        self._problems: list[tuple[int, str]] = []
        self._bad_durations = 0
        self._groups: list[LaunchGroup] = []
        self._sums = np.zeros((len(self._header.counters), 256))
        self._counts = np.zeros((len(self._header.counters), 256), dtype=np.int64)
        # The numbers of groups by their cells, and each launch's group and duration, until the file is read.
        self._numbers: dict[tuple[str, ...], int] = {}
        self._which: list[np.ndarray] = [np.empty(0, dtype=np.int32)]
        self._durations: list[np.ndarray] = [np.empty(0)]
        for chunk in capture.chunks():
            self._add(chunk)
            on_block(chunk.size_bytes)
        which = np.concatenate(self._which)
        order = np.argsort(which, kind="stable")
        self._durations_us = np.concatenate(self._durations)[order]
        self._starts = np.searchsorted(which[order], np.arange(len(self._groups) + 1))
        self._numbers, self._which, self._durations = {}, [], []

    @property
    def problems(self) -> list[str]:
        """The problems of rows of the capture, in the order of their lines."""
        problems = [problem for _, problem in sorted(self._problems)]
        more = self._bad_durations - _DURATIONS_NAMED
        return [*problems, f"{self.path}: {more:,} more invalid durations: left out"] if more > 0 else problems

    def accepted(self) -> Iterator[tuple[int, LaunchGroup]]:
        """Yields the groups with launches that count, each with its number."""
        for number in np.flatnonzero(np.diff(self._starts)).tolist():
            yield number, self._groups[number]

    def cells_of(self, number: int) -> Mapping[str, str]:
        """Returns the base columns of a group."""
        return self._groups[number].cells

    def durations_of(self, number: int) -> np.ndarray:
        """Returns the durations of a group's launches in microseconds, in the order launched."""
        return self._durations_us[self._starts[number] : self._starts[number + 1]]

    def counters_of(self, number: int) -> Iterator[tuple[str, float, int]]:
        """Yields name, sum and number of launches of each counter of a group."""
        return zip(self._header.counters, self._sums[:, number].tolist(), self._counts[:, number].tolist(), strict=True)

    def _add(self, chunk: Chunk) -> None:
        groups, first = _group([chunk.text[column] for column in _KEY if column in chunk.text], chunk.rows)
        numbers, left_out = self._groups_of_chunk(chunk, groups, first)
        valid = (chunk.duration_us > 0) & (chunk.duration_us <= LONGEST_US)
        accepted = np.array([reason is None for reason in left_out], dtype=bool)[groups]
        self._add_invalid(chunk, accepted & ~valid)
        accepted &= valid
        self.account.ingested += int(np.count_nonzero(accepted))
        times_us = np.bincount(groups, weights=np.where(valid, chunk.duration_us, 0.0), minlength=len(first))
        self._add_times(times_us.tolist(), np.bincount(groups, minlength=len(first)).tolist(), numbers.tolist())
        which = numbers[groups]
        everything = bool(accepted.all())
        self._which.append(which if everything else which[accepted])
        self._durations.append(chunk.duration_us if everything else chunk.duration_us[accepted])
        self._add_counters(chunk, groups, len(first), numbers, accepted)
        self._add_malformed(chunk)

    def _add_times(self, times_us: list[float], sizes: list[int], numbers: list[int]) -> None:
        """Adds the device time of each group of a chunk to the account."""
        for time_us, size, number in zip(times_us, sizes, numbers, strict=True):
            group = self._groups[number]
            if group.left_out is None:
                self.account.ingested_us += time_us
            elif group.left_out in _SHAPELESS and any(group.cells.values()):
                name = group.kernel_type or "(no kernel type)"
                self.account.shapeless[name] += size
                self.account.shapeless_us[name] += time_us  # type: ignore[assignment]

    def _add_invalid(self, chunk: Chunk, invalid: np.ndarray) -> None:
        """Counts rows with an invalid duration; reports durations with text, and the first empty or zero one."""
        too_long = np.flatnonzero(invalid & np.isfinite(chunk.duration_us) & (chunk.duration_us > LONGEST_US))
        self.account.left_out[SkipReason.IMPOSSIBLE_DURATION] += len(too_long)
        if len(too_long) and not self.account.impossible_durations:
            row = int(too_long[0])
            place = f"{self.path}:{chunk.line_of(row)}"
            self.account.impossible_durations.append(f"{place}: {float(chunk.duration_us[row]):,.6g} us")
        invalid[too_long] = False
        rows = np.flatnonzero(invalid)
        self.account.left_out[SkipReason.INVALID_DURATION] += len(rows)
        for row in rows.tolist():
            text = chunk.duration_text(row)
            if text.upper() not in EMPTY_WORDS and parse_real(text) != 0:
                self._bad_durations += 1
                if self._bad_durations <= _DURATIONS_NAMED:
                    self._report(chunk.line_of(row), _invalid_duration(self._header.duration, text[:_SHOWN]), _CORRECT)
            elif not self.account.invalid_durations:
                self.account.invalid_durations.append(f"{self.path}:{chunk.line_of(row)}: {text!r}")

    def _groups_of_chunk(
        self, chunk: Chunk, groups: np.ndarray, first: np.ndarray
    ) -> tuple[np.ndarray, list[SkipReason | None]]:
        """Returns number and `left_out` of the LaunchGroup of each group of a chunk. Counts the rows left out."""
        sizes = np.bincount(groups, minlength=len(first)).tolist()
        columns = [_words_at(chunk.text.get(column), first) for column in _KEY]
        states = _words_at(chunk.text.get(OP_STATE), first)
        numbers = np.empty(len(first), dtype=np.int32)
        left_out = []
        for group, key in enumerate(zip(*columns, strict=True)):
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self._groups)
                self._groups.append(self._new_group(key, states[group], chunk.line_of(int(first[group]))))
            numbers[group] = number
            reason = self._groups[number].left_out
            left_out.append(reason)
            size = sizes[group]
            if not any(key):
                # A blank line is not a row of the capture.
                size = sum(bool(chunk.duration_text(row)) for row in np.flatnonzero(groups == group).tolist())
            self.account.rows += size
            if reason is not None:
                self.account.left_out[reason] += size
            for word in self._groups[number].unknown_dtypes:
                self.account.unknown_dtypes[word] += sizes[group]
        return numbers, left_out

    def _new_group(self, key: tuple[str, ...], state: str, line: int) -> LaunchGroup:
        named = dict(zip(_KEY, key, strict=True))
        cells = {column: strip_quotes(state if column == OP_STATE else named[column]) for column in BASE}
        kernel_type = normalized_kernel_type(named[TYPE])
        reason = _reason_to_leave_out(kernel_type, cells)
        if reason is None and not is_file_name(kernel_type):
            reason = SkipReason.BAD_KERNEL_TYPE
            self._report(line, f"kernel type {kernel_type!r} cannot name a file")
        if reason is None:
            try:
                _check_dimensions(cells)
            except CellError as error:
                reason = SkipReason.BAD_DIMENSION
                self._report(line, str(error))
        if reason is not None:
            return LaunchGroup(kernel_type, "", cells, reason, ())
        return LaunchGroup(kernel_type, signature(kernel_type, cells), cells, None, unknown_dtypes(cells))

    def _add_counters(
        self, chunk: Chunk, groups: np.ndarray, count: int, numbers: np.ndarray, accepted: np.ndarray
    ) -> None:
        short = len(self._groups) - self._sums.shape[1]
        if short > 0:
            grow = ((0, 0), (0, max(short, self._sums.shape[1])))
            self._sums, self._counts = np.pad(self._sums, grow), np.pad(self._counts, grow)
        sizes = np.bincount(groups, weights=accepted, minlength=count).astype(np.int64)
        for i, name in enumerate(self._header.counters):
            values = chunk.counters[name]
            usable = accepted & np.isfinite(values)
            complete = np.array_equal(usable, accepted)
            # In a new array, because rows that do not count may have NaN.
            self._sums[i, numbers] += np.bincount(groups, weights=np.where(usable, values, 0.0), minlength=count)
            self._counts[i, numbers] += sizes if complete else np.bincount(groups[usable], minlength=count)

    def _add_malformed(self, chunk: Chunk) -> None:
        columns = len(self._header.names)
        for bad in chunk.malformed:
            included = f", an open quote includes {bad.lines - 1} more line(s)" if bad.lines > 1 else ""
            fields = f"{bad.fields} fields where the header has {columns} columns{included}"
            if bad.fields is None:
                self._report(bad.line, "not UTF-8", "save the file as UTF-8, then ingest it again")
            else:
                self._report(bad.line, fields)
            self.account.rows += bad.lines
            self.account.left_out[SkipReason.MALFORMED] += bad.lines

    def _report(self, line: int, problem: str, remedy: str = "") -> None:
        self._problems.append((line, f"{self.path}:{line}: {problem}: left out{remedy and f'; {remedy}'}"))


def is_collective(kernel_type: str, cells: Mapping[str, str]) -> bool:
    """Returns whether a launch is communication between devices; `cells` has its base columns."""
    return is_communication(kernel_type) or cells.get(ACCELERATOR_CORE, "").upper() in _COLLECTIVE_CORES


def _reason_to_leave_out(kernel_type: str, cells: Mapping[str, str]) -> SkipReason | None:
    """Returns the most specific reason why a row of a capture does not count; None if the row counts."""
    if is_collective(kernel_type, cells):
        return SkipReason.COLLECTIVE if kernel_type in BY_KERNEL_TYPE else SkipReason.OTHER_COLLECTIVE
    # The profiler writes 0 for a kernel without a known name.
    if kernel_type.upper() in EMPTY_WORDS or kernel_type.isdigit():
        return SkipReason.NO_KERNEL_TYPE
    shapes = cells[INPUT_SHAPES]
    # An empty shape with a dtype is a scalar (Abs of a scalar); N/A means not recorded.
    if (shapes and shapes.upper() in EMPTY_WORDS) or not slot_words(*(cells[column] for column in INPUT_SLOTS)):
        return SkipReason.NO_INPUT_SHAPES
    return None


def _invalid_duration(column: str, text: str) -> str:
    meant = f" ({text.replace(',', '')} or {text.replace(',', '.')}?)" if _ONE_COMMA.fullmatch(text) else ""
    return f"column {column!r} is {text!r}{meant}, not a number of microseconds above zero"


def _check_dimensions(cells: Mapping[str, str]) -> None:
    for column in (INPUT_SHAPES, OUTPUT_SHAPES):
        wrong = _invalid_dimension(cells[column])
        if wrong is not None:
            raise CellError(
                column, cells[column][:_SHOWN], f"{wrong[:_SHOWN]!r} is not a dimension (a whole number below 10^18)"
            )


@lru_cache(maxsize=4096)
def _invalid_dimension(shapes: str) -> str | None:
    """Returns the first invalid dimension of a cell; None if there is none."""
    for shape in split_cell(shapes):
        for dimension in shape.split(",") if shape else ():
            if parse_whole(dimension) is None:
                return dimension
    return None


def _group(columns: list[pa.DictionaryArray], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the group of each row, by equal cells in `columns`, and the first row of each group."""
    key = np.zeros(rows, dtype=np.int64)
    size = 1
    for column in columns:
        codes = column.indices.to_numpy(zero_copy_only=False)
        count = max(len(column.dictionary), 1)
        if size * count > 2**62:
            distinct, key = np.unique(key, return_inverse=True)
            size = len(distinct)
        key = key * count + codes
        size *= count
    _, first, groups = np.unique(key, return_index=True, return_inverse=True)
    return groups, first


def _words_at(column: pa.DictionaryArray | None, rows: np.ndarray) -> list[str]:
    """Returns the cells of some rows; "" if the capture lacks the column."""
    if column is None:
        return [""] * len(rows)
    words = column.dictionary.to_pylist()
    return [words[code] for code in column.indices.to_numpy(zero_copy_only=False)[rows].tolist()]
