"""The kernels of a capture in the order of their start: gaps, streams, and whether rows are missing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
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
_NAMED = 4
#: Sums of two such times are int64.
_MOST_NS = 1 << 61


@dataclass(frozen=True)
class Timeline:
    """The launches of one device.

    Attributes:
        launches: ordered by start.
        problems: lines of the file that cannot be read.
        wait_pairs: neighbours whose wait the profiler recorded.
        wait_mismatches: the pairs whose wait is not the start less the end of the launch before.
    """

    path: Path
    launches: tuple[Launch, ...]
    problems: tuple[str, ...]
    wait_pairs: int
    wait_mismatches: int

    @property
    def is_excerpt(self) -> bool:
        """Whether rows between these rows are missing."""
        return self.wait_mismatches > _EXCERPT * self.wait_pairs

    @cached_property
    def start_ns(self) -> np.ndarray:
        """The starts, as int64."""
        return np.array([launch.start_ns for launch in self.launches], dtype=np.int64)

    @cached_property
    def end_ns(self) -> np.ndarray:
        """The ends, as int64."""
        return np.array([end_ns(launch) for launch in self.launches], dtype=np.int64)

    @cached_property
    def duration_us(self) -> np.ndarray:
        """The durations."""
        return np.array([launch.duration_us for launch in self.launches], dtype=np.float64)

    @cached_property
    def busy_us(self) -> np.ndarray:
        """The part of each launch after the ends of all launches before it, so that the sum counts no time twice."""
        busy: np.ndarray = np.maximum(self.end_ns - np.maximum(self.start_ns, self._latest_end_ns), 0) / 1000
        return busy

    @cached_property
    def idle_us(self) -> np.ndarray:
        """The time before each start in which no launch runs."""
        idle: np.ndarray = np.maximum(self.start_ns - self._latest_end_ns, 0) / 1000
        return idle

    @cached_property
    def _latest_end_ns(self) -> np.ndarray:
        """The latest end of the launches before each launch; for the first its own start."""
        before = np.maximum.accumulate(self.end_ns)[:-1]
        return np.concatenate((self.start_ns[:1], before))

    @cached_property
    def streams(self) -> Counter[str]:
        """The number of launches of each stream; "" for launches whose stream is not known."""
        return Counter(launch.stream for launch in self.launches)

    @cached_property
    def main_stream(self) -> str:
        """The stream with the largest sum of durations; "" if no stream is known."""
        sums: dict[str, float] = defaultdict(float)
        for launch in self.launches:
            if launch.stream:
                sums[launch.stream] += launch.duration_us
        return max(sums, key=lambda stream: sums[stream], default="")

    @cached_property
    def beside_main(self) -> np.ndarray:
        """Whether each launch is on another stream. One without a known stream is, if it overlaps a neighbour."""
        overlaps = np.zeros(len(self.launches), dtype=bool)
        into_next = self.end_ns[:-1] > self.start_ns[1:]
        overlaps[1:] |= into_next
        overlaps[:-1] |= into_next
        return np.array(
            [
                launch.stream != self.main_stream if launch.stream else bool(overlap)
                for launch, overlap in zip(self.launches, overlaps, strict=True)
            ],
            dtype=bool,
        )


def read_timeline(path: Path) -> Timeline:
    """Reads a kernel_details or op_summary file, or the only one below a folder.

    Streams that a kernel_details lacks are taken from the op_summary files beside it, by name and start.

    Raises:
        OpAtlasError: there is no capture, or the folder has several.
        TableError: the file cannot be read, is no capture, was taken at level 0, or has no launches.
    """
    files = captures_at(path)
    if len(files) > 1:
        named = ", ".join(map(str, files[:_NAMED])) + (" and others" if len(files) > _NAMED else "")
        raise OpAtlasError(f"{path}: {len(files)} captures, and a timeline is that of one device: name one of {named}")
    return read_file(files[0])


def captures_at(path: Path) -> list[Path]:
    """Returns the capture files at a path. Raises OpAtlasError."""
    if not path.exists():
        raise OpAtlasError(f"{path}: no such file or folder: name a capture, or the folder that the profiler wrote")
    return find_captures(path)


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
    # Of launches that overlap, the profiler writes a wait of 0.
    waits = [
        (after.wait_us, max(after.start_ns - end_ns(before), 0) / 1000)
        for before, after in pairwise(launches)
        if after.wait_us is not None
    ]
    mismatches = sum(abs(wait - gap) > WAIT_TOLERANCE_US for wait, gap in waits)
    return Timeline(path, tuple(launches), problems, len(waits), mismatches)


def _is_possible(launch: Launch) -> bool:
    return 0 <= launch.start_ns < _MOST_NS and 0 <= launch.duration_us * 1000 < _MOST_NS


def end_ns(launch: Launch) -> int:
    """Returns the end of a launch on the profiler's clock."""
    return launch.start_ns + round(launch.duration_us * 1000)


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
