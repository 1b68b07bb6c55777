"""Durations against the size of a call's tensors: a panel for each kernel type, on the same scales."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opatlas.model.roofline import Peak, tensor_bytes
from opatlas.report.plots.figure import (
    Plot,
    colors_of,
    new_figure,
    plain,
    size_axis,
    whole_decades,
)
from opatlas.report.plots.timed_rows import TimedRow
from opatlas.text import counted

NAME = "durations"
NEEDS = "rows with a duration and with dtypes that are known"

_PANEL_INCHES = (2.6, 2.0)
_MOST_COLUMNS = 6
_PANELS_OF_A_PAGE = 24
_OF_LEGENDS_INCHES = 1.0
#: Of an entry of the legend.
_LEGEND_INCHES = 1.6
#: Narrower figures cut off their titles.
_FEWEST_INCHES = 7.8
#: Each has its colour in every plot, so that those of two databases compare.
_DTYPES = ("BF16", "FLOAT", "INT8", "FLOAT16", "INT32", "INT64", "BOOL")
_COLOR = colors_of(_DTYPES)
_OTHER_DTYPES = "others"
REPLAYED, NOISY, CAPTURED = "replayed", "replayed, noisy", "captured"
_MARKERS = {REPLAYED: ".", NOISY: "o", CAPTURED: "+"}
#: Of a single panel, and of a page at least: a strip shows nothing.
_LEAST_HEIGHT_INCHES = 4.0


@dataclass(frozen=True)
class Point:
    """Attributes: tensor_bytes: of all inputs and outputs; source: where the duration is from, one of _MARKERS."""

    tensor_bytes: int
    duration_us: float
    dtype: str
    source: str


def points_of(rows: Sequence[TimedRow]) -> dict[str, list[Point]]:
    """By kernel type; a row with both durations is two points. Empty calls and unknown dtypes are left out."""
    points: dict[str, list[Point]] = defaultdict(list)
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
                points[row.kernel_type].append(Point(size, duration_us, dtype, source))
    return dict(sorted(points.items(), key=lambda named: named[0].lower()))


def plots(rows: Sequence[TimedRow], title: str, peak: Peak) -> list[Plot]:
    """A figure for every 24 kernel types. Raises OpAtlasError without matplotlib."""
    points = points_of(rows)
    count = math.ceil(len(points) / _PANELS_OF_A_PAGE)
    # Pages of the same number of panels, as far as possible.
    size = math.ceil(len(points) / count) if count else 0
    types = list(points)
    return [
        Plot(
            NAME if count == 1 else f"{NAME}_{page + 1}",
            _page(shown, f"{title}, page {page + 1} of {count}" if count > 1 else title, peak),
            f"{counted(sum(map(len, shown.values())), 'duration')} of {counted(len(shown), 'kernel type')}",
        )
        for page in range(count)
        for shown in [{name: points[name] for name in types[page * size : (page + 1) * size]}]
    ]


def _page(points: dict[str, list[Point]], title: str, peak: Peak) -> Any:
    columns = _columns(len(points))
    rows = math.ceil(len(points) / columns)
    width = max(_PANEL_INCHES[0] * columns, _FEWEST_INCHES)
    height = max(_PANEL_INCHES[1] * rows, _LEAST_HEIGHT_INCHES if columns < _MOST_COLUMNS // 2 else 0)
    figure, axes = new_figure(width, height + _OF_LEGENDS_INCHES, columns, rows)
    everything = list(itertools.chain.from_iterable(points.values()))
    for number, (axis, (kernel_type, shown)) in enumerate(zip(axes, points.items(), strict=False)):
        for source, marker in _MARKERS.items():
            chosen = [point for point in shown if point.source == source]
            colors = [_COLOR(point.dtype) for point in chosen]
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
        size_axis(axis)
        axis.set_yscale("log")
        axis.grid(alpha=0.3)
        axis.set_title(plain(kernel_type), fontsize="small")
        axis.set_xlabel("bytes of inputs and outputs", fontsize="small")
        axis.minorticks_off()
        axis.label_outer()
        # Nothing is below the last panels of the row above the last one.
        axis.tick_params(labelbottom=number + columns >= len(points), labelsize="small")
    # The line of the bandwidth does not count: it would press the durations together.
    durations_us = [point.duration_us for point in everything]
    axes[0].set_ylim(*whole_decades(min(durations_us) * 0.9, max(durations_us) * 1.1))
    for axis in axes[len(points) :]:
        axis.set_visible(False)
    figure.suptitle(plain(title))
    figure.supylabel("duration (us)", fontsize="medium")
    figure.legend(handles=_legend(everything, peak), loc="outside lower center", ncols=int(width / _LEGEND_INCHES))
    return figure


def _columns(panels: int) -> int:
    """Of a grid that is somewhat wider than high and has few empty places."""
    return min(range(_MOST_COLUMNS, 0, -1), key=lambda n: round(-panels % n + abs(n - math.sqrt(1.5 * panels)), 3))


def _legend(points: Sequence[Point], peak: Peak) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    there = {point.dtype for point in points}
    handles: list[Any] = [Patch(color=_COLOR(dtype), label=dtype) for dtype in _DTYPES if dtype in there]
    if there - set(_DTYPES):
        handles.append(Patch(color=_COLOR(_OTHER_DTYPES), label=_OTHER_DTYPES))
    for source, marker in _MARKERS.items():
        if any(point.source == source for point in points):
            fill: Any = "none" if source == NOISY else "full"
            handles.append(
                Line2D([], [], color="black", marker=marker, fillstyle=fill, markersize=5, linestyle="", label=source)
            )
    if peak.bandwidth_gbps:
        handles.append(Line2D([], [], color="0.5", linewidth=0.8, label=f"bytes at {peak.bandwidth_gbps:,.0f} GB/s"))
    return handles
