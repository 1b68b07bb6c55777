"""Reads the launches of a capture file one by one, in the order of their start times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opatlas.capture.ascend_database import LAUNCHED
from opatlas.capture.capture_reader import (
    DEVICE,
    NAME,
    START,
    STEP,
    STREAM,
    TYPE,
    WAIT,
    column_of,
    read_capture_header,
    read_chunks,
)
from opatlas.errors import TableError
from opatlas.row.columns import BASE, INPUT_SHAPES
from opatlas.row.quality import LONGEST_US
from opatlas.row.slots import EMPTY_WORDS, strip_quotes
from opatlas.text import parse_real

_OWN = (START, DEVICE, NAME, STEP, STREAM, WAIT, LAUNCHED)


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
    header = read_capture_header(path)
    own = {column: name for column in _OWN if (name := column_of(header.names, column))}
    if START not in own:
        raise TableError(path, f"no column {START!r}", "Take the profile again with --task-time=l1", line=1)
    launches: list[Launch] = []
    problems: list[tuple[int, str]] = []
    for chunk in read_chunks(path, replace(header, text={**header.text, **own})):
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
    wait_us, launched = parse_real(cells.get(WAIT, "")), cells.get(LAUNCHED, "")
    return Launch(
        device=cells.get(DEVICE, "").strip(),
        start_ns=nanoseconds(cells[START]),
        duration_us=duration_us,
        kernel_type=cells[TYPE].strip(),
        cells={column: strip_quotes(cells[column]) for column in BASE if column in cells},
        counters={name: values[row] for name, values in counters.items() if math.isfinite(values[row])},
        name=strip_quotes(cells.get(NAME, "")),
        step=_word(cells.get(STEP, "")),
        stream=_word(cells.get(STREAM, "")),
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
