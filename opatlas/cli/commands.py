"""What the commands of `opatlas` share: their exit statuses and errors."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from opatlas.errors import OpAtlasError, UsageError
from opatlas.text import fitted

#: As argparse exits.
USAGE = 2
#: Commands that have another name now.
RENAMED = {"merge": "combine"}


def add_command(commands: Any, name: str, module: ModuleType) -> None:
    """Adds a subcommand to argparse's subparsers.

    Args:
        commands: what `add_subparsers` gave.
        module: documents the command in its docstring, and has `add_arguments(parser)` and
            `run(arguments)`, which gives the exit status.
    """
    text = (module.__doc__ or "").strip()
    command = commands.add_parser(name, help=text.partition("\n")[0], description=text)
    module.add_arguments(command)
    command.set_defaults(run=module.run)


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
