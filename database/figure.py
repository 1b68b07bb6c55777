"""Figures: matplotlib where it is installed, without a window, and a file that is whole or not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from database.errors import OpAtlasError
from database.store import write_atomically

_FORMATS = ("svg", "png", "pdf")


def new_figure(width_inches: float, height_inches: float, columns: int = 1) -> tuple[Any, list[Any]]:
    """A figure and its axes, side by side. Raises OpAtlasError where there is no matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise OpAtlasError(f"a plot needs matplotlib ({error}): pip install 'opatlas[plot]'") from None
    figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def save(figure: Any, path: Path) -> None:
    """Writes a figure in the format that the file's name ends with. Raises OpAtlasError."""
    form = path.suffix.removeprefix(".").lower()
    if form not in _FORMATS:
        raise OpAtlasError(f"{path}: a plot is a file whose name ends with .{', .'.join(_FORMATS)}; name such a one")
    from matplotlib import rc_context

    # No date in it, and no random names: the same data give the same file.
    metadata = {"Date": None} if form == "svg" else {"CreationDate": None} if form == "pdf" else {}
    with rc_context({"svg.hashsalt": "opatlas"}):
        write_atomically(path, lambda temporary: figure.savefig(temporary, format=form, metadata=metadata))
