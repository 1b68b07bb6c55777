"""Reads files of the operating system and the output of vendors' command-line tools."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

#: The keys of /proc/cpuinfo that describe a model of CPUs, on x86 and on ARM.
_PROCESSOR = ("cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant")


def read_text(path: Path) -> str:
    """Returns the text of a file; "" if the file does not exist or this process may not read it."""
    try:
        # Names of mounts and processes may have any encoding.
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def run_tool(tool: str, *arguments: str, timeout_s: float) -> str:
    """Returns the output of a tool; "" if it is not on PATH, fails, or takes longer than `timeout_s`.

    A tool is run once in a process for the same arguments.
    """
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


def processor() -> str:
    """Returns what tells CPUs apart that have one name, such as `cpu family 26, model 2`; "" if unknown."""
    lines = read_text(Path("/proc/cpuinfo")).split("\n\n")[0].splitlines()
    values = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return ", ".join(f"{name} {values[name]}" for name in _PROCESSOR if name in values)
