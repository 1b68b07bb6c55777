"""The kernels of a capture in the order of their start: gaps, streams, and whether rows are missing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from opatlas.capture.capture_discovery import find_captures, op_summaries
from opatlas.capture.launches import is_collective
from opatlas.capture.single_launches import Launch, read_launches
from opatlas.errors import OpAtlasError, TableError
from opatlas.text import pluralize

#: The profiler computes waits from floats, which hold a time since 1970 to 0.25 us; three of them are rounded.
WAIT_TOLERANCE_US = 0.5
#: A capture with a larger share of waits that do not fit its rows is an excerpt.
_EXCERPT = 0.01
#: Sums of two such times are int64.
_MOST_NS = 1 << 61


class Timeline:
    """The launches of one device.

    Attributes:
        launches: ordered by start.
        problems: lines of the file that cannot be read.
        start_ns, end_ns, duration_us: of each launch, on the profiler's clock.
        busy_us: the part of each launch after the ends of all launches before it, so that the sum counts no time twice.
        idle_us: the time before each start in which no launch runs.
        streams: the number of launches of each stream; "" for launches whose stream is not known.
        main_stream: the stream with the largest sum of durations; "" if no stream is known.
        beside_main: whether each launch is on another stream; without a known stream, whether it overlaps a neighbour.
        wait_pairs: neighbours whose wait the profiler recorded.
        wait_mismatches: the pairs whose wait is not the start less the end of the launch before.
    """

    def __init__(self, path: Path, launches: Sequence[Launch], problems: Sequence[str] = ()) -> None:
        self.path, self.launches, self.problems = path, tuple(launches), tuple(problems)
        start = np.array([launch.start_ns for launch in launches], dtype=np.int64)
        self.duration_us = np.array([launch.duration_us for launch in launches], dtype=np.float64)
        end = start + np.round(self.duration_us * 1000).astype(np.int64)
        latest = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
        self.start_ns, self.end_ns = start, end
        self.busy_us: np.ndarray = np.maximum(end - np.maximum(start, latest), 0) / 1000
        self.idle_us: np.ndarray = np.maximum(start - latest, 0) / 1000
        self.streams = Counter(launch.stream for launch in launches)
        sums: defaultdict[str, float] = defaultdict(float)
        for launch in launches:
            sums[launch.stream] += launch.duration_us
        sums.pop("", None)
        self.main_stream = max(sums, key=sums.__getitem__, default="")
        overlaps = np.zeros(len(start), dtype=bool)
        into_next = end[:-1] > start[1:]
        overlaps[1:] |= into_next
        overlaps[:-1] |= into_next
        on_other = np.array([launch.stream != self.main_stream for launch in launches], dtype=bool)
        self.beside_main = np.where([not launch.stream for launch in launches], overlaps, on_other)
        # Of launches that overlap, the profiler writes a wait of 0.
        gaps = np.maximum(start[1:] - end[:-1], 0) / 1000
        waits = np.array([launch.wait_us for launch in launches[1:]], dtype=np.float64)
        self.wait_pairs = int(np.isfinite(waits).sum())
        self.wait_mismatches = int((np.abs(waits - gaps) > WAIT_TOLERANCE_US).sum())

    @property
    def is_excerpt(self) -> bool:
        """Whether rows between these rows are missing."""
        return self.wait_mismatches > _EXCERPT * self.wait_pairs


def read_timeline(path: Path) -> Timeline:
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


def read_file(path: Path) -> Timeline:
    """Reads one capture file. Raises TableError."""
    read = read_launches(path)
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
    return Timeline(path, launches, problems)


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
