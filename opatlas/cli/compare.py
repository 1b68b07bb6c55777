"""Compares the implementations that were measured on the rows of a database, or databases with the same rows.

One database: its own rows against those of each implementation that was measured on them, the newest version of each.
Several: each against the baseline. Rows are the same where kernel type and signature are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from opatlas.compare.comparison import DatabaseComparison, compare_databases
from opatlas.compare.databases import ComparedDatabase, implementations_of, named_databases
from opatlas.compare.export import csv_text, json_text
from opatlas.compare.text import markdown_lines, ratio_text, text_lines
from opatlas.devices.discovery import available_devices, database_name
from opatlas.errors import usage_errors
from opatlas.model.location import default_path
from opatlas.model.versions import detect
from opatlas.options import names, positive
from opatlas.store.csv_files import write_text
from opatlas.text import pluralize, print_problems, printable_lines, show, wrap_for_stderr

_FORMATS = {
    "text": lambda comparison: "\n".join(text_lines(comparison)) + "\n",
    "markdown": lambda comparison: "\n".join(markdown_lines(comparison)) + "\n",
    "csv": csv_text,
    "json": json_text,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 done; 1 a rival is below --fail-below, or a file could not be read or written; 2 wrong usage"
    )
    parser.add_argument(
        "databases",
        nargs="*",
        type=Path,
        metavar="DB",
        help="folders of {KernelType}.csv files; one: its implementations are compared (default: the default database "
        "of this machine)",
    )
    parser.add_argument(
        "--baseline",
        default="",
        metavar="NAME",
        help="implementation, or database, that speed-ups refer to (default: torch, or torch_npu on an NPU, else the "
        "first)",
    )
    parser.add_argument(
        "--ops",
        type=names,
        default=(),
        metavar="NAME[,NAME...]",
        help="compare only these kernel types, named exactly, or these collectives, such as all_reduce (default: all)",
    )
    parser.add_argument(
        "--compositions",
        action="store_true",
        help="count rows whose baseline is a composition of operators in the geometric means (default: such rows are "
        "compared and marked only)",
    )
    parser.add_argument(
        "--fail-below",
        type=positive,
        metavar="RATIO",
        help="exit with 1 if the covered geometric mean of a rival is below this, or has no rows (default: it is not "
        "tested)",
    )
    parser.add_argument(
        "--format",
        choices=tuple(_FORMATS),
        default="text",
        help="text; markdown for a pull request; csv with a line for each row and database; json with everything "
        "(default: %(default)s)",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="the comparison (default: the terminal)")


def run(arguments: argparse.Namespace) -> int:
    """Compares, and returns the exit status that the help explains. Raises OpAtlasError."""
    with usage_errors():
        databases = _databases(arguments.databases)
    comparison = compare_databases(
        databases,
        baseline=arguments.baseline,
        kernel_types=arguments.ops,
        with_compositions=arguments.compositions,
    )
    text = _FORMATS[arguments.format](comparison)
    if arguments.output is not None:
        write_text(arguments.output, text)
        show(f"{arguments.output}: {pluralize(len(comparison.rows), 'row')} of {len(databases)} databases")
    elif arguments.format in ("text", "markdown"):
        show(text.removesuffix("\n"))
    else:
        sys.stdout.write(text if arguments.format == "json" else printable_lines(text))
    print_problems(comparison.problems)
    too_slow = list(_below(comparison, arguments.fail_below)) if arguments.fail_below is not None else []
    for line in too_slow:
        print(wrap_for_stderr(line), file=sys.stderr)
    return 1 if comparison.problems or too_slow else 0


def _databases(paths: Sequence[Path]) -> list[ComparedDatabase]:
    """Returns the databases to compare. Raises OpAtlasError."""
    if len(paths) > 1:
        return named_databases(paths)
    return implementations_of(paths[0] if paths else default_path(database_name(available_devices(None)), detect()))


def _below(comparison: DatabaseComparison, least: float) -> Sequence[str]:
    """Returns a line for each rival whose covered geometric mean is below `least`, or has no rows."""
    found = {rival.label: comparison.total(rival.name).covered for rival in comparison.rivals}
    return [
        f"--fail-below {least:g}: {label} has {'no rows' if mean is None else ratio_text(mean)}"
        for label, mean in found.items()
        if mean is None or mean < least
    ]
