"""The command line of msprof, and how a device process is started with it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from opatlas.model.errors import DeviceGone
from opatlas.text import last_line

#: Metric groups of `--aic-metrics`; a run takes one.
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
#: What msprof refuses in the value of --output, and how many characters it takes.
_REFUSED = frozenset("'\"\\%><|&$;`")
_LONGEST = 1024
#: Below a folder for profiles: run, worker and number, and msprof's own PROF_{number}_{time}_{hash}.
_BELOW = 128
#: Parsing a profile takes seconds to minutes, by the number of its kernels.
PARSE_TIMEOUT_S = 600.0


def msprof_executable() -> str:
    """Raises DeviceGone where there is none."""
    found = shutil.which("msprof")
    if found is None:
        raise DeviceGone(
            "msprof is not on PATH: source CANN's set_env.sh (such as /usr/local/Ascend/ascend-toolkit/set_env.sh), "
            "or take another --instrument"
        )
    return found


def accepts_profiles(folder: Path) -> bool:
    """Whether msprof writes below a folder: it refuses paths with some characters, and long ones."""
    text = str(folder.absolute())
    return not _REFUSED & set(text) and len(text) + _BELOW <= _LONGEST


def msprof_command(words: Sequence[str], output: Path, metrics: str) -> list[str]:
    """Returns the command that runs `words` under msprof; what it writes goes below `output`.

    Raises:
        DeviceGone: there is no msprof, or it refuses `output`.
    """
    if not accepts_profiles(output.parent):
        raise DeviceGone(
            f"msprof refuses {output}: a path of at most {_LONGEST} characters with none of "
            f"{' '.join(sorted(_REFUSED))}; let TMPDIR name another folder"
        )
    return [
        msprof_executable(),
        f"--output={output}",
        "--ai-core=on",
        "--aic-mode=task-based",
        f"--aic-metrics={metrics}",
        # l0 and off leave out shapes and counters.
        "--task-time=l1",
        "--type=text",
        # msprof takes the first word that does not begin with -- for the application.
        *words,
    ]


def export(profile: Path) -> str:
    """Has msprof write the summaries of a PROF_* folder; gives what went wrong, "" where nothing did.

    Raises:
        DeviceGone: there is no msprof.
    """
    command = [msprof_executable(), "--export=on", f"--output={profile}", "--type=text"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PARSE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"`msprof --export` took more than {PARSE_TIMEOUT_S:g} s"
    if done.returncode:
        return f"`msprof --export` ended with exit code {done.returncode}: {last_line(done.stderr or done.stdout)}"
    return ""
