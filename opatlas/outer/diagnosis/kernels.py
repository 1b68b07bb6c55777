"""The kernels of captures or of a database as one table, whose columns have kernel_details' names.

A line is a launch of a capture, or a row of a database, which counts as often as captures launched it. Cells of text
are without the profiler's quotes; durations, waits, Block Dim and counters are float64, NaN where the cell holds no
number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from opatlas.ask.query.answering_rows import AnsweringRows
from opatlas.capture import capture_reader as reader
from opatlas.capture.ascend_database import LAUNCHED
from opatlas.capture.capture_discovery import find_captures, kind_of_capture, op_summaries
from opatlas.capture.single_launches import Launches, Timeline, nanoseconds, read_launches
from opatlas.data.database import Database, expect_tables
from opatlas.data.origin import Provenance
from opatlas.errors import OpAtlasError, TableError
from opatlas.progress import progress, track
from opatlas.row import columns as col
from opatlas.row.quality import LONGEST_US
from opatlas.row.slots import strip_quotes
from opatlas.text import pluralize

BLOCK_DIM, MIX_BLOCK_DIM = "Block Dim", "Mix Block Dim"
#: Where a line is from: the file and line of a launch, its start in ns in a file that is no table; or the id of a row.
FILE, LINE, ROW = "File", "Line", "Row"
#: How often a line was launched, whether its duration was captured, and the device and the implementation that ran it.
LAUNCHES, CAPTURED, DEVICE, BY = "Launches", "Captured", "Device", "By"
#: When a launch began, after the first one of its file, and how long after the host's call; NaN if not recorded.
START_US, QUEUED_US = "Start(us)", "Queued(us)"
#: The duration of all kernels of a call, whose work is that of the row.
CALL_US = "Call(us)"
#: Columns of numbers and of text that no row has.
_NUMBERS = (reader.WAIT, BLOCK_DIM, MIX_BLOCK_DIM)
_TEXTS = (reader.NAME, reader.START, LAUNCHED, reader.STEP, reader.STREAM, reader.DEVICE)
#: Columns of numbers that are no counters.
_NO_COUNTERS = {reader.DURATION, LAUNCHES, LINE, *_NUMBERS, START_US, QUEUED_US, CALL_US}
_NO_COUNTERS |= {col.MICROBENCH_DEVICE_KERNELS, col.SPAN}
_PROFILED, _REPLAYED = "Profiling Average ", "MicroBench "
#: A time of several centuries, whose differences are int64.
_MOST_NS = 1 << 62
_NO_COUNTERS_OF_ROWS = {*col.OWN, *col.PROFILING_DURATIONS}
#: Cells of text of a database that rules and prompts read.
_ROW_CELLS = (*col.BASE, *col.EXTRA_IN_SIGNATURE, col.CACHE_STATE, col.QUALITY, col.STAND_IN, col.KERNEL_NAMES)


@dataclass(frozen=True)
class KernelLines:
    """The kernels of one place.

    Attributes:
        place: the path that was read.
        frame: a line for each kernel.
        device: the device of a database, or of a capture that names it; "" if it is not known.
        source_names: the names of columns in a capture that are named otherwise here.
        problems: lines and files that could not be read.
        joined: how captures with other counters were joined; "" if none were.
        left_out: the rows of a database that another device timed; "" if there are none.
    """

    place: Path
    frame: pd.DataFrame
    device: str = ""
    source_names: Mapping[str, str] = field(default_factory=dict)
    problems: Sequence[str] = ()
    joined: str = ""
    left_out: str = ""

    @property
    def is_capture(self) -> bool:
        """Whether a line is a launch, not a row of a database."""
        return FILE in self.frame.columns

    @cached_property
    def counters(self) -> list[str]:
        """The columns of counters, in the file's order."""
        numbers = self.frame.select_dtypes("float").columns
        return [name for name in numbers if name not in _NO_COUNTERS]

    @cached_property
    def _cells(self) -> Mapping[str, np.ndarray]:
        """The cells of each column: a cell of an array is found far faster than one of a table."""
        return {str(name): cells.to_numpy() for name, cells in self.frame.items()}

    def cell(self, column: str, line: int) -> Any:
        """Returns the cell of a column in a line; "" if the files have no such column."""
        return self._cells[column][line] if column in self._cells else ""

    def has(self, column: str) -> bool:
        """Returns whether the files have a column, and some line a value in it."""
        cells = self.frame.get(column)
        return cells is not None and bool((cells.notna() & (cells != "")).any())

    def source_name(self, column: str, line: int) -> str:
        """Returns the name that a column has in the file of a line."""
        if not self.is_capture and column in self.counters:
            return f"{_PROFILED if self.cell(CAPTURED, line) else _REPLAYED}{column}"
        return self.source_names.get(column, column)


def read_kernels(place: Path) -> KernelLines:
    """Reads a database, a capture file, or the captures below a folder.

    Raises:
        OpAtlasError: there is neither, or none of its files can be read.
    """
    if place.is_dir() and not _has_captures(place) and next(place.glob("[!.]*.csv"), None):
        return _read_rows(place)
    return _read_captures(place)


def _has_captures(folder: Path) -> bool:
    """Returns whether a folder holds captures; one with `runs` is a database, and may have profiles below it."""
    if (folder / "runs").is_dir():
        return False
    return any("kernel_details" in path.name.lower() for path in folder.glob("*.csv")) or bool(op_summaries(folder))


def _read_captures(place: Path) -> KernelLines:
    frames: list[pd.DataFrame] = []
    source_names: dict[str, str] = {}
    problems: list[str] = []
    devices = set[str]()
    paths = find_captures(place).files
    for path in paths:
        try:
            if kind_of_capture(path).launches is read_launches:
                header = reader.read_capture_header(path)
                frame = _capture_frame(path, header, problems)
                frame.attrs["counters"] = frozenset(header.counters)
                named = {**header.text, reader.DURATION: header.duration, **_columns(header, _NUMBERS)}
                source_names |= {own: name for own, name in named.items() if own != name}
            else:
                read = kind_of_capture(path).launches(path)
                devices.add(read.device_name)
                frame = _launch_frame(path, read, problems)
                frame.attrs["counters"] = frozenset()
        except TableError as error:
            if len(paths) == 1:
                raise
            problems.append(str(error))
            continue
        if len(frame):
            frame = frame.assign(**{FILE: str(path.relative_to(place)) if path != place else path.name})
            frames.append(frame)
    if not frames:
        none = f"{place}: no launch has a duration: take the capture again, while kernels run"
        raise OpAtlasError("\n".join([*problems, none]))
    frame, joined = _joined(frames)
    frame = frame.assign(**{LAUNCHES: 1.0, CAPTURED: True})
    # Captures of several devices have no common peaks.
    device = devices.pop() if len(devices) == 1 else ""
    return KernelLines(place, frame, device, source_names=source_names, problems=problems, joined=joined)


def _joined(frames: Sequence[pd.DataFrame]) -> tuple[pd.DataFrame, str]:
    """Returns the launches of captures, each once, and a sentence on captures that were joined.

    Captures with other counters are of one run, since a profiler has one group of counters at a time. The n-th launch
    of a kernel in one is the n-th in the other. It has the counters of both, and the duration of the first.
    """
    by_counters: dict[frozenset[str], list[pd.DataFrame]] = {}
    for frame in frames:
        by_counters.setdefault(frame.attrs["counters"], []).append(frame)
    first, *others = (pd.concat(each, ignore_index=True) for each in by_counters.values())
    if not others:
        return first, ""
    names = [name for name in (reader.TYPE, *col.BASE[1:]) if all(name in each.columns for each in (first, *others))]
    own = len(first)
    joined = _by_launch(first, names)
    for each in others:
        other = _by_launch(each, names)
        index = joined.index.append(other.index.difference(joined.index, sort=False))
        columns = list(dict.fromkeys([*joined.columns, *other.columns]))
        joined = joined.reindex(index, columns=columns).fillna(other.reindex(index, columns=columns))
    more = f"; {len(joined) - own:,} only in the others" if len(joined) > own else ""
    how = f"captures with {len(others) + 1} sets of counters, joined launch by launch; durations of"
    return joined.reset_index(drop=True), f"{how} {first[FILE].iloc[0]}{more}"


def _by_launch(frame: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Returns launches by kernel and number."""
    numbers = frame.groupby(names, sort=False, dropna=False).cumcount()
    return frame.set_index(pd.MultiIndex.from_arrays([*(frame[name] for name in names), numbers]))


def _columns(header: reader.CaptureHeader, names: Sequence[str]) -> dict[str, str]:
    """Returns the columns of a file by our names."""
    return {name: found for name in names if (found := reader.column_of(header.names, name))}


def _capture_frame(path: Path, header: reader.CaptureHeader, problems: list[str]) -> pd.DataFrame:
    """Returns the launches that have a duration; `problems` receives sentences about the other lines."""
    numbers, texts = _columns(header, _NUMBERS), _columns(header, _TEXTS)
    wider = replace(header, text={**header.text, **texts}, counters=(*header.counters, *numbers.values()))
    own_names = {name: own for own, name in numbers.items()}
    parts = []
    with progress("diagnose, MB", path.stat().st_size / 1e6) as advance:
        for chunk in reader.read_chunks(path, wider):
            parts.append(_launches(path, header, chunk, own_names, problems))
            advance(chunk.size_bytes / 1e6)
    frame: pd.DataFrame = pd.DataFrame(columns=[reader.TYPE, reader.DURATION, LINE, *col.BASE])
    if parts:
        frame = pd.concat(parts, ignore_index=True)
    if len(frame) and reader.START in texts:
        start_ns = frame.pop(reader.START).map(_time)
        launched_ns = frame.pop(LAUNCHED).map(_time) if LAUNCHED in frame else pd.Series(0, frame.index)
        frame[START_US] = ((start_ns - start_ns[start_ns > 0].min()) / 1e3).where(start_ns > 0)
        if path.suffix.lower() != ".csv":
            frame[LINE] = start_ns
        frame[QUEUED_US] = ((start_ns - launched_ns) / 1e3).where(launched_ns > 0)
    return frame


def _launch_frame(path: Path, read: Launches, problems: list[str]) -> pd.DataFrame:
    """Returns the launches of a capture that is no table. A launch waits while the host launches it."""
    timed = [launch for launch in read.launches if 0 < launch.duration_us <= LONGEST_US]
    problems += read.problems
    if without := len(read.launches) - len(timed):
        problems.append(f"{path}: {pluralize(without, 'launch', 'launches')} without a duration: left out")
    frame: pd.DataFrame = pd.DataFrame(
        [
            {
                **dict.fromkeys((*col.BASE, *col.EXTRA_IN_SIGNATURE), ""),
                **launch.cells,
                reader.TYPE: launch.kernel_type,
                reader.NAME: launch.name,
                reader.STEP: launch.step,
                reader.STREAM: launch.stream,
                reader.DEVICE: launch.device,
                LINE: launch.start_ns,
                reader.DURATION: launch.duration_us,
                CALL_US: launch.duration_us if launch.call_us is None else launch.call_us,
                START_US: (launch.start_ns - timed[0].start_ns) / 1e3,
                QUEUED_US: launch.queued_us,
                reader.WAIT: np.nan,
            }
            for launch in timed
        ]
    )
    for _, own in frame.astype({QUEUED_US: np.float64}).groupby(reader.DEVICE) if len(frame) else ():
        start_ns, duration_us, queued_us = (own[name].to_numpy() for name in (LINE, reader.DURATION, QUEUED_US))
        times = Timeline(start_ns, duration_us, queued_us=queued_us)
        if times.launch_bound is not None:
            frame.loc[own.index, reader.WAIT] = np.where(times.launch_bound, times.idle_us, 0.0)
    return frame


def _launches(
    path: Path, header: reader.CaptureHeader, chunk: reader.Chunk, own_names: Mapping[str, str], problems: list[str]
) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    for name, array in chunk.text.items():
        words = [strip_quotes(word or "") for word in array.dictionary.to_pylist()]
        codes = array.indices.fill_null(len(words)).to_numpy()
        columns[name] = np.array([*words, ""], dtype=object)[codes]
    columns[reader.DURATION] = chunk.duration_us
    columns |= {own_names.get(name, name): values for name, values in chunk.counters.items()}
    columns[LINE] = chunk.first_line + np.arange(chunk.rows)
    if chunk.malformed:
        columns[LINE] = [chunk.line_of(row) for row in range(chunk.rows)]
    part = pd.DataFrame(columns)
    # A blank line is a row with empty cells.
    there = (part[reader.TYPE] != "").to_numpy()
    timed = (chunk.duration_us > 0) & (chunk.duration_us <= LONGEST_US)
    if len(without := np.flatnonzero(there & ~timed)):
        problems.append(
            f"{path}:{chunk.line_of(int(without[0]))}: {header.duration} {chunk.duration_text(int(without[0]))!r} is "
            f"no duration: {pluralize(len(without), 'launch', 'launches')} left out"
        )
    problems += [f"{path}:{bad.line}: the row does not fit the header: left out" for bad in chunk.malformed]
    return part[there & timed]


def _time(cell: str) -> int:
    """Returns nanoseconds; 0 if the cell is no time."""
    try:
        return min(max(nanoseconds(cell), 0), _MOST_NS)
    except ValueError:
        return 0


def _read_rows(folder: Path) -> KernelLines:
    """Reads the rows of a database that have a duration, without collectives. Raises OpAtlasError."""
    expect_tables(folder)
    problems: list[str] = []
    database = Database(folder)
    devices = Provenance(database)
    names = database.kernel_types()
    elsewhere = Counter[str]()

    def answering() -> Iterator[AnsweringRows]:
        for kernel_type in track(names, "diagnose, kernel types"):
            try:
                stored = AnsweringRows(database.read(kernel_type), devices, compositions=True)
            except OpAtlasError as error:
                problems.append(str(error))
            else:
                elsewhere.update(each.device for each in stored.left_out.values())
                yield stored

    frame = row_lines(answering())
    if not len(frame):
        none = "no row of a kernel has a duration" if names else "holds collectives only, which get no verdict"
        raise OpAtlasError("\n".join([*problems, f"{folder}: {none}: measure some, or ingest a capture"]))
    left_out = ", ".join(f"{count:,} on {name}" for name, count in elsewhere.most_common())
    return KernelLines(folder, frame, devices.device, problems=problems, left_out=left_out)


def row_lines(kernel_types: Iterable[AnsweringRows]) -> pd.DataFrame:
    """Returns the rows of kernel types that answer as lines, in the same order."""
    tables = [_row_lines(rows) for rows in kernel_types if len(rows)]
    frame: pd.DataFrame = pd.concat(tables or [pd.DataFrame()], ignore_index=True)
    text = [name for name in _ROW_CELLS if name in frame.columns]
    frame[text] = frame[text].fillna("")
    return frame


def _row_lines(rows: AnsweringRows) -> pd.DataFrame:
    """Returns the rows of a kernel type as lines; counters are of the replay or of the captures, as the duration is."""
    table, captured, at = rows.table, rows.captured, rows.positions
    columns: dict[str, Any] = {reader.TYPE: rows.kernel_type, ROW: [rows.case_id(i) for i in range(len(rows))]}
    columns |= {name: rows.cells(name) for name in _ROW_CELLS if name in table.columns}
    columns |= {reader.DURATION: rows.duration_us, LAUNCHES: table.captured.samples[at]}
    columns |= {CAPTURED: captured, DEVICE: rows.devices, BY: np.where(captured, "", rows.cells(col.IMPLEMENTATION))}
    numbers = (col.MICROBENCH_DEVICE_KERNELS, col.SPAN)
    columns |= {name: table.numbers(name)[at] for name in numbers if name in table.columns}
    for prefix, here in ((_PROFILED, captured), (_REPLAYED, ~captured)):
        for name in table.columns if here.any() else ():
            if name.startswith(prefix) and name not in _NO_COUNTERS_OF_ROWS:
                own = name.removeprefix(prefix)
                columns[own] = np.where(here, table.numbers(name)[at], columns.get(own, np.nan))
    return pd.DataFrame(columns)
