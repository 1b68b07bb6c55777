"""The folders that msprof writes: PROF_{number}_{time}_{hash}/mindstudio_profiler_output/op_summary_*.csv."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

_SUMMARY = re.compile(r"op_summary(?:_\w*?)??_?(\d{14,})?\.csv", re.IGNORECASE)


def profile_folders(folder: Path) -> list[Path]:
    """The PROF_* folders below a folder, or it alone where it is one; oldest first, as their names tell."""
    if folder.name.startswith("PROF_"):
        return [folder]
    return sorted(path for path in folder.rglob("PROF_*") if path.is_dir())


def op_summaries(profile: Path) -> list[Path]:
    """The op_summary files of a PROF_* folder, all slices of them.

    Each export writes files of its own, and an earlier one's are still there: the last export counts.
    """
    exports: dict[Path, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(profile.rglob("op_summary*.csv")):
        match = _SUMMARY.fullmatch(path.name)
        exports[path.parent][match[1] or "" if match else ""].append(path)
    return [path for by_time in exports.values() for path in by_time[max(by_time)]]
