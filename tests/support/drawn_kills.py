"""When to kill which process of a session, drawn from a seed. OPATLAS_CHAOS_SEED=1000 draws other runs."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from enum import Enum

from killed_rows import SIZES, Key, keys_of
from moods import Mood
from processes import Role


class Phase(str, Enum):
    STARTING = "starting"  # until the database is this session's
    PLANNING = "planning"  # until a process is started; for other processes than pytest: begins with them
    OPENING = "opening"  # until a row is in the journal
    RUNNING = "running"  # until all are
    MERGING = "merging"  # until the report is written; for other processes than pytest: until they end
    LEAVING = "leaving"

    def __str__(self) -> str:
        return self.value


PHASES = list(Phase)


@dataclass(frozen=True)
class Kill:
    """When to kill which process: so far into a phase, as long as it takes in an undisturbed session."""

    role: Role
    phase: Phase
    fraction: float

    def __str__(self) -> str:
        return f"{self.role}-{self.phase}-{self.fraction:.2f}"


@dataclass(frozen=True)
class Run:
    """A run, as its seed says.

    Attributes:
        kills: of as many sessions, one after the other.
        devices, devices_again: of the sessions that are killed, and of the last one.
        which: of several processes in the role of the first kill.
        moods: of Moody, which has the rows that fail.
    """

    seed: int
    kills: tuple[Kill, ...]
    devices: int
    devices_again: int
    which: int
    moods: tuple[int, ...]
    mode: str

    def __str__(self) -> str:
        return f"seed_{self.seed}-{self.devices}_devices-{'-then-'.join(map(str, self.kills))}"

    def rows(self) -> list[Key]:
        return keys_of({**SIZES, "Moody": self.moods})


def draw(seed: int, devices: int, *kills: tuple[Role, Phase]) -> Run:
    draws = random.Random(seed)
    return Run(
        seed,
        tuple(Kill(role, phase, draws.random()) for role, phase in kills),
        devices,
        devices_again=draws.choice([1, 1, 1, devices]),
        which=draws.randrange(devices),
        moods=draws.choice([(1, 2, 3), (1, Mood.RAISE, 2, 3), (1, Mood.RAISE, 2, 3), SIZES["Moody"]]),
        mode=draws.choice(["missing-only", "missing-only", "all"]),
    )


#: Kills that every `make test` tries, with those of tests/chaos/test_killed_processes.py; the others are slow.
_FAST: tuple[tuple[tuple[Role, Phase], ...], ...] = (
    ((Role.PYTEST, Phase.RUNNING),),
    ((Role.PYTEST, Phase.MERGING),),
    # The second kill finds the database taken over, and the journals of the first being merged.
    ((Role.PYTEST, Phase.RUNNING), (Role.PYTEST, Phase.PLANNING)),
)


def runs() -> tuple[list[Run], list[Run]]:
    """Returns the fast runs and the slow runs: each role in each phase of its life, on one and two devices."""
    whole = [(Role.PYTEST, phase) for phase in PHASES]
    # Other processes end before the report is written, or a moment after.
    keeper, device, worker = (
        [(role, phase) for phase in PHASES[2:-1]] for role in (Role.KEEPER, Role.DEVICE, Role.WORKER)
    )
    twice = [((Role.PYTEST, phase), (Role.PYTEST, Phase.PLANNING)) for phase in (Phase.RUNNING, Phase.MERGING)]
    one = [*((kill,) for kill in whole + keeper + device), *twice]
    # Before there are workers, and after, it is as with one device; a device process does not know of others.
    two = [*((kill,) for kill in whole[2:5] + worker + keeper[1:2] + device[1:2]), twice[0]]
    kills = [(1, each) for each in one] + [(2, each) for each in two]
    first = int(os.environ.get("OPATLAS_CHAOS_SEED", "0"))
    drawn = [(each, draw(seed, devices, *each)) for seed, (devices, each) in enumerate(kills, start=first)]
    fast = [run for kill, run in drawn[: len(one)] if kill in _FAST]
    return fast, [run for _, run in drawn if run not in fast]
