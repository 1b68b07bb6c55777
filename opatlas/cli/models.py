"""Shows what models that write kernels achieve: pass rates, errors, costs, speed, and which model to choose.

Reads the attempts of sessions with --models. Of a task that a model tried in several runs, the last run counts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from opatlas.cli.arguments import add_json, write_or_print_json
from opatlas.experiment.outcomes import read_experiment
from opatlas.experiment.report import as_json, make_report
from opatlas.experiment.text import text_lines
from opatlas.options import names
from opatlas.text import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 done; 1 a file could not be read or written; 2 wrong usage"
    parser.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="folders with attempts.jsonl, or folders above such, the oldest first",
    )
    parser.add_argument(
        "--task-sets",
        type=names,
        default=(),
        metavar="NAME[,NAME...]",
        help="evaluate only these sets of tasks (default: all)",
    )
    parser.add_argument(
        "--baseline",
        default="",
        metavar="NAME",
        help="the model of strategy A (default: for each task the model that is best at the other tasks)",
    )
    add_json(parser, "all tables, and the outcome of each task,")


def run(arguments: argparse.Namespace) -> int:
    """Shows the tables, and returns the exit status that the help explains. Raises OpAtlasError."""
    experiment = read_experiment(arguments.folders, arguments.task_sets)
    report = make_report(experiment, arguments.baseline)
    if not write_or_print_json(arguments.json, as_json(experiment, report)):
        show("\n".join(text_lines(experiment, report)))
    return 0
