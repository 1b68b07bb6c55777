"""Plots of rates: the roofline, and bytes per second of kernels that read and write each element once.

Operations and bytes follow from shapes and dtypes (opatlas/model/roofline.py), the time is measured. Williams, Waterman
and Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from opatlas.model.roofline import (
    ARITHMETIC,
    PRODUCTS,
    Peak,
    moved_bytes,
    operations,
)
from opatlas.model.siblings import base_type
from opatlas.report.plots.figure import (
    Plot,
    PlotKind,
    bytes_text,
    color_map,
    escape_formulas,
    new_figure,
    use_decades,
    whole_decades,
)
from opatlas.report.plots.timed_rows import TimedRow
from opatlas.text import pluralize

ROOFLINE = PlotKind("roofline", needs="matrix products or arithmetic with a duration")

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


def roofline_points(rows: Sequence[TimedRow]) -> list[RooflinePoint]:
    """Returns the points of rows whose operations and bytes are known."""
    points = []
    for row in rows:
        count, size = (tell(row.kernel_type, row.inputs, row.outputs) for tell in (operations, moved_bytes))
        if count and size:
            dtype = row.inputs[0].dtype
            points.append(RooflinePoint(row.kernel_type, dtype, count / size, count / row.duration_us / 1e6))
    return points


def roofline_plots(rows: Sequence[TimedRow], title: str, peak: Peak) -> list[Plot]:
    """Plots the roofline. Raises OpAtlasError without matplotlib."""
    points = roofline_points(rows)
    if not points:
        return []
    numbers = Counter(point.kernel_type for point in points)
    types = [name for name, _ in numbers.most_common()]
    color = color_map(types)
    figure, (axis,) = new_figure(*_ROOFLINE_INCHES)
    products = [name for name in types if base_type(name) not in ARITHMETIC]
    markers = dict(zip(products, itertools.cycle(_PRODUCT_MARKERS), strict=False))
    for name in types:
        shown = [point for point in points if point.kernel_type == name]
        axis.scatter(
            [point.intensity for point in shown],
            [point.tera_ops for point in shown],
            color=color(name),
            alpha=0.7,
            label=f"{escape_formulas(name)} ({numbers[name]:,})",
            **({**_PRODUCT_STYLE, "marker": markers[name]} if name in markers else _ARITHMETIC_STYLE),
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    use_decades(axis)
    _roofs(axis, points, peak)
    known = peak.bandwidth_gbps or peak.tera_ops
    figure.suptitle(
        escape_formulas(title if known else f"{title}\nwithout a roof: the peaks of the device are not known")
    )
    axis.set_xlabel("operations per byte (each input read once, each output written once)")
    axis.set_ylabel(rate_unit({point.dtype for point in points}))
    figure.legend(loc="outside right center", fontsize="small", markerscale=2, title="kernel type (rows)")
    return [Plot(ROOFLINE.name, figure, f"{pluralize(len(points), 'row')} of {pluralize(len(types), 'kernel type')}")]


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
    axis.set_ylim(bottom, whole_decades(bottom, highest)[1])


BANDWIDTH = PlotKind("bandwidth", needs="kernels that read and write each element once, with a duration")

_WIDTH_INCHES = 8.5
_LINE_INCHES = 0.24
_AXIS_INCHES = 1.4
#: Least height: smaller figures cut labels off.
_LEAST_INCHES = 3.6
_POWERS_BETWEEN_TICKS = 5


@dataclass(frozen=True)
class BandwidthPoint:
    """A row: `moved_bytes` counts each input and each output once."""

    moved_bytes: int
    gbps: float


def bandwidth_points(rows: Sequence[TimedRow]) -> dict[str, list[BandwidthPoint]]:
    """Returns the points by kernel type, without products, which memory does not bound."""
    points: dict[str, list[BandwidthPoint]] = defaultdict(list)
    for row in rows:
        size = moved_bytes(row.kernel_type, row.inputs, row.outputs)
        if size and base_type(row.kernel_type) not in PRODUCTS:
            points[row.kernel_type].append(BandwidthPoint(size, size / row.duration_us / 1e3))
    return dict(points)


def bandwidth_plots(rows: Sequence[TimedRow], title: str, peak: Peak) -> list[Plot]:
    """Plots bytes per second, the type with the fastest row on top. Raises OpAtlasError without matplotlib."""
    points = bandwidth_points(rows)
    if not points:
        return []
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import LogLocator, NullLocator

    types = sorted(points, key=lambda name: max(point.gbps for point in points[name]))
    figure, (axis,) = new_figure(_WIDTH_INCHES, max(_LINE_INCHES * len(types) + _AXIS_INCHES, _LEAST_INCHES))
    everything = [(line, point) for line, name in enumerate(types) for point in points[name]]
    drawn = axis.scatter(
        [point.gbps for _, point in everything],
        [line for line, _ in everything],
        c=[point.moved_bytes for _, point in everything],
        norm=LogNorm(),
        cmap="viridis",
        s=40,
        marker="|",
        label="row",
    )
    axis.scatter(
        [median(point.gbps for point in points[name]) for name in types],
        range(len(types)),
        s=24,
        facecolors="none",
        edgecolors="red",
        label="median",
    )
    if peak.bandwidth_gbps:
        axis.axvline(peak.bandwidth_gbps, color="black", linewidth=1, label=f"memory: {peak.bandwidth_gbps:,.0f} GB/s")
    axis.set_xscale("log")
    axis.set_yticks(
        range(len(types)), [f"{escape_formulas(name)} ({len(points[name]):,})" for name in types], fontsize="small"
    )
    axis.set_ylim(-0.6, len(types) - 0.4)
    axis.grid(alpha=0.3)
    figure.suptitle(escape_formulas(title))
    axis.set_xlabel("10⁹ bytes/s (each input read once, each output written once)")
    axis.set_ylabel("kernel type (rows), sorted by its fastest row")
    figure.legend(loc="outside lower left", ncols=3, fontsize="small")
    bar = figure.colorbar(drawn, ax=axis, label="bytes read and written", aspect=60)
    bar.ax.yaxis.set_major_locator(LogLocator(base=2**_POWERS_BETWEEN_TICKS))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(lambda size, _: bytes_text(size))
    return [
        Plot(BANDWIDTH.name, figure, f"{pluralize(len(everything), 'row')} of {pluralize(len(types), 'kernel type')}")
    ]
