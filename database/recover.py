"""Journals into the CSVs: a session's own at its end, and those that a killed one left behind."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from database import history, journal
from database.errors import OpAtlasError
from database.journal import Contents, Header
from database.merge import MergeResult, UpdateMode, merge
from database.record import Record, RowName
from database.store import Database
from database.terminal import counted


@dataclass(frozen=True)
class Recovered:
    """What was found of an earlier session.

    Attributes:
        run_id: the session; where not even that could be read, the name of its journal.
        statuses: its records that were merged, by status.
        problems: what was wrong, each with what became of it.
        incomplete: whether there are records that are not in the CSVs now.
    """

    run_id: str
    statuses: Counter[str] = field(default_factory=Counter)
    problems: tuple[str, ...] = ()
    incomplete: bool = False

    def __str__(self) -> str:
        """`merged 3 records that session 20261121T163006-1f0c9a left behind`."""
        return f"merged {counted(self.statuses.total(), 'record')} that session {self.run_id} left behind"


@dataclass(frozen=True)
class Merged:
    """What became of a session's own journals.

    Attributes:
        result: of the merge; None where there was none.
        records: all that were read.
        problems: why records are not in the CSVs, or not in those that they were for; each tells
            where they are kept.
    """

    result: MergeResult | None
    records: Sequence[Record]
    problems: Sequence[str]


def recover(database: Database, *, own_run: str) -> list[Recovered]:
    """Merges the journals of sessions that ended without doing so, oldest first.

    A journal moves to the history of its run once all its records are in the CSVs. One with lines that cannot be read
    is kept beside, under another name; one that cannot be merged at all stays and is reported. Rows
    that a later session has measured meanwhile keep what it measured.
    """
    own = set(journal.of_run(database, own_run))
    found = []
    for path in journal.all_of(database):
        if path in own:
            continue
        try:
            with journal.left_behind(path) as abandoned:
                if abandoned:
                    found.append(_recovered(database, path))
        except (OpAtlasError, ValueError) as error:
            found.append(Recovered(path.stem, problems=(str(error),), incomplete=True))
        except OSError as error:
            problem = f"{path}: {error.strerror}: make it readable and writable"
            found.append(Recovered(path.stem, problems=(problem,), incomplete=True))
    return found


def _recovered(database: Database, path: Path) -> Recovered:
    """Raises OpAtlasError, ValueError, OSError."""
    contents = journal.read(path)
    header = contents.header
    result = merge(database, contents.records, UpdateMode(header.update_mode), prune=header.prune, keep_newer=True)
    if result.problems:
        problems = [*result.problems, f"its records stay in {path} until that is mended"]
        return Recovered(header.run_id, problems=tuple(problems), incomplete=True)
    # By journal: a killed session may have left several.
    kept = _keep_unmatched(database, replace(header, run_id=path.stem), contents.records, result)
    try:
        history.add(database, header, contents.records)
    except OpAtlasError as error:
        problems = [*kept, f"{error}; {path} stays until that is mended, though its records are merged"]
        return Recovered(header.run_id, problems=tuple(problems), incomplete=True)
    problems = [*kept, *_put_away(path, contents)]
    statuses = Counter(record.status.value for record in contents.records)
    return Recovered(header.run_id, statuses, tuple(problems), incomplete=bool(kept or contents.unreadable))


def merge_run(database: Database, header: Header, unsaved: Iterable[Mapping[str, Any]] = ()) -> Merged:
    """Merges what a session measured, and moves its journals to the history of the run.

    Args:
        header: of the session's journals.
        unsaved: records that could not be written to a journal.

    A journal whose records are not in the CSVs and in the history stays, for the next session to merge.
    """
    problems: list[str] = []
    read: list[tuple[Path, Contents]] = []
    for path in journal.of_run(database, header.run_id):
        try:
            with journal.left_behind(path) as closed:
                if not closed:
                    raise OpAtlasError(f"{path} is still being written: the next session merges it")
                read.append((path, journal.read(path)))
        except OpAtlasError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{path}: {error.strerror}: make it readable and writable; the next session merges it")
    homeless = [Record.from_json(values) for values in unsaved]
    records = [record for _, contents in read for record in contents.records] + homeless
    result = None
    try:
        result = merge(database, records, UpdateMode(header.update_mode), prune=header.prune)
        problems += result.problems or _keep_unmatched(database, header, records, result)
        all_kept = not result.problems
        if all_kept and records:
            history.add(database, header, records)
    except (OpAtlasError, OSError) as error:
        problems.append(str(error))
        all_kept = False
    for path, contents in read:
        if all_kept or not (contents.records or contents.unreadable):
            try:
                problems += _put_away(path, contents)
            except OSError as error:
                problems.append(f"{path}: {error.strerror}: its records are merged, remove it")
        else:
            problems.append(f"{counted(len(contents.records), 'record')} stay in {path}: the next session merges them")
    if homeless and not all_kept:
        problems.append(_rescue(database, header, homeless))
    return Merged(result, records, problems)


def _put_away(path: Path, contents: Contents) -> list[str]:
    """Removes a journal whose records are in the CSVs and in the history; what could not be read of it stays.

    Raises OSError.
    """
    problems = [f"{path}:{line}: {problem}" for line, problem in contents.unreadable]
    if problems:
        kept = path.with_name(path.name + ".unreadable")
        path.rename(kept)
        problems.append(f"what could not be read is kept in {kept}")
    else:
        path.unlink()
    if contents.torn:
        problems.append(f"{path}: the last record is cut off, since the session was killed then; its row was not run")
    return problems


def _keep_unmatched(database: Database, header: Header, records: Iterable[Record], result: MergeResult) -> list[str]:
    """Keeps measurements whose rows have gone from the CSVs, where the update mode does not append them.

    Raises:
        OpAtlasError: there is no room for them; the journals must stay.
    """
    names = set(result.unmatched)
    lost = [r for r in records if r.measurement and RowName(r.kernel_type, r.signature) in names]
    if not lost:
        return []
    path = database.reports_dir / f"unmatched_{header.run_id}.jsonl"
    journal.write(path, replace(header, update_mode=UpdateMode.ALL.value), [record.to_json() for record in lost])
    where = f"kept in {path}, to be added by `{_merge_command(database, path)}`"
    are = counted(len(lost), "measured row is", "measured rows are")
    return [f"{are} not in the CSVs any more: {where}"]


def _rescue(database: Database, header: Header, records: Sequence[Record]) -> str:
    """Keeps records that no journal holds where there is room for them; tells where."""
    name = f"{header.run_id}-rescued.jsonl"
    lines = [record.to_json() for record in records]
    what = f"no room in the journal for {counted(len(lines), 'record')}"
    beside, elsewhere = database.journal_dir / name, Path(tempfile.gettempdir()) / name
    with suppress(OpAtlasError):
        journal.write(beside, header, lines)
        return f"{what}, kept in {beside}: the next session merges them"
    with suppress(OpAtlasError):
        journal.write(elsewhere, header, lines)
        return f"{what}, kept in {elsewhere}: bring them in with `{_merge_command(database, elsewhere)}`"
    text = "\n".join(json.dumps(values) for values in lines)
    return f"{what}, nor anywhere else; here is all there is:\n{text}"


def _merge_command(database: Database, path: Path) -> str:
    return shlex.join(["python", "-m", "database", "combine", str(database.path), str(path)])
