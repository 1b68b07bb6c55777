"""Journals into the CSVs: a session's own at its end, and those that a killed one left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from database import history, journal
from database.errors import OpAtlasError, described
from database.journal import Contents, Header
from database.merge import MergeResult, UpdateMode, merge
from database.record import Record, RowName
from database.store import Database
from database.terminal import counted

#: Unreadable lines of a journal that are told; the file itself has them all.
_LINES_TOLD = 5
_REMEDY = "make it readable and writable"


@dataclass(frozen=True)
class Recovered:
    """What was found of an earlier session.

    Attributes:
        run_id: the session; where not even that could be read, the name of its journal.
        statuses: its records that are in the CSVs now, by status.
        stayed: records that are not, as a later run has found out more about their rows.
        problems: what was wrong, each with what became of it.
        incomplete: whether there are records that are not in the CSVs now.
    """

    run_id: str
    statuses: Counter[str] = field(default_factory=Counter)
    stayed: int = 0
    problems: tuple[str, ...] = ()
    incomplete: bool = False

    def __bool__(self) -> bool:
        """Whether there were any records of the session."""
        return bool(self.statuses or self.stayed)

    def __str__(self) -> str:
        """`merged 3 records that session 20261121T163006-1f0c9a left behind (2 measured, 1 failed)`."""
        what = ", ".join(f"{count:,} {status}" for status, count in self.statuses.most_common())
        merged = f"merged {counted(self.statuses.total(), 'record')} that session {self.run_id} left behind"
        stayed = f"; left out {self.stayed:,}, as a later run measured their rows" if self.stayed else ""
        return f"{merged}{what and f' ({what})'}{stayed}"


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
    is kept beside, under another name; one that cannot be merged at all stays and is reported, and keeps
    no other journal out. Rows that a later session has measured meanwhile keep what it measured.
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
        except Exception as error:
            remedy = _REMEDY if isinstance(error, OSError) else "not merged; report this error with the file"
            problem = described(error, path, remedy)
            found.append(Recovered(path.stem, problems=(problem,), incomplete=True))
    return found


def _recovered(database: Database, path: Path) -> Recovered:
    """Raises OpAtlasError, OSError, and what nobody has foreseen."""
    try:
        contents = journal.read(path)
    except journal.NotAJournal as error:
        told = (str(error), f"it is kept as {_set_aside(path)}")
        return Recovered(path.stem, problems=told, incomplete=True)
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
    stayed, unmatched = set(result.stayed), set(result.unmatched)
    # Of several records about one row the last one counts.
    records = {RowName(record.kernel_type, record.signature): record for record in contents.records}
    merged = [record for name, record in records.items() if name not in stayed and name not in unmatched]
    return Recovered(
        header.run_id,
        Counter(record.status.value for record in merged),
        len(stayed.intersection(records)),
        tuple(problems),
        incomplete=bool(kept or contents.unreadable),
    )


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
        except Exception as error:
            problems.append(described(error, path, f"{_REMEDY}; the next session merges it"))
    unsaved = list(unsaved)
    homeless = list(_decoded(unsaved, problems))
    records = [record for _, contents in read for record in contents.records] + homeless
    result = None
    try:
        result = merge(database, records, UpdateMode(header.update_mode), prune=header.prune)
        problems += result.problems or _keep_unmatched(database, header, records, result)
        all_kept = not result.problems
        if all_kept and records:
            history.add(database, header, records)
    except Exception as error:
        problems.append(described(error, database.path, "the records stay in their journals"))
        all_kept = False
    for path, contents in read:
        if all_kept or not (contents.records or contents.unreadable):
            try:
                problems += _put_away(path, contents)
            except OSError as error:
                problems.append(f"{path}: {error.strerror}: its records are merged, remove it")
        else:
            problems.append(f"{counted(len(contents.records), 'record')} stay in {path}: the next session merges them")
    if unsaved and not (all_kept and len(homeless) == len(unsaved)):
        problems.append(_rescue(database, header, unsaved))
    return Merged(result, records, problems)


def _decoded(unsaved: Sequence[Mapping[str, Any]], problems: list[str]) -> Iterator[Record]:
    for values in unsaved:
        try:
            yield Record.from_json(values)
        except OpAtlasError as error:
            problems.append(str(error))


def _put_away(path: Path, contents: Contents) -> list[str]:
    """Removes a journal whose records are in the CSVs and in the history; what could not be read of it stays.

    Raises OSError.
    """
    problems = [f"{path}:{line}: {problem}" for line, problem in contents.unreadable[:_LINES_TOLD]]
    if more := contents.unreadable[_LINES_TOLD:]:
        problems.append(f"{path}: {counted(len(more), 'more line')} that cannot be read")
    if problems:
        problems.append(f"what could not be read is kept in {_set_aside(path)}")
    else:
        path.unlink()
    if contents.torn:
        problems.append(f"{path}: the last record is cut off, since the session was killed then; its row was not run")
    return problems


def _set_aside(path: Path) -> Path:
    """Gives a journal a name under which it is no journal, so that no later session tells of it. Raises OSError."""
    names = chain([f"{path.name}.unreadable"], (f"{path.name}.unreadable{number}" for number in count(2)))
    kept = next(kept for kept in map(path.with_name, names) if not kept.exists())
    path.rename(kept)
    return kept


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
    where = f"kept in {path}, to be added by `{journal.combine_command(database.path, path)}`"
    are = counted(len(lost), "measured row is", "measured rows are")
    return [f"{are} not in the CSVs any more: {where}"]


def _rescue(database: Database, header: Header, records: Sequence[Mapping[str, Any]]) -> str:
    """Keeps records that no journal holds where there is room for them; tells where."""
    path = database.journal_dir / f"{header.run_id}-rescued.jsonl"
    what = f"no room in the journal for {counted(len(records), 'record')}"
    with suppress(OpAtlasError):
        journal.write(path, header, records)
        return f"{what}, kept in {path}: the next session merges them"
    return f"{what}, {journal.keep_elsewhere(journal.text_of(header, records), path)}"
