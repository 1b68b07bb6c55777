"""Bytes a second of the kernels that read and write each of their elements once: a line of points for each type."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from opatlas.model.roofline import PRODUCTS, Peak, moved_bytes
from opatlas.model.siblings import plain_type
from opatlas.report.plots.figure import (
    Plot,
    bytes_text,
    new_figure,
    plain,
)
from opatlas.report.plots.timed_rows import TimedRow
from opatlas.text import counted

NAME = "bandwidth"
NEEDS = "kernels that read and write each element once, with a duration"

_WIDTH_INCHES = 8.5
_LINE_INCHES = 0.24
_OF_AXIS_INCHES = 1.4
#: A figure of few lines would cut off the labels at its sides.
_LEAST_INCHES = 3.6
_POWERS_BETWEEN_TICKS = 5


@dataclass(frozen=True)
class Point:
    """Attributes: moved_bytes: each input once, each output once."""

    moved_bytes: int
    gbps: float


def points_of(rows: Sequence[TimedRow]) -> dict[str, list[Point]]:
    """By kernel type. Products are left to the roofline: what bounds the large ones is not the memory."""
    points: dict[str, list[Point]] = defaultdict(list)
    for row in rows:
        size = moved_bytes(row.kernel_type, row.inputs, row.outputs)
        if size and plain_type(row.kernel_type) not in PRODUCTS:
            points[row.kernel_type].append(Point(size, size / row.duration_us / 1e3))
    return dict(points)


def plots(rows: Sequence[TimedRow], title: str, peak: Peak) -> list[Plot]:
    """One figure, or none; the type whose largest calls are fastest on top. Raises OpAtlasError without matplotlib."""
    points = points_of(rows)
    if not points:
        return []
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import LogLocator, NullLocator

    types = sorted(points, key=lambda name: max(point.gbps for point in points[name]))
    figure, (axis,) = new_figure(_WIDTH_INCHES, max(_LINE_INCHES * len(types) + _OF_AXIS_INCHES, _LEAST_INCHES))
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
    axis.set_yticks(range(len(types)), [f"{plain(name)} ({len(points[name]):,})" for name in types], fontsize="small")
    axis.set_ylim(-0.6, len(types) - 0.4)
    axis.grid(alpha=0.3)
    figure.suptitle(plain(title))
    axis.set_xlabel("10⁹ bytes/s (each input read once, each output written once)")
    axis.set_ylabel("kernel type (rows), sorted by its fastest row")
    figure.legend(loc="outside lower left", ncols=3, fontsize="small")
    bar = figure.colorbar(drawn, ax=axis, label="bytes read and written", aspect=60)
    bar.ax.yaxis.set_major_locator(LogLocator(base=2**_POWERS_BETWEEN_TICKS))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(lambda size, _: bytes_text(size))
    return [Plot(NAME, figure, f"{counted(len(everything), 'row')} of {counted(len(types), 'kernel type')}")]
