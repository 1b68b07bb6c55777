"""The command `opatlas`: its commands, in groups, and what runs each."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from opatlas.cli.commands import BUILT_IN, all_commands
from opatlas.cli.sessions import run_session
from opatlas.errors import UsageError
from opatlas.show.output import run_guarded
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


if __name__ == "__main__":
    sys.exit(main())
