"""Plot the bus bandwidth of collectives against the size of their messages.

Reads the hcom_*.csv files of folders, whoever wrote them. A line is a folder's collective, dtype, number of devices
and tier; its band reaches from the fastest to the slowest rank's median where the file has their spread.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from database.communication import BY_NAME, COLLECTIVES, Collective
from database.errors import OpAtlasError, TableError
from database.figure import new_figure, save
from database.measured import duration_columns
from database.schema import DTYPE, MESSAGE_BYTES, NUM_DEVICES, TOPOLOGY_TIER, microbench_counter
from database.statistics import valid_duration
from database.store import Database

_SPREAD = microbench_counter("Rank Spread(us)")
_INCHES = (4.2, 4.0)
_UNITS = ("B", "KiB", "MiB", "GiB")


@dataclass(frozen=True)
class Point:
    """Attributes: fastest_gbps: of the rank whose median is the smallest."""

    message_bytes: int
    bus_gbps: float
    fastest_gbps: float


def lines_of(folder: Path, collective: Collective) -> dict[str, list[Point]]:
    """By what the legend calls them; points by size. None where there is no file. Raises TableError."""
    database = Database(folder)
    path = database.csv_path(collective.kernel_type)
    if not path.exists():
        return {}
    frame = database.read(collective.kernel_type).frame
    lines: dict[str, list[Point]] = {}
    for number, cells in enumerate(frame.to_dict("records"), start=2):
        durations = [valid_duration(cells.get(name, "")) for name in duration_columns(collective.kernel_type)]
        duration_us = next((duration for duration in durations if duration is not None), None)
        if duration_us is None:
            continue
        try:
            message_bytes, devices = int(float(cells[MESSAGE_BYTES])), int(float(cells[NUM_DEVICES]))
            fastest_us = duration_us - float(cells.get(_SPREAD, "") or 0)
        except ValueError as error:
            raise TableError(path, f"a cell that is no number ({error})", "Correct the cell", line=number) from None
        tier = cells.get(TOPOLOGY_TIER, "")
        name = f"{cells.get(DTYPE, '').removeprefix('DT_')} on {devices}" + (f", tier {tier}" if tier else "")
        lines.setdefault(name, []).append(
            Point(
                message_bytes,
                collective.bus_bandwidth_gbps(message_bytes, devices, duration_us),
                collective.bus_bandwidth_gbps(message_bytes, devices, max(fastest_us, 1e-3)),
            )
        )
    return {name: sorted(points, key=lambda point: point.message_bytes) for name, points in lines.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folders of hcom_*.csv files")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="the plot: .svg, .png or .pdf")
    parser.add_argument(
        "--comm-ops",
        nargs="+",
        choices=list(BY_NAME),
        metavar="OP",
        help="the collectives to plot (default: those that have a file)",
    )


def run(arguments: argparse.Namespace) -> int:
    wanted = [each for each in COLLECTIVES if arguments.comm_ops is None or each.name in arguments.comm_ops]
    found = {
        each: {
            (folder, name): points for folder in arguments.folders for name, points in lines_of(folder, each).items()
        }
        for each in wanted
    }
    plotted = {collective: lines for collective, lines in found.items() if lines}
    if not plotted:
        folders = ", ".join(map(str, arguments.folders))
        raise OpAtlasError(f"{folders}: no message of a collective has a duration; measure some first")
    figure, axes = new_figure(_INCHES[0] * len(plotted), _INCHES[1], columns=len(plotted))
    for axis, (collective, lines) in zip(axes, plotted.items(), strict=True):
        for (folder, name), points in lines.items():
            sizes = [point.message_bytes for point in points]
            (drawn,) = axis.plot(
                sizes,
                [point.bus_gbps for point in points],
                marker=".",
                label=_label(folder, name, arguments.folders),
            )
            axis.fill_between(
                sizes,
                [point.bus_gbps for point in points],
                [point.fastest_gbps for point in points],
                color=drawn.get_color(),
                alpha=0.2,
                linewidth=0,
            )
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.xaxis.set_major_formatter(lambda size, _: _bytes(size))
        axis.tick_params(axis="x", labelrotation=45)
        axis.grid(alpha=0.3)
        axis.set_title(collective.name)
        axis.set_xlabel(f"message: {collective.message}")
        axis.legend(fontsize="small")
    axes[0].set_ylabel("bus bandwidth (10⁹ bytes/s)")
    save(figure, arguments.output)
    count = sum(len(points) for lines in plotted.values() for points in lines.values())
    print(f"{arguments.output}: {count} messages of {', '.join(collective.name for collective in plotted)}")
    return 0


def _label(folder: Path, name: str, folders: Sequence[Path]) -> str:
    """The folder only where there are several: its library and version."""
    return name if len(folders) == 1 else f"{'/'.join(folder.resolve().parts[-2:])}: {name}"


def _bytes(size: float) -> str:
    """`64 KiB`, of a power of two."""
    power = min(max(int(size).bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{size / (1 << 10 * power):g} {_UNITS[power]}"
