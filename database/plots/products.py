"""Plots how long matrix products take against their rows M, for weights of one shape.

A line is a database's rows of one weight (N, K), in the dtype and the cache state that they were measured with; its
band reaches from the fastest sample to a standard deviation above the average.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from database.commands import looking_at_usage
from database.errors import CellError, OpAtlasError, TableError
from database.numbers import whole
from database.plots.figure import new_figure, plain, plot_file, save
from database.plots.timed_rows import device_of, expect_tables
from database.schema import AVERAGE, CACHE_STATE, INPUT_SLOTS, MICROBENCH_MIN, MICROBENCH_STD
from database.slots import parse_slots
from database.statistics import valid_duration
from database.store import Database
from database.terminal import counted, print_problems, show

_INCHES = (7.0, 4.2)
_DEFAULT_TYPE = "MatMulV2"


@dataclass(frozen=True)
class Point:
    """A measured product; durations in microseconds."""

    m: int
    average_us: float
    fastest_us: float
    std_us: float


def lines_of(folder: Path, kernel_type: str, weight: tuple[int, int]) -> dict[str, list[Point]]:
    """By what the legend calls them; points by M. None where nothing of this weight was measured.

    Raises:
        TableError: the file is not there, or no compute CSV, or has a shape that is no shape.
    """
    lines: dict[str, list[Point]] = {}
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
        cache = cells.get(CACHE_STATE, "")
        name = f"{weight[0]} x {weight[1]}, {slots[0].dtype}" + (f", {cache}" if cache else "")
        lines.setdefault(name, []).append(Point(m, average_us, fastest_us, std_us))
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
    figure, (axis,) = new_figure(*_INCHES)
    for (_, name), points in lines.items():
        rows = [point.m for point in points]
        (drawn,) = axis.plot(rows, [point.average_us for point in points], marker=".", label=plain(name))
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
    device = device_of(arguments.folders[0]) or arguments.folders[0].name
    axis.set_title(plain(f"{arguments.kernel_type} on {device}"))
    axis.set_xlabel("rows M of the left operand")
    axis.set_ylabel("duration (us)")
    axis.legend(fontsize="small", title="weight N x K")
    save(figure, arguments.output)
    show(f"{arguments.output}: {counted(sum(map(len, lines.values())), 'product')} in {counted(len(lines), 'line')}")
    return 0


def _weight(text: str) -> tuple[int, int]:
    n, _, k = text.partition(",")
    sizes = whole(n), whole(k)
    if sizes[0] is None or sizes[1] is None:
        raise argparse.ArgumentTypeError(f"{text!r}: give N,K, such as 6400,5120")
    return sizes[0], sizes[1]
