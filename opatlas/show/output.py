"""Where a result goes: stdout in the format that was asked for; problems, errors and notes go to stderr.

Errors of a command become a line and an exit status.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Literal

from opatlas.errors import OpAtlasError, UsageError
from opatlas.files import path_problem
from opatlas.show.result import SCREEN_COLUMNS, UNLIMITED, Result, csv_text, json_text, markdown, screen, text
from opatlas.text import printable_lines

Format = Literal["screen", "text", "markdown", "csv", "json"]
_PROBLEMS_SHOWN = 20
#: The exit status after wrong usage.
USAGE = 2
#: The exit status that a shell gives a process which SIGINT has ended.
_INTERRUPTED = 130


def print_result(result: Result, how: Format = "screen") -> int:
    """Prints a result, its problems on stderr, and returns its exit status.

    Args:
        how: what fits on a screen, or all that was found in another format.
    """
    if how == "json":
        shown = json_text(result)
    elif how == "csv":
        shown = csv_text(result.parts)
    elif how == "markdown":
        shown = markdown(result.parts)
    elif how == "text":
        shown = text(result.parts, output_width(UNLIMITED), styled=sys.stdout.isatty())
    else:
        shown = screen(result.parts, output_width(SCREEN_COLUMNS), styled=sys.stdout.isatty())
    if shown:
        print(shown, flush=True)
    print_problems(result.problems)
    return result.exit_status


def output_width(otherwise: int) -> int:
    """Returns the columns of the terminal that stdout is, or COLUMNS."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        import shutil

        return shutil.get_terminal_size().columns
    return otherwise


def print_error(error: object) -> None:
    """Prints `error: ...` on stderr."""
    print_note(f"error: {error}")


def print_note(note: str) -> None:
    """Prints a line on stderr that is not part of the result, such as what a command waits for."""
    print(printable_lines(note), file=sys.stderr, flush=True)


def print_problems(texts: Sequence[str]) -> None:
    """Prints problems on stderr, one on a line: the first ones, and the number of the others."""
    for each in texts[:_PROBLEMS_SHOWN]:
        print_error(each)
    if more := len(texts) - len(texts[:_PROBLEMS_SHOWN]):
        print_error(f"and {more:,} more")


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
