"""Figures of matplotlib, without a window, and files that are written in one step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opatlas.data.csv_files import write_atomically

#: Resolution of a raster image: sharp in print at half size.
_DOTS_PER_INCH = 150
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
#: Colours for print and most colour-blind people (Okabe and Ito), then further colours of matplotlib.
_PALETTE = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    *("#8c564b", "#7f7f7f", "#bcbd22", "#9467bd", "#17becf", "#d62728", "#aec7e8", "#98df8a"),
)
_OTHER_COLOR = "#c0c0c0"


@dataclass(frozen=True)
class Plot:
    """A figure, and the number of rows or messages in it."""

    figure: Any
    rows: int


def new_figure(width_inches: float, height_inches: float, columns: int = 1, rows: int = 1) -> tuple[Any, list[Any]]:
    """Returns a figure and its axes, row by row, with shared scales."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)


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


def escape_formulas(name: str) -> str:
    """Returns a name in which matplotlib finds no formula: `$x^$` would be an error."""
    return name.replace("$", r"\$")


def color_map(names: Sequence[str]) -> Callable[[str], str]:
    """Returns a function from names to colours, in order; grey for other names, and if colours run out."""
    colors = dict(zip(names, _PALETTE, strict=False))
    return lambda name: colors.get(name, _OTHER_COLOR)


def use_decades(axis: Any) -> None:
    """Sets logarithmic axes with a grid, powers of ten at the ends, and plain numbers: `0.1`, `10`."""
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(*whole_decades(*axis.get_xlim()))
    axis.set_ylim(*whole_decades(*axis.get_ylim()))
    for along in (axis.xaxis, axis.yaxis):
        along.set_major_formatter(lambda value, _: f"{value:g}")
    axis.grid(alpha=0.3)
    axis.grid(which="minor", alpha=0.1)


def whole_decades(least: float, most: float) -> tuple[float, float]:
    """Returns the powers of ten around two values: (10, 1000) for 37 and 510."""
    return 10.0 ** math.floor(math.log10(least)), 10.0 ** math.ceil(math.log10(most))


def use_byte_axis(axis: Any) -> None:
    """Sets a logarithmic axis of bytes: `64 KiB`."""
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda size, _: bytes_text(size))
    axis.tick_params(axis="x", labelrotation=45)


def bytes_text(size: float) -> str:
    """Returns a number of bytes with a unit: `64 KiB`."""
    power = min(max(int(size).bit_length() - 1, 0) // 10, len(_BYTE_UNITS) - 1)
    return f"{size / (1 << 10 * power):g} {_BYTE_UNITS[power]}"
