"""Fits the models that predict durations ahead of the first question, and shows how far off they are.

A model whose rows did not change is not fitted again. Each error is the 90th percentile for rows of the database that
are predicted with others hidden: the row itself (near), all rows with its weight or other sizes besides the number of
tokens (new site), all with half to twice as many tokens (gap), or all with more than half as many (beyond).
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence

from opatlas.cli.arguments import add_json, write_or_print_json
from opatlas.model.location import parse_implementation
from opatlas.query.database import open as open_database
from opatlas.query.fits import Fit, fit_models
from opatlas.query.kernel_model import Asked
from opatlas.query.model_cache import folder
from opatlas.query.predictor import FitSource
from opatlas.text import align_numbers, percent_text, pluralize, print_problems, show

_CLASSES = {Asked.NEAR: "near", Asked.NEW_SITE: "new site", Asked.GAP: "gap", Asked.BEYOND: "beyond"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 all fitted; 1 a table could not be read, or the cache not written; 2 wrong usage"
    parser.add_argument("database", metavar="DB", help="folder of {KernelType}.csv files, or name of a device")
    add_json(parser, "the errors and sources of all models")


def run(arguments: argparse.Namespace) -> int:
    """Fits, and returns the exit status that the help explains. Raises OpAtlasError."""
    database = open_database(arguments.database)
    fits = list(fit_models(database))
    content = {"database": database.path, "folder": folder(), "models": [_as_json(fit) for fit in fits]}
    if not write_or_print_json(arguments.json, content):
        show("\n".join(align_numbers(list(_table(fits)))))
        show("\nerrors: 90th percentile for rows predicted with others hidden (--help)")
        counts = Counter(fit.source for fit in fits if fit.source is not None)
        told = ", ".join(f"{count} {source.value}" for source, count in counts.items())
        show(f"{pluralize(len(fits), 'model')}: {told or 'none'}")
        show(f"database  {database.path}\nfits      {folder()}")
    problems = [f"{fit.kernel_type}: {fit.problem}" for fit in fits if fit.problem]
    if any(fit.source is FitSource.ROWS_NOT_KEPT for fit in fits):
        problems.append(f"{folder()} cannot be written, so the next process fits again: set XDG_CACHE_HOME")
    print_problems(problems)
    return 1 if problems else 0


def _table(fits: Sequence[Fit]) -> Iterator[Sequence[str]]:
    width = max((len(fit.kernel_type) for fit in fits), default=0)
    yield f"{'kernel type':{width}}  ran", "rows", *_CLASSES.values()
    for fit in fits:
        name = f"{fit.kernel_type:{width}}  {parse_implementation(fit.implementation)[0]}"
        yield name, f"{fit.rows:,}", *(_percent(fit.p90(asked)) for asked in _CLASSES)


def _as_json(fit: Fit) -> dict[str, object]:
    """Returns a fit with its errors as shares; NaN, of an unknown error, becomes null."""
    return {
        "kernel_type": fit.kernel_type,
        "implementation": fit.implementation,
        "rows": fit.rows,
        "source": None if fit.source is None else fit.source.value,
        "p90": {name: fit.p90(asked) for asked, name in _CLASSES.items()},
        "seconds": fit.seconds,
        "problem": fit.problem,
    }


def _percent(error: float) -> str:
    return "-" if error != error else percent_text(error)
