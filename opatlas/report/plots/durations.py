"""Plots of durations: of replays against captures, and of products against M."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from opatlas.errors import CellError, TableError
from opatlas.model.quality import is_composition, valid_duration
from opatlas.model.schema import (
    AVERAGE,
    CACHE_STATE,
    INPUT_SLOTS,
    MICROBENCH_MIN,
    MICROBENCH_STD,
    QUALITY,
    STAND_IN,
)
from opatlas.model.signature import row_cells
from opatlas.model.slots import parse_slots
from opatlas.report.plots.figure import (
    Plot,
    PlotKind,
    color_map,
    escape_formulas,
    new_figure,
    use_decades,
    whole_decades,
)
from opatlas.report.plots.timed_rows import TimedRow
from opatlas.report.session_report import HIGHEST_RATIO, LOWEST_RATIO
from opatlas.store.database import Database
from opatlas.text import pluralize

COMPARISON = PlotKind("microbench_against_profiling", needs="rows with a replayed and a captured duration")

_COMPARISON_INCHES = (8.0, 6.0)
_TYPES_SHOWN = 15
#: Fewer values have no meaningful 10th and 90th percentile.
_FEWEST_FOR_TENTHS = 10


@dataclass(frozen=True)
class Agreement:
    """Statistics of the ratios microbench / profiling.

    Attributes:
        p10, p50, p90: percentiles; p10 and p90 are None for few rows.
        within: the number of rows within 20 %.
    """

    rows: int
    p10: float | None
    p50: float
    p90: float | None
    within: int


def agreement(rows: Sequence[TimedRow]) -> Agreement:
    """Returns the statistics of at least one row; all rows have both durations."""
    ratios = [row.microbench_us / row.profiling_us for row in rows if row.microbench_us and row.profiling_us]
    tenths = quantiles(ratios, n=10, method="inclusive") if len(ratios) >= _FEWEST_FOR_TENTHS else None
    return Agreement(
        rows=len(ratios),
        p10=tenths[0] if tenths else None,
        p50=median(ratios),
        p90=tenths[-1] if tenths else None,
        within=sum(LOWEST_RATIO <= ratio <= HIGHEST_RATIO for ratio in ratios),
    )


def comparison_plots(rows: Sequence[TimedRow], title: str) -> list[Plot]:
    """Plots replayed against captured durations. Raises OpAtlasError without matplotlib."""
    if not rows:
        return []
    found = agreement(rows)
    numbers = Counter(row.kernel_type for row in rows)
    types = [name for name, _ in numbers.most_common()]
    color = color_map(types[:_TYPES_SHOWN])
    figure, (axis,) = new_figure(*_COMPARISON_INCHES)
    for number, name in enumerate(types):
        shown = [row for row in rows if row.kernel_type == name]
        label = f"{escape_formulas(name)} ({numbers[name]:,})" if number < _TYPES_SHOWN else ""
        if number == _TYPES_SHOWN:
            label = f"{len(types) - _TYPES_SHOWN} others"
        axis.scatter(
            [row.profiling_us for row in shown],
            [row.microbench_us for row in shown],
            c=color(name),
            s=40,
            marker=".",
            linewidths=0,
            alpha=0.8,
            label=label,
        )
    durations = [us for row in rows for us in (row.microbench_us, row.profiling_us) if us]
    ends = whole_decades(min(durations), max(durations))
    axis.plot(ends, ends, color="black", linewidth=1, label="equal")
    axis.fill_between(
        ends,
        [LOWEST_RATIO * end for end in ends],
        [HIGHEST_RATIO * end for end in ends],
        color="0.5",
        alpha=0.2,
        linewidth=0,
        label="within 20 %",
    )
    for ratio, words, style in (
        (found.p10, "10th percentile", "dotted"),
        (found.p50, "median", "dashed"),
        (found.p90, "90th percentile", "dotted"),
    ):
        if ratio is not None:
            label = f"{words}: {ratio:,.2f} x"
            axis.plot(ends, [ratio * end for end in ends], color="red", linewidth=1, linestyle=style, label=label)
    axis.set_xlim(*ends)
    axis.set_ylim(*ends)
    use_decades(axis)
    figure.suptitle(escape_formulas(title))
    axis.set_xlabel("captured: Profiling Average Duration (us)")
    axis.set_ylabel("replayed: Average Duration (us)")
    figure.legend(loc="outside right center", fontsize="small", markerscale=1.5)
    return [
        Plot(
            COMPARISON.name,
            figure,
            f"{pluralize(found.rows, 'row')}, {found.within:,} within 20 %, median {found.p50:,.2f} x",
        )
    ]


_PRODUCTS_INCHES = (7.0, 4.2)
_LINE_STYLES = ("solid", "dashed", "dotted", "dashdot")


@dataclass(frozen=True)
class ProductPoint:
    """A measured matrix product; durations in microseconds."""

    m: int
    average_us: float
    fastest_us: float
    std_us: float


class ProductLine(NamedTuple):
    """The common properties of a line's points; `cache` is "cold", "warm" or ""."""

    weight: str
    dtype: str
    cache: str

    def __str__(self) -> str:
        return ", ".join(word for word in self if word)


def product_lines(folder: Path, kernel_type: str, weight: tuple[int, int]) -> dict[ProductLine, list[ProductPoint]]:
    """Returns the points of each line, by M; empty if no row has this weight (N, K). Leaves compositions out.

    Raises:
        TableError: the file is missing, not a compute CSV, or has a malformed shape.
    """
    lines: dict[ProductLine, list[ProductPoint]] = {}
    table = Database(folder).read(kernel_type)
    for line, cells in enumerate(row_cells(table.frame), start=2):
        average_us = valid_duration(cells.get(AVERAGE, ""))
        if is_composition(cells.get(QUALITY, ""), cells.get(STAND_IN, "")):
            continue
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
        line_of = ProductLine(f"{weight[0]} x {weight[1]}", slots[0].dtype, cells.get(CACHE_STATE, ""))
        lines.setdefault(line_of, []).append(ProductPoint(m, average_us, fastest_us, std_us))
    return {name: sorted(points, key=lambda point: point.m) for name, points in lines.items()}


def products_figure(
    lines: Mapping[tuple[Path, ProductLine], Sequence[ProductPoint]], kernel_type: str, devices: Mapping[Path, str]
) -> Any:
    """Returns the figure of lines of databases. `devices` has the device of each folder.

    A band reaches from the fastest sample to one standard deviation above the average.

    Raises:
        OpAtlasError: matplotlib is not installed.
    """
    figure, (axis,) = new_figure(*_PRODUCTS_INCHES)
    one_device = len(set(devices.values())) == 1
    # Colours stand for weights, line styles for cache state and database.
    color = color_map(list(dict.fromkeys(f"{line.weight} {line.dtype}" for _, line in lines)))
    ways = list(dict.fromkeys((devices[folder], line.cache) for folder, line in lines))
    for (folder, line), points in lines.items():
        rows = [point.m for point in points]
        (drawn,) = axis.plot(
            rows,
            [point.average_us for point in points],
            marker=".",
            color=color(f"{line.weight} {line.dtype}"),
            linestyle=_LINE_STYLES[ways.index((devices[folder], line.cache)) % len(_LINE_STYLES)],
            label=escape_formulas(f"{line}" if one_device else f"{line}, {devices[folder]}"),
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
    axis.set_title(escape_formulas(f"{kernel_type} on {', '.join(dict.fromkeys(devices.values()))}"))
    axis.set_xlabel("rows M of the left operand")
    axis.set_ylabel("duration (us)")
    axis.legend(fontsize="small", title="weight N x K")
    return figure
