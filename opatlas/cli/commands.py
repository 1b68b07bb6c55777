"""The commands of `opatlas`, in groups."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from opatlas import extensions
from opatlas.extensions import Command

#: In the order of the help.
BUILT_IN = {
    "ingest": Command("Rows", "bring captures, and lengths of attention, into a database", "opatlas.cli.ingest:ingest"),
    "shapes": Command("Rows", "add theory rows of models to the database", tests="shapes"),
    "combine": Command("Rows", "combine databases that were measured separately", "opatlas.cli.combine:combine"),
    "export": Command(
        "Rows", "write the rows for other tools: Parquet, CSV, aiconfigurator", "opatlas.cli.query:export"
    ),
    "bench": Command("Measure", "replay the rows of the database on a device", tests="bench"),
    "collectives": Command("Measure", "measure collectives between devices", tests="bench/test_collectives.py"),
    "show": Command("Look", "show the databases, one of them, or the kernel types", "opatlas.cli.show:show"),
    "check": Command("Look", "test the data of a database", "opatlas.cli.check:check"),
    "history": Command(
        "Look", "show the durations of each run, and which changed; restore rows", "opatlas.cli.history:history"
    ),
    "report": Command("Look", "write a site that shows a database in a browser", "opatlas.cli.report:report"),
    "query": Command("Ask", "the duration of a call, measured or predicted", "opatlas.cli.query:query"),
    "model": Command("Ask", "the cost of a step of a model, and which rows to measure next", "opatlas.cli.model:model"),
    "compare": Command("Ask", "which implementation or database is faster, row by row", "opatlas.cli.compare:compare"),
    "implementations": Command(
        "Kernels",
        "list implementations of kernels; begin one of your own",
        "opatlas.cli.implementations:implementations",
    ),
}


@cache
def all_commands() -> Mapping[str, Command]:
    """Returns the commands by name, those included that have registered themselves."""
    entries = extensions.extensions(extensions.COMMANDS)
    return BUILT_IN | {name: entries[name].load() for name in sorted(entries)}
