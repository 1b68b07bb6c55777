"""`python -m database COMMAND`: the commands that need no device."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Sequence

from database import overview, rebuild, row_history, unprune
from database.combine import command as combine
from database.commands import RENAMED, USAGE, parser_of, run_command
from database.fill_runtime import command as fill_runtime
from database.ingest import command as ingest
from database.plots import command as plot
from database.plots import communication, products
from database.trace import command as trace

_PROG = "python -m database"
COMMANDS = {
    "show": overview,
    "ingest": ingest,
    "fill-runtime": fill_runtime,
    "combine": combine,
    "history": row_history,
    "rebuild": rebuild,
    "unprune": unprune,
    "plot": plot,
    "plot-comm": communication,
    "plot-products": products,
    "trace-to-csv": trace,
}


def parser(prog: str = _PROG) -> argparse.ArgumentParser:
    """Returns what reads the command line; `prog` is what the user ran."""
    return parser_of(prog, "Tools of the OpAtlas database.", COMMANDS)


def main(
    arguments: Sequence[str] | None = None,
    prog: str = _PROG,
    replayed_types: Callable[[], Collection[str]] | None = None,
) -> int:
    """Runs a command; gives the exit status.

    Args:
        prog: what the user ran, for usage messages.
        replayed_types: gives the kernel types that have a replay, for what an ingest tells of its rows; None: unknown
            here, for this package knows of no replays.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in RENAMED:
        print(f"error: {arguments[0]!r} is called {RENAMED[arguments[0]]!r} now", file=sys.stderr)
        return USAGE
    reads = parser(prog)
    reads.set_defaults(replayed_types=replayed_types)
    return run_command(reads, arguments)


if __name__ == "__main__":
    sys.exit(main())
