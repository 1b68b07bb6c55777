"""The kernels of one device in the order of their start: busy and idle time, gaps that wait for the host, streams, and
whether rows are missing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from opatlas.capture.capture_discovery import find_captures, kind_of_capture, op_summaries
from opatlas.capture.launches import is_collective
from opatlas.capture.single_launches import Launch, read_launches
from opatlas.errors import OpAtlasError, TableError
from opatlas.row.columns import INPUT_SHAPES
from opatlas.text import pluralize

#: The profiler computes waits from floats, which hold a time since 1970 to 0.25 us; three of them are rounded.
WAIT_TOLERANCE_US = 0.5
#: A capture with a larger share of waits that do not fit its rows is an excerpt.
_EXCERPT = 0.01
#: Sums of two such times are int64.
_MOST_NS = 1 << 61


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
        self, start_ns: np.ndarray, duration_us: np.ndarray, wait_us: np.ndarray, queued_us: np.ndarray
    ) -> None:
        """
        Args:
            wait_us: the profiler's waits; NaN if not recorded.
            queued_us: the time from the start of the host's call that launched a kernel to the kernel's start; NaN if
                not recorded.
        """
        start, end = start_ns, start_ns + np.round(duration_us * 1000).astype(np.int64)
        latest = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
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


def numbered_steps(labels: Sequence[str]) -> np.ndarray:
    """Numbers steps in the order of their first launches. A launch without a label is of the step before it."""
    order = {label: number for number, label in enumerate(dict.fromkeys(filter(None, labels)))}
    # The last kernels of a step may run after the first ones of the next.
    numbers: np.ndarray = np.maximum.accumulate([order.get(label, 0) for label in labels])
    return numbers


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
        start, *numbers = _times(launches)
        super().__init__(start, *numbers)
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


def timeline_of(launches: Sequence[Launch]) -> Timeline:
    """Returns the timeline of launches that are ordered by start."""
    return Timeline(*_times(launches))


def _times(launches: Sequence[Launch]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    start = np.array([launch.start_ns for launch in launches], dtype=np.int64)
    rest = [(launch.duration_us, launch.wait_us, launch.queued_us) for launch in launches]
    duration, wait, queued = np.array(rest, dtype=np.float64).reshape(-1, 3).T
    return start, duration, wait, queued


def read_timeline(path: Path) -> LaunchTimeline:
    """Reads a kernel_details or op_summary file, or the only one below a folder.

    Streams that a kernel_details lacks are taken from the op_summary files beside it, by name and start.

    Raises:
        OpAtlasError: there is no capture, or the folder has several.
        TableError: the file cannot be read, is no capture, was taken at level 0, or has no launches.
    """
    files = captures_at(path)
    if len(files) > 1:
        raise OpAtlasError(f"{path}: {len(files)} captures, and a timeline is that of one device: name one: {files[0]}")
    return read_file(files[0])


def captures_at(path: Path) -> list[Path]:
    """Returns the capture files at a path. Raises OpAtlasError."""
    if not path.exists():
        raise OpAtlasError(f"{path}: no such file or folder: name a capture, or the folder that the profiler wrote")
    return find_captures(path).files


def read_file(path: Path) -> LaunchTimeline:
    """Reads one capture file. Raises TableError."""
    read = kind_of_capture(path).launches(path)
    launches = tuple(launch for launch in read.launches if _is_possible(launch))
    problems = read.problems
    if impossible := len(read.launches) - len(launches):
        problems += (f"{path}: {pluralize(impossible, 'launch', 'launches')} with an impossible time: left out",)
    devices = sorted({launch.device for launch in launches})
    if len(devices) > 1:
        raise TableError(
            path,
            f"launches of the devices {', '.join(devices)}",
            "Keep the rows of one device: each has its own timeline",
        )
    if not launches:
        raise TableError(path, "no launches", "Take the capture again")
    if not all(launch.stream or is_collective(launch.kernel_type, launch.cells) for launch in launches):
        launches = _with_streams(path, launches)
    return LaunchTimeline(path, launches, problems)


def _is_possible(launch: Launch) -> bool:
    return 0 <= launch.start_ns < _MOST_NS and 0 <= launch.duration_us * 1000 < _MOST_NS


def _with_streams(path: Path, launches: Sequence[Launch]) -> tuple[Launch, ...]:
    """Returns launches with the streams of the op_summary files of the same profile, where these have the launch."""
    folder = path.resolve().parent
    of_profiler = folder.name == "ASCEND_PROFILER_OUTPUT"
    files = op_summaries(folder.parent) if of_profiler else sorted(folder.glob("*op_summary*.csv"))
    streams = {
        (launch.name, launch.start_ns): launch.stream
        for file in files
        if file.resolve() != path.resolve()
        for launch in read_launches(file).launches
    }
    return tuple(
        launch if launch.stream else replace(launch, stream=streams.get((launch.name, launch.start_ns), ""))
        for launch in launches
    )
