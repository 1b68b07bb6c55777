"""Sessions on stand-in NPUs (stand_in_npu.py), under the stand-in msprof. No torch here."""

from __future__ import annotations

import json
import sys

from sessions import Finished, Running, Sessions
from stand_in_msprof import FAULTS

SAMPLES = 4


def mean_us(size: int) -> float:
    """What a row takes whose first dimension is `size`: the mean of stand_in_npu.duration_us."""
    return size + 0.25 * (SAMPLES - 1) / 2


class StandInNpus:
    """Starts sessions that find NPUs, and msprof on PATH."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._bin = sessions.folder / "bin"
        self._bin.mkdir()
        msprof = self._bin / "msprof"
        msprof.write_text(f'#!/bin/sh\nexec {sys.executable} {sessions.folder / "stand_in_msprof.py"} "$@"\n')
        msprof.chmod(0o755)

    def run(self, *options: str, faults: dict[str, str] | None = None, npus: int = 1, **environment: str) -> Finished:
        """A session, to its end.

        Args:
            faults: how msprof fails, by the number of the profile; see stand_in_msprof.py.
        """
        return self.start(*options, faults=faults, npus=npus, **environment).wait()

    def start(self, *options: str, faults: dict[str, str] | None = None, npus: int = 1, **environment: str) -> Running:
        return self._sessions.start(
            *options,
            measure=(f"--repeat-count={SAMPLES}", "--cache=cold"),
            **{
                "PATH": f"{self._bin}:/usr/bin:/bin",
                "STAND_IN_NPUS": str(npus),
                FAULTS: json.dumps(faults or {}),
                **environment,
            },
        )


def durations(sessions: Sessions, kernel_type: str = "Toy") -> dict[int, float]:
    """Average durations by the size of the row, of rows that have one."""
    return {
        int(r["Input Shapes"].partition(";")[0]): float(r["Average Duration(us)"])
        for r in sessions.read(kernel_type)
        if r.get("Average Duration(us)")
    }
