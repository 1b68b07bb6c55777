"""Groups the launches of one capture by their cells, and counts all rows.

Blocks are grouped by their dictionary codes, without a Python object for each launch. Of a launch only the duration
is kept: 8 bytes (12 while its file is read), for the exact median.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from opatlas.capture.capture_reader import TYPE, Capture, Chunk
from opatlas.errors import CellError
from opatlas.row.columns import (
    ACCELERATOR_CORE,
    ATTENTION_TYPES,
    BASE,
    INPUT_SHAPES,
    INPUT_SLOTS,
    OP_STATE,
    OUTPUT_SHAPES,
    OUTPUT_SLOTS,
    RUNTIME_PREFIX,
    is_file_name,
)
from opatlas.row.communication import BY_KERNEL_TYPE, is_communication
from opatlas.row.quality import LONGEST_US
from opatlas.row.signature import normalized_kernel_type, signature
from opatlas.row.slots import EMPTY_WORDS, slot_words, split_cell, strip_quotes, unknown_dtypes
from opatlas.text import parse_real, parse_whole, printable

#: Characters of an invalid cell in a message.
_SHOWN = 200
#: The columns that group the launches of a block. Not OP State: the same kernel is `static` or `dynamic` depending on
#: its compilation, and the contract groups both.
_KEY = (TYPE, ACCELERATOR_CORE, *INPUT_SLOTS, *OUTPUT_SLOTS)
#: Problems of a file that are reported with their lines.
_PROBLEMS_NAMED = 100
_CORRECT = "correct the cell, then ingest all captures of the database again, with --replace"
#: Cores on which collectives run, in older captures under names such as `allReduce`.
_COLLECTIVE_CORES = frozenset({"HCCL", "COMMUNICATION"})
SOURCE_PROFILE = RUNTIME_PREFIX + "source_profile"
COMPLETENESS = RUNTIME_PREFIX + "metadata_completeness"
#: The input slots of attention, of 31, whose shapes describe the batch.
_SHAPE_SLOTS = {
    RUNTIME_PREFIX + "actual_seq_lengths_shape": 5,
    RUNTIME_PREFIX + "actual_seq_lengths_kv_shape": 6,
    RUNTIME_PREFIX + "block_table_shape": 14,
}
#: Files of a profiler beside an attention capture, which its source names too.
_BESIDE = ("operator_details.csv", "trace_view.json")


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
        without_duration: file, line and text of the first duration of each file that is empty, N/A or zero, and of the
            first that is too long.
        shapeless: launches without input shapes or kernel type, which are left out, by the profiler's kernel type.
        shapeless_us, ingested_us: device time of these launches, and of the ingested ones.
    """

    rows: int = 0
    ingested: int = 0
    left_out: Counter[SkipReason] = field(default_factory=Counter)
    unknown_dtypes: Counter[str] = field(default_factory=Counter)
    without_duration: list[tuple[SkipReason, str]] = field(default_factory=list)
    shapeless: Counter[str] = field(default_factory=Counter)
    shapeless_us: Counter[str] = field(default_factory=Counter)
    ingested_us: float = 0.0


@dataclass(frozen=True)
class _Kind:
    """What launches with identical cells have in common; `left_out`: why they do not count, None if they do."""

    kernel_type: str
    signature: str
    cells: Mapping[str, str]
    left_out: SkipReason | None
    unknown_dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CasePart:
    """The launches of a signature with identical cells in one file, or those of a signature in one ingest.

    Attributes:
        cells: the base columns, and the Runtime columns that follow from the shapes of an attention kernel.
        durations_us: the durations in the order launched.
        counters: the names of counters, for each the sum over the launches that have it, and their number.
        sources: the names of the captures of an attention kernel.
        run_id: the ingest; "" for a file.
    """

    cells: Mapping[str, str]
    durations_us: np.ndarray
    counters: tuple[Sequence[str], np.ndarray, np.ndarray]
    sources: Sequence[str]
    run_id: str = ""


class CaptureLaunches:
    """The launches of one capture, grouped by their cells."""

    def __init__(self, capture: Capture, root: Path | None, on_block: Callable[[int], None]) -> None:
        self.path = capture.path
        self.source = _source_name(capture.path, root or capture.path)
        self.account = LaunchCounts()
        self.kinds: list[_Kind] = []
        self._header = capture.header
        self._problems: list[tuple[int, str]] = []
        self._more_problems = 0
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
        self._starts = np.searchsorted(which[order], np.arange(len(self.kinds) + 1))
        self._numbers, self._which, self._durations = {}, [], []

    @property
    def problems(self) -> list[str]:
        """The problems of rows of the capture, in the order of their lines."""
        more = [f"{self.path}: {self._more_problems:,} more problems of rows"] if self._more_problems else []
        return [*(problem for _, problem in sorted(self._problems)), *more]

    def accepted(self) -> Iterator[tuple[str, str, CasePart]]:
        """Yields the groups of launches that count, each with its kernel type and signature."""
        for number in np.flatnonzero(np.diff(self._starts)).tolist():
            kind = self.kinds[number]
            durations_us = self._durations_us[self._starts[number] : self._starts[number + 1]]
            counters = (self._header.counters, self._sums[:, number], self._counts[:, number])
            sources = (self.source,) if kind.kernel_type in ATTENTION_TYPES else ()
            yield kind.kernel_type, kind.signature, CasePart(kind.cells, durations_us, counters, sources)

    def _add(self, chunk: Chunk) -> None:
        groups, first = _group([chunk.text[column] for column in _KEY if column in chunk.text], chunk.rows)
        numbers = self._numbers_of(chunk, groups, first)
        kinds = [self.kinds[number] for number in numbers.tolist()]
        valid = (chunk.duration_us > 0) & (chunk.duration_us <= LONGEST_US)
        accepted = np.array([kind.left_out is None for kind in kinds], dtype=bool)[groups]
        self._add_invalid(chunk, accepted & ~valid)
        times_us = np.bincount(groups, weights=np.where(valid, chunk.duration_us, 0.0), minlength=len(first))
        for kind, time_us, size in zip(kinds, times_us.tolist(), np.bincount(groups).tolist(), strict=True):
            if kind.left_out is None:
                self.account.ingested_us += time_us
            elif kind.left_out in _SHAPELESS and any(kind.cells.values()):
                name = kind.kernel_type or "(no kernel type)"
                self.account.shapeless[name] += size
                self.account.shapeless_us[name] += time_us
        accepted &= valid
        self.account.ingested += int(np.count_nonzero(accepted))
        self._which.append(numbers[groups][accepted])
        self._durations.append(chunk.duration_us[accepted])
        self._add_counters(chunk, groups, len(first), numbers, accepted)
        for bad in chunk.malformed:
            included = f", an open quote includes {bad.lines - 1} more line(s)" if bad.lines > 1 else ""
            fields = f"{bad.fields} fields where the header has {len(self._header.names)} columns{included}"
            is_text = bad.fields is not None
            self._report(bad.line, fields if is_text else "not UTF-8", "" if is_text else "save the file as UTF-8")
            self.account.rows += bad.lines
            self.account.left_out[SkipReason.MALFORMED] += bad.lines

    def _add_invalid(self, chunk: Chunk, invalid: np.ndarray) -> None:
        """Counts rows with an invalid duration; reports durations with text, and the first empty or zero one."""
        named = {reason for reason, _ in self.account.without_duration}
        for row in np.flatnonzero(invalid).tolist():
            text = chunk.duration_text(row)
            too_long = LONGEST_US < chunk.duration_us[row] < np.inf
            reason = SkipReason.IMPOSSIBLE_DURATION if too_long else SkipReason.INVALID_DURATION
            self.account.left_out[reason] += 1
            if not too_long and text.upper() not in EMPTY_WORDS and parse_real(text) != 0:
                problem = f"column {self._header.duration!r} is {text[:_SHOWN]!r}, not a number of microseconds above 0"
                self._report(chunk.line_of(row), problem, _CORRECT)
            elif reason not in named:
                named.add(reason)
                self.account.without_duration.append((reason, f"{self.path}:{chunk.line_of(row)}: {text!r}"))

    def _numbers_of(self, chunk: Chunk, groups: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Returns the number in `kinds` of each group of a chunk. Counts the rows left out."""
        sizes = np.bincount(groups, minlength=len(first)).tolist()
        columns = [_words_at(chunk.text.get(column), first) for column in _KEY]
        states = _words_at(chunk.text.get(OP_STATE), first)
        numbers = np.empty(len(first), dtype=np.int32)
        for group, key in enumerate(zip(*columns, strict=True)):
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self.kinds)
                self.kinds.append(self._kind(key, states[group], chunk.line_of(int(first[group]))))
            numbers[group] = number
            kind, size = self.kinds[number], sizes[group]
            if not any(key):
                # A blank line is not a row of the capture.
                size = sum(bool(chunk.duration_text(row)) for row in np.flatnonzero(groups == group).tolist())
            self.account.rows += size
            if kind.left_out is not None:
                self.account.left_out[kind.left_out] += size
            self.account.unknown_dtypes.update(dict.fromkeys(kind.unknown_dtypes, size))
        return numbers

    def _kind(self, key: tuple[str, ...], state: str, line: int) -> _Kind:
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
            return _Kind(kernel_type, "", cells, reason)
        name, unknown = signature(kernel_type, cells), unknown_dtypes(cells)
        return _Kind(kernel_type, name, {**cells, **_shape_cells(kernel_type, cells)}, None, unknown)

    def _add_counters(
        self, chunk: Chunk, groups: np.ndarray, count: int, numbers: np.ndarray, accepted: np.ndarray
    ) -> None:
        short = len(self.kinds) - self._sums.shape[1]
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

    def _report(self, line: int, problem: str, remedy: str = "") -> None:
        if len(self._problems) < _PROBLEMS_NAMED:
            self._problems.append((line, f"{self.path}:{line}: {problem}: left out{remedy and f'; {remedy}'}"))
        else:
            self._more_problems += 1


def source_cell(names: Sequence[str]) -> str:
    """Returns the cell that names the captures of a row: the first ones, and how many more there are."""
    more = len(names) - 3
    return "; ".join(names[:3]) + (f"; and {more} more" if more > 0 else "")


def _source_name(capture: Path, root: Path) -> str:
    """Returns `rank_0/kernel_details.csv + trace_view.json`, from the last folder of `root` downwards.

    So the database holds no path of the machine that ran the ingest.
    """
    root, resolved = root.resolve(), capture.resolve()
    above = root.parent if root.is_dir() else root.parent.parent
    inside = resolved.is_relative_to(above)
    relative = resolved.relative_to(above) if inside else Path(resolved.parent.name, resolved.name)
    beside = [name for name in _BESIDE if capture.with_name(name).is_file()]
    return " + ".join([printable(relative.as_posix()), *beside])


def _shape_cells(kernel_type: str, cells: Mapping[str, str]) -> dict[str, str]:
    """Returns the Runtime cells that follow from the shapes of an attention kernel; none for other kernels."""
    if kernel_type not in ATTENTION_TYPES:
        return {}
    shapes = split_cell(cells[INPUT_SHAPES])
    found = {column: shapes[slot] if slot < len(shapes) else "" for column, slot in _SHAPE_SLOTS.items()}
    return {**found, COMPLETENESS: "shapes-only" if any(found.values()) else "none"}


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
