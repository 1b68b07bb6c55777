"""The command `opatlas`: the table of its commands, and the code that all commands share."""

from __future__ import annotations

import argparse
import io
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import NoReturn

from opatlas.cli.sessions import run_session
from opatlas.errors import OpAtlasError, UsageError
from opatlas.files import path_problem
from opatlas.text import suggest, wrap_for_stderr

#: The exit status of argparse after wrong usage.
USAGE = 2
#: The exit status that a shell gives a process which SIGINT has ended.
_INTERRUPTED = 130


@dataclass(frozen=True)
class Command:
    """`opatlas NAME ...`, run by a module or by pytest.

    Attributes:
        about: what the command does, in a line.
        module: has a docstring for the help, `add_arguments(parser)`, and `run(arguments)`, which returns the exit
            status; "" for a session of pytest.
        tests: what a session of pytest collects, such as "bench/test_collectives.py"; "" for a module.
        for_pytest: whether the command hands unknown options to pytest, as `run(arguments, for_pytest)`.
    """

    about: str
    module: str = ""
    tests: str = ""
    for_pytest: bool = False


#: In the order in which a new user needs them.
COMMANDS = {
    "show": Command("show the databases, one of them, or the kernel types", "opatlas.cli.show"),
    "ingest": Command("bring captures, and lengths of attention, into a database", "opatlas.cli.ingest"),
    "shapes": Command("add theory rows of models to the database", tests="shapes"),
    "bench": Command("replay the rows of the database on a device", tests="bench"),
    "implementations": Command(
        "list implementations of kernels, and what is known of them", "opatlas.cli.implementations"
    ),
    "collectives": Command("measure collectives between the devices", tests="bench/test_collectives.py"),
    "check": Command("test the data of a database", "opatlas.cli.check", for_pytest=True),
    "combine": Command("combine databases that were measured separately", "opatlas.cli.combine"),
    "history": Command("show what rows took in each run, or restore rows", "opatlas.cli.history"),
    "regressions": Command("find rows that became slower or faster from some run on", "opatlas.cli.regressions"),
    "compare": Command("compare implementations, or databases, row by row", "opatlas.cli.compare"),
    "diagnose": Command("tell why kernels are slow, and what to do about it", "opatlas.cli.diagnose"),
    "query": Command("ask for the duration of a call, measured or not", "opatlas.cli.query"),
    "fit": Command("fit the models that predict durations ahead of questions", "opatlas.cli.fit"),
    "model": Command("show what a step of a model costs", "opatlas.cli.model"),
    "models": Command("show what models that write kernels achieve", "opatlas.cli.models"),
    "plan": Command("add the rows whose measurement tells the most", "opatlas.cli.plan"),
    "export": Command("write the rows for other tools: Parquet, CSV, aiconfigurator", "opatlas.cli.export"),
    "plot": Command("plot the durations of databases as images for a report", "opatlas.cli.plot"),
    "report": Command("write a site that shows a database in a browser", "opatlas.cli.report"),
    "suite": Command("score kernels of torch's operators that a suite measured", "opatlas.cli.suite"),
    "superkernel": Command("find the scopes of a capture that a SuperKernel may fuse", "opatlas.cli.superkernel"),
    "doctor": Command("examine step by step whether this machine can measure rows", "opatlas.cli.doctor"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status. `arguments` are those of the process by default."""
    arguments = sys.argv[1:] if arguments is None else arguments
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", ())
    if name in ("", "-h", "--help"):
        print(_help())
        return 0
    if name == "--version":
        print(f"opatlas {_version()}")
        return 0
    return run_guarded(lambda: _run(name, rest))


def _run(name: str, arguments: Sequence[str]) -> int:
    if name not in COMMANDS:
        raise UsageError(f"there is no command {name!r}{suggest(name, COMMANDS)}: opatlas --help lists them")
    command = COMMANDS[name]
    if command.tests:
        return run_session(name, command.tests, command.about, arguments)
    try:
        module = import_module(command.module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("", "opatlas"):
            raise
        raise OpAtlasError(
            f"{error.name} is not installed for {sys.executable}: pip install -e . in the checkout of OpAtlas, or "
            f"run the command `opatlas` of the environment that has it"
        ) from None
    parser = parser_of(command.module, f"opatlas {name}")
    if command.for_pytest:
        if arguments and arguments[0].startswith("-") and not {"-h", "--help"}.intersection(arguments):
            # The value of an option of pytest would be taken for the database.
            raise UsageError(f"{arguments[0]} precedes the database: name the database first, opatlas {name} DB ...")
        parsed, unknown = parser.parse_known_args(arguments)
        return int(module.run(parsed, unknown))
    parser.expect_known_options(arguments)
    # A database may follow options: MODEL --batch 64 DB.
    return int(module.run(parser.parse_intermixed_args(arguments)))


class CommandParser(argparse.ArgumentParser):
    """The parser of a command, which names the option that a misspelt one was meant to be."""

    def expect_known_options(self, arguments: Sequence[str]) -> None:
        """Exits, as other wrong usage does, at the first word `--name` that is no option of the command."""
        for word in itertools.takewhile("--".__ne__, arguments):
            name = word.partition("=")[0]
            # Words with spaces are values: argparse takes them for no option either.
            if name.startswith("--") and " " not in name and name not in self._option_string_actions:
                known = [each for each in self._option_string_actions if each.startswith("--")]
                meant = suggest(name, known, least=0.6)
                self.error(f"there is no option {name}{meant}")

    def error(self, message: str) -> NoReturn:
        """Prints the usage and the error, which fits the terminal, and exits as argparse does."""
        self.print_usage(sys.stderr)
        self.exit(USAGE, wrap_for_stderr(f"{self.prog}: error: {message}") + "\n")


def parser_of(module: str, program: str) -> CommandParser:
    """Returns the parser of a module of commands."""
    found = import_module(module)
    parser = CommandParser(prog=program, description=found.__doc__, allow_abbrev=False)
    found.add_arguments(parser)
    return parser


def run_guarded(run: Callable[[], int]) -> int:
    """Runs a command and returns its exit status; prints errors of OpAtlas and of paths without traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal's encoding lacks is escaped, and does not end the command.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return run()
    except OpAtlasError as error:
        print(wrap_for_stderr(f"error: {error}"), file=sys.stderr)
        return USAGE if isinstance(error, UsageError) else 1
    except BrokenPipeError:
        # The reader (`| head`) has closed the pipe. Python flushes stdout again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        print(wrap_for_stderr(f"error: {path_problem(error)}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: each CSV is complete, either as before or as after the change", file=sys.stderr)
        return _INTERRUPTED


def run_tool(module: str, arguments: Sequence[str] | None = None) -> int:
    """Runs a module of `opatlas.cli` that is no command of `opatlas`, as `python -m MODULE`, and returns its status."""
    found, parser = import_module(module), parser_of(module, f"python -m {module}")
    arguments = sys.argv[1:] if arguments is None else arguments
    parser.expect_known_options(arguments)
    return run_guarded(lambda: int(found.run(parser.parse_args(arguments))))


def _help() -> str:
    lines = ["usage: opatlas COMMAND ...", "", "A versioned database of measured operator durations.", ""]
    width = max(map(len, COMMANDS))
    for name, command in COMMANDS.items():
        lines.append(f"  {name:{width}}  {command.about}")
    lines += ["", "opatlas COMMAND --help lists options; opatlas --version prints the version."]
    return "\n".join(lines)


def _version() -> str:
    try:
        return metadata.version("opatlas")
    except metadata.PackageNotFoundError:
        return "(not installed as a package)"


if __name__ == "__main__":
    sys.exit(main())
