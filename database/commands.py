"""The front of `python -m database` and `python -m bench`: commands that are modules."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType

from database.errors import OpAtlasError
from database.terminal import fitted

#: As argparse exits.
USAGE = 2
#: Commands that have another name now.
RENAMED = {"merge": "combine"}


class UsageError(OpAtlasError):
    """A command that was told to do what cannot be done, and has done nothing."""


@contextmanager
def looking_at_usage() -> Iterator[None]:
    """Makes a UsageError of the OpAtlasErrors of what looks at the arguments, before anything is done."""
    try:
        yield
    except OpAtlasError as error:
        raise UsageError(str(error)) from None


def parser_of(prog: str, description: str, modules: Mapping[str, ModuleType]) -> argparse.ArgumentParser:
    """What reads the command line; the namespace that it gives has the command's `run`.

    Args:
        prog, description: for the help.
        modules: by the command's name. Each documents it in its docstring, and has
            `add_arguments(parser)` and `run(arguments)`, which gives the exit status.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, module in modules.items():
        text = (module.__doc__ or "").strip()
        command = commands.add_parser(name, help=text.partition("\n")[0], description=text)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def run_command(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> int:
    """Runs the command that the arguments name, default those of the process; gives the exit status."""
    parsed = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A path or a kernel type that the terminal has no letters for must not cost the summary.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status: int = parsed.run(parsed)
    except OpAtlasError as error:
        print(fitted(f"error: {error}"), file=sys.stderr)
        return USAGE if isinstance(error, UsageError) else 1
    except BrokenPipeError:
        # `| head` has seen enough; Python flushes stdout once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("interrupted: every CSV is whole, as it was before or as it was to be", file=sys.stderr)
        return 130
    return status
