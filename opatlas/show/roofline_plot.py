"""The roofline of a database as an image: its rows, and the roofs of its device.

Operations and bytes follow from shapes and dtypes (opatlas/row/roofline.py), the time is measured. Williams, Waterman
and Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from opatlas.data.csv_files import write_atomically
from opatlas.data.database import Database, expect_tables
from opatlas.data.origin import Provenance, are_one_device
from opatlas.errors import CellError, OpAtlasError
from opatlas.progress import track
from opatlas.row.durations import Duration, Source
from opatlas.row.roofline import ARITHMETIC, PRODUCTS, Peak, device_peak, moved_bytes, operations
from opatlas.row.siblings import base_type
from opatlas.row.table import Row
from opatlas.text import pluralize

PlotFormat = Literal["png", "svg", "pdf"]
_WAYS_SHOWN = 3
#: Resolution of a raster image: sharp in print at half size.
_DOTS_PER_INCH = 150
#: Colours for print and most colour-blind people (Okabe and Ito), then further colours of matplotlib.
_PALETTE = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    *("#8c564b", "#7f7f7f", "#bcbd22", "#9467bd", "#17becf", "#d62728", "#aec7e8", "#98df8a"),
)
_OTHER_COLOR = "#c0c0c0"


def _escape_formulas(name: str) -> str:
    """Returns a name in which matplotlib finds no formula: `$x^$` would be an error."""
    return name.replace("$", r"\$")


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


_INCHES = (8.5, 5.5)
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


def roofline_figure(points: Sequence[RooflinePoint], title: str, peak: Peak) -> Any:
    """Returns a figure of matplotlib with at least one point."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    numbers = Counter(point.kernel_type for point in points)
    types = [name for name, _ in numbers.most_common()]
    colors = dict(zip(types, _PALETTE, strict=False))
    figure = Figure(figsize=_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    axis: Any = figure.subplots()
    products = [name for name in types if base_type(name) not in ARITHMETIC]
    markers = dict(zip(products, itertools.cycle(_PRODUCT_MARKERS), strict=False))
    for name in types:
        shown = [point for point in points if point.kernel_type == name]
        axis.scatter(
            [point.intensity for point in shown],
            [point.tera_ops for point in shown],
            color=colors.get(name, _OTHER_COLOR),
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
    return figure


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


def write_roofline(place: Path, path: Path) -> tuple[int, list[str]]:
    """Writes the roofline of a database in the format of the path's suffix: png, svg or pdf.

    Captures are in it where there are no replays on the database's device. Compositions of torch operators are not.

    Returns:
        The number of rows in the image, 0 where none is written, and messages about rows that cannot be read.

    Raises:
        OpAtlasError: the database has no CSVs, or the file cannot be written.
    """
    from matplotlib import rc_context

    expect_tables(place)
    problems: list[str] = []
    devices = Provenance(Database(place))
    timed, device = list(_rows_with_duration(Database(place), problems)), devices.device
    replayed = [(row, duration) for row in timed if (duration := row.replayed) is not None and not duration.composed]
    here = [each for each in replayed if are_one_device(devices.replayed(each[1].run_id), device)]
    rows = here or [(row, duration) for row in timed if (duration := row.captured) is not None]
    path.unlink(missing_ok=True)
    if points := roofline_points(rows):
        figure = roofline_figure(points, _title(device, rows), device_peak(device))
        form = path.suffix.removeprefix(".")
        # Without dates and random names the same data give the same file.
        metadata = {"Date": None} if form == "svg" else {"CreationDate": None} if form == "pdf" else {}

        def write(temporary: str) -> None:
            figure.savefig(temporary, format=form, metadata=metadata, dpi=_DOTS_PER_INCH)

        with rc_context({"svg.hashsalt": "opatlas"}):
            write_atomically(path, write)
    return len(points), problems


def _rows_with_duration(database: Database, problems: list[str]) -> Iterator[Row]:
    """Yields the rows with a duration; `problems` receives sentences about files and tensors that cannot be read."""
    for kernel_type in track(database.kernel_types(), "read, kernel types"):
        unread: list[str] = []
        try:
            table = database.read(kernel_type)
        except OpAtlasError as error:
            problems.append(str(error))
            continue
        for position in np.flatnonzero(table.replayed.known | table.captured.known).tolist():
            row = table.row(position)
            try:
                _ = row.tensors
            except CellError as error:
                unread.append(str(error))
            else:
                yield row
        if unread:
            left_out = f"{pluralize(len(unread), 'row')} left out: {unread[0]}"
            problems.append(f"{table.path}: {left_out}; correct the cell")


def _title(device: str, rows: Sequence[tuple[Row, Duration]]) -> str:
    """Returns the title of a plot with the device and the ways in which rows were timed, the most frequent first."""
    ways = [way for way, _ in Counter(duration.conditions for _, duration in rows).most_common()]
    shown = "; ".join(ways[:_WAYS_SHOWN] + ["..."] * (len(ways) > _WAYS_SHOWN))
    if ways in ([], [Source.CAPTURED], [Source.REPLAYED]):
        return "Roofline" + (f": {device}" if device else "") + (f" ({shown})" if shown else "")
    return "Roofline: replays on " + (f"{device} " if device else "") + f"({shown})"
