"""Plots the durations of databases: every figure of one database, or one kind of figure of several databases.

The figures: the roofline, replays against captures, bus bandwidth of collectives (docs/plots.md).
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from opatlas.combine.row_devices import are_one_device, database_device
from opatlas.errors import OpAtlasError, UsageError, usage_errors
from opatlas.installation import require_extra
from opatlas.model.communication import COLLECTIVES
from opatlas.model.named_databases import named_folder
from opatlas.model.roofline import Peak, device_peak
from opatlas.model.schema import QUALITY
from opatlas.model.slots import known_dtype
from opatlas.options import positive
from opatlas.progress import Progress
from opatlas.report.plots.communication import COMMUNICATION, communication_plots
from opatlas.report.plots.durations import (
    COMPARISON,
    comparison_plots,
    product_lines,
    products_figure,
)
from opatlas.report.plots.figure import FORMATS, Plot, expect_plot_file, save
from opatlas.report.plots.roofline import ROOFLINE, roofline_plots
from opatlas.report.plots.timed_rows import (
    TimedRow,
    expect_tables,
    on_device,
    read_timed_rows,
    without_composition,
)
from opatlas.store.database import Database
from opatlas.text import parse_whole, pluralize, print_problems, show, suggest

_WAYS_SHOWN = 3
_PRODUCTS_TYPE = "MatMulV2"
#: The name of the memory bandwidth among the peaks.
_MEMORY = "memory"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 plots were made; 1 none could be made, or something was left out because of an error; "
        "2 wrong usage"
    )
    parser.add_argument(
        "databases",
        nargs="+",
        type=named_folder,
        metavar="DB",
        help="folders of {KernelType}.csv files, or devices such as NVIDIA_H200; several, such as a cold and a warm "
        "one, for one figure of products or collectives",
    )
    parser.add_argument(
        "--kind",
        choices=("all", "collectives", "products"),
        default="all",
        help="all: every plot that one database has data for; collectives: their bus bandwidth; products: matrix "
        "products of chosen weights (default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="PATH",
        help="all: folder of the plots, made where it does not exist; else the plot, a .svg, .png or .pdf file",
    )
    parser.add_argument(
        "--ops",
        default="",
        metavar="NAME[,NAME...]",
        help="plot only these kernel types, named exactly, or these collectives, such as all_reduce (default: all; "
        f"{_PRODUCTS_TYPE} for products)",
    )
    parser.add_argument(
        "--weights",
        nargs="+",
        type=_weight,
        metavar="N,K",
        help="shapes of weights, a line for each (default: none; required for products)",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default=FORMATS[0], help="format of all plots (default: %(default)s)"
    )
    parser.add_argument("--device", metavar="NAME", help="measured device (default: as the database says)")
    parser.add_argument(
        "--peaks",
        nargs="+",
        type=_peak_value,
        metavar="NAME:NUMBER",
        help="peaks of the device: memory in 10^9 bytes/s, and dtypes in 10^12 operations/s, such as memory:1600 "
        "BF16:353.9 (default: from its data sheet, if known)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Plots, and returns the exit status that the help explains. Raises OpAtlasError."""
    require_extra("plot", "`opatlas plot`", "matplotlib")
    names = [name.strip() for name in arguments.ops.split(",") if name.strip()]
    folders: list[Path] = arguments.databases
    if bool(arguments.weights) != (arguments.kind == "products"):
        raise UsageError("--kind products and --weights N,K belong together: give both, or none")
    if arguments.kind in ("collectives", "products"):
        with usage_errors():
            expect_plot_file(arguments.output)
            for folder in folders:
                expect_tables(folder, of_collectives=arguments.kind == "collectives")
        for folder in folders:
            print_problems(Database(folder).misspelt_columns(), word="warning")
        if arguments.kind == "collectives":
            return _plot_collectives(folders, names, arguments.output)
        return _plot_products(folders, names, arguments.weights, arguments.output)
    if len(folders) > 1:
        raise UsageError(f"--kind all plots one database, and {len(folders)} are named: leave one, or choose a --kind")
    output: Path = arguments.output
    if output.suffix.removeprefix(".").lower() in FORMATS and not output.is_dir():
        raise UsageError(
            f"--output {output}: --kind all writes several plots into a folder: name a folder; --format "
            f"chooses their format"
        )
    return _plot_all(folders[0], names, arguments)


def _plot_collectives(folders: Sequence[Path], names: Sequence[str], output: Path) -> int:
    known = {name: each for each in COLLECTIVES for name in (each.name, each.kernel_type)}
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"--ops {unknown[0]}: no such collective{suggest(unknown[0], known)}")
    made = communication_plots(folders, list(dict.fromkeys(known[name] for name in names)) or COLLECTIVES)
    if not made:
        raise OpAtlasError(
            f"{', '.join(map(str, folders))}: no message of a collective has a duration; measure some first"
        )
    for plot in made:
        save(plot.figure, output)
        show(f"{output}: {plot.content}")
    return 0


def _plot_products(
    folders: Sequence[Path], names: Sequence[str], weights: Sequence[tuple[int, int]], output: Path
) -> int:
    if len(names) > 1:
        raise UsageError(f"--kind products plots one kernel type, and --ops names {len(names)}: leave one")
    kernel_type = names[0] if names else _PRODUCTS_TYPE
    lines = {
        (folder, name): points
        for folder in folders
        for weight in weights
        for name, points in product_lines(folder, kernel_type, weight).items()
    }
    if not lines:
        wanted = ", ".join(f"{n},{k}" for n, k in weights)
        raise OpAtlasError(
            f"{', '.join(map(str, folders))}: {kernel_type} has no duration of a weight {wanted}: name a weight whose "
            f"shape stands second in the Input Shapes, in rows that are no compositions (column {QUALITY})"
        )
    devices = {folder: database_device(folder) or folder.name for folder in folders}
    save(products_figure(lines, kernel_type, devices), output)
    show(f"{output}: {pluralize(sum(map(len, lines.values())), 'product')} in {pluralize(len(lines), 'line')}")
    return 0


def _plot_all(folder: Path, kernel_types: Sequence[str], arguments: argparse.Namespace) -> int:
    with usage_errors():
        timed = read_timed_rows(folder, kernel_types)
    problems = list(timed.problems)
    device = arguments.device or timed.device or _most_replayed(timed.rows)
    peak = _peak(device, dict(arguments.peaks or ()))
    # Replays on another device are left out. Captures may come from another device, and are left out if there are
    # replays.
    left_out = sum(row.is_composition for row in timed.rows)
    chosen = [row for each in timed.rows if (row := without_composition(each)) is not None]
    rows_of_device = [row for each in chosen if (row := on_device(each, device)) is not None]
    others = sorted({row.device for row in timed.rows if row.device and not are_one_device(row.device, device)})
    of_one = [row for row in rows_of_device if row.microbench_us is not None] or rows_of_device
    both = [row for row in chosen if row.microbench_us is not None and row.profiling_us is not None]
    made: dict[str, list[Plot]] = {
        ROOFLINE.name: roofline_plots(of_one, _title("Roofline", device, of_one), peak),
        COMPARISON.name: comparison_plots(both, _title_of_both(both, timed.captured_on)),
    }
    if not kernel_types:
        try:
            made[COMMUNICATION.name] = communication_plots([folder], COLLECTIVES)
        except OpAtlasError as error:
            problems.append(str(error))
    plots = [plot for found in made.values() for plot in found]
    with Progress(len(plots), "plots", label="write") as progress:
        for plot in plots:
            save(plot.figure, arguments.output / f"{plot.name}.{arguments.format}")
            progress.advance()
    show(_summary(arguments, made, device, peak))
    if others:
        show(f"replays on {', '.join(others)} are only in {COMPARISON.name} (--device plots another device)")
    if left_out:
        show(f"{pluralize(left_out, 'composition')} of torch operators left out")
    print_problems(problems)
    print_problems(Database(folder).misspelt_columns(), word="warning")
    return 1 if problems or not any(made.values()) else 0


def _most_replayed(rows: Sequence[TimedRow]) -> str:
    """Returns the device of most replays; "" if it is not known."""
    counts = Counter(row.device for row in rows if row.device)
    return max(counts, key=lambda device: counts[device], default="")


def _title_of_both(rows: Sequence[TimedRow], captured_on: Collection[str]) -> str:
    """Returns the title of the plot of replays against captures, with their devices if they are known."""
    replayed_on = sorted({row.device for row in rows if row.device})
    replays, captures = (f" on {', '.join(sorted(names))}" if names else "" for names in (replayed_on, captured_on))
    return f"Replayed{replays}\nagainst captured{captures}"


def _peak(device: str, given: Mapping[str, float]) -> Peak:
    """Returns the peaks of a device: the given ones, and those of its data sheet. `given` has dtypes, and _MEMORY."""
    known = device_peak(device)
    tera_ops = {name: number for name, number in given.items() if name != _MEMORY}
    return Peak(given.get(_MEMORY) or known.bandwidth_gbps, {**known.tera_ops, **tera_ops})


def _title(what: str, device: str, rows: Sequence[TimedRow]) -> str:
    """Returns the title of a plot with the device and the ways in which rows were timed, the most frequent first."""
    conditions = Counter(row.conditions for row in rows if row.microbench_us and row.conditions)
    ways = [way for way, _ in conditions.most_common()]
    shown = "; ".join(ways[:_WAYS_SHOWN] + ["..."] * (len(ways) > _WAYS_SHOWN))
    captured = any(row.microbench_us is None for row in rows)
    if not shown:
        return what + (f": {device}" if device else "") + (" (captured)" if captured else "")
    replays = (f"{device} " if device else "") + f"({shown})"
    return f"{what}: replays on {replays}, and captures" if captured else f"{what}: {replays}"


def _summary(arguments: argparse.Namespace, made: Mapping[str, list[Plot]], device: str, peak: Peak) -> str:
    """Returns the list of plots, and of plots without data."""
    lines = []
    plots = [plot for found in made.values() for plot in found]
    if plots:
        files = [f"{plot.name}.{arguments.format}" for plot in plots]
        width = max(map(len, files))
        lines += [f"plots of {device or 'an unknown device'}, in {arguments.output}:"]
        lines += [f"  {file:{width}}  {plot.content}" for file, plot in zip(files, plots, strict=True)]
    needs = {kind.name: kind.needs for kind in (ROOFLINE, COMPARISON, COMMUNICATION)}
    without = [name for name, found in made.items() if not found]
    if without:
        lines += ["", "not made, because of missing data:"] if plots else ["no plot was made, because of missing data:"]
        lines += [f"  {name}: {needs[name]}" for name in without]
    if made[ROOFLINE.name] and not peak.bandwidth_gbps:
        lines += ["", "The peak of the device is not known: no roofs (--peaks)."]
    return "\n".join(lines)


def _peak_value(text: str) -> tuple[str, float]:
    name, _, value = text.partition(":")
    if name == _MEMORY:
        return name, positive(value)
    dtype = known_dtype(name)
    if dtype is None:
        raise argparse.ArgumentTypeError(f"{text!r}: give memory:NUMBER, or a dtype as in BF16:353.9")
    return dtype.name, positive(value)


def _weight(text: str) -> tuple[int, int]:
    n, _, k = text.partition(",")
    sizes = parse_whole(n), parse_whole(k)
    if sizes[0] is None or sizes[1] is None:
        raise argparse.ArgumentTypeError(f"{text!r}: give N,K, such as 6400,5120")
    return sizes[0], sizes[1]
