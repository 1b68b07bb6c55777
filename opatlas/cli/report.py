"""Writes a site that shows a database in a browser: kernel types, implementations, comparisons, costs of models.

Open DIR/index.html from the disk, or copy DIR to any web server; no network is needed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from opatlas.cli.arguments import StepArgument, read_step_argument
from opatlas.installation import require_extra
from opatlas.model.named_databases import database_folder
from opatlas.options import names
from opatlas.query.database import model_cost
from opatlas.query.model_cost import ModelCost
from opatlas.site.writer import write_site
from opatlas.text import pluralize, print_problems, show, wrap


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 done; 1 a file could not be read or written; 2 wrong usage"
    parser.add_argument("database", metavar="DB", help="folder of {KernelType}.csv files, or name of a device")
    parser.add_argument(
        "--output", required=True, type=Path, metavar="DIR", help="folder of the site, made where it does not exist"
    )
    parser.add_argument(
        "--against",
        default="",
        metavar="OTHER",
        help="DB or DB@STATE: page that compares the rows with those of another database, or of a git revision, a run "
        "or `captures` of one, as `opatlas compare` does (default: no such page)",
    )
    parser.add_argument(
        "--step",
        action="append",
        default=[],
        type=_question,
        metavar="MODEL[,NAME=VALUE...]",
        help="page on what a step of a model costs: batch=N and context=N; further: tp=N, ep=N, "
        "phase=decode or prefill, dtype=NAME; may be given several times (default: no such page)",
    )
    parser.add_argument(
        "--superkernel",
        type=Path,
        metavar="CAPTURE",
        help="page on the scopes of a capture that a SuperKernel may fuse, as `opatlas superkernel` tells (default: no "
        "such page)",
    )
    parser.add_argument(
        "--ops", type=names, default=(), metavar="NAME[,NAME...]", help="show only these kernel types (default: all)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes the site, and returns the exit status that the help explains. Raises OpAtlasError."""
    require_extra("report", "`opatlas report`", "bokeh")
    place = database_folder(arguments.database)
    against: str = arguments.against
    if against and "@" not in against:
        against = str(database_folder(against))
    costs: list[tuple[str, ModelCost]] = [
        (step.text, model_cost(place, step.model, **step.settings)) for step in arguments.step
    ]
    site = write_site(
        place,
        arguments.output,
        against=against,
        costs=costs,
        capture=arguments.superkernel,
        kernel_types=arguments.ops,
    )
    show(f"{site.start}: {pluralize(site.rows, 'row')} of {pluralize(site.kernel_types, 'kernel type')}")
    if len(site.rows_of) > 1:
        show(wrap(", ".join(f"{rows:,} of {name}" for name, rows in site.rows_of.items()), 2))
    print_problems(site.problems)
    return 1 if site.problems else 0


def _question(text: str) -> StepArgument:
    step = read_step_argument(text)
    if missing := [name for name in ("batch", "context") if name not in step.settings]:
        raise argparse.ArgumentTypeError(f"{text!r} lacks {missing[0]}=N")
    return step
