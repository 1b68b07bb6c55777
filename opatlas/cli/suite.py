"""Shows the score of kernels in a suite of operators: right cases and operators, speed-ups over torch, perf@p.

DB is a database that `pytest bench/ --suite` has written for a folder of kernels, within the database with torch's
durations. Its cases without a kernel count.
"""

from __future__ import annotations

import argparse

from opatlas.cli.arguments import add_database, add_json, write_or_print_json
from opatlas.errors import OpAtlasError
from opatlas.files import expect_folder
from opatlas.model.location import default_database_of
from opatlas.options import positive
from opatlas.store.database import Database
from opatlas.suites.score import SuiteScore, read_score, speed_up_text, statuses_text
from opatlas.text import COLUMNS, show, table_lines, wrap

_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 done; 1 DB has no case of a suite, or a file could not be read; 2 wrong usage"
    add_database(parser)
    parser.add_argument(
        "--threshold",
        type=positive,
        default=1.0,
        metavar="P",
        help="the p of perf@p: the share of all operators that are right and more than P times as fast as torch "
        "(default: %(default)g)",
    )
    add_json(parser, "the score of every operator")


def run(arguments: argparse.Namespace) -> int:
    """Shows the score. Raises OpAtlasError."""
    expect_folder(arguments.database, "name the database of a suite")
    baseline = default_database_of(arguments.database)
    score = read_score(Database(arguments.database), Database(baseline) if baseline is not None else None)
    if not score.cases:
        raise OpAtlasError(f"{arguments.database}: has no case of a suite: `opatlas bench --suite opinfo` adds them")
    if not write_or_print_json(arguments.json, _as_json(score, arguments.threshold)):
        show(_as_text(score, arguments.threshold))
    return 0


def _as_text(score: SuiteScore, threshold: float) -> str:
    """Returns the score for a terminal of 80 columns: the slowest operators and those with wrong cases first."""
    tried = [each for each in score.operators if any(case.was_tried for case in each.cases)]
    tried.sort(key=lambda each: (each.is_right, each.speed_up or 0.0, each.operator))
    rows = [("operator", "right", "of", "speed-up")]
    rows += [
        (each.operator, str(each.right), str(len(each.cases)), speed_up_text(each.speed_up)) for each in tried[:_SHOWN]
    ]
    more = [f"and {len(tried) - _SHOWN:,} more operators with a kernel, see --json"] if len(tried) > _SHOWN else []
    without = len(score.operators) - len(tried)
    return "\n".join(
        [
            *score.lines(threshold),
            wrap(f"cases: {statuses_text(score.statuses)}", 0),
            *([f"operators without a kernel, or not run: {without:,}"] if without else []),
            *(["", *table_lines(rows, COLUMNS)] if tried else []),
            *more,
        ]
    )


def _as_json(score: SuiteScore, threshold: float) -> dict[str, object]:
    return {
        "cases": score.cases,
        "right_cases": score.right,
        "operators": len(score.operators),
        "right_operators": score.right_operators,
        "speed_up": score.speed_up,
        "threshold": threshold,
        "faster_operators": score.faster(threshold),
        "statuses": dict(score.statuses),
        "by_operator": [
            {"operator": each.operator, "cases": len(each.cases), "right_cases": each.right, "speed_up": each.speed_up}
            for each in score.operators
        ],
    }
