"""Runs a command: errors become a line on stderr and an exit status."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable

from opatlas.errors import OpAtlasError, UsageError
from opatlas.files import path_problem
from opatlas.show.output import print_error, print_note

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
