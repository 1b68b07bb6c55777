"""Plots the bus bandwidth of collectives against message size, from the hcom_*.csv files of a folder.

A line is a collective's dtype, number of devices and tier. Its band reaches from the median of the fastest rank
to the median of the slowest, if the file has their spread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opatlas.data.cells import duration_columns
from opatlas.data.database import Database
from opatlas.data.origin import database_device
from opatlas.errors import TableError
from opatlas.row.columns import DTYPE, MESSAGE_BYTES, NUM_DEVICES, TOPOLOGY_TIER, microbench_counter
from opatlas.row.communication import COLLECTIVES, TIERS, Collective
from opatlas.row.quality import valid_duration
from opatlas.row.signature import row_cells
from opatlas.show.plots.figure import Plot, escape_formulas, new_figure, use_byte_axis

#: Libraries by the name of the folder.
_LIBRARIES = {"hccl": "HCCL of CANN", "nccl": "NCCL", "gloo": "Gloo of torch"}

_SPREAD = microbench_counter("Rank Spread(us)")
#: Size of a panel.
_INCHES = (4.2, 4.0)


@dataclass(frozen=True)
class MessagePoint:
    """A message: `fastest_gbps` is the bandwidth of the rank with the smallest median."""

    message_bytes: int
    bus_gbps: float
    fastest_gbps: float


def message_lines(folder: Path, collective: Collective) -> dict[str, list[MessagePoint]]:
    """Returns the points of each line, by size; empty if there is no file. Raises TableError."""
    database = Database(folder)
    path = database.csv_path(collective.kernel_type)
    if not path.exists():
        return {}
    frame = database.read(collective.kernel_type).frame
    lines: dict[str, list[MessagePoint]] = {}
    for number, cells in enumerate(row_cells(frame), start=2):
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
        dtype = cells.get(DTYPE, "").removeprefix("DT_")
        words = [dtype, f"{devices} ranks", f"tier {tier}{_tier_name(tier)}" if tier else ""]
        name = ", ".join(word for word in words if word)
        lines.setdefault(name, []).append(
            MessagePoint(
                message_bytes,
                collective.bus_bandwidth_gbps(message_bytes, devices, duration_us),
                collective.bus_bandwidth_gbps(message_bytes, devices, max(fastest_us, 1e-3)),
            )
        )
    return {name: sorted(points, key=lambda point: point.message_bytes) for name, points in lines.items()}


def _tier_name(tier: str) -> str:
    """Returns ` (intra-pod)` for a tier that has a name."""
    name = TIERS.get(int(tier)) if tier.isdecimal() else None
    return f" ({name.replace('_', '-')})" if name else ""


def communication_title(folder: Path) -> str:
    """Returns the title of a figure: the device, and the library as far as the path names it."""
    *_, library, version = folder.resolve().parts
    software = f"{_LIBRARIES[library]} {version}" if library in _LIBRARIES else ""
    names = ", ".join(word for word in (database_device(folder), software) if word)
    return "Bus bandwidth of collectives" + (f": {names}" if names else "")


def communication_plot(folder: Path) -> Plot | None:
    """Plots bus bandwidth, a panel for each measured collective; None without a message. Raises TableError."""
    measured = {collective: lines for collective in COLLECTIVES if (lines := message_lines(folder, collective))}
    if not measured:
        return None
    figure, axes = new_figure(_INCHES[0] * len(measured), _INCHES[1], columns=len(measured))
    for axis, (collective, lines) in zip(axes, measured.items(), strict=True):
        _panel(axis, collective, lines)
    axes[0].set_ylabel("bus bandwidth (10⁹ bytes/s)")
    figure.suptitle(escape_formulas(communication_title(folder)))
    return Plot(figure, sum(len(points) for lines in measured.values() for points in lines.values()))


def _panel(axis: Any, collective: Collective, lines: Mapping[str, Sequence[MessagePoint]]) -> None:
    for name, points in lines.items():
        sizes = [point.message_bytes for point in points]
        speeds = [point.bus_gbps for point in points]
        (drawn,) = axis.plot(sizes, speeds, marker=".", label=escape_formulas(name))
        axis.fill_between(
            sizes,
            speeds,
            [point.fastest_gbps for point in points],
            color=drawn.get_color(),
            alpha=0.2,
            linewidth=0,
        )
    use_byte_axis(axis)
    axis.set_yscale("log")
    axis.grid(alpha=0.3)
    axis.set_title(collective.name)
    axis.set_xlabel(f"message: {collective.message}")
    axis.legend(fontsize="small")
