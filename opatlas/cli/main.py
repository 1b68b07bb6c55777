"""The command `opatlas`: its commands, in groups, and the code that all of them share."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Group, Parameter

from opatlas.cli.sessions import run_session
from opatlas.errors import OpAtlasError, UsageError
from opatlas.files import path_problem
from opatlas.show.output import Output, print_error, print_note
from opatlas.show.result import Result
from opatlas.text import suggest

#: The exit status after wrong usage.
USAGE = 2
#: The exit status that a shell gives a process which SIGINT has ended.
_INTERRUPTED = 130
#: The options of all commands.
_OUTPUT = Group("Output", sort_key=99)


@dataclass(frozen=True)
class Command:
    """`opatlas NAME ...`, a function that returns a Result, or a session of pytest.

    Attributes:
        group: the heading in the help, which says what a person wants.
        about: what the command does, in a line.
        function: `module:name`; "" for a session of pytest.
        tests: what a session of pytest collects, such as "bench/test_collectives.py".
    """

    group: str
    about: str
    function: str = ""
    tests: str = ""


#: In the order of the help.
COMMANDS = {
    "ingest": Command("Rows", "bring captures, and lengths of attention, into a database", "ingest:ingest"),
    "shapes": Command("Rows", "add theory rows of models to the database", tests="shapes"),
    "combine": Command("Rows", "combine databases that were measured separately", "combine:combine"),
    "export": Command("Rows", "write the rows for other tools: Parquet, CSV, aiconfigurator", "export:export"),
    "doctor": Command("Measure", "examine whether this machine can measure rows", "doctor:doctor"),
    "bench": Command("Measure", "replay the rows of the database on a device", tests="bench"),
    "collectives": Command("Measure", "measure collectives between devices", tests="bench/test_collectives.py"),
    "show": Command("Look", "show the databases, one of them, or the kernel types", "show:show"),
    "check": Command("Look", "test the data of a database", "check:check"),
    "history": Command("Look", "show the durations of each run, and which changed; restore rows", "history:history"),
    "report": Command("Look", "write a site that shows a database in a browser", "report:report"),
    "query": Command("Ask", "the duration of a call, measured or predicted", "query:query"),
    "model": Command("Ask", "the cost of a step of a model, and which rows to measure next", "model:model"),
    "compare": Command("Ask", "which implementation or database is faster, row by row", "compare:compare"),
    "diagnose": Command("Ask", "why kernels are slow; which scopes a SuperKernel may fuse", "diagnose:diagnose"),
    "implementations": Command(
        "Kernels", "list implementations of kernels; begin one of your own", "implementations:implementations"
    ),
    "score": Command("Kernels", "score kernels that a suite or an experiment judged", "score:score"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status. `arguments` are those of the process by default."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    return run_guarded(lambda: _run(words))


def make_app(running: str = "") -> App:
    """Returns the app of all commands.

    Args:
        running: the command that runs, whose help is the docstring of its function. The function of each other command
            is not imported.
    """
    app = _new_app("opatlas", "A versioned database of measured operator durations.")
    app.help_epilogue = "opatlas COMMAND --help lists the options of a command."
    headings = dict.fromkeys(command.group for command in COMMANDS.values())
    groups = {name: Group(name, sort_key=key) for key, name in enumerate(headings, 1)}
    for key, (name, command) in enumerate(COMMANDS.items()):
        function = f"opatlas.cli.{command.function}" if command.function else _of_pytest
        about = {} if name == running else {"help": command.about}
        app.command(function, name=name, group=groups[command.group], sort_key=key, **about)
    _add_output(app)
    return app


def run_tool(function: Callable[..., Result], program: str, arguments: Sequence[str] | None = None) -> int:
    """Runs a function that is no command of `opatlas`, as `python -m MODULE`, and returns its exit status.

    Args:
        program: `python -m MODULE`, for the help.
    """
    app = _new_app(program, "")
    app.default(function)
    _add_output(app)
    words = sys.argv[1:] if arguments is None else list(arguments)
    return run_guarded(lambda: _run_app(app, words))


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
    except CycloptsError as error:
        print_error(error)
        return USAGE
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


def _run(words: Sequence[str]) -> int:
    name = words[0] if words else ""
    command = COMMANDS.get(name)
    if command is None and name and not name.startswith("-"):
        raise UsageError(f"there is no command {name!r}{suggest(name, COMMANDS)}: opatlas --help lists them")
    if command is not None and command.tests:
        # All options belong to pytest, --help among them.
        return run_session(name, command.tests, command.about, words[1:])
    return _run_app(make_app(name), _output_first(words))


def _output_first(words: Sequence[str]) -> list[str]:
    """Puts the options of all commands before the command: what `check` does not know is pytest's."""
    options, others = list[str](), list[str]()
    remaining = iter(words)
    for word in remaining:
        if word == "--":
            others.append(word)
            break
        is_output = word == "--json" or word.startswith("--format=")
        value = next(remaining, None) if word == "--format" else None
        (options if is_output or value is not None else others).extend(filter(None, (word, value)))
    return [*options, *others, *remaining]


def _run_app(app: App, words: Sequence[str]) -> int:
    status = app.meta(words, exit_on_error=False, print_error=False)
    return status if isinstance(status, int) else 0


def _new_app(name: str, about: str) -> App:
    return App(
        name=name,
        help=about or None,
        version=_version,
        help_format="markdown",
        default_parameter=Parameter(negative=(), show_default=_default_text),
        result_action="return_value",
    )


def _add_output(app: App) -> None:
    """Adds the options of all commands."""

    def run(
        *words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        json: Annotated[bool, Parameter(group=_OUTPUT)] = False,
        format: Annotated[Literal["text", "markdown", "csv"], Parameter(group=_OUTPUT)] = "text",  # noqa: A002
    ) -> int:
        """Runs a command.

        Args:
            json: print JSON.
            format: print tables as text, Markdown or CSV.
        """
        output = Output("json" if json else format)
        try:
            command, bound, injected = app.parse_args(words, exit_on_error=False, print_error=False)
            if "output" in injected:
                bound.arguments["output"] = output
            result = command(*bound.args, **bound.kwargs)
        except ImportError as error:
            raise _not_installed(error) from None
        return output.show(result) if isinstance(result, Result) else 0

    # run_guarded tells what an interrupt means.
    app.meta.suppress_keyboard_interrupt = False
    app.meta.default(run)


def _not_installed(error: ImportError) -> Exception:
    """Returns the error for a user whose environment lacks a package; `error` itself for a module of ours."""
    missing = error.__cause__ if isinstance(error.__cause__, ModuleNotFoundError) else error
    if (missing.name or "").partition(".")[0] in ("", "opatlas"):
        return error
    return OpAtlasError(
        f"{missing.name} is not installed for {sys.executable}: pip install -e . in the checkout of OpAtlas, or "
        f"run the command `opatlas` of the environment that has it"
    )


def _default_text(value: Any) -> Any:
    """Returns a default for the help; None for one that the help leaves out."""
    return value or None


def _of_pytest() -> None:
    """Stands in the help for a command that hands its words to pytest."""


def _version() -> str:
    try:
        return f"opatlas {metadata.version('opatlas')}"
    except metadata.PackageNotFoundError:
        return "opatlas (not installed as a package)"


if __name__ == "__main__":
    sys.exit(main())
