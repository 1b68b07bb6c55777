"""What the command-line tools of drivers print."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache

from opatlas.text import whole


def run_tool(tool: str, *arguments: str, timeout_s: float) -> str:
    """What a tool prints, asked once in a process; "" where it is not on PATH, fails, or does not answer in time."""
    executable = shutil.which(tool)
    return "" if executable is None else _run(executable, arguments, timeout_s)


@cache
def _run(executable: str, arguments: Sequence[str], timeout_s: float) -> str:
    try:
        done = subprocess.run(
            [executable, *arguments], capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def parse_whole(text: str | None) -> int | None:
    """Of what a tool prints; None for other words, or none."""
    return None if text is None else whole(text)
