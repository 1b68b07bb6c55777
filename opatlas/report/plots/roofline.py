"""The roofline: operations a second of matrix products and arithmetic against operations per byte moved.

Operations and bytes are those that the row's shapes and dtypes ask for (opatlas/model/roofline.py), the time is
measured.
Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opatlas.model.roofline import (
    ARITHMETIC,
    PRODUCTS,
    Peak,
    moved_bytes,
    operations,
)
from opatlas.model.siblings import plain_type
from opatlas.report.plots.figure import (
    Plot,
    colors_of,
    decades,
    new_figure,
    plain,
    whole_decades,
)
from opatlas.report.plots.timed_rows import TimedRow
from opatlas.text import counted

NAME = "roofline"
NEEDS = "matrix products or arithmetic with a duration"

_INCHES = (8.5, 5.5)
_OF_ARITHMETIC: Mapping[str, Any] = {"s": 9, "marker": "x", "linewidths": 0.5}
_OF_PRODUCTS: Mapping[str, Any] = {"s": 14, "linewidths": 0}
#: Of the types of products, which have like colours, too.
_PRODUCT_MARKERS = "osD^vP"


@dataclass(frozen=True)
class Point:
    """Attributes: intensity: operations per byte; tera_ops: 10^12 operations/s; dtype: of the first input."""

    kernel_type: str
    dtype: str
    intensity: float
    tera_ops: float


def points_of(rows: Sequence[TimedRow]) -> list[Point]:
    """Of the rows whose operations and bytes are known."""
    points = []
    for row in rows:
        count, size = (tell(row.kernel_type, row.inputs, row.outputs) for tell in (operations, moved_bytes))
        if count and size:
            dtype = row.inputs[0].dtype
            points.append(Point(row.kernel_type, dtype, count / size, count / row.duration_us / 1e6))
    return points


def plots(rows: Sequence[TimedRow], title: str, peak: Peak) -> list[Plot]:
    """One figure, or none. Raises OpAtlasError without matplotlib."""
    points = points_of(rows)
    if not points:
        return []
    numbers = Counter(point.kernel_type for point in points)
    types = [name for name, _ in numbers.most_common()]
    color = colors_of(types)
    figure, (axis,) = new_figure(*_INCHES)
    products = [name for name in types if plain_type(name) not in ARITHMETIC]
    markers = dict(zip(products, itertools.cycle(_PRODUCT_MARKERS), strict=False))
    for name in types:
        shown = [point for point in points if point.kernel_type == name]
        axis.scatter(
            [point.intensity for point in shown],
            [point.tera_ops for point in shown],
            color=color(name),
            alpha=0.7,
            label=f"{plain(name)} ({numbers[name]:,})",
            **({**_OF_PRODUCTS, "marker": markers[name]} if name in markers else _OF_ARITHMETIC),
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    decades(axis)
    _roofs(axis, points, peak)
    known = peak.bandwidth_gbps or peak.tera_ops
    figure.suptitle(plain(title if known else f"{title}\nwithout a roof: the peaks of the device are not known"))
    axis.set_xlabel("operations per byte (each input read once, each output written once)")
    axis.set_ylabel(unit_of({point.dtype for point in points}))
    figure.legend(loc="outside right center", fontsize="small", markerscale=2, title="kernel type (rows)")
    return [Plot(NAME, figure, f"{counted(len(points), 'row')} of {counted(len(types), 'kernel type')}")]


def unit_of(dtypes: Collection[str]) -> str:
    """Returns the unit of 10^12 operations/s: floating-point ones are FLOP, those of integers are not."""
    integers = {dtype for dtype in dtypes if "INT" in dtype or dtype == "BOOL"}
    floats = set(dtypes) - integers
    return "TFLOP/s" if not integers else "TOP/s" if not floats else f"TFLOP/s ({', '.join(sorted(integers))}: TOP/s)"


def _roofs(axis: Any, points: Sequence[Point], peak: Peak) -> None:
    """The memory's slope, and a level for each dtype of products whose peak is known; equal ones share a label."""
    left, right = axis.get_xlim()
    bottom, top = axis.get_ylim()
    dtypes = sorted({point.dtype for point in points if plain_type(point.kernel_type) in PRODUCTS} & set(peak.tera_ops))
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
