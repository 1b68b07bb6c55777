"""Journals that a killed session left behind, brought into the CSVs."""

from __future__ import annotations

from dataclasses import dataclass

from database import journal
from database.errors import OpAtlasError
from database.merge import UpdateMode, merge
from database.store import Database


@dataclass(frozen=True)
class Recovered:
    """What was found of an earlier session: how many of its records were merged, and what was wrong."""

    run_id: str
    records: int
    problems: tuple[str, ...]


def recover(database: Database, *, own_run: str) -> list[Recovered]:
    """Merges the journals of sessions that ended without doing so, oldest first.

    A journal is removed once all its records are in the CSVs. One with lines that cannot be read
    is kept beside, under another name; one that cannot be merged at all stays and is reported.
    """
    found = []
    for path in journal.left_behind(database, except_run=own_run):
        try:
            contents = journal.read(path)
            merge(database, contents.records, UpdateMode(contents.header.update_mode), prune=contents.header.prune)
        except (OpAtlasError, ValueError) as error:
            found.append(Recovered(path.stem, 0, (str(error),)))
            continue
        problems = [f"{path}:{line}: {problem}" for line, problem in contents.unreadable]
        if problems:
            kept = path.with_name(path.name + ".unreadable")
            path.rename(kept)
            problems.append(f"what could not be read is kept in {kept}")
        else:
            path.unlink()
        found.append(Recovered(contents.header.run_id, len(contents.records), tuple(problems)))
    return found
