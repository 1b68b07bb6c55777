"""Sessions on stand-in NPUs (stand_in_npu.py), under the stand-in msprof. No torch here."""

from __future__ import annotations

import json

from sessions import Finished, Running, Sessions
from stand_in_msprof import FAULTS, write_program

SAMPLES = 4
MEASURE = (f"--repeat-count={SAMPLES}", "--cache=cold")


def is_mean_us(mean_us: float, size: int, samples: int = SAMPLES) -> bool:
    """Whether it is the mean of a row's last calls (stand_in_npu.duration_us), one to three of which were warm-up."""
    return any(mean_us == round(size + 0.25 * (warm_up + (samples - 1) / 2), 4) for warm_up in (1, 2, 3))


class StandInNpus:
    """Starts sessions that find NPUs, and msprof on PATH."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._bin = sessions.folder / "bin"
        self._bin.mkdir()
        write_program(self._bin)
        #: With which msprof is found.
        self.environment = {"PATH": f"{self._bin}:/usr/bin:/bin"}

    def run(self, *options: str, faults: dict[str, str] | None = None, npus: int = 1, **environment: str) -> Finished:
        """A session, to its end.

        Args:
            faults: how msprof fails, by the number of the profile; see stand_in_msprof.py.
        """
        environment = self._environment(faults, npus, environment)
        return self._sessions.run(*options, measure=MEASURE, **environment)

    def start(self, *options: str, faults: dict[str, str] | None = None, npus: int = 1, **environment: str) -> Running:
        return self._sessions.start(*options, measure=MEASURE, **self._environment(faults, npus, environment))

    def _environment(self, faults: dict[str, str] | None, npus: int, more: dict[str, str]) -> dict[str, str]:
        return {**self.environment, "STAND_IN_NPUS": str(npus), FAULTS: json.dumps(faults or {}), **more}


def measured_right(sessions: Sessions, kernel_type: str = "Toy") -> set[int]:
    """The sizes of rows that have a duration, which is that of their samples alone."""
    sizes = set()
    for r in sessions.read(kernel_type):
        if r.get("Average Duration(us)"):
            size = int(r["Input Shapes"].partition(";")[0])
            assert is_mean_us(float(r["Average Duration(us)"]), size), r
            sizes.add(size)
    return sizes
