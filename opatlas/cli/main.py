"""The command `opatlas`: its commands, in groups, and what runs each.

A session of pytest (`opatlas bench`, `collectives`, `shapes`) reads no settings of the working folder: no pytest.ini,
no conftest.py, no module. Only a test file of the user's own, named on the command line, is run with the settings of
the folder that holds the file.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from itertools import pairwise, takewhile
from pathlib import Path

from opatlas.errors import UsageError
from opatlas.installation import COMMANDS, Command, code_folder, extensions, pytest_cache, require_extra
from opatlas.show.output import run_guarded
from opatlas.text import suggest

_INI = Path(__file__).with_name("sessions.ini")
_PLUGINS = ("-p", "opatlas.plugins")
#: New objects before a search for cycles. After each 700, as Python does, it takes a sixth of the time of a query.
_COLLECT_AFTER = 500_000
#: In the order of the help.
BUILT_IN = {
    "ingest": Command("Rows", "bring captures, and lengths of attention, into a database", "opatlas.cli.ingest:ingest"),
    "shapes": Command("Rows", "add theory rows of models to the database", tests="shapes"),
    "fetch": Command("Rows", "install databases from a file or a server", "opatlas.cli.databases:fetch"),
    "combine": Command("Rows", "combine databases that were measured separately", "opatlas.cli.databases:combine"),
    "export": Command("Rows", "write the rows for other tools: Parquet, CSV, traces", "opatlas.cli.query:export"),
    "bench": Command("Measure", "replay the rows of the database on a device", tests="bench"),
    "collectives": Command("Measure", "measure collectives between devices", tests="bench/test_collectives.py"),
    "show": Command("Look", "show the databases, one of them, or the kernel types", "opatlas.cli.show:show"),
    "check": Command("Look", "test the data of a database", "opatlas.cli.check:check"),
    "history": Command(
        "Look", "show the durations of each run, and which changed; restore rows", "opatlas.cli.compare:history"
    ),
    "report": Command("Look", "write a site that shows a database in a browser", "opatlas.cli.show:report"),
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
    entries = extensions(COMMANDS)
    return BUILT_IN | {name: entries[name].load() for name in sorted(entries)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status. `arguments` are those of the process by default."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    return run_guarded(lambda: _run(words))


def _run(words: Sequence[str]) -> int:
    if words == ["--version"]:
        from opatlas.row.versions import package_version

        print(f"opatlas {package_version('opatlas') or '(not installed as a package)'}")
        return 0
    name = words[0] if words else ""
    # Entry points take 25 ms to read, which the commands of this package do without.
    command = BUILT_IN.get(name) or all_commands().get(name)
    if command is None and name and not name.startswith("-"):
        raise UsageError(f"there is no command {name!r}{suggest(name, all_commands())}: opatlas --help lists them")
    if command is not None and command.tests:
        # All options belong to pytest, --help among them.
        return run_session(name, command.tests, command.about, words[1:])
    gc.set_threshold(_COLLECT_AFTER, *gc.get_threshold()[1:])
    if command is not None and command.group == "Ask":
        # The threads of numpy's BLAS take 30 ms to start, and predictions use one (opatlas/ask/query/predictor.py).
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # cyclopts takes 60 ms to import, which sessions and --version do without.
    from opatlas.cli.app import make_app, run_app

    return run_app(make_app(BUILT_IN if name in BUILT_IN else all_commands(), name), words)


def run_session(name: str, tests: str, about: str, arguments: Sequence[str]) -> int:
    """Runs pytest and returns its exit status.

    Args:
        name: the name of the command, for its help.
        tests: the folder or file that is collected, such as "bench" or "bench/test_collectives.py".
        about: what the command does, in a line.
        arguments: options of OpAtlas and of pytest, and perhaps test files that replace `tests`.

    Raises:
        OpAtlasError: pytest or torch is not installed.
    """
    require_extra("bench", f"`opatlas {name}`", "pytest")
    if {"-h", "--help"}.intersection(takewhile(lambda argument: argument != "--", arguments)):
        print(import_module("opatlas.plugins.options").help_of(name, about), end="")
        return 0
    require_extra("bench", f"`opatlas {name}`", "xdist", "pytest_benchmark", "torch")
    import pytest

    folder, _, file = tests.partition("/")
    path = code_folder(folder)
    files = test_files(arguments)
    if files and not any(path in file.parents for file in files):
        return int(pytest.main([*_PLUGINS, "-W", "ignore::pytest.PytestAssertRewriteWarning", *arguments]))
    # Relative paths in options stay relative to the working folder.
    settings = ["-c", str(_INI), f"--rootdir={path.parent}", "-o", f"cache_dir={pytest_cache()}", *_PLUGINS]
    if not any("--benchmark" in words for words in (*arguments, os.environ.get("PYTEST_ADDOPTS", ""))):
        # The plugin makes a folder in the working folder.
        settings += ["-p", "no:benchmark"]
    return int(pytest.main([*settings, *([] if files else [str(path / file)]), *arguments]))


def test_files(arguments: Sequence[str]) -> list[Path]:
    """Returns the test files among the arguments. Folders and the values of OpAtlas' options do not count."""
    options = import_module("opatlas.plugins.data_folders").PATH_OPTIONS
    words = [word for before, word in pairwise(("", *arguments)) if before not in options and not word.startswith("-")]
    files = [Path(word.partition("::")[0]) for word in words]
    return [path.resolve() for path in files if path.suffix == ".py" and path.is_file()]


if __name__ == "__main__":
    sys.exit(main())
