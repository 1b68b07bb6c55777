"""The folders that msprof writes: PROF_{number}_{time}_{hash}/mindstudio_profiler_output/op_summary_*.csv."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from database.folder import files_below

#: `op_summary_20240102030405.csv`, `op_summary_slice_0_20240102030405.csv`, and what users rename them to.
_SUMMARY = re.compile(r"(?P<what>.*op_summary.*?)(?:_(?P<exported>\d{14,}))?\.csv", re.IGNORECASE)
_OUTPUT = "mindstudio_profiler_output"


def profile_folders(folder: Path) -> list[Path]:
    """The PROF_* folders below a folder, or it alone where it is one; oldest first, as their names tell."""
    if folder.name.startswith("PROF_"):
        return [folder]
    return sorted(path for path in folder.rglob("PROF_*") if path.is_dir())


def unparsed_profiles(folder: Path, files: Sequence[Path]) -> list[str]:
    """Returns a sentence for each profile at or below a folder that has none of the op_summary files."""
    profiles = profile_folders(folder)
    # The folder that was named may be a profile under another name.
    if not profiles and (folder / "host").is_dir():
        profiles = [folder]
    return [
        f"{profile}: a profile that was not parsed (no op_summary*.csv in it): "
        f"`{shlex.join(['msprof', '--export=on', f'--output={profile}'])}` does so, where CANN is installed"
        for profile in profiles
        if not any(profile in file.parents for file in files)
    ]


def all_op_summaries(folder: Path) -> list[Path]:
    """Returns the op_summary files at any depth of a folder, those of every export, sorted. Raises OpAtlasError."""
    return sorted(files_below(folder, lambda name: _SUMMARY.fullmatch(name) is not None))


def op_summaries(folder: Path) -> list[Path]:
    """The op_summary files at any depth of a PROF_* folder, or of one that holds some: all slices, each once.

    Each export writes files of its own beside those of earlier ones: of files that differ in the time
    of their export alone, msprof's own rule, the last counts. Where a PROF_* folder has the output
    folder of today's msprof, what older ones left elsewhere in it (device_0/summary) is the same again.

    Raises:
        OpAtlasError: a folder cannot be read.
    """
    exports: dict[tuple[Path, str], dict[str, Path]] = defaultdict(dict)
    found = all_op_summaries(folder)
    in_output = {_profile_of(path) for path in found if path.parent.name == _OUTPUT}
    for path in found:
        if path.parent.name == _OUTPUT or _profile_of(path) not in in_output:
            match = _SUMMARY.fullmatch(path.name)
            assert match is not None
            exports[path.parent, match["what"]][match["exported"] or ""] = path
    return sorted(by_time[max(by_time)] for by_time in exports.values())


def _profile_of(path: Path) -> Path | None:
    return next((folder for folder in path.parents if folder.name.startswith("PROF_")), None)
