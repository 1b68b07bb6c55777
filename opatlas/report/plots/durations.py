"""Plots of durations: against the bytes of a call, against captured durations, and of products against M."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from opatlas.errors import CellError, TableError
from opatlas.model.quality import is_composition, valid_duration
from opatlas.model.roofline import Peak, tensor_bytes
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
    use_byte_axis,
    use_decades,
    whole_decades,
)
from opatlas.report.plots.timed_rows import TimedRow
from opatlas.report.session_files import HIGHEST_RATIO, LOWEST_RATIO
from opatlas.store.database import Database
from opatlas.text import pluralize

DURATIONS = PlotKind("durations", needs="rows with a duration and with dtypes that are known")

_PANEL_INCHES = (2.6, 2.0)
_MOST_COLUMNS = 6
_PANELS_OF_A_PAGE = 24
_OF_LEGENDS_INCHES = 1.0
#: Width of an entry of the legend.
_LEGEND_INCHES = 1.6
#: Least width: narrower figures cut titles off.
_FEWEST_INCHES = 7.8
#: Dtypes with a fixed colour, so that plots of two databases are comparable.
_DTYPES = ("BF16", "FLOAT", "INT8", "FLOAT16", "INT32", "INT64", "BOOL", "FLOAT8_E4M3FN")
_DTYPE_COLOR = color_map(_DTYPES)
_OTHER_DTYPES = "others"
REPLAYED, NOISY, CAPTURED = "replayed", "replayed, noisy", "captured"
_MARKERS = {REPLAYED: ".", NOISY: "o", CAPTURED: "+"}
#: Least height of a page with few panels.
_LEAST_HEIGHT_INCHES = 4.0


@dataclass(frozen=True)
class DurationPoint:
    """A duration. `tensor_bytes` counts all inputs and outputs; `source` is a key of `_MARKERS`."""

    tensor_bytes: int
    duration_us: float
    dtype: str
    source: str


def duration_points(rows: Sequence[TimedRow]) -> dict[str, list[DurationPoint]]:
    """Returns the points by kernel type; a row with both durations has two. Skips empty calls and unknown dtypes."""
    points: dict[str, list[DurationPoint]] = defaultdict(list)
    for row in rows:
        slots = (*row.inputs, *row.outputs)
        size = tensor_bytes(slots)
        if not size:
            continue
        dtype = next(slot.dtype for slot in slots if not slot.absent)
        for duration_us, source in (
            (row.microbench_us, NOISY if row.noisy else REPLAYED),
            (row.profiling_us, CAPTURED),
        ):
            if duration_us is not None:
                points[row.kernel_type].append(DurationPoint(size, duration_us, dtype, source))
    return dict(sorted(points.items(), key=lambda named: named[0].lower()))


def durations_plots(rows: Sequence[TimedRow], title: str, peak: Peak) -> list[Plot]:
    """Plots durations against bytes, a figure for every 24 kernel types. Raises OpAtlasError without matplotlib."""
    points = duration_points(rows)
    count = math.ceil(len(points) / _PANELS_OF_A_PAGE)
    # Distributes the panels evenly over pages.
    size = math.ceil(len(points) / count) if count else 0
    types = list(points)
    return [
        Plot(
            DURATIONS.name if count == 1 else f"{DURATIONS.name}_{page + 1}",
            _durations_page(shown, f"{title}, page {page + 1} of {count}" if count > 1 else title, peak),
            f"{pluralize(sum(map(len, shown.values())), 'duration')} of {pluralize(len(shown), 'kernel type')}",
        )
        for page in range(count)
        for shown in [{name: points[name] for name in types[page * size : (page + 1) * size]}]
    ]


def _durations_page(points: dict[str, list[DurationPoint]], title: str, peak: Peak) -> Any:
    columns = _columns(len(points))
    rows = math.ceil(len(points) / columns)
    width = max(_PANEL_INCHES[0] * columns, _FEWEST_INCHES)
    height = max(_PANEL_INCHES[1] * rows, _LEAST_HEIGHT_INCHES if columns < _MOST_COLUMNS // 2 else 0)
    figure, axes = new_figure(width, height + _OF_LEGENDS_INCHES, columns, rows)
    everything = list(itertools.chain.from_iterable(points.values()))
    for number, (axis, (kernel_type, shown)) in enumerate(zip(axes, points.items(), strict=False)):
        for source, marker in _MARKERS.items():
            chosen = [point for point in shown if point.source == source]
            colors = [_DTYPE_COLOR(point.dtype) for point in chosen]
            axis.scatter(
                [point.tensor_bytes for point in chosen],
                [point.duration_us for point in chosen],
                s=8 if source == NOISY else 20,
                marker=marker,
                linewidths=0 if source == REPLAYED else 0.7,
                alpha=0.7,
                **({"facecolors": "none", "edgecolors": colors} if source == NOISY else {"c": colors}),
            )
        if peak.bandwidth_gbps:
            ends = [min(point.tensor_bytes for point in everything), max(point.tensor_bytes for point in everything)]
            axis.plot(ends, [end / peak.bandwidth_gbps / 1e3 for end in ends], color="0.5", linewidth=0.8, zorder=0)
        use_byte_axis(axis)
        axis.set_yscale("log")
        axis.grid(alpha=0.3)
        axis.set_title(escape_formulas(kernel_type), fontsize="small")
        axis.set_xlabel("bytes of inputs and outputs", fontsize="small")
        axis.minorticks_off()
        axis.label_outer()
        # Panels without a panel below them need labels.
        axis.tick_params(labelbottom=number + columns >= len(points), labelsize="small")
    # The scale depends on durations only, not on the line of the bandwidth.
    durations_us = [point.duration_us for point in everything]
    axes[0].set_ylim(*whole_decades(min(durations_us) * 0.9, max(durations_us) * 1.1))
    for axis in axes[len(points) :]:
        axis.set_visible(False)
    figure.suptitle(escape_formulas(title))
    figure.supylabel("duration (us)", fontsize="medium")
    figure.legend(
        handles=_dtype_legend(everything, peak), loc="outside lower center", ncols=int(width / _LEGEND_INCHES)
    )
    return figure


def _columns(panels: int) -> int:
    """Returns the columns of a grid that is a little wider than high, with few empty places."""
    return min(range(_MOST_COLUMNS, 0, -1), key=lambda n: round(-panels % n + abs(n - math.sqrt(1.5 * panels)), 3))


def _dtype_legend(points: Sequence[DurationPoint], peak: Peak) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    there = {point.dtype for point in points}
    handles: list[Any] = [Patch(color=_DTYPE_COLOR(dtype), label=dtype) for dtype in _DTYPES if dtype in there]
    if there - set(_DTYPES):
        handles.append(Patch(color=_DTYPE_COLOR(_OTHER_DTYPES), label=_OTHER_DTYPES))
    for source, marker in _MARKERS.items():
        if any(point.source == source for point in points):
            fill: Any = "none" if source == NOISY else "full"
            handles.append(
                Line2D([], [], color="black", marker=marker, fillstyle=fill, markersize=5, linestyle="", label=source)
            )
    if peak.bandwidth_gbps:
        handles.append(Line2D([], [], color="0.5", linewidth=0.8, label=f"bytes at {peak.bandwidth_gbps:,.0f} GB/s"))
    return handles


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


def comparison_plots(rows: Sequence[TimedRow], title: str, peak: Peak) -> list[Plot]:
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
