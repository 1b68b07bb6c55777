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
from opatlas.query.database import open as open_database
from opatlas.query.fits import Fit, fit_models
from opatlas.query.kernel_model import Asked
from opatlas.query.model_cache import folder
from opatlas.query.predictor import FitSource
from opatlas.text import percent_text, pluralize, print_problems, show, table_lines

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
        show("\n".join(table_lines(list(_table(fits)))))
        counts = Counter(fit.source for fit in fits if fit.source is not None)
        told = ", ".join(f"{count} {source.value}" for source, count in counts.items())
        show(f"{database.path}: {pluralize(len(fits), 'model')}: {told or 'none'}")
        show(f"fits: {folder()}")
    problems = [f"{fit.kernel_type}: {fit.problem}" for fit in fits if fit.problem]
    if any(fit.source is FitSource.ROWS_NOT_KEPT for fit in fits):
        problems.append(f"{folder()} cannot be written, so the next process fits again: set XDG_CACHE_HOME")
    print_problems(problems)
    return 1 if problems else 0


def _table(fits: Sequence[Fit]) -> Iterator[Sequence[str]]:
    yield "kernel type", "ran", "rows", *_CLASSES.values(), "how"
    for fit in fits:
        how = "-" if fit.source is None else fit.source.value
        if fit.source in (FitSource.ROWS, FitSource.ROWS_NOT_KEPT):
            how += f" in {fit.seconds:.1f} s"
        yield fit.kernel_type, fit.implementation, str(fit.rows), *(_percent(fit.p90(asked)) for asked in _CLASSES), how


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
