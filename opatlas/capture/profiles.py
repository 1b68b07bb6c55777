"""The folders that msprof writes: PROF_{number}_{time}_{hash}/mindstudio_profiler_output/op_summary_*.csv."""

from __future__ import annotations

import csv
import math
import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opatlas.capture.capture_file import TYPE, read_capture_header
from opatlas.errors import TableError
from opatlas.files import files_below
from opatlas.model.schema import BASE, INPUT_SHAPES
from opatlas.model.slots import unwrapped

#: `op_summary_20240102030405.csv`, `op_summary_slice_0_20240102030405.csv`, and what users rename them to.
_SUMMARY = re.compile(r"(?P<what>.*op_summary.*?)(?:_(?P<exported>\d{14,}))?\.csv", re.IGNORECASE)
_OUTPUT = "mindstudio_profiler_output"


def profile_folders(folder: Path) -> list[Path]:
    """The PROF_* folders below a folder, or it alone where it is one; oldest first, as their names tell."""
    if folder.name.startswith("PROF_"):
        return [folder]
    return sorted(path for path in folder.rglob("PROF_*") if path.is_dir())


def unparsed_profiles(folder: Path, files: Sequence[Path]) -> list[str]:
    """Returns a sentence for each profile at or below a folder that has none of the op_summary files."""
    profiles = profile_folders(folder)
    # The folder that was named may be a profile under another name.
    if not profiles and (folder / "host").is_dir():
        profiles = [folder]
    return [
        f"{profile}: a profile that was not parsed (no op_summary*.csv in it): "
        f"`{shlex.join(['msprof', '--export=on', f'--output={profile}'])}` does so, where CANN is installed"
        for profile in profiles
        if not any(profile in file.parents for file in files)
    ]


def all_op_summaries(folder: Path) -> list[Path]:
    """Returns the op_summary files at any depth of a folder, those of every export, sorted. Raises OpAtlasError."""
    return sorted(files_below(folder, lambda name: _SUMMARY.fullmatch(name) is not None))


def op_summaries(folder: Path) -> list[Path]:
    """The op_summary files at any depth of a PROF_* folder, or of one that holds some: all slices, each once.

    Each export writes files of its own beside those of earlier ones: of files that differ in the time
    of their export alone, msprof's own rule, the last counts. Where a PROF_* folder has the output
    folder of today's msprof, what older ones left elsewhere in it (device_0/summary) is the same again.

    Raises:
        OpAtlasError: a folder cannot be read.
    """
    exports: dict[tuple[Path, str], dict[str, Path]] = defaultdict(dict)
    found = all_op_summaries(folder)
    in_output = {_profile_of(path) for path in found if path.parent.name == _OUTPUT}
    for path in found:
        if path.parent.name == _OUTPUT or _profile_of(path) not in in_output:
            match = _SUMMARY.fullmatch(path.name)
            assert match is not None
            exports[path.parent, match["what"]][match["exported"] or ""] = path
    return sorted(by_time[max(by_time)] for by_time in exports.values())


def _profile_of(path: Path) -> Path | None:
    return next((folder for folder in path.parents if folder.name.startswith("PROF_")), None)


_START = ("Task Start Time(us)", "Start Time(us)")
_DEVICE = "Device_id"
_NAME = ("Op Name", "Name")


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel, launched once.

    Attributes:
        device: as the profiler numbers it; "" where the file does not say.
        start_ns: on the profiler's clock.
        duration_us: on the device.
        kernel_type: the profiler's type.
        cells: the base columns, by name, without the profiler's quotes.
        counters: those that hold a number, by name.
        name: the profiler's name of the launch, such as `aclnnSort_SortAiCore_Sort`; "" where the file has none.
    """

    device: str
    start_ns: int
    duration_us: float
    kernel_type: str
    cells: Mapping[str, str]
    counters: Mapping[str, float]
    name: str = ""

    @property
    def dimensions(self) -> str:
        """The dimensions of the inputs, without the profiler's quotes."""
        return unwrapped(self.cells[INPUT_SHAPES])


@dataclass(frozen=True)
class Launches:
    """What a file held.

    Attributes:
        launches: in the order of their start.
        problems: lines that could not be read, each with its place.
    """

    launches: tuple[Launch, ...]
    problems: tuple[str, ...]


def read_launches(path: Path) -> Launches:
    """Reads kernel_details*.csv of torch_npu, or op_summary*.csv of msprof.

    A line that is cut off, or whose numbers are none, is a problem of the result: what else the file
    holds was measured all the same.

    Raises:
        TableError: the file cannot be read, is no capture, was taken at level 0, or has no start times.
    """
    header = read_capture_header(path)
    start = next((name for name in _START if name in header.names), None)
    if start is None:
        raise TableError(path, f"no column {_START[0]!r}", "Take the profile again with --task-time=l1", line=1)
    place = {name: index for index, name in enumerate(header.names)}
    base = [(column, place[header.text[column]]) for column in BASE if column in header.text]
    counters = [(name, place[name]) for name in header.counters]
    kernel_type, duration = place[header.text[TYPE]], place[header.duration]
    device = place.get(_DEVICE)
    name = next((place[column] for column in _NAME if column in place), None)
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
                launches.append(
                    Launch(
                        device="" if device is None else cells[device].strip(),
                        start_ns=_nanoseconds(cells[place[start]]),
                        duration_us=float(cells[duration]),
                        kernel_type=cells[kernel_type].strip(),
                        cells={column: unwrapped(cells[index]) for column, index in base},
                        counters={
                            name: value for name, index in counters if (value := _number(cells[index])) is not None
                        },
                        name="" if name is None else unwrapped(cells[name]),
                    )
                )
            except ValueError as error:
                problems.append(f"{path}:{lines.line_num}: {error}: left out")
    launches.sort(key=lambda launch: launch.start_ns)
    return Launches(tuple(launches), tuple(problems))


def _nanoseconds(cell: str) -> int:
    """`1791629758426053.770\\t`: more digits than a float holds. Raises ValueError."""
    whole, _, fraction = cell.strip().partition(".")
    return int(whole) * 1000 + int((fraction + "000")[:3])


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
