"""Reads the launches of a capture file one by one, in the order of their start times."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opatlas.capture.capture_reader import TYPE, read_capture_header
from opatlas.errors import TableError
from opatlas.row.columns import BASE, INPUT_SHAPES
from opatlas.row.quality import LONGEST_US
from opatlas.row.slots import EMPTY_WORDS, strip_quotes

#: Columns of a capture, by the names of different versions.
_START = ("Task Start Time(us)", "Start Time(us)")
_DEVICE = "Device_id"
_NAME = ("Op Name", "Name")
_STEP = "Step Id"
_STREAM = "Stream ID"
_WAIT = ("Task Wait Time(us)", "Wait Time(us)")


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

    @property
    def dimensions(self) -> str:
        """The dimensions of the inputs, without the profiler's quotes."""
        return strip_quotes(self.cells[INPUT_SHAPES])


@dataclass(frozen=True)
class Launches:
    """The launches of a file.

    Attributes:
        launches: ordered by start.
        problems: lines that cannot be read, each with its place.
    """

    launches: tuple[Launch, ...]
    problems: tuple[str, ...]


def read_launches(path: Path) -> Launches:
    """Reads kernel_details*.csv of torch_npu.profiler or op_summary*.csv of msprof.

    A line that is cut off, or has an invalid number, becomes a problem of the result. The other lines count.

    Raises:
        TableError: the file cannot be read, is not a capture, was taken at level 0, or has no start times.
    """
    header = read_capture_header(path)
    start = next((name for name in _START if name in header.names), None)
    if start is None:
        raise TableError(path, f"no column {_START[0]!r}", "Take the profile again with --task-time=l1", line=1)
    position = {name: index for index, name in enumerate(header.names)}
    base = [(column, position[header.text[column]]) for column in BASE if column in header.text]
    counters = [(name, position[name]) for name in header.counters]
    kernel_type, duration = position[header.text[TYPE]], position[header.duration]
    device = position.get(_DEVICE)
    name = next((position[column] for column in _NAME if column in position), None)
    wait = next((position[column] for column in _WAIT if column in position), None)
    step, stream = position.get(_STEP), position.get(_STREAM)
    launches: list[Launch] = []
    problems: list[str] = []
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        lines = csv.reader(file)
        next(lines)
        for cells in lines:
            if not cells:
                continue
            if len(cells) != len(header.names):
                problems.append(f"{path}:{lines.line_num}: {len(cells)} of {len(header.names)} columns: left out")
                continue
            try:
                if (duration_us := float(cells[duration])) > LONGEST_US:
                    raise ValueError(f"{cells[duration].strip()!r} us is more than an hour, which no launch takes")
                launches.append(
                    Launch(
                        device="" if device is None else cells[device].strip(),
                        start_ns=_nanoseconds(cells[position[start]]),
                        duration_us=duration_us,
                        kernel_type=cells[kernel_type].strip(),
                        cells={column: strip_quotes(cells[index]) for column, index in base},
                        counters={
                            name: value for name, index in counters if (value := _number(cells[index])) is not None
                        },
                        name="" if name is None else strip_quotes(cells[name]),
                        step="" if step is None else _word(cells[step]),
                        stream="" if stream is None else _word(cells[stream]),
                        wait_us=None if wait is None else _number(cells[wait]),
                    )
                )
            except ValueError as error:
                problems.append(f"{path}:{lines.line_num}: {error}: left out")
    launches.sort(key=lambda launch: launch.start_ns)
    return Launches(tuple(launches), tuple(problems))


def _nanoseconds(cell: str) -> int:
    """Parses `1791629758426053.770\\t` (microseconds), which has more digits than a float. Raises ValueError."""
    whole, _, fraction = cell.strip().partition(".")
    return int(whole) * 1000 + int((fraction + "000")[:3])


def _word(cell: str) -> str:
    """Returns the text of a cell; "" for N/A."""
    word = cell.strip()
    return "" if word.upper() in EMPTY_WORDS else word


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
