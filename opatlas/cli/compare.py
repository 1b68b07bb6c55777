"""Compares databases row by row: implementations, devices, git revisions, runs, or captures against replays.

One database: its own rows against those of each implementation that was measured on them, the newest version of each.
Several: each against the first, or against --baseline. Rows are the same where kernel type and signature are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from opatlas.cli.arguments import add_json, write_or_print_json
from opatlas.compare.comparison import DatabaseComparison, compare_databases
from opatlas.compare.databases import ComparedDatabase, implementations_of
from opatlas.compare.export import csv_text, json_value
from opatlas.compare.states import compared_states, pairs_below
from opatlas.compare.step import ModelStep, read_step
from opatlas.compare.text import markdown_lines, ratio_text, text_lines
from opatlas.devices.discovery import available_devices, database_name
from opatlas.errors import OpAtlasError, UsageError, usage_errors
from opatlas.model.location import default_path
from opatlas.model.named_databases import named_folder
from opatlas.model.versions import detect
from opatlas.options import names, percent, positive
from opatlas.report.row_summary import microseconds_text
from opatlas.text import pluralize, print_problems, printable_lines, show, wrap_for_stderr

_FORMATS = {
    "text": lambda comparisons: _joined(comparisons, text_lines, ""),
    "markdown": lambda comparisons: _joined(comparisons, markdown_lines, "## "),
    "csv": csv_text,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 done; 1 a test of --fail-slower or --fail-below failed, or a file could not be read or "
        "written; 2 wrong usage"
    )
    parser.add_argument(
        "databases",
        nargs="*",
        metavar="DB[@STATE]",
        help="folders of {KernelType}.csv files, folders above such, or devices such as NVIDIA_H200; STATE: a git "
        "revision (DB@main), the Run ID of a run, or `captures`; one DB: its implementations are compared (default: "
        "the default database of this machine)",
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
        "--calls",
        type=Path,
        metavar="FILE",
        help="also weight durations by the calls of a model's step: a file of `opatlas model --json` (default: rows "
        "count alike)",
    )
    parser.add_argument(
        "--fail-slower",
        type=percent,
        metavar="PERCENT",
        help="exit with 1 if a rival is slower in a row by more than this, such as 5%%, and by more than chance "
        "explains; or if no row compares (default: it is not tested)",
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
        help="text; markdown for a pull request; csv with a line for each row and database (default: %(default)s)",
    )
    add_json(parser, "everything that is known of each row")


def run(arguments: argparse.Namespace) -> int:
    """Compares, and returns the exit status that the help explains. Raises OpAtlasError."""
    with usage_errors():
        step = None if arguments.calls is None else read_step(arguments.calls)
        comparisons = _compare(arguments, step)
    if not write_or_print_json(arguments.json, json_value(comparisons)):
        text = _FORMATS[arguments.format](comparisons)
        if arguments.format == "csv":
            sys.stdout.write(printable_lines(text))
        else:
            show(text.removesuffix("\n"))
    problems = [problem for comparison in comparisons.values() for problem in comparison.problems]
    print_problems(problems)
    too_slow = [line for comparison in comparisons.values() for line in _failures(comparison, arguments)]
    for line in too_slow:
        print(wrap_for_stderr(line), file=sys.stderr)
    return 1 if problems or too_slow else 0


def _compare(arguments: argparse.Namespace, step: ModelStep | None) -> dict[str, DatabaseComparison]:
    """Returns the comparisons by the path of their databases below the folders that are named. Raises OpAtlasError.

    Of databases below folders, those that a state lacks are left out, and told.
    """
    found: dict[str, DatabaseComparison] = {}
    errors: list[OpAtlasError] = []
    pairs = pairs_below(arguments.databases)
    for name, places in pairs.items():
        try:
            with _databases(places) as databases:
                found[name] = compare_databases(
                    databases, baseline=arguments.baseline, kernel_types=arguments.ops, step=step
                )
        except OpAtlasError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    print_problems([str(error) for error in errors], word="left out")
    return found


def _joined(
    comparisons: Mapping[str, DatabaseComparison],
    lines: Callable[[DatabaseComparison], Iterator[str]],
    heading: str,
) -> str:
    texts = []
    for name, comparison in comparisons.items():
        title = f"{heading}{name}\n\n" if name else ""
        texts.append(title + "\n".join(lines(comparison)) + "\n")
    return "\n".join(texts)


def _failures(comparison: DatabaseComparison, arguments: argparse.Namespace) -> Iterator[str]:
    if arguments.fail_below is not None:
        yield from _below(comparison, arguments.fail_below)
    if arguments.fail_slower is not None:
        yield from _slower(comparison, arguments.fail_slower)


def _databases(places: Sequence[str]) -> AbstractContextManager[list[ComparedDatabase]]:
    """Returns a context with the databases to compare. Raises OpAtlasError, also when it is entered."""
    if len(places) > 1:
        return compared_states(places)
    base = named_folder(places[0]) if places else default_path(database_name(available_devices(None)), detect())
    if "@" in base.name and not base.exists():
        raise UsageError(f"{base}: alone: name a second database, such as {str(base).rpartition('@')[0]}")
    return nullcontext(implementations_of(base))


def _slower(comparison: DatabaseComparison, least: float) -> Iterator[str]:
    """Yields a line for each rival that is `least` percent slower in a row, or has no row that compares."""
    for rival in comparison.rivals:
        found = comparison.slower_rows(rival.name, least)
        if found:
            row, pair = found[0]
            yield (
                f"--fail-slower {least:g}%: {rival.label} is slower in {pluralize(len(found), 'row')}, most in "
                f"{row.case_id}: {microseconds_text(pair.baseline_us)} against {microseconds_text(pair.rival_us)}"
            )
        elif not any(row.pairs[rival.name].is_comparable for row in comparison.rows if rival.name in row.pairs):
            yield f"--fail-slower {least:g}%: {rival.label} has no row that compares"


def _below(comparison: DatabaseComparison, least: float) -> Sequence[str]:
    """Returns a line for each rival whose covered geometric mean is below `least`, or has no rows."""
    found = {rival.label: comparison.total(rival.name).covered for rival in comparison.rivals}
    return [
        f"--fail-below {least:g}: {label} has {'no rows' if mean is None else ratio_text(mean)}"
        for label, mean in found.items()
        if mean is None or mean < least
    ]
