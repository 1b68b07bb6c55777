"""The app of cyclopts: reads the words of a command, runs its function, and shows the result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, CycloptsError, Group, Parameter

from opatlas.errors import OpAtlasError, UsageError
from opatlas.installation import Command
from opatlas.show.output import print_note, print_result, run_guarded
from opatlas.show.result import Result

if TYPE_CHECKING:
    from opatlas.data.database import Database

#: The options of all commands.
_OUTPUT = Group("Output", sort_key=99)


def make_app(commands: Mapping[str, Command], running: str = "") -> App:
    """Returns the app of some commands.

    Args:
        running: the command that runs, whose help is the docstring of its function. The function of each other command
            is not imported.
    """
    app = _new_app("opatlas", "A versioned database of measured operator durations.")
    app.help_epilogue = "opatlas COMMAND --help lists the options of a command; opatlas --version prints the version."
    headings = dict.fromkeys(command.group for command in commands.values())
    groups = {name: Group(name, sort_key=key) for key, name in enumerate(headings, 1)}
    for key, (name, command) in enumerate(commands.items()):
        function = command.function or _of_pytest
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
    return run_guarded(lambda: run_app(app, words))


def run_app(app: App, words: Sequence[str]) -> int:
    """Runs a command of an app and returns its exit status. Raises OpAtlasError, UsageError."""
    try:
        status = app.meta(_output_first(words), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise UsageError(str(error)) from None
    return status if isinstance(status, int) else 0


@contextmanager
def held(database: Database, command: str) -> Iterator[list[str]]:
    """Holds a database as a session does, after its unmerged journals were merged. Yields the problems of that.

    Raises:
        OpAtlasError: a session has the database.
    """
    from opatlas.data.database import SessionLock
    from opatlas.data.write_back import recover

    lock = SessionLock(database, run_id=command, command=f"opatlas {command}")
    lock.acquire()
    try:
        recovered = recover(database, own_run="") if database.journal_dir.is_dir() else []
        for each in filter(None, recovered):
            print_note(str(each))
        yield [problem for each in recovered for problem in each.problems]
    finally:
        lock.release()


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


def _new_app(name: str, about: str) -> App:
    return App(
        name=name,
        help=about or None,
        version_flags=(),
        help_format="markdown",
        default_parameter=Parameter(negative=(), show_default=lambda value: value or None),
        result_action="return_value",
    )


def _add_output(app: App) -> None:
    """Adds the options of all commands."""

    def run(
        *words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        json: Annotated[bool, Parameter(group=_OUTPUT)] = False,
        format: Annotated[Literal["text", "markdown", "csv"] | None, Parameter(group=_OUTPUT)] = None,  # noqa: A002
    ) -> int:
        """Runs a command.

        Args:
            json: print JSON.
            format: print all that was found as text, Markdown or CSV (default: what fits on a screen).
        """
        if json and format:
            raise UsageError("--json and --format name two formats: leave one of them out")
        try:
            command, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
            result = command(*bound.args, **bound.kwargs)
        except ImportError as error:
            raise _not_installed(error) from None
        return print_result(result, "json" if json else format or "screen") if isinstance(result, Result) else 0

    # run_guarded answers an interrupt.
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


def _of_pytest() -> None:
    """Stands in the help for a command that hands its words to pytest."""
