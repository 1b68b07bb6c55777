"""When a run began, and on what it measured: what decides which of two durations is the newer."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from database.manifest import Manifest

#: Greater is newer. Run ids are compared last, so that of two different runs one is always the newer.
Age = tuple[int, float, str]
_TIME = re.compile(r"(\d{8}T\d{6})(?=-|$)")


@dataclass(frozen=True)
class Run:
    """What a manifest tells of a run.

    Attributes:
        manifest: the file.
        started_at: seconds since the epoch.
        devices: names of those that it measured on; none if it was killed before its first row.
        torch: public version; none where torch was not installed.
    """

    run_id: str
    manifest: Path
    started_at: float
    devices: frozenset[str]
    torch: frozenset[str]


def read_run(manifest: Path) -> Run:
    """The run of `runs/{run_id}.json`.

    Raises:
        OpAtlasError: the file cannot be read, or is no manifest.
    """
    read = Manifest.read(manifest)
    torch = frozenset([read.torch] if read.torch else [])
    return Run(read.run_id, manifest, read.started_at, read.device_names, torch)


def ages(runs: Iterable[Run]) -> Callable[[str], Age]:
    """How new the run of an id is.

    A run with a manifest is as old as that says; another as the time in its id says, which is the
    local time of where it ran. A run without either is older, and no run at all the oldest.
    """
    starts = {run.run_id: run.started_at for run in runs}

    @cache
    def age(run_id: str) -> Age:
        if not run_id:
            return 0, 0.0, ""
        started_at = starts.get(run_id, _time_in(run_id))
        return (1, 0.0, run_id) if started_at is None else (2, started_at, run_id)

    return age


def _time_in(run_id: str) -> float | None:
    """Seconds since the epoch at the start of `20261121T163006-1f0c9a`; None for an id of another form."""
    found = _TIME.match(run_id)
    try:
        return time.mktime(time.strptime(found[1], "%Y%m%dT%H%M%S")) if found else None
    except (OverflowError, ValueError):
        return None
