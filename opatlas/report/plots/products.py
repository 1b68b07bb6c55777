"""Plots how long matrix products take against their rows M, for weights of one shape.

A line is a database's rows of one weight (N, K), in the dtype and the cache state that they were measured with; its
band reaches from the fastest sample to a standard deviation above the average.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from opatlas.errors import CellError, OpAtlasError, TableError, looking_at_usage
from opatlas.model.quality import valid_duration
from opatlas.model.schema import (
    AVERAGE,
    CACHE_STATE,
    INPUT_SLOTS,
    MICROBENCH_MIN,
    MICROBENCH_STD,
)
from opatlas.model.slots import parse_slots
from opatlas.report.plots.figure import (
    colors_of,
    new_figure,
    plain,
    plot_file,
    save,
)
from opatlas.report.plots.timed_rows import device_of, expect_tables
from opatlas.store.csv_files import Database
from opatlas.text import counted, print_problems, show, whole

_INCHES = (7.0, 4.2)
_LINE_STYLES = ("solid", "dashed", "dotted", "dashdot")
_DEFAULT_TYPE = "MatMulV2"


@dataclass(frozen=True)
class Point:
    """A measured product; durations in microseconds."""

    m: int
    average_us: float
    fastest_us: float
    std_us: float


class Line(NamedTuple):
    """What the points of a line have in common; `cache` is "cold", "warm" or ""."""

    weight: str
    dtype: str
    cache: str

    def __str__(self) -> str:
        return ", ".join(word for word in self if word)


def lines_of(folder: Path, kernel_type: str, weight: tuple[int, int]) -> dict[Line, list[Point]]:
    """Returns points by M of each line. None where nothing of this weight was measured.

    Raises:
        TableError: the file is not there, or no compute CSV, or has a shape that is no shape.
    """
    lines: dict[Line, list[Point]] = {}
    table = Database(folder).read(kernel_type)
    for line, cells in enumerate(table.frame.to_dict("records"), start=2):
        average_us = valid_duration(cells.get(AVERAGE, ""))
        shapes, dtypes, formats = (cells.get(column, "") for column in INPUT_SLOTS)
        try:
            slots = parse_slots(shapes, dtypes, formats, INPUT_SLOTS)
        except CellError as error:
            raise TableError(table.path, str(error), "Correct the cell", line=line) from None
        if average_us is None or len(slots) != 2 or slots[1].shape != weight or len(slots[0].shape) != 2:
            continue
        m, k = slots[0].shape
        if k != weight[1]:
            continue
        fastest_us = valid_duration(cells.get(MICROBENCH_MIN, "")) or average_us
        std_us = valid_duration(cells.get(MICROBENCH_STD, "")) or 0.0
        line_of = Line(f"{weight[0]} x {weight[1]}", slots[0].dtype, cells.get(CACHE_STATE, ""))
        lines.setdefault(line_of, []).append(Point(m, average_us, fastest_us, std_us))
    return {name: sorted(points, key=lambda point: point.m) for name, points in lines.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 the plot was made; 1 there is nothing to plot, or it cannot be read or written; 2 wrong usage"
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="databases: a cold and a warm one, say")
    parser.add_argument("--output", required=True, type=plot_file, metavar="FILE", help="the plot: .svg, .png or .pdf")
    parser.add_argument(
        "--weights", nargs="+", required=True, type=_weight, metavar="N,K", help="the weights, a line for each"
    )
    parser.add_argument(
        "--kernel-type", default=_DEFAULT_TYPE, metavar="TYPE", help="the file to read (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    with looking_at_usage():
        for folder in arguments.folders:
            expect_tables(folder)
    for folder in arguments.folders:
        print_problems(Database(folder).misspelt(), word="warning")
    lines = {
        (folder, name): points
        for folder in arguments.folders
        for weight in arguments.weights
        for name, points in lines_of(folder, arguments.kernel_type, weight).items()
    }
    if not lines:
        wanted = ", ".join(f"{n},{k}" for n, k in arguments.weights)
        raise OpAtlasError(
            f"{', '.join(map(str, arguments.folders))}: {arguments.kernel_type} holds no duration of a weight "
            f"{wanted}; name one whose shape stands second among its Input Shapes"
        )
    devices = {folder: device_of(folder) or folder.name for folder in arguments.folders}
    figure = figure_of(lines, arguments.kernel_type, devices)
    save(figure, arguments.output)
    show(f"{arguments.output}: {counted(sum(map(len, lines.values())), 'product')} in {counted(len(lines), 'line')}")
    return 0


def figure_of(lines: Mapping[tuple[Path, Line], Sequence[Point]], kernel_type: str, devices: Mapping[Path, str]) -> Any:
    """Returns the figure of lines, each of a database, by whose folder `devices` has its device.

    Raises:
        OpAtlasError: matplotlib is not installed.
    """
    figure, (axis,) = new_figure(*_INCHES)
    one_device = len(set(devices.values())) == 1
    # A weight has one colour, whatever its cache state and database; these have the kind of the line.
    color = colors_of(list(dict.fromkeys(f"{line.weight} {line.dtype}" for _, line in lines)))
    ways = list(dict.fromkeys((devices[folder], line.cache) for folder, line in lines))
    for (folder, line), points in lines.items():
        rows = [point.m for point in points]
        (drawn,) = axis.plot(
            rows,
            [point.average_us for point in points],
            marker=".",
            color=color(f"{line.weight} {line.dtype}"),
            linestyle=_LINE_STYLES[ways.index((devices[folder], line.cache)) % len(_LINE_STYLES)],
            label=plain(f"{line}" if one_device else f"{line}, {devices[folder]}"),
        )
        axis.fill_between(
            rows,
            [point.fastest_us for point in points],
            [point.average_us + point.std_us for point in points],
            color=drawn.get_color(),
            alpha=0.2,
            linewidth=0,
        )
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(lambda m, _: f"{m:g}")
    axis.grid(alpha=0.3)
    axis.set_title(plain(f"{kernel_type} on {', '.join(dict.fromkeys(devices.values()))}"))
    axis.set_xlabel("rows M of the left operand")
    axis.set_ylabel("duration (us)")
    axis.legend(fontsize="small", title="weight N x K")
    return figure


def _weight(text: str) -> tuple[int, int]:
    n, _, k = text.partition(",")
    sizes = whole(n), whole(k)
    if sizes[0] is None or sizes[1] is None:
        raise argparse.ArgumentTypeError(f"{text!r}: give N,K, such as 6400,5120")
    return sizes[0], sizes[1]
