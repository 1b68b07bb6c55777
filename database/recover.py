"""Journals that a killed session left behind, brought into the CSVs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
    is kept beside, under another name; one that cannot be merged at all stays and is reported. Rows
    that a later session has measured meanwhile keep what it measured.
    """
    found = []
    for path in journal.all_of(database):
        if path.stem == own_run:
            continue
        try:
            with journal.left_behind(path) as abandoned:
                if abandoned:
                    found.append(_recovered(database, path))
        except (OpAtlasError, ValueError) as error:
            found.append(Recovered(path.stem, 0, (str(error),)))
        except OSError as error:
            found.append(Recovered(path.stem, 0, (f"{path}: {error.strerror}: make it readable and writable",)))
    return found


def _recovered(database: Database, path: Path) -> Recovered:
    """Raises OpAtlasError, ValueError, OSError."""
    contents = journal.read(path)
    header = contents.header
    merged = merge(database, contents.records, UpdateMode(header.update_mode), prune=header.prune, keep_newer=True)
    if merged.problems:
        return Recovered(header.run_id, 0, (*merged.problems, f"its records stay in {path} until that is mended"))
    problems = [f"{path}:{line}: {problem}" for line, problem in contents.unreadable]
    if problems:
        kept = path.with_name(path.name + ".unreadable")
        path.rename(kept)
        problems.append(f"what could not be read is kept in {kept}")
    else:
        path.unlink()
    return Recovered(header.run_id, len(contents.records), tuple(problems))
