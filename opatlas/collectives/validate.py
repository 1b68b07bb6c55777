"""Compares measured collectives with an analytic model: are they plausible?

Reads the hcom_*.csv files of a folder, whoever wrote them, and compares each duration with what its link would do
at best (opatlas/collectives/validate.py): latency and 70 % of the stated bandwidth, those of an Atlas 800 A3 unless
--link says otherwise. Prints whose model that is, a line for each collective, and the rows furthest off.
Rows of another device than an A3 are compared only with links that --link names.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from pathlib import Path
from statistics import median

from opatlas.collectives.topology import Grid, NoGroup
from opatlas.errors import OpAtlasError, TableError
from opatlas.files import expect_folder
from opatlas.model.communication import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    COLLECTIVES,
    REDUCE_SCATTER,
    TIERS,
    Collective,
)
from opatlas.model.location import message_device
from opatlas.model.quality import valid_duration
from opatlas.model.schema import MESSAGE_BYTES, NUM_DEVICES, TOPOLOGY_TIER
from opatlas.options import (
    Listed,
    at_least,
    items_of,
    real,
)
from opatlas.store.cells import duration_columns
from opatlas.store.database import Database
from opatlas.text import show, whole

#: Of a link's stated bandwidth, what a collective reaches.
EFFICIENCY = 0.7


@dataclass(frozen=True)
class Link:
    """Attributes: bandwidth_gbps: as stated, in 10^9 bytes/s; latency_us: of one message."""

    bandwidth_gbps: float
    latency_us: float
    efficiency: float = EFFICIENCY

    def transfer_us(self, moved_bytes: float) -> float:
        """Time of so many bytes, without the latency."""
        return moved_bytes / (self.bandwidth_gbps * self.efficiency * 1e3)


#: Of an Atlas 800 A3, by tier.
A3: Mapping[int, Link] = {0: Link(196.0, 5.5), 1: Link(196.0, 0.5), 2: Link(224.0, 0.2)}


def duration_us(collective: Collective, message_bytes: float, num_devices: int, link: Link) -> float:
    """Of one call. Raises ValueError for fewer than two devices."""
    if num_devices < 2:
        raise ValueError(f"{num_devices} devices communicate with nobody")
    return _DURATIONS[collective.name](message_bytes, num_devices, link)


def _all_reduce(message_bytes: float, n: int, link: Link) -> float:
    ring = 2 * (n - 1) * link.latency_us + link.transfer_us(2 * (n - 1) / n * message_bytes)
    tree = 2 * log2(n) * link.latency_us + link.transfer_us(2 * message_bytes)
    return min(ring, tree)


def _all_gather(message_bytes: float, n: int, link: Link) -> float:
    return min(n - 1, log2(n)) * link.latency_us + link.transfer_us((n - 1) * message_bytes)


def _all_to_all(message_bytes: float, n: int, link: Link) -> float:
    return min(n - 1, log2(n)) * link.latency_us + link.transfer_us(message_bytes)


def _broadcast(message_bytes: float, n: int, link: Link) -> float:
    tree = log2(n) * (link.latency_us + link.transfer_us(message_bytes))
    scattered = (log2(n) + n - 1) * link.latency_us + link.transfer_us(2 * (n - 1) / n * message_bytes)
    return min(tree, scattered)


_DURATIONS: Mapping[str, Callable[[float, int, Link], float]] = {
    ALL_REDUCE.name: _all_reduce,
    ALL_GATHER.name: _all_gather,
    REDUCE_SCATTER.name: _all_gather,
    ALL_TO_ALL.name: _all_to_all,
    BROADCAST.name: _broadcast,
}


#: Whose links are taken where none are named, and how the names of these devices begin.
_A3_NAME, _A3_PREFIX = "Atlas 800 A3", "ATLAS_800_A3"
_TOLERANCE = 2.0
_SHOWN = 10
_TIERS = ", ".join(f"{tier} {name}" for tier, name in TIERS.items())


@dataclass(frozen=True)
class Compared:
    """A row, and what the model says of it.

    Attributes:
        line: of the file.
        ratio: measured / modelled.
    """

    collective: Collective
    line: int
    message_bytes: int
    num_devices: int
    tier: int
    measured_us: float
    modelled_us: float

    @property
    def ratio(self) -> float:
        return self.measured_us / self.modelled_us

    @property
    def distance(self) -> float:
        """2 for twice the modelled duration, or half of it."""
        return max(self.ratio, 1 / self.ratio)


@dataclass(frozen=True)
class FileCompared:
    """What a file of a collective holds.

    Attributes:
        rows: those that have a duration.
        without: how many rows have none.
        problems: the cells that keep a row from being compared, each with file, line and column.
    """

    rows: Sequence[Compared]
    without: int
    problems: Sequence[str]


def compare(database: Database, collective: Collective, links: Mapping[int, Link], grid: Grid) -> FileCompared:
    """Compares the rows of a collective with the model.

    Args:
        links: by tier.
        grid: tells the tier of rows that have none, as that of neighbours.

    Raises:
        TableError: the file cannot be read, or has no column of durations.
    """
    frame = database.read(collective.kernel_type).frame
    path = database.csv_path(collective.kernel_type)
    columns = [name for name in duration_columns(collective.kernel_type) if name in frame.columns]
    if not columns:
        wanted = ", ".join(map(repr, duration_columns(collective.kernel_type)))
        raise TableError(path, f"no column of durations: none of {wanted}", "Add one of them", line=1)
    found, without, problems = [], 0, []
    for line, cells in enumerate(frame.to_dict("records"), start=2):
        try:
            measured_us = _duration_us(path, line, {name: cells[name] for name in columns})
            if measured_us is None:
                without += 1
                continue
            message_bytes = _whole(path, line, MESSAGE_BYTES, cells[MESSAGE_BYTES], least=1)
            num_devices = _whole(path, line, NUM_DEVICES, cells[NUM_DEVICES], least=2)
            tier = _tier(path, line, cells.get(TOPOLOGY_TIER, ""), grid, num_devices, links)
        except TableError as error:
            problems.append(str(error))
            continue
        modelled_us = duration_us(collective, message_bytes, num_devices, links[tier])
        found.append(Compared(collective, line, message_bytes, num_devices, tier, measured_us, modelled_us))
    return FileCompared(found, without, problems)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 every duration is within the tolerance; 1 some are not, there is none to compare, or a file or "
        "row cannot be read; 2 wrong usage"
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folders of hcom_*.csv files")
    parser.add_argument(
        "--tolerance",
        type=real("a number of at least 1", lambda factor: factor >= 1),
        default=_TOLERANCE,
        metavar="FACTOR",
        help="how many times longer or shorter than modelled a duration may be (default: %(default)g)",
    )
    parser.add_argument(
        "--link",
        action="append",
        type=_link,
        default=[],
        metavar="TIER:GBPS:US",
        help="the link of a tier: its stated bandwidth in 10^9 bytes/s and its latency in microseconds "
        "(default: those of an Atlas 800 A3)",
    )
    parser.add_argument(
        "--efficiency",
        type=real("a number above 0 and up to 1", lambda share: 0 < share <= 1),
        default=EFFICIENCY,
        metavar="SHARE",
        help="of a link's bandwidth, what a collective reaches (default: %(default)g)",
    )
    parser.add_argument(
        "--grid-shape",
        nargs="+",
        action=Listed,
        type=items_of(at_least(1)),
        default=[48, 8, 2],
        metavar=("N[,N...]", "N"),
        help="tells the tier of rows without one, as that of neighbours (default: 48,8,2)",
    )
    parser.add_argument(
        "--min-bytes",
        type=at_least(0),
        default=0,
        metavar="BYTES",
        help="leave out smaller messages, whose launch the model does not know (default: 0)",
    )


def run(arguments: argparse.Namespace) -> int:
    named = dict(arguments.link)
    links = {**A3, **named}
    links = {t: Link(link.bandwidth_gbps, link.latency_us, arguments.efficiency) for t, link in links.items()}
    try:
        grid = Grid(tuple(arguments.grid_shape))
    except ValueError as error:
        raise OpAtlasError(f"--grid-shape: {error}") from None
    outside = 0
    problems: list[str] = []
    for folder in arguments.folders:
        expect_folder(folder, "name one that holds hcom_*.csv files")
    for folder in arguments.folders:
        database = Database(folder)
        collectives = [each for each in COLLECTIVES if database.csv_path(each.kernel_type).exists()]
        if not collectives:
            names = ", ".join(f"{each.kernel_type}.csv" for each in COLLECTIVES)
            problems.append(f"{folder}: holds none of {names}")
            continue
        compared: list[Compared] = []
        unreadable: list[str] = []
        lines = []
        for collective in collectives:
            try:
                found = compare(database, collective, links, grid)
            except OpAtlasError as error:
                unreadable.append(str(error))
                continue
            unreadable += _first_of(database.csv_path(collective.kernel_type), found.problems)
            large = [row for row in found.rows if row.message_bytes >= arguments.min_bytes]
            lines.append(_line(database, collective, large, found, arguments.tolerance))
            compared += large
        problems += unreadable
        tiers = sorted({row.tier for row in compared})
        if not compared and not unreadable:
            problems.append(f"{folder}: no row to compare")
        elif foreign := _foreign_links(folder, tiers, named):
            problems.append(foreign)
            continue
        for text in (*([_model(tiers, links, named)] if tiers else []), *lines):
            show(text)
        worst = sorted(compared, key=lambda row: -row.distance)
        off = [row for row in worst if row.distance > arguments.tolerance]
        outside += len(off)
        for text in _table(off[:_SHOWN] or worst[: _SHOWN // 2], bool(off)):
            show(text)
    for problem in problems:
        show(f"error: {problem}")
    return 1 if outside or problems else 0


def _foreign_links(folder: Path, tiers: Sequence[int], named: Collection[int]) -> str:
    """Returns why rows cannot be compared: they are of a device that is no A3, and --link names no link; "" if not."""
    device = message_device(folder)
    if not device or device.startswith(_A3_PREFIX) or not (unnamed := [tier for tier in tiers if tier not in named]):
        return ""
    links = " ".join(f"--link {tier}:GBPS:US" for tier in unnamed)
    return (
        f"{folder}: the rows are of {device}, and the links that are known are those of an {_A3_NAME}: give the "
        f"bandwidth (10^9 bytes/s) and the latency (us) of its own with {links}"
    )


def _model(tiers: Sequence[int], links: Mapping[int, Link], named: Collection[int]) -> str:
    """Returns the line that says with whose links the rows are compared."""
    return "model: " + "; ".join(
        f"tier {tier}: {links[tier].bandwidth_gbps:g} GB/s, {links[tier].latency_us:g} us, "
        f"{links[tier].efficiency:.0%}{'' if tier in named else f' ({_A3_NAME})'}"
        for tier in tiers
    )


def _first_of(path: Path, problems: Sequence[str]) -> list[str]:
    more = len(problems) - _SHOWN
    return [*problems[:_SHOWN], *([f"{path}: {more} more rows cannot be compared"] if more > 0 else [])]


def _line(
    database: Database, collective: Collective, rows: Sequence[Compared], found: FileCompared, tolerance: float
) -> str:
    small = len(found.rows) - len(rows)
    counts = ((found.without, "without a duration"), (small, "too small"), (len(found.problems), "not readable"))
    left_out = "".join(f", {count} {what}" for count, what in counts if count)
    name = f"{database.path / collective.kernel_type}: "
    if not rows:
        return f"{name}no row to compare{left_out}"
    ratios = sorted(row.ratio for row in rows)
    within = sum(row.distance <= tolerance for row in rows)
    return (
        f"{name}{within} of {len(rows)} rows within a factor of {tolerance:g}; measured / modelled: "
        f"min {ratios[0]:.2f}, median {median(ratios):.2f}, max {ratios[-1]:.2f}{left_out}"
    )


def _table(rows: Sequence[Compared], outside: bool) -> list[str]:
    if not rows:
        return []
    title = "furthest off:" if outside else "all within; furthest from the model:"
    lines = [
        f"  {'':14} {'line':>5} {'bytes':>12} {'devices':>7} {'tier':>4} {'measured':>12} {'modelled':>12} {'ratio':>8}"
    ]
    lines += [
        f"  {row.collective.name:14} {row.line:5} {row.message_bytes:12} {row.num_devices:7} {row.tier:4} "
        f"{row.measured_us:9.1f} us {row.modelled_us:9.1f} us {row.ratio:8.2f}"
        for row in rows
    ]
    return [title, *lines]


def _duration_us(path: Path, line: int, cells: Mapping[str, str]) -> float | None:
    """Returns the first duration of some cells; None where these are empty or hold no duration. Raises TableError."""
    for name, cell in cells.items():
        if (duration := valid_duration(cell)) is not None:
            return duration
        if cell.strip() and not _is_number(cell):
            raise TableError(path, f"column {name!r} = {cell!r} is no number", "Correct the cell", line=line)
    return None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _tier(path: Path, line: int, cell: str, grid: Grid, num_devices: int, links: Collection[int]) -> int:
    """That of the cell; where it is empty, that of so many neighbours. Raises TableError."""
    if cell.strip():
        tier = _whole(path, line, TOPOLOGY_TIER, cell, least=0)
        if tier not in links:
            raise TableError(path, f"column {TOPOLOGY_TIER!r} = {tier}: no such tier", f"There are {_TIERS}", line=line)
        return tier
    try:
        return grid.tier_of(grid.group(num_devices))
    except NoGroup as error:
        raise TableError(path, str(error), "Name the right one with --grid-shape", line=line) from None


def _whole(path: Path, line: int, column: str, cell: str, *, least: int) -> int:
    text, _, fraction = cell.strip().partition(".")
    number = whole(text)
    if number is None or fraction.strip("0") or number < least:
        problem = f"column {column!r} = {cell!r} is no whole number of at least {least}"
        raise TableError(path, problem, "Correct the cell", line=line)
    return number


def _link(text: str) -> tuple[int, Link]:
    try:
        tier, bandwidth_gbps, latency_us = text.split(":")
        link, _ = Link(float(bandwidth_gbps), float(latency_us)), int(tier)
        if not 0 < link.bandwidth_gbps < float("inf") or not 0 <= link.latency_us < float("inf"):
            raise ValueError(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give TIER:GBPS:US, such as 1:196:0.5") from None
    if int(tier) not in TIERS:
        raise argparse.ArgumentTypeError(f"{text!r}: no tier {tier}: there are {_TIERS}")
    return int(tier), link
