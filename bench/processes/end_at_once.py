"""How a process that has torch ends when nothing is left to do."""

from __future__ import annotations

import atexit
import os
from typing import NoReturn

from bench.processes import std_streams


def end_at_once() -> NoReturn:
    """Ends the process as Python does, but does not take torch apart first: half a second, and the system does it."""
    atexit._run_exitfuncs()
    std_streams.write_out()
    os._exit(0)
