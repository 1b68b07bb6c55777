"""The command `opatlas`: its subcommands, each a module that documents it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata

from opatlas.cli.commands import RENAMED, USAGE, add_command, run_command
from opatlas.cli.sessions import run_session
from opatlas.errors import OpAtlasError
from opatlas.installation import require_extra
from opatlas.text import closest

#: As a shell tells of SIGINT.
_INTERRUPTED = 130


@dataclass(frozen=True)
class Command:
    """`opatlas NAME ...`.

    Attributes:
        about: what it does, in a line.
        module: a module with `add_arguments(parser)` and `run(arguments)`; None for a command that runs pytest.
        run: takes the arguments after the name, of a command that runs pytest; gives the exit status.
    """

    about: str
    module: str | None = None
    run: Callable[[Sequence[str]], int] | None = None


def _check(arguments: Sequence[str]) -> int:
    require_extra("bench", "`opatlas check`", "pytest")
    status: int = import_module("opatlas.plugins.check").run(arguments)
    return status


def _of_pytest(name: str, path: str, about: str) -> Command:
    return Command(about, run=lambda arguments: run_session(name, path, about, arguments))


#: In the order in which a newcomer meets them.
COMMANDS = {
    "show": Command("show what a database holds, or which databases there are", "opatlas.cli.show"),
    "ingest": Command("bring profiler captures into the database", "opatlas.cli.ingest"),
    "fill-runtime": Command("fill the lengths of attention rows from records", "opatlas.cli.fill_runtime"),
    "shapes": _of_pytest("shapes", "shapes", "add theory rows of models to the database"),
    "bench": _of_pytest("bench", "bench", "replay the rows of the database on a device"),
    "collectives": _of_pytest("collectives", "bench/test_collectives.py", "measure collectives between the devices"),
    "check": Command("test the data of a database", run=_check),
    "combine": Command("combine databases that were measured apart", "opatlas.cli.combine"),
    "history": Command("tell what a row took in each run", "opatlas.store.row_history"),
    "rebuild": Command("make the CSVs again from the histories of their runs", "opatlas.combine.rebuild"),
    "unprune": Command("bring pruned rows back into the CSVs", "opatlas.store.pruned"),
    "plot": Command("plot what a database holds, as PNGs for a report", "opatlas.cli.plot"),
    "plot-comm": Command("plot the bus bandwidth of collectives", "opatlas.report.plots.communication"),
    "plot-products": Command("plot matrix products of chosen weights", "opatlas.report.plots.durations"),
    "kernels": Command("list the kernel types that are replayed", "opatlas.cli.kernels"),
    "doctor": Command("look at what this machine offers, stage by stage", "opatlas.cli.doctor"),
    "validate-comm": Command("compare collectives with an analytic model", "opatlas.collectives.validate"),
    "probe-dispatch-ffn-combine": Command("find out which shapes it takes here", "opatlas.theory.refused_probe"),
    "trace-to-csv": Command("flatten a profiler's Chrome trace into CSV", "opatlas.cli.trace_to_csv"),
}


def parser(names: Sequence[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """Returns what reads the arguments of the named commands, of those that do not run pytest."""
    reads = argparse.ArgumentParser(prog="opatlas", description=f"{(sys.modules[__name__].__doc__ or '').strip()}")
    commands = reads.add_subparsers(required=True, metavar="COMMAND")
    for name in names:
        if (module := COMMANDS[name].module) is not None:
            add_command(commands, name, import_module(module))
    return reads


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
        return USAGE
    if name not in COMMANDS:
        print(
            f"error: there is no command {name!r}{closest(name, COMMANDS)}: opatlas --help lists them", file=sys.stderr
        )
        return USAGE
    try:
        command = COMMANDS[name]
        return run_command(parser([name]), arguments) if command.run is None else command.run(rest)
    except OpAtlasError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        # While a command imports what it needs. One that is under way answers it itself.
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED


def _help() -> str:
    lines = ["usage: opatlas COMMAND ...", "", "A versioned database of measured operator durations.", ""]
    width = max(map(len, COMMANDS))
    for name, command in COMMANDS.items():
        lines.append(f"  {name:{width}}  {command.about}")
    lines += ["", "opatlas COMMAND --help tells the options of a command; --version the version."]
    return "\n".join(lines)


def _version() -> str:
    try:
        return metadata.version("opatlas")
    except metadata.PackageNotFoundError:
        return "(not installed as a package)"


if __name__ == "__main__":
    sys.exit(main())
