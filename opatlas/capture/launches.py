"""The launches of a capture: which count, and of which cases; what does not, with its share of the device time.

Every kind of capture ends here: its reader tells each kind of launches, then their durations. Launches are kept in
arrays, without a Python object for each; of a launch only the duration is kept: 8 bytes (12 while its file is read),
for the exact median.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np

from opatlas.errors import CellError, TableError
from opatlas.formats import percent
from opatlas.row import columns as col
from opatlas.row.attention import COMPLETENESS, SHAPE_SLOTS
from opatlas.row.communication import BY_KERNEL_TYPE, is_communication
from opatlas.row.quality import LONGEST_US
from opatlas.row.signature import normalized_kernel_type, signature
from opatlas.row.slots import EMPTY_WORDS, parse_shape, slot_words, split_cell, strip_quotes, unknown_dtypes
from opatlas.text import parse_real, printable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Counts = TypeVar("Counts", bound="DataclassInstance")

#: Problems of a file that are reported with their lines.
_PROBLEMS_NAMED = 100
_LEFT_OUT = "The row is left out; correct the cell, then ingest all captures of the database again, with --replace"
#: What stands for bytes that are not UTF-8.
_UNREADABLE = "\N{REPLACEMENT CHARACTER}"
#: Cores on which collectives run, in older captures under names such as `allReduce`.
_COLLECTIVE_CORES = frozenset({"HCCL", "COMMUNICATION"})
SOURCE_PROFILE = col.RUNTIME_PREFIX + "source_profile"
#: Cells of a row whose launches come from a trace of torch.profiler.
_OF_A_TRACE = (col.PROFILING_KERNEL_NAMES, col.PROFILING_SOURCE)
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
    NO_OPERATOR = "launched by an operator that has no kernel type"
    FUSED = "several kernel types in one kernel (fused)"
    NO_LENGTHS = "attention without its lengths"
    UNKNOWN_LAYOUT = "operands or arguments that no row of the kernel type has"
    BEFORE_WINDOW = "launched before the recording"
    OUTSIDE_OPERATORS = "launched outside of all operators"
    MEMORY_COPY = "copies between host and device"
    NO_DTYPES = "no dtypes, which an export of nsys does not have"
    GRAPH = "kernels of a CUDA graph without a capture that fits"


@dataclass(frozen=True)
class DeviceTime:
    """The device events of a device in a trace, from the start of the first to the end of the last.

    Attributes:
        rank: of the process; None if it is alone.
        span_us: all of the time.
        busy_us: that in which at least one event ran.
        idle_us: that in which none ran.
    """

    file: str
    device: int
    rank: int | None
    events: int
    span_us: float
    busy_us: float
    idle_us: float


@dataclass
class LaunchCounts:
    """The launches of captures by their outcome.

    Attributes:
        launches, time_ns: number and device time, by the reason why they are left out (None: they are not), and by the
            profiler's kernel type.
        unknown_dtypes: the number of ingested launches with a dtype that OpAtlas does not know.
        without_duration: the place of the first duration of each file that is empty, N/A or zero, and of the first
            that is too long.
        devices: the busy time of each device of a trace.
        differing_ns: device time of ingested launches, by what their rows do not say of the call.
    """

    launches: Counter[tuple[SkipReason | None, str]] = field(default_factory=Counter)
    time_ns: Counter[tuple[SkipReason | None, str]] = field(default_factory=Counter)
    unknown_dtypes: Counter[str] = field(default_factory=Counter)
    without_duration: list[tuple[SkipReason, str]] = field(default_factory=list)
    devices: list[DeviceTime] = field(default_factory=list)
    differing_ns: Counter[str] = field(default_factory=Counter)

    def add(self, reason: SkipReason | None, kernel_type: str, count: int, time_us: float = 0.0) -> None:
        """Counts launches of a kernel type."""
        self.launches[reason, kernel_type] += count
        self.time_ns[reason, kernel_type] += round(time_us * 1e3)

    @property
    def rows(self) -> int:
        """All launches."""
        return self.launches.total()

    @property
    def left_out(self) -> Counter[SkipReason]:
        """The launches that are left out, by reason."""
        found: Counter[SkipReason] = Counter()
        for (reason, _), count in self.launches.items():
            if reason is not None:
                found[reason] += count
        return +found

    @property
    def ingested(self) -> int:
        """The other launches."""
        return self.rows - self.left_out.total()

    @property
    def ingested_us(self) -> float:
        """The device time of the other launches."""
        return sum(ns for (reason, _), ns in self.time_ns.items() if reason is None) / 1e3

    @property
    def time_left_out(self) -> list[tuple[SkipReason, TimeShare]]:
        """The launches that are left out by reason and kernel type, with their share of all device time."""
        total_ns = self.time_ns.total()
        found = [
            (reason, TimeShare(name, count, ns / 1e3, ns / total_ns if total_ns else None))
            for (reason, name), count in self.launches.items()
            if reason is not None and count
            for ns in (self.time_ns[reason, name],)
        ]
        return sorted(found, key=lambda each: -each[1].time_us)


def add_counts(total: Counts, part: Counts) -> None:
    """Adds the fields of `part` (numbers, lists, Counters) to those of `total`."""
    for each in fields(total):
        setattr(total, each.name, getattr(total, each.name) + getattr(part, each.name))


@dataclass(frozen=True)
class TimeShare:
    """The rows or launches of a kernel type; `share` is their share of the captured time, None if unknown."""

    kernel_type: str
    count: int
    time_us: float
    share: float | None

    def __str__(self) -> str:
        return f"{self.kernel_type} {self.count:,}" + ("" if self.share is None else f" ({percent(self.share)})")


def time_shares(counts: Mapping[str, int], time_us: Mapping[str, float | None]) -> list[TimeShare]:
    """Returns rows or launches by kernel type, the longest device time first.

    Args:
        counts: their number.
        time_us: device time of all kernel types; if it is unknown (None) for one of them, no share is known.
    """
    known = {} if None in time_us.values() else {name: us or 0.0 for name, us in time_us.items()}
    total_us = sum(known.values())
    order = sorted(counts, key=lambda name: (-known.get(name, 0.0), -counts[name], name))
    times = [known.get(name, 0.0) for name in order]
    return [
        TimeShare(name, counts[name], us, us / total_us if total_us else None)
        for name, us in zip(order, times, strict=True)
    ]


class _Kind(NamedTuple):
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


class CaptureReader(Protocol):
    """Reads the captures of a kind."""

    def __call__(self, path: Path, root: Path, on_bytes: Callable[[int], None]) -> CapturedLaunches:
        """Reads a capture.

        Args:
            root: the path that the user gave; the capture is named from its last folder on.
            on_bytes: called with the number of bytes that were read, for progress.

        Raises:
            TableError: the file cannot be read; nothing of it counts.
        """


class CapturedLaunches:
    """The launches of one capture, grouped by their cells.

    Attributes:
        counts: all launches by their outcome.
    """

    def __init__(self, path: Path, root: Path, counters: Sequence[str] = (), duration: str = "Duration(us)") -> None:
        """`counters` are the names of the counters that launches have, `duration` that of the durations."""
        self.counts = LaunchCounts()
        self._path = path
        self._source = _source_name(path, root)
        self._problems: list[tuple[int, str]] = []
        self._more_problems = 0
        self._kinds: list[_Kind] = []
        self._numbers: dict[tuple[str, ...], int] = {}
        self._counters, self._duration = counters, duration
        self._sums = np.zeros((len(counters), 256))
        self._counted = np.zeros((len(counters), 256), dtype=np.int64)
        # Of each launch that counts the number of its kind, and the duration.
        self._which: list[np.ndarray] = [np.empty(0, dtype=np.int32)]
        self._durations: list[np.ndarray] = [np.empty(0)]

    @property
    def problems(self) -> list[str]:
        """The problems of rows of the capture, in the order of their lines."""
        more = [f"{self._path}: {self._more_problems:,} more problems of rows"] if self._more_problems else []
        return [*(problem for _, problem in sorted(self._problems)), *more]

    def kind(self, kernel_type: str, cells: Mapping[str, str], line: int, state: str = "") -> int:
        """Returns the number of the kind of launches that have these cells.

        Args:
            kernel_type: the profiler's type.
            cells: the base columns without OP State, and Runtime columns that the reader knows; a missing one is empty.
            line: the line of the first of them, for a problem.
            state: the OP State of the first of them. The same kernel is `static` or `dynamic` depending on its
                compilation, and the contract groups both.
        """
        key = (kernel_type, *cells.values())
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._kinds)
            self._kinds.append(self._new_kind(kernel_type, {col.OP_STATE: state, **cells}, line))
        return number

    def add(
        self,
        kinds: np.ndarray,
        durations_us: np.ndarray,
        counters: Mapping[str, np.ndarray],
        place: Callable[[int], tuple[int, str]],
    ) -> None:
        """Adds launches.

        Args:
            kinds: the number of the kind of each.
            durations_us: NaN where there is none.
            counters: values of each counter, NaN where it is unknown.
            place: returns the line of a launch, and the text of its duration.
        """
        numbers, groups = np.unique(kinds, return_inverse=True)
        of_groups = [self._kinds[number] for number in numbers.tolist()]
        valid = (durations_us > 0) & (durations_us <= LONGEST_US)
        wanted = np.array([kind.left_out is None for kind in of_groups], dtype=bool)[groups]
        for launch in np.flatnonzero(wanted & ~valid).tolist():
            self._leave_out_duration(
                self._kinds[kinds[launch]].kernel_type, float(durations_us[launch]), *place(launch)
            )
        accepted = wanted & valid
        times_us = np.bincount(groups, weights=np.where(valid, durations_us, 0.0), minlength=len(numbers))
        sizes = np.bincount(groups[accepted | ~wanted], minlength=len(numbers))
        for kind, size, time_us in zip(of_groups, sizes.tolist(), times_us.tolist(), strict=True):
            self.counts.add(kind.left_out, kind.kernel_type or "(no kernel type)", size, time_us)
            self.counts.unknown_dtypes.update(dict.fromkeys(kind.unknown_dtypes, size))
        self._which.append(kinds[accepted].astype(np.int32))
        self._durations.append(durations_us[accepted])
        short = len(self._kinds) - self._sums.shape[1]
        if short > 0:
            grow = ((0, 0), (0, max(short, self._sums.shape[1])))
            self._sums, self._counted = np.pad(self._sums, grow), np.pad(self._counted, grow)
        for i, name in enumerate(self._counters):
            usable = accepted & np.isfinite(counters[name])
            # In a new array, because launches that do not count may have NaN.
            values = np.where(usable, counters[name], 0.0)
            self._sums[i, numbers] += np.bincount(groups, weights=values, minlength=len(numbers))
            self._counted[i, numbers] += np.bincount(groups[usable], minlength=len(numbers))

    def accepted(self) -> Iterator[tuple[str, str, CasePart]]:
        """Yields the groups of launches that count, each with its kernel type and signature."""
        which = np.concatenate(self._which)
        order = np.argsort(which, kind="stable")
        durations_us = np.concatenate(self._durations)[order]
        self._which, self._durations = [which[order]], [durations_us]
        ends = np.searchsorted(which[order], np.arange(len(self._kinds) + 1))
        for number in np.flatnonzero(np.diff(ends)).tolist():
            kind = self._kinds[number]
            of_kind = durations_us[ends[number] : ends[number + 1]]
            counters = (self._counters, self._sums[:, number], self._counted[:, number])
            sources = (self._source,) if kind.kernel_type in col.ATTENTION_TYPES else ()
            yield kind.kernel_type, kind.signature, CasePart(kind.cells, of_kind, counters, sources)

    def report(self, line: int, problem: str, remedy: str, column: str = "", value: str = "") -> None:
        """Adds a problem of a row, of which the first ones are told; line 0 is the file."""
        if len(self._problems) < _PROBLEMS_NAMED:
            error = TableError(self._path, problem, remedy, line=line or None, column=column, value=value)
            self._problems.append((line, str(error)))
        else:
            self._more_problems += 1

    def _new_kind(self, kernel_type: str, given: Mapping[str, str], line: int) -> _Kind:
        cells = {column: strip_quotes(given.get(column, "")) for column in col.BASE}
        cells |= {column: given[column] for column in _OF_A_TRACE if column in given}
        kernel_type = normalized_kernel_type(kernel_type)
        reason = _reason_to_leave_out(kernel_type, cells)
        if reason is SkipReason.MALFORMED:
            self.report(line, "not UTF-8", "The row is left out; save the file as UTF-8")
        elif reason is SkipReason.BAD_KERNEL_TYPE:
            self.report(line, "cannot name a file", _LEFT_OUT, "Type", kernel_type)
        elif reason is None:
            try:
                for column in (col.INPUT_SHAPES, col.OUTPUT_SHAPES):
                    for shape in split_cell(cells[column]):
                        parse_shape(shape, column, cells[column])
            except CellError as error:
                reason = SkipReason.BAD_DIMENSION
                self.report(line, error.problem, _LEFT_OUT, error.column, error.value)
        if reason is not None:
            return _Kind(kernel_type, "", {}, reason)
        # What a reader knows of the lengths of a call, beside what follows from its shapes.
        runtime = {column: cell for column, cell in given.items() if column in col.RUNTIME}
        cells |= {**_shape_cells(kernel_type, cells), **runtime}
        return _Kind(kernel_type, signature(kernel_type, cells), cells, None, unknown_dtypes(cells))

    def _leave_out_duration(self, kernel_type: str, us: float, line: int, text: str) -> None:
        """Counts a launch with an invalid duration; reports a text, and the first empty, zero or too long duration."""
        too_long = LONGEST_US < us < np.inf
        reason = SkipReason.IMPOSSIBLE_DURATION if too_long else SkipReason.INVALID_DURATION
        self.counts.add(reason, kernel_type, 1)
        if not too_long and text.upper() not in EMPTY_WORDS and parse_real(text) != 0:
            self.report(line, "not a number of microseconds above 0", _LEFT_OUT, self._duration, text)
        elif reason not in dict(self.counts.without_duration):
            self.counts.without_duration.append((reason, f"{self._path}:{line}: {text!r}"))


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
    if kernel_type not in col.ATTENTION_TYPES:
        return {}
    shapes = split_cell(cells[col.INPUT_SHAPES])
    found = {column: shapes[slot] if slot < len(shapes) else "" for column, slot in SHAPE_SLOTS.items()}
    return {**found, COMPLETENESS: "shapes-only" if any(found.values()) else "none"}


def is_collective(kernel_type: str, cells: Mapping[str, str]) -> bool:
    """Returns whether a launch is communication between devices; `cells` has its base columns."""
    return is_communication(kernel_type) or cells.get(col.ACCELERATOR_CORE, "").upper() in _COLLECTIVE_CORES


def _reason_to_leave_out(kernel_type: str, cells: Mapping[str, str]) -> SkipReason | None:
    """Returns the most specific reason why a row of a capture does not count; None if the row counts."""
    if any(_UNREADABLE in cell for cell in (kernel_type, *cells.values())):
        return SkipReason.MALFORMED
    if is_collective(kernel_type, cells):
        return SkipReason.COLLECTIVE if kernel_type in BY_KERNEL_TYPE else SkipReason.OTHER_COLLECTIVE
    # The profiler writes 0 for a kernel without a known name.
    if kernel_type.upper() in EMPTY_WORDS or kernel_type.isdigit():
        return SkipReason.NO_KERNEL_TYPE
    shapes = cells[col.INPUT_SHAPES]
    # An empty shape with a dtype is a scalar (Abs of a scalar); N/A means not recorded.
    if (shapes and shapes.upper() in EMPTY_WORDS) or not slot_words(*(cells[column] for column in col.INPUT_SLOTS)):
        return SkipReason.NO_INPUT_SHAPES
    return None if col.is_file_name(kernel_type) else SkipReason.BAD_KERNEL_TYPE
