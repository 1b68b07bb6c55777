"""A session watched from outside: which phase it is in, and a kill of one of its processes in that phase."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from drawn_kills import PHASES, Kill, Phase
from killed_rows import ROW_S, SIZES, Found, Key, keys_of, known_rows, read_table, start, toys
from processes import Process, Role, in_role, outlived, tree_of
from sessions import Running, Sessions

#: Between two looks at a session; a merge takes some tens of milliseconds.
LOOK_S = 0.003


class Life:
    """An undisturbed session: the time of its phases, and its files."""

    def __init__(self, folder: Path, devices: int) -> None:
        rows = keys_of(SIZES)
        sessions = toys(folder, rows)
        running = start(sessions, devices)
        roles = [role for role in Role if role is not Role.WORKER or devices > 1]
        views = {role: View(sessions, running, role, len(rows)) for role in roles}
        begins: dict[tuple[Role, Phase], float] = {}
        ends: dict[Role, float] = {}
        while running.process.poll() is None:
            now = time.monotonic()
            for role, view in views.items():
                begins.update({(role, p): now for p in PHASES if (role, p) not in begins and view.has_begun(p)})
            ends.update({process.role: now for process in tree_of(running.process.pid) if process.role is not None})
            time.sleep(LOOK_S)
        done = running.wait()
        assert (done.code, sum(done.ledger().values())) == (1, len(rows)), done.output
        self._lengths: dict[tuple[Role, Phase], float] = {}
        for role in roles:
            times = [min(begins[role, phase], ends[role]) for phase in PHASES] + [ends[role]]
            lengths = (after - before for before, after in itertools.pairwise(times))
            self._lengths.update({(role, phase): length for phase, length in zip(PHASES, lengths, strict=True)})
        self.table = read_table(sessions)

    def length_s(self, kill: Kill) -> float:
        return self._lengths[kill.role, kill.phase]


class View:
    """A session seen from outside, for a kill of some role."""

    def __init__(self, sessions: Sessions, running: Running, role: Role, rows: int) -> None:
        self._sessions = sessions
        self._running = running
        self._role = role
        self._rows = rows
        self._reports = self._count_reports()
        self._begun = {Phase.STARTING}

    def has_begun(self, phase: Phase) -> bool:
        """Whether a phase, or one after it, has begun."""
        if phase not in self._begun and any(self._sees(each) for each in PHASES[PHASES.index(phase) :]):
            self._begun.add(phase)
        return phase in self._begun

    def phase(self) -> Phase:
        """The one that it is in."""
        return [phase for phase in PHASES if self.has_begun(phase)][-1]

    def _sees(self, phase: Phase) -> bool:
        if phase is Phase.PLANNING:
            return self._holder().get("pid") == self._running.process.pid
        if phase is Phase.OPENING:
            roles = (Role.WORKER, Role.KEEPER) if self._role is Role.PYTEST else (self._role,)
            return any(process.role in roles for process in tree_of(self._running.process.pid))
        if phase is Phase.LEAVING:
            return self._count_reports() > self._reports
        return self.count_records() >= (1 if phase is Phase.RUNNING else self._rows)

    def count_records(self) -> int:
        """Of this session alone: journals of a killed one may still be there."""
        holder = self._holder()
        run_id = holder["run_id"] if holder.get("pid") == self._running.process.pid else "unknown"
        paths = (self._sessions.database / "journal").glob(f"{run_id}*.jsonl")
        count = 0
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                # It may just have been merged.
                count += max(path.read_bytes().count(b"\n") - 1, 0)
        return count

    def _holder(self) -> dict[str, object]:
        try:
            holder: dict[str, object] = json.loads((self._sessions.database / "journal/session.json").read_text())
        except (OSError, ValueError):
            return {}
        return holder

    def _count_reports(self) -> int:
        return len(list((self._sessions.database / "reports").glob("replay_report_*.md")))


@dataclass(frozen=True)
class Killed:
    """The findings of a kill.

    Attributes:
        victim: None where the session ended sooner.
        phase: the one that the session was in.
        known: every row, as the CSVs and the journals had it just before.
    """

    victim: Process | None
    phase: Phase
    known: Mapping[Key, Found]


def kill_at(sessions: Sessions, running: Running, order: Kill, which: int, rows: int, length_s: float) -> Killed:
    """Kills a process of a session, and sees that all below it go.

    Args:
        rows: how many the session has to run.
        length_s: of the phase in which it is to be killed.
    """
    view = View(sessions, running, order.role, rows)

    def ended() -> bool:
        return running.process.poll() is not None

    look_for(lambda: ended() or view.has_begun(order.phase))
    if order.phase is Phase.RUNNING:
        # This phase is counted in rows: some runs have one that takes longer than all others.
        done, in_row = divmod(order.fraction * rows, 1)
        look_for(lambda: ended() or view.has_begun(Phase.MERGING) or view.count_records() >= done)
        time.sleep(in_row * ROW_S)
    else:
        time.sleep(order.fraction * length_s)
    look_for(lambda: ended() or bool(in_role(running.process.pid, order.role)))
    phase, known = view.phase(), known_rows(sessions)
    victims = in_role(running.process.pid, order.role)
    if not victims:
        return Killed(None, phase, known)
    victim = victims[which % len(victims)]
    kill(victim)
    return Killed(victim, phase, known)


def look_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < until, "waited for 300 s"
        time.sleep(LOOK_S)


def kill(process: Process) -> None:
    """Kills it, and sees that all below it go."""
    tree = tree_of(process.pid)
    process.kill()
    assert outlived(tree) == [], "it lived on after the process that started it was killed"
