"""The launches of a capture file one by one, in the order of their start: busy and idle time, and streams."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from opatlas.capture import capture_reader as reader
from opatlas.capture.ascend_database import LAUNCHED
from opatlas.capture.launches import DeviceTime
from opatlas.errors import TableError
from opatlas.row.columns import BASE, INPUT_SHAPES
from opatlas.row.quality import LONGEST_US
from opatlas.row.slots import EMPTY_WORDS, strip_quotes
from opatlas.text import parse_real

#: The profiler computes waits from floats, which hold a time since 1970 to 0.25 us; three of them are rounded.
WAIT_TOLERANCE_US = 0.5
#: A capture with a larger share of waits that do not fit its rows is an excerpt.
_EXCERPT = 0.01
_OWN = (reader.START, reader.DEVICE, reader.NAME, reader.STEP, reader.STREAM, reader.WAIT, LAUNCHED)


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel.

    Attributes:
        device: the profiler's number of the device; "" if the file does not state the device.
        start_ns: start on the profiler's clock.
        duration_us: duration on the device.
        kernel_type: the profiler's type.
        cells: the base columns, without the profiler's quotes.
        counters: counters with a number.
        name: the profiler's name of the launch, such as `aclnnSort_SortAiCore_Sort`; "" if the file has none.
        step: the number of the training or decoding step; "" if the file has none.
        stream: the stream of the device; "" if the file has none, as for collectives.
        wait_us: time between the end of the launch before and the start, by the profiler; None if not recorded.
        launched_ns: when the host's call began that launched it, on the same clock; None if not recorded.
        call_us: the durations of all kernels of the operator's call; None if a launch is a call of its own.
    """

    device: str
    start_ns: int
    duration_us: float
    kernel_type: str
    cells: Mapping[str, str]
    counters: Mapping[str, float]
    name: str = ""
    step: str = ""
    stream: str = ""
    wait_us: float | None = None
    launched_ns: int | None = None
    call_us: float | None = None

    @property
    def dimensions(self) -> str:
        """The dimensions of the inputs, without the profiler's quotes."""
        return strip_quotes(self.cells[INPUT_SHAPES])

    @property
    def queued_us(self) -> float | None:
        """The time from the host's call to the start."""
        return None if self.launched_ns is None else (self.start_ns - self.launched_ns) / 1e3


@dataclass(frozen=True)
class Launches:
    """The launches of a file.

    Attributes:
        launches: ordered by start.
        problems: lines that cannot be read, each with its place.
        device_name: the name of the device, as of its folder; "" if the file does not tell it.
    """

    launches: tuple[Launch, ...]
    problems: tuple[str, ...]
    device_name: str = ""


def read_launches(path: Path) -> Launches:
    """Reads kernel_details*.csv of torch_npu.profiler, op_summary*.csv of msprof, or a database of one of them.

    A line that is cut off, or has an invalid number, becomes a problem of the result. The other lines count.

    Raises:
        TableError: the file cannot be read, is not a capture, was taken at level 0, or has no start times.
    """
    header = reader.read_capture_header(path)
    own = {column: name for column in _OWN if (name := reader.column_of(header.names, column))}
    if reader.START not in own:
        raise TableError(path, f"no column {reader.START!r}", "Take the profile again with --task-time=l1", line=1)
    launches: list[Launch] = []
    problems: list[tuple[int, str]] = []
    for chunk in reader.read_chunks(path, replace(header, text={**header.text, **own})):
        problems += [(bad.line, f"{bad.fields} of {len(header.names)} columns") for bad in chunk.malformed]
        columns = {name: array.to_pylist() for name, array in chunk.text.items()}
        counters = {name: values.tolist() for name, values in chunk.counters.items()}
        for row in range(chunk.rows):
            cells = {name: words[row] for name, words in columns.items()}
            if not any(cells.values()):
                continue
            try:
                launches.append(_launch(cells, chunk.duration_text(row), float(chunk.duration_us[row]), counters, row))
            except ValueError as error:
                problems.append((chunk.line_of(row), str(error)))
    launches.sort(key=lambda launch: launch.start_ns)
    return Launches(tuple(launches), tuple(f"{path}:{line}: {why}: left out" for line, why in sorted(problems)))


def _launch(
    cells: Mapping[str, str], duration: str, duration_us: float, counters: Mapping[str, Sequence[float]], row: int
) -> Launch:
    """Raises ValueError."""
    if math.isnan(duration_us):
        raise ValueError(f"{duration!r} is not a duration")
    if duration_us > LONGEST_US:
        raise ValueError(f"{duration!r} us is more than an hour, which no launch takes")
    wait_us, launched = parse_real(cells.get(reader.WAIT, "")), cells.get(LAUNCHED, "")
    return Launch(
        device=cells.get(reader.DEVICE, "").strip(),
        start_ns=nanoseconds(cells[reader.START]),
        duration_us=duration_us,
        kernel_type=cells[reader.TYPE].strip(),
        cells={column: strip_quotes(cells[column]) for column in BASE if column in cells},
        counters={name: values[row] for name, values in counters.items() if math.isfinite(values[row])},
        name=strip_quotes(cells.get(reader.NAME, "")),
        step=_word(cells.get(reader.STEP, "")),
        stream=_word(cells.get(reader.STREAM, "")),
        wait_us=wait_us if wait_us is not None and math.isfinite(wait_us) else None,
        launched_ns=nanoseconds(launched) if launched else None,
    )


def nanoseconds(cell: str) -> int:
    """Parses `1791629758426053.770\\t` (microseconds), which has more digits than a float. Raises ValueError."""
    whole, _, fraction = cell.strip().partition(".")
    return int(whole) * 1000 + int((fraction + "000")[:3])


def _word(cell: str) -> str:
    """Returns the text of a cell; "" for N/A."""
    word = cell.strip()
    return "" if word.upper() in EMPTY_WORDS else word


class Timeline:
    """The launches of one device, ordered by start.

    Attributes:
        start_ns, end_ns, duration_us: of each launch, on the profiler's clock.
        busy_us: the part of each launch after the ends of all launches before it, so that the sum counts no time twice.
        idle_us: the time before each start in which no launch runs.
        launch_bound: whether the host's call of each launch began in the idle time before it; None if no launch tells.
        wait_pairs: neighbours whose wait the profiler recorded.
        wait_mismatches: the pairs whose wait is not the start less the end of the launch before.
    """

    def __init__(
        self,
        start_ns: np.ndarray,
        duration_us: np.ndarray,
        wait_us: np.ndarray | float = math.nan,
        queued_us: np.ndarray | float = math.nan,
    ) -> None:
        """
        Args:
            wait_us: the profiler's waits; NaN if not recorded.
            queued_us: the time from the start of the host's call that launched a kernel to the kernel's start; NaN if
                not recorded.
        """
        start, end = start_ns, start_ns + np.round(duration_us * 1000).astype(np.int64)
        latest = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
        wait_us = np.broadcast_to(wait_us, start.shape)
        self.start_ns, self.end_ns, self.duration_us = start, end, duration_us
        self.busy_us: np.ndarray = np.maximum(end - np.maximum(start, latest), 0) / 1000
        self.idle_us: np.ndarray = np.maximum(start - latest, 0) / 1000
        self.launch_bound = queued_us < self.idle_us if np.isfinite(queued_us).any() else None
        # Of launches that overlap, the profiler writes a wait of 0.
        gaps = np.maximum(start[1:] - end[:-1], 0) / 1000
        self.wait_pairs = int(np.isfinite(wait_us[1:]).sum())
        self.wait_mismatches = int((np.abs(wait_us[1:] - gaps) > WAIT_TOLERANCE_US).sum())

    @property
    def is_excerpt(self) -> bool:
        """Whether rows between these rows are missing."""
        return self.wait_mismatches > _EXCERPT * self.wait_pairs


def device_times(
    file: str, rank: int | None, devices: Sequence[int], starts_ns: Sequence[int], durations_ns: Sequence[int]
) -> Iterator[DeviceTime]:
    """Yields the busy and idle time of each device, from the number of the device and the times of each event."""
    every, starts, durations_us = np.array(devices), np.array(starts_ns), np.array(durations_ns) / 1e3
    for device in np.unique(every).tolist():
        own = np.flatnonzero(every == device)
        own = own[np.argsort(starts[own], kind="stable")]
        times = Timeline(starts[own], durations_us[own])
        busy_us, idle_us = (round(float(each.sum()), 3) for each in (times.busy_us, times.idle_us))
        yield DeviceTime(file, device, rank, len(own), round(busy_us + idle_us, 3), busy_us, idle_us)


def numbered_steps(labels: Sequence[str]) -> np.ndarray:
    """Numbers steps in the order of their first launches. A launch without a label is of the step before it."""
    order = {label: number for number, label in enumerate(dict.fromkeys(filter(None, labels)))}
    # The last kernels of a step may run after the first ones of the next.
    return np.maximum.accumulate([order.get(label, 0) for label in labels])


class LaunchTimeline(Timeline):
    """A timeline with what is known of its launches.

    Attributes:
        launches: ordered by start.
        kernels: type and input shapes of each.
        problems: lines of the file that cannot be read.
        streams: the number of launches of each stream; "" for launches whose stream is not known.
        main_stream: the stream with the largest sum of durations; "" if no stream is known.
        beside_main: whether each launch is on another stream; without a known stream, whether it overlaps a neighbour.
    """

    def __init__(self, path: Path, launches: Sequence[Launch], problems: Sequence[str] = ()) -> None:
        self.path, self.launches, self.problems = path, tuple(launches), tuple(problems)
        self.kernels = [(launch.kernel_type, launch.cells.get(INPUT_SHAPES, "")) for launch in launches]
        start = np.array([launch.start_ns for launch in launches], dtype=np.int64)
        rest = [(launch.duration_us, launch.wait_us, launch.queued_us) for launch in launches]
        super().__init__(start, *np.array(rest, dtype=np.float64).reshape(-1, 3).T)
        self.streams = Counter(launch.stream for launch in launches)
        sums: defaultdict[str, float] = defaultdict(float)
        for launch in launches:
            sums[launch.stream] += launch.duration_us
        sums.pop("", None)
        self.main_stream = max(sums, key=sums.__getitem__, default="")
        overlaps = np.zeros(len(start), dtype=bool)
        into_next = self.end_ns[:-1] > start[1:]
        overlaps[1:] |= into_next
        overlaps[:-1] |= into_next
        on_other = np.array([launch.stream != self.main_stream for launch in launches], dtype=bool)
        self.beside_main = np.where([not launch.stream for launch in launches], overlaps, on_other)
