"""`python -m database COMMAND`: the commands that need no device."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from database.errors import OpAtlasError
from database.ingest import command as ingest
from database.join import command as join

#: Each module documents its command in its docstring, and has `add_arguments` and `run`.
COMMANDS = {
    "ingest": ingest,
    "merge": join,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m database", description="Tools of the OpAtlas database.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        text = (module.__doc__ or "").strip()
        command = commands.add_parser(name, help=text.partition("\n")[0], description=text)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    parsed = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A path or a kernel type that the terminal has no letters for must not cost the summary.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status: int = parsed.run(parsed)
    except OpAtlasError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # `| head` has seen enough; Python flushes stdout once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("interrupted: every CSV is whole, as it was before or as it was to be", file=sys.stderr)
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
