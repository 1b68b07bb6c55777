"""What a fold changed in a table, and which durations it did not take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from opatlas.data.candidates import Candidate, RunCells


class DurationChoice(NamedTuple):
    """Two durations of a row, of which one was chosen: the row's own, and that of a candidate."""

    position: int
    candidate: Candidate
    taken: bool
    kept: RunCells
    dropped: RunCells


@dataclass
class FoldChanges:
    """The changes of a table, by position of the row.

    Attributes:
        measured: rows that have the duration of a candidate, with it: also if their cells were the same before.
        marked: rows that have the status alone of a candidate, with it, likewise.
        statuses: rows whose status changed.
        captured: rows that have the captured durations of a candidate.
        appended: rows that were missing.
        changed: rows of which a cell changed.
        outdated: candidates that a later run overrules, with the position.
        missing: candidates without a row that were not appended.
        choices: durations of which one was chosen.
    """

    measured: dict[int, Candidate] = field(default_factory=dict)
    marked: dict[int, Candidate] = field(default_factory=dict)
    statuses: set[int] = field(default_factory=set)
    captured: set[int] = field(default_factory=set)
    appended: set[int] = field(default_factory=set)
    changed: set[int] = field(default_factory=set)
    outdated: list[tuple[int, Candidate]] = field(default_factory=list)
    missing: list[Candidate] = field(default_factory=list)
    choices: list[DurationChoice] = field(default_factory=list)
