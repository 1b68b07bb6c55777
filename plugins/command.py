"""The `opatlas` command: a thin front over `python -m database`, `python -m bench` and `pytest bench/`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import takewhile
from pathlib import Path

from database.closest import closest
from database.commands import RENAMED
from database.errors import OpAtlasError

_USAGE = 2
#: As a shell tells of SIGINT.
_INTERRUPTED = 130
#: The checkout, for an editable install; site-packages for any other, where no pytest.ini lies.
_HOME = Path(__file__).resolve().parents[1]

#: What a session of replays needs where the checkout's conftest.py is not loaded.
_REPLAY_PLUGINS = ("plugins.options", "plugins.workers", "plugins.wiring", "bench.conftest")


@dataclass(frozen=True)
class Command:
    """`opatlas NAME ...`.

    Attributes:
        equivalent: what it is short for.
        about: what it does, in a line.
        run: takes the arguments after the name; gives the exit status.
    """

    equivalent: str
    about: str
    run: Callable[[Sequence[str]], int]


def _of_database(name: str, about: str) -> Command:
    def run(arguments: Sequence[str]) -> int:
        from bench.kernels.replays import replays_of_bench
        from database.__main__ import main as database_main

        return database_main([name, *arguments], prog="opatlas", replayed_types=replays_of_bench)

    return Command(f"python -m database {name}", about, run)


def _of_bench(name: str, about: str) -> Command:
    def run(arguments: Sequence[str]) -> int:
        from bench.__main__ import main as bench_main

        return bench_main([name, *arguments], prog="opatlas")

    return Command(f"python -m bench {name}", about, run)


def _check(arguments: Sequence[str]) -> int:
    from plugins.check.command import run

    return run(arguments)


def _test_files(arguments: Sequence[str]) -> list[Path]:
    """The test files that the arguments name; a folder may be the value of an option, and is none."""
    files = [Path(argument.partition("::")[0]) for argument in arguments if not argument.startswith("-")]
    return [path.resolve() for path in files if path.suffix == ".py" and path.is_file()]


def _of_pytest(name: str, path: str, about: str) -> Command:
    def run(arguments: Sequence[str]) -> int:
        if {"-h", "--help"}.intersection(takewhile(lambda argument: argument != "--", arguments)):
            from plugins.command_help import help_of

            print(help_of(name, about), end="")
            return 0
        import pytest

        named = _test_files(arguments)
        if name == "bench" and named and not any(_HOME in file.parents for file in named):
            # Replays of kernels that are somebody's own, outside the checkout.
            plugins = [word for plugin in _REPLAY_PLUGINS for word in ("-p", plugin)]
            return int(pytest.main([*plugins, *arguments]))
        home = checkout()
        # Where the user is stays the working directory, so that relative paths mean what they say.
        tests = [] if named else [str(home / path)]
        return int(pytest.main(["-c", str(home / "pytest.ini"), *tests, *arguments]))

    return Command(f"pytest {path}", about, run)


#: In the order in which a newcomer meets them.
COMMANDS = {
    "show": _of_database("show", "show what a database holds, or which databases there are"),
    "ingest": _of_database("ingest", "bring profiler captures into the database"),
    "fill-runtime": _of_database("fill-runtime", "fill the lengths of attention rows from records"),
    "shapes": _of_pytest("shapes", "shapes/", "add theory rows of models to the database"),
    "bench": _of_pytest("bench", "bench/", "replay the rows of the database on a device"),
    "collectives": _of_pytest("collectives", "bench/test_collectives.py", "measure collectives between the devices"),
    "check": Command("python -m plugins.check.command", "test the data of a database", _check),
    "combine": _of_database("combine", "combine databases that were measured apart"),
    "history": _of_database("history", "tell what a row took in each run"),
    "rebuild": _of_database("rebuild", "make the CSVs again from the histories of their runs"),
    "unprune": _of_database("unprune", "bring pruned rows back into the CSVs"),
    "plot": _of_database("plot", "plot what a database holds, as PNGs for a report"),
    "plot-comm": _of_database("plot-comm", "plot the bus bandwidth of collectives"),
    "plot-products": _of_database("plot-products", "plot matrix products of chosen weights"),
    "kernels": _of_bench("kernels", "list the kernel types that are replayed"),
    "doctor": _of_bench("doctor", "look at what this machine offers, stage by stage"),
    "validate-comm": _of_bench("validate-comm", "compare collectives with an analytic model"),
    "probe-dispatch-ffn-combine": _of_bench("probe-dispatch-ffn-combine", "find out which shapes it takes here"),
    "trace-to-csv": _of_database("trace-to-csv", "flatten a profiler's Chrome trace into CSV"),
}


def checkout(home: Path = _HOME) -> Path:
    """The checkout that this package was installed from.

    Raises:
        OpAtlasError: it was installed without one, so there is nothing for pytest to run.
    """
    if not all((home / name).exists() for name in ("pytest.ini", "conftest.py", "bench")):
        raise OpAtlasError(
            f"{home} is not a checkout of OpAtlas (it has no pytest.ini), and replays run from one: "
            f"clone the repository and run `pip install -c constraints.txt -e .` in it"
        )
    return home


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; gives its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", ())
    if name in ("", "-h", "--help"):
        print(_help())
        return 0
    if name == "--version":
        print(f"opatlas {_version()}")
        return 0
    if name in RENAMED:
        print(f"error: {name!r} is called {RENAMED[name]!r} now", file=sys.stderr)
        return _USAGE
    if name not in COMMANDS:
        print(
            f"error: there is no command {name!r}{closest(name, COMMANDS)}: opatlas --help lists them", file=sys.stderr
        )
        return _USAGE
    try:
        return COMMANDS[name].run(rest)
    except OpAtlasError as error:
        print(f"error: {error}", file=sys.stderr)
        return _USAGE
    except KeyboardInterrupt:
        # While a command imports what it needs. One that is under way answers it itself.
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED


def _help() -> str:
    lines = ["usage: opatlas COMMAND ...", "", "A versioned database of measured operator durations.", ""]
    width = max(map(len, COMMANDS))
    for name, command in COMMANDS.items():
        lines += [f"  {name:{width}}  {command.about}", f"  {'':{width}}    = {command.equivalent}"]
    lines += ["", "opatlas COMMAND --help tells the options of a command; --version the version."]
    return "\n".join(lines)


def _version() -> str:
    try:
        return metadata.version("opatlas")
    except metadata.PackageNotFoundError:
        return "(not installed as a package)"


if __name__ == "__main__":
    sys.exit(main())
