"""The images of a database: every plot that it has data for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from opatlas.data.database import Database, expect_tables
from opatlas.data.origin import Provenance, are_one_device
from opatlas.errors import CellError, OpAtlasError
from opatlas.progress import track
from opatlas.row.durations import Duration, Source
from opatlas.row.roofline import device_peak
from opatlas.row.table import Row
from opatlas.show.plots.figures import Plot, comparison_plot, roofline_plot, save
from opatlas.text import pluralize

PlotFormat = Literal["png", "svg", "pdf"]
#: The names of the plots, and what each needs.
PLOTS = {
    "roofline": "matrix products or arithmetic with a duration",
    "microbench_against_profiling": "rows with a replayed and a captured duration",
}
_WAYS_SHOWN = 3


@dataclass(frozen=True)
class WrittenPlots:
    """The images that were written.

    Attributes:
        device: whose rows the plots show; "" if unknown.
        rows: the number of rows in each image.
        missing: the plots without data.
        problems: messages about rows that cannot be read.
    """

    device: str
    rows: Mapping[Path, int]
    missing: Sequence[str]
    problems: Sequence[str]


def write_plots(database: Path, folder: Path, form: PlotFormat) -> WrittenPlots:
    """Writes the plots of a database into a folder, in which earlier ones are removed.

    Replays on another device than the database's are only in the plot against captures. Captures may come from another
    device, and are left out of the other if there are replays. Compositions of torch operators are in no plot.

    Raises:
        OpAtlasError: the database has no CSVs, or a file cannot be written.
    """
    expect_tables(database)
    problems: list[str] = []
    devices = Provenance(Database(database))
    timed, device = list(_rows_with_duration(Database(database), problems)), devices.device
    captured = [(row, duration) for row in timed if (duration := row.captured) is not None]
    replayed = [(row, duration) for row in timed if (duration := row.replayed) is not None and not duration.composed]
    here = [each for each in replayed if are_one_device(devices.replayed(each[1].run_id), device)]
    own = here or captured
    both = [(row, duration) for row, duration in replayed if row.captured is not None]
    plots: dict[str, Plot | None] = {
        "roofline": roofline_plot(own, _title("Roofline", device, own), device_peak(device)),
        "microbench_against_profiling": comparison_plot([row for row, _ in both], _title_of_both(both, devices)),
    }
    for name in PLOTS:
        for ending in get_args(PlotFormat):
            (folder / f"{name}.{ending}").unlink(missing_ok=True)
    rows = {}
    for name, plot in track([(name, plot) for name, plot in plots.items() if plot is not None], "report, plots"):
        path = folder / f"{name}.{form}"
        save(plot.figure, path)
        rows[path] = plot.rows
    return WrittenPlots(device, rows, [name for name, plot in plots.items() if plot is None], problems)


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


def _title_of_both(rows: Sequence[tuple[Row, Duration]], devices: Provenance) -> str:
    """Returns the title of the plot of replays against captures, with their devices if they are known."""
    replayed_on = {devices.replayed(replay.run_id) for _, replay in rows} - {""}
    on = (f" on {', '.join(sorted(names))}" if names else "" for names in (replayed_on, devices.captured_on))
    return "Replayed{}\nagainst captured{}".format(*on)


def _title(what: str, device: str, rows: Sequence[tuple[Row, Duration]]) -> str:
    """Returns the title of a plot with the device and the ways in which rows were timed, the most frequent first."""
    ways = [way for way, _ in Counter(duration.conditions for _, duration in rows).most_common()]
    shown = "; ".join(ways[:_WAYS_SHOWN] + ["..."] * (len(ways) > _WAYS_SHOWN))
    if ways in ([], [Source.CAPTURED], [Source.REPLAYED]):
        return what + (f": {device}" if device else "") + (f" ({shown})" if shown else "")
    return f"{what}: replays on " + (f"{device} " if device else "") + f"({shown})"
