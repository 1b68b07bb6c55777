"""Finds rows that became slower or faster from some run on: steps and drifts over the runs of a database.

Rows need three runs with a history that compare: of one device, cache state, instrument and implementation.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from opatlas.cli.arguments import add_database, add_json, add_rows, write_or_print_json
from opatlas.compare.regressions import Regressions, RowChange, find_regressions
from opatlas.compare.steps import LEAST_RUNS
from opatlas.model.named_databases import expect_database
from opatlas.model.signature import RowChoice
from opatlas.options import percent
from opatlas.report.row_summary import microseconds_text
from opatlas.store.database import Database
from opatlas.text import align_numbers, percent_text, pluralize, print_problems, show, wrap

_ROWS_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 done; 1 a test of --fail-slower failed, a file could not be read or written, or there is no "
        "such row; 2 wrong usage"
    )
    add_database(parser)
    add_rows(parser, "default: all rows")
    add_json(parser, "the steps and drifts, with the durations of all runs,")
    parser.add_argument(
        "--fail-slower",
        type=percent,
        metavar="PERCENT",
        help="exit with 1 if a row is slower by more than this, such as 5%%, after its newest step or drift (default: "
        "it is not tested)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Shows steps and drifts, and returns the exit status that the help explains. Raises OpAtlasError."""
    expect_database(arguments.database)
    database = Database(arguments.database)
    found = find_regressions(database, RowChoice(arguments.rows, frozenset(database.kernel_types())))
    if not write_or_print_json(arguments.json, _as_json(found)):
        show("\n".join(_lines(arguments.database, found)))
    print_problems(found.problems)
    least = arguments.fail_slower
    slower = [] if least is None else [each for each in found.changes if each.is_newest and each.percent > least]
    if slower:
        print(f"--fail-slower {least:g}%: {pluralize(len(slower), 'row')} slower", file=sys.stderr)
    return 1 if found.problems or slower else 0


def _as_json(found: Regressions) -> dict[str, object]:
    return {
        "runs": found.runs,
        "facts": found.facts,
        "rows": found.rows,
        "searched": len(found.series),
        "left_out": found.left_out,
        "spread": found.spread,
        "changes": [
            {
                **asdict(change),
                "id": change.series.case_id,
                "percent": change.percent,
                "differences": found.differences(change.before_run, change.after_run),
            }
            for change in found.changes
        ],
    }


def _lines(path: Path, found: Regressions) -> Iterator[str]:
    yield f"{path}"
    searched = f"{len(found.series):,} of {pluralize(found.rows, 'row')} with {LEAST_RUNS} or more that compare"
    yield f"{pluralize(len(found.runs), 'run')} with a history; {searched}"
    if found.left_out:
        yield f"left out: {pluralize(found.left_out, 'duration')} of bimodal, throttled or noisy samples"
    if not found.series:
        if len(found.runs) < LEAST_RUNS:
            more = LEAST_RUNS - len(found.runs)
            yield wrap(
                f"a search needs {LEAST_RUNS} runs: measure the rows {pluralize(more, 'more time')}; "
                f"each run leaves its history in {path / 'runs'}",
                indent=0,
            )
        if len(found.runs) > 1:
            yield wrap("`opatlas compare DB@RUN DB` compares two runs, by the spreads of their samples", indent=0)
        return
    yield f"spread of a row between runs: {percent_text(found.spread)}, or that of its samples if that is more"
    for (before, after, is_drift), changes in found.by_runs().items():
        for change_of, growing in (("slower", True), ("faster", False)):
            rows = [each for each in changes if (each.percent > 0) is growing]
            if rows:
                yield ""
                how = "more and more, from" if is_drift else "between"
                to = "to" if is_drift else "and"
                yield wrap(f"{pluralize(len(rows), 'row')} {change_of} {how} {before} {to} {after}", indent=0)
                differences = found.differences(before, after)
                yield wrap(f"  {'; '.join(differences) or 'no known version differs'}", indent=2)
                yield from _table(rows if growing else rows[::-1])
    if not found.changes:
        yield ""
        yield "no row became slower or faster from some run on"


def _table(rows: Sequence[RowChange]) -> Iterator[str]:
    cells = [
        (
            each.series.case_id,
            microseconds_text(each.before_us),
            microseconds_text(each.after_us),
            percent_text(each.percent / 100, 0 if each.percent > -99 else 2, signed=True),
            f"{each.runs_before}" if each.is_drift else f"{each.runs_before}+{each.runs_after}",
        )
        for each in rows[:_ROWS_SHOWN]
    ]
    yield from align_numbers([("", "before", "after", "change", "runs"), *cells])
    if more := len(rows) - len(cells):
        yield f"and {pluralize(more, 'row')} more"
