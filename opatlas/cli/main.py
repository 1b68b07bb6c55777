"""The command `opatlas`: its commands, in groups, and what runs each."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence

from opatlas.cli.commands import BUILT_IN, all_commands
from opatlas.cli.sessions import run_session
from opatlas.errors import OpAtlasError, UsageError
from opatlas.files import path_problem
from opatlas.show.output import print_error, print_note
from opatlas.text import suggest


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status. `arguments` are those of the process by default."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    return run_guarded(lambda: _run(words))


def _run(words: Sequence[str]) -> int:
    if words == ["--version"]:
        print(f"opatlas {_version()}")
        return 0
    name = words[0] if words else ""
    # Entry points take 25 ms to read, which the commands of this package do without.
    command = BUILT_IN.get(name) or all_commands().get(name)
    if command is None and name and not name.startswith("-"):
        raise UsageError(f"there is no command {name!r}{suggest(name, all_commands())}: opatlas --help lists them")
    if command is not None and command.tests:
        # All options belong to pytest, --help among them.
        return run_session(name, command.tests, command.about, words[1:])
    # cyclopts takes 60 ms to import, which sessions and --version do without.
    from opatlas.cli.app import make_app, run_app

    return run_app(make_app(name), words)


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("opatlas")
    except metadata.PackageNotFoundError:
        return "(not installed as a package)"


#: The exit status after wrong usage.
USAGE = 2
#: The exit status that a shell gives a process which SIGINT has ended.
_INTERRUPTED = 130


def run_guarded(run: Callable[[], int]) -> int:
    """Runs a command and returns its exit status; prints errors of OpAtlas and of paths without traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal's encoding lacks is escaped, and does not end the command.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return run()
    except OpAtlasError as error:
        print_error(error)
        return USAGE if isinstance(error, UsageError) else 1
    except BrokenPipeError:
        # The reader (`| head`) has closed the pipe. Python flushes stdout again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        print_error(path_problem(error))
        return 1
    except KeyboardInterrupt:
        print_note("interrupted: each CSV is complete, either as before or as after the change")
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
