"""Builds and runs command lines of msprof."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from opatlas.row.errors import DeviceGone
from opatlas.text import last_line

#: Groups of hardware counters for msprof's `--aic-metrics`; a run records one group.
METRICS = (
    "PipeUtilization",
    "ArithmeticUtilization",
    "Memory",
    "MemoryL0",
    "MemoryUB",
    "ResourceConflictRatio",
    "L2Cache",
    "MemoryAccess",
)
#: The most rows of a profiling session. A profile of so many rows is parsed in seconds; the start of the next process
#: takes some twenty.
SESSION_ROWS = 200
#: Characters that msprof refuses in the value of --output, and the maximum length of the value.
_REFUSED = frozenset("'\"\\%><|&$;`")
_LONGEST = 1024
#: Length of paths below a folder for profiles: run, worker, number, and msprof's PROF_{number}_{time}_{hash}.
_BELOW = 128
#: Longest time to parse a profile. Parsing takes seconds to minutes, depending on the number of kernels.
PARSE_TIMEOUT_S = 600.0


def msprof_executable() -> str:
    """Returns the path of msprof. Raises DeviceGone if it is not on PATH."""
    found = shutil.which("msprof")
    if found is None:
        raise DeviceGone(
            "msprof is not on PATH: source CANN's set_env.sh (such as /usr/local/Ascend/ascend-toolkit/set_env.sh), "
            "or choose another --instrument"
        )
    return found


def accepts_profiles(folder: Path) -> bool:
    """Returns whether msprof can write below a folder. msprof refuses long paths and some characters."""
    text = str(folder.absolute())
    return not _REFUSED & set(text) and len(text) + _BELOW <= _LONGEST


def msprof_command(words: Sequence[str], output: Path, metrics: str) -> list[str]:
    """Returns the command that runs `words` under msprof.

    Args:
        words: the profiled command.
        output: folder for the profile.
        metrics: one of `METRICS`.

    Raises:
        DeviceGone: msprof is missing, or refuses the path of `output`.
    """
    if not accepts_profiles(output.parent):
        raise DeviceGone(
            f"msprof refuses {output}: the path may have at most {_LONGEST} characters, and none of "
            f"{' '.join(sorted(_REFUSED))}; set TMPDIR to another folder"
        )
    return [
        msprof_executable(),
        f"--output={output}",
        "--ai-core=on",
        "--aic-mode=task-based",
        f"--aic-metrics={metrics}",
        # Levels l0 and off record neither shapes nor counters.
        "--task-time=l1",
        "--type=text",
        # For msprof the application is the first word that does not begin with --.
        *words,
    ]


def export(profile: Path) -> str:
    """Makes msprof write the summaries of a PROF_* folder; returns the failure, "" for success.

    Raises:
        DeviceGone: msprof is missing.
    """
    command = [msprof_executable(), "--export=on", f"--output={profile}", "--type=text"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PARSE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"`msprof --export` took more than {PARSE_TIMEOUT_S:g} s"
    if done.returncode:
        return f"`msprof --export` ended with exit code {done.returncode}: {last_line(done.stderr or done.stdout)}"
    return ""
