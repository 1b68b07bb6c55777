"""The figures of a database: its roofline, and replays against captures.

Operations and bytes follow from shapes and dtypes (opatlas/row/roofline.py), the time is measured. Williams, Waterman
and Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from opatlas.data.csv_files import write_atomically
from opatlas.row.durations import Duration
from opatlas.row.roofline import ARITHMETIC, PRODUCTS, Peak, moved_bytes, operations
from opatlas.row.siblings import base_type
from opatlas.row.table import Row
from opatlas.show.session_report import HIGHEST_RATIO, LOWEST_RATIO

#: Resolution of a raster image: sharp in print at half size.
_DOTS_PER_INCH = 150
#: Colours for print and most colour-blind people (Okabe and Ito), then further colours of matplotlib.
_PALETTE = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    *("#8c564b", "#7f7f7f", "#bcbd22", "#9467bd", "#17becf", "#d62728", "#aec7e8", "#98df8a"),
)
_OTHER_COLOR = "#c0c0c0"


@dataclass(frozen=True)
class Plot:
    """A figure, and the number of rows in it."""

    figure: Any
    rows: int


def _new_figure(width_inches: float, height_inches: float) -> tuple[Any, Any]:
    """Returns a figure and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def save(figure: Any, path: Path) -> None:
    """Writes a figure in the format of the file's suffix, png, svg or pdf. Raises OpAtlasError."""
    form = path.suffix.removeprefix(".")
    from matplotlib import rc_context

    # Without dates and random names the same data give the same file.
    metadata = {"Date": None} if form == "svg" else {"CreationDate": None} if form == "pdf" else {}
    with rc_context({"svg.hashsalt": "opatlas"}):
        write_atomically(
            path, lambda temporary: figure.savefig(temporary, format=form, metadata=metadata, dpi=_DOTS_PER_INCH)
        )


def _escape_formulas(name: str) -> str:
    """Returns a name in which matplotlib finds no formula: `$x^$` would be an error."""
    return name.replace("$", r"\$")


def _color_map(names: Sequence[str]) -> Callable[[str], str]:
    """Returns a function from names to colours, in order; grey for other names, and if colours run out."""
    colors = dict(zip(names, _PALETTE, strict=False))
    return lambda name: colors.get(name, _OTHER_COLOR)


def _use_decades(axis: Any) -> None:
    """Sets logarithmic axes with a grid, powers of ten at the ends, and plain numbers: `0.1`, `10`."""
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(*_whole_decades(*axis.get_xlim()))
    axis.set_ylim(*_whole_decades(*axis.get_ylim()))
    for along in (axis.xaxis, axis.yaxis):
        along.set_major_formatter(lambda value, _: f"{value:g}")
    axis.grid(alpha=0.3)
    axis.grid(which="minor", alpha=0.1)


def _whole_decades(least: float, most: float) -> tuple[float, float]:
    """Returns the powers of ten around two values: (10, 1000) for 37 and 510."""
    return 10.0 ** math.floor(math.log10(least)), 10.0 ** math.ceil(math.log10(most))


_ROOFLINE_INCHES = (8.5, 5.5)
_ARITHMETIC_STYLE: Mapping[str, Any] = {"s": 9, "marker": "x", "linewidths": 0.5}
_PRODUCT_STYLE: Mapping[str, Any] = {"s": 14, "linewidths": 0}
#: Markers of product types, whose colours are similar.
_PRODUCT_MARKERS = "osD^vP"


@dataclass(frozen=True)
class RooflinePoint:
    """A row: `intensity` in operations per byte, `tera_ops` in 10^12 operations/s, `dtype` of the first input."""

    kernel_type: str
    dtype: str
    intensity: float
    tera_ops: float


def roofline_points(rows: Sequence[tuple[Row, Duration]]) -> list[RooflinePoint]:
    """Returns the points of rows whose operations and bytes are known. Raises CellError."""
    points = []
    for row, duration in rows:
        inputs, outputs = row.tensors
        count, size = (of_tensors(row.kernel_type, inputs, outputs) for of_tensors in (operations, moved_bytes))
        if count and size:
            points.append(RooflinePoint(row.kernel_type, inputs[0].dtype, count / size, count / duration.us / 1e6))
    return points


def roofline_plot(rows: Sequence[tuple[Row, Duration]], title: str, peak: Peak) -> Plot | None:
    """Plots the roofline; None without a row whose operations and bytes are known. Raises CellError."""
    points = roofline_points(rows)
    if not points:
        return None
    numbers = Counter(point.kernel_type for point in points)
    types = [name for name, _ in numbers.most_common()]
    color = _color_map(types)
    figure, axis = _new_figure(*_ROOFLINE_INCHES)
    products = [name for name in types if base_type(name) not in ARITHMETIC]
    markers = dict(zip(products, itertools.cycle(_PRODUCT_MARKERS), strict=False))
    for name in types:
        shown = [point for point in points if point.kernel_type == name]
        axis.scatter(
            [point.intensity for point in shown],
            [point.tera_ops for point in shown],
            color=color(name),
            alpha=0.7,
            label=f"{_escape_formulas(name)} ({numbers[name]:,})",
            **({**_PRODUCT_STYLE, "marker": markers[name]} if name in markers else _ARITHMETIC_STYLE),
        )
    _use_decades(axis)
    _roofs(axis, points, peak)
    known = peak.bandwidth_gbps or peak.tera_ops
    figure.suptitle(
        _escape_formulas(title if known else f"{title}\nwithout a roof: the peaks of the device are not known")
    )
    axis.set_xlabel("operations per byte (each input read once, each output written once)")
    axis.set_ylabel(rate_unit({point.dtype for point in points}))
    figure.legend(loc="outside right center", fontsize="small", markerscale=2, title="kernel type (rows)")
    return Plot(figure, len(points))


def rate_unit(dtypes: Collection[str]) -> str:
    """Returns the unit of 10^12 operations/s: FLOP for floating-point dtypes, OP for integers."""
    integers = {dtype for dtype in dtypes if "INT" in dtype or dtype == "BOOL"}
    floats = set(dtypes) - integers
    return "TFLOP/s" if not integers else "TOP/s" if not floats else f"TFLOP/s ({', '.join(sorted(integers))}: TOP/s)"


def _roofs(axis: Any, points: Sequence[RooflinePoint], peak: Peak) -> None:
    """Draws the memory slope, and a level for each dtype of products with a known peak; equal levels share a label."""
    left, right = axis.get_xlim()
    bottom, top = axis.get_ylim()
    dtypes = sorted({point.dtype for point in points if base_type(point.kernel_type) in PRODUCTS} & set(peak.tera_ops))
    levels = sorted({peak.tera_ops[dtype] for dtype in dtypes})
    slope = peak.bandwidth_gbps / 1e3 if peak.bandwidth_gbps else None
    if slope:
        begin, end = max(left, bottom / slope), min(right, max(levels) / slope) if levels else right
        axis.plot([begin, end], [begin * slope, end * slope], color="black", linewidth=1)
        middle = math.sqrt(begin * end)
        text = f"memory: {peak.bandwidth_gbps:,.0f} GB/s"
        axis.annotate(text, (middle, middle * slope), (-6, 2), textcoords="offset points", fontsize="small", ha="right")
    for level in levels:
        begin = max(left, level / slope) if slope else left
        axis.plot([begin, right], [level, level], color="black", linewidth=1)
        names = ", ".join(dtype for dtype in dtypes if peak.tera_ops[dtype] == level)
        text = f"{names}: {level:,g}"
        axis.annotate(text, (right, level), (-3, 3), textcoords="offset points", fontsize="small", ha="right")
    highest = max([*levels, *([right * slope] if slope and not levels else []), top])
    axis.set_xlim(left, right)
    axis.set_ylim(bottom, _whole_decades(bottom, highest)[1])


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


def agreement(rows: Sequence[Row]) -> Agreement:
    """Returns the statistics of at least one row; all rows have both durations."""
    ratios = [replayed_us / captured_us for replayed_us, captured_us in map(_both_us, rows)]
    tenths = quantiles(ratios, n=10, method="inclusive") if len(ratios) >= _FEWEST_FOR_TENTHS else None
    return Agreement(
        rows=len(ratios),
        p10=tenths[0] if tenths else None,
        p50=median(ratios),
        p90=tenths[-1] if tenths else None,
        within=sum(LOWEST_RATIO <= ratio <= HIGHEST_RATIO for ratio in ratios),
    )


def _both_us(row: Row) -> tuple[float, float]:
    """Returns the replayed and the captured duration of a row that has both."""
    replayed, captured = row.replayed, row.captured
    assert replayed is not None
    assert captured is not None
    return replayed.us, captured.us


def comparison_plot(rows: Sequence[Row], title: str) -> Plot | None:
    """Plots replayed against captured durations, which all rows have; None without rows."""
    if not rows:
        return None
    found = agreement(rows)
    numbers = Counter(row.kernel_type for row in rows)
    types = [name for name, _ in numbers.most_common()]
    color = _color_map(types[:_TYPES_SHOWN])
    figure, axis = _new_figure(*_COMPARISON_INCHES)
    for number, name in enumerate(types):
        replayed_us, captured_us = zip(*(_both_us(row) for row in rows if row.kernel_type == name), strict=True)
        label = f"{_escape_formulas(name)} ({numbers[name]:,})" if number < _TYPES_SHOWN else ""
        if number == _TYPES_SHOWN:
            label = f"{len(types) - _TYPES_SHOWN} others"
        axis.scatter(
            captured_us,
            replayed_us,
            c=color(name),
            s=40,
            marker=".",
            linewidths=0,
            alpha=0.8,
            label=label,
        )
    durations = [us for row in rows for us in _both_us(row)]
    ends = _whole_decades(min(durations), max(durations))
    axis.plot(ends, ends, color="black", linewidth=1, label="equal")
    axis.fill_between(
        ends,
        [LOWEST_RATIO * end for end in ends],
        [HIGHEST_RATIO * end for end in ends],
        color="0.5",
        alpha=0.2,
        linewidth=0,
        label=f"within 20 %: {found.within:,} of {found.rows:,}",
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
    _use_decades(axis)
    figure.suptitle(_escape_formulas(title))
    axis.set_xlabel("captured: Profiling Average Duration (us)")
    axis.set_ylabel("replayed: Average Duration (us)")
    figure.legend(loc="outside right center", fontsize="small", markerscale=1.5)
    return Plot(figure, found.rows)
