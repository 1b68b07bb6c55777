"""The images of a database: every plot that it has data for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from opatlas.errors import OpAtlasError
from opatlas.progress import track
from opatlas.report.plots.communication import communication_plot
from opatlas.report.plots.durations import comparison_plot, products_plot
from opatlas.report.plots.figure import Plot, save
from opatlas.report.plots.roofline import roofline_plot
from opatlas.report.plots.timed_rows import TimedRow, on_device, read_timed_rows, without_composition
from opatlas.row.roofline import device_peak

PlotFormat = Literal["png", "svg", "pdf"]
#: The names of the plots, and what each needs.
PLOTS = {
    "roofline": "matrix products or arithmetic with a duration",
    "microbench_against_profiling": "rows with a replayed and a captured duration",
    "products": "matrix products of a weight with several M",
    "bus_bandwidth": "messages of collectives with a duration",
}
_WAYS_SHOWN = 3


@dataclass(frozen=True)
class WrittenPlots:
    """The images that were written.

    Attributes:
        device: whose rows the plots show; "" if unknown.
        rows: the number of rows or messages in each image.
        missing: the plots without data.
        problems: messages about rows that cannot be read.
    """

    device: str
    rows: Mapping[Path, int]
    missing: Sequence[str]
    problems: Sequence[str]


def write_plots(database: Path, messages: Path | None, folder: Path, form: PlotFormat) -> WrittenPlots:
    """Writes the plots of a database into a folder, in which earlier ones are removed.

    Replays on another device than the database's are only in the plot against captures. Captures may come from another
    device, and are left out of the others if there are replays. Compositions of torch operators are in no plot.

    Args:
        messages: the database of the collectives of the same device; None if there is none.

    Raises:
        OpAtlasError: the database has no CSVs, or a file cannot be written.
    """
    timed = read_timed_rows(database)
    problems = list(timed.problems)
    device = timed.device or _most_replayed(timed.rows)
    chosen = [row for each in timed.rows if (row := without_composition(each)) is not None]
    own = [row for each in chosen if (row := on_device(each, device)) is not None]
    own = [row for row in own if row.microbench_us is not None] or own
    both = [row for row in chosen if row.microbench_us is not None and row.profiling_us is not None]
    plots: dict[str, Plot | None] = {
        "roofline": roofline_plot(own, _title("Roofline", device, own), device_peak(device)),
        "microbench_against_profiling": comparison_plot(both, _title_of_both(both, timed.captured_on)),
        "products": products_plot(own, device),
        "bus_bandwidth": None,
    }
    if messages is not None:
        try:
            plots["bus_bandwidth"] = communication_plot(messages)
        except OpAtlasError as error:
            problems.append(str(error))
    for name in PLOTS:
        for ending in get_args(PlotFormat):
            (folder / f"{name}.{ending}").unlink(missing_ok=True)
    rows = {}
    for name, plot in track([(name, plot) for name, plot in plots.items() if plot is not None], "report, plots"):
        path = folder / f"{name}.{form}"
        save(plot.figure, path)
        rows[path] = plot.rows
    return WrittenPlots(device, rows, [name for name, plot in plots.items() if plot is None], problems)


def _most_replayed(rows: Sequence[TimedRow]) -> str:
    """Returns the device of most replays; "" if it is not known."""
    counts = Counter(row.device for row in rows if row.device)
    return max(counts, key=lambda device: counts[device], default="")


def _title_of_both(rows: Sequence[TimedRow], captured_on: Collection[str]) -> str:
    """Returns the title of the plot of replays against captures, with their devices if they are known."""
    replayed_on = sorted({row.device for row in rows if row.device})
    replays, captures = (f" on {', '.join(sorted(names))}" if names else "" for names in (replayed_on, captured_on))
    return f"Replayed{replays}\nagainst captured{captures}"


def _title(what: str, device: str, rows: Sequence[TimedRow]) -> str:
    """Returns the title of a plot with the device and the ways in which rows were timed, the most frequent first."""
    conditions = Counter(row.conditions for row in rows if row.microbench_us and row.conditions)
    ways = [way for way, _ in conditions.most_common()]
    shown = "; ".join(ways[:_WAYS_SHOWN] + ["..."] * (len(ways) > _WAYS_SHOWN))
    if not shown:
        captured = any(row.microbench_us is None for row in rows)
        return what + (f": {device}" if device else "") + (" (captured)" if captured else "")
    return f"{what}: replays on " + (f"{device} " if device else "") + f"({shown})"
