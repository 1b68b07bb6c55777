"""Plots of rates: the roofline, and bytes per second of kernels that read and write each element once.

Operations and bytes follow from shapes and dtypes (opatlas/row/roofline.py), the time is measured. Williams, Waterman
and Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opatlas.row.durations import Duration
from opatlas.row.roofline import ARITHMETIC, PRODUCTS, Peak, moved_bytes, operations
from opatlas.row.siblings import base_type
from opatlas.row.table import Row
from opatlas.show.plots.figure import Plot, color_map, escape_formulas, new_figure, use_decades, whole_decades

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
    axis.set_ylim(bottom, whole_decades(bottom, highest)[1])
