"""Writes records back to the CSVs, by update mode, without losing any.

Writing the same records twice gives the same files, so an interrupted write-back is simply repeated.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from opatlas.data import journal, log
from opatlas.data.cells import Candidate, FoldChanges, candidates_of_records
from opatlas.data.database import Database
from opatlas.data.fold import TableFold, keep_replaced
from opatlas.data.journal import JournalContents, JournalHeader, first_of, free_name
from opatlas.data.log import Log, run_order
from opatlas.errors import OpAtlasError, describe_error, described
from opatlas.progress import gc_paused
from opatlas.row.columns import STATUS_REASON
from opatlas.row.record import Record, RowName
from opatlas.row.status import Status, UpdateMode
from opatlas.text import pluralize


@dataclass
class WriteBackResult:
    """The result of a write-back.

    Attributes:
        updated: rows with a new duration, by kernel type.
        added: rows that were appended, by kernel type.
        marked: rows that received a status only, by kernel type; they keep their durations.
        unchanged: rows that already had the content of their record, by kernel type.
        outdated: rows that keep the result of a later run.
        repeated: how many rows in `updated` have the signature of an earlier row, and received its duration.
        unmatched: requested rows that are not in a CSV and were not appended.
        of_siblings: rows that were launched for a sibling, are not in a CSV and were not appended.
        pruned: rows that were moved to `pruned/`.
        problems: files that could not be read or written; their records are not written back.
    """

    updated: Counter[str] = field(default_factory=Counter)
    added: Counter[str] = field(default_factory=Counter)
    marked: Counter[str] = field(default_factory=Counter)
    unchanged: Counter[str] = field(default_factory=Counter)
    outdated: list[RowName] = field(default_factory=list)
    repeated: int = 0
    unmatched: list[RowName] = field(default_factory=list)
    of_siblings: list[RowName] = field(default_factory=list)
    pruned: list[RowName] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __add__(self, other: WriteBackResult) -> WriteBackResult:
        """Returns the result of both write-backs."""
        return WriteBackResult(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )


def write_back(database: Database, records: Iterable[Record], mode: UpdateMode, *, prune: bool) -> WriteBackResult:
    """Folds records into the CSVs of a database, file by file, each replaced in one step (opatlas/data/fold.py).

    Args:
        records: records of any kernel types.
        mode: missing rows are appended (all) or reported (other modes).
        prune: whether rows that ran and have no valid duration are moved to `pruned/`.

    Raises:
        OpAtlasError: the database cannot be locked. A file that cannot be read or written becomes a problem of the
            result; records of other kernel types are written.
    """
    result = WriteBackResult()
    known = Log(database)
    records = log.with_same_rows(database, list(records))
    appending = {record.run_id for record in records} if mode.adds_rows else frozenset[str]()
    order = run_order(database)
    folded: list[tuple[TableFold, FoldChanges, dict[int, str]]] = []
    with database.lock(), gc_paused():
        for kernel_type, candidates in candidates_of_records(records, appending).items():
            with described(result.problems, database.path / f"{kernel_type}.csv", _NOT_MERGED):
                table = database.read_or_empty(kernel_type)
                fold = TableFold(table, order, known, pruned=database.pruned(kernel_type).signatures)
                changes = fold.fold(candidates)
                pruned = _to_prune(fold, candidates, changes) if prune else {}
                fold.prune(pruned)
                folded.append((fold, changes, pruned))
        # What fails here is tried again, and told, with each file.
        with suppress(OpAtlasError):
            keep_replaced(database, [fold for fold, _, _ in folded])
        for fold, changes, pruned in folded:
            with described(result.problems, database.path / f"{fold.kernel_type}.csv", _NOT_MERGED):
                fold.write(database)
                # Counted after the write: a file that cannot be written counts nothing.
                _count(fold, changes, pruned, mode, result)
    return result


def _to_prune(fold: TableFold, candidates: Sequence[Candidate], changes: FoldChanges) -> dict[int, str]:
    """Returns the rows that ran and have no valid duration, replayed or captured, with the reason.

    Skipped and unsupported rows did not run. Checked rows have no work.
    """
    outdated = {candidate.signature for _, candidate in changes.outdated}
    return {
        position: fold.rows[STATUS_REASON][position]
        for candidate in candidates
        if not candidate.launched and candidate.signature not in outdated
        if candidate.record is not None and candidate.record.status not in _NOT_RUN
        for position in fold.positions.get(candidate.signature, ())
        if not fold.has_any_duration(position)
    }


_NOT_RUN = (Status.SKIPPED, Status.UNSUPPORTED, Status.CHECKED)


def _count(
    fold: TableFold, changes: FoldChanges, pruned: Collection[int], mode: UpdateMode, result: WriteBackResult
) -> None:
    kernel_type = fold.kernel_type
    updated = {position for position in changes.measured if position in changes.changed}
    marked = {position for position in changes.marked if position in changes.changed}
    result.updated[kernel_type] += len(updated - changes.appended)
    result.added[kernel_type] += len(changes.appended)
    result.marked[kernel_type] += len(marked)
    result.unchanged[kernel_type] += len(changes.measured) + len(changes.marked) - len(updated) - len(marked)
    result.outdated += [RowName(kernel_type, candidate.signature) for _, candidate in changes.outdated]
    result.repeated += len(updated) - len({changes.measured[position].signature for position in updated})
    for candidate in changes.missing:
        if candidate.appends or not mode.adds_rows or candidate.duration is None:
            names = result.of_siblings if candidate.launched else result.unmatched
            names.append(RowName(kernel_type, candidate.signature))
    result.pruned += [RowName(kernel_type, fold.signatures[position]) for position in pruned]


_REMEDY = "make it readable and writable"
_NOT_MERGED = "not merged; report this error with the file"


@dataclass(frozen=True)
class RunWriteBack:
    """The write-back of the journals of one session.

    Attributes:
        run_id: the session; the name of the journal if the header cannot be read.
        records: all records of the journals.
        result: the result; None if the write-back failed.
        problems: why records are not in the CSVs, and where they are kept.
        is_merged: whether the CSVs and the log have all records whose rows are in the CSVs.
        incomplete: whether some records are not in the CSVs.
    """

    run_id: str
    records: Sequence[Record] = ()
    result: WriteBackResult | None = None
    problems: list[str] = field(default_factory=list)
    is_merged: bool = False
    incomplete: bool = True

    @property
    def by_row(self) -> Mapping[RowName, Record]:
        """The last record of each row, which counts; none if they are not merged."""
        return {RowName(each.kernel_type, each.signature): each for each in self.records if self.is_merged}

    @property
    def outdated(self) -> set[RowName]:
        """The rows whose records were ignored, because a later run measured them."""
        return set() if self.result is None else set(self.result.outdated).intersection(self.by_row)

    @property
    def statuses(self) -> Counter[str]:
        """The number of records written to the CSVs, by status."""
        ignored = self.outdated | (set() if self.result is None else set(self.result.unmatched))
        return Counter(record.status.value for name, record in self.by_row.items() if name not in ignored)

    def __bool__(self) -> bool:
        """Returns whether the journal had records."""
        return bool(self.by_row)

    def __str__(self) -> str:
        """Returns `merged 3 records that session 20261121T163006-1f0c9a left behind (2 measured, 1 failed)`."""
        counts = ", ".join(f"{count:,} {status}" for status, count in self.statuses.most_common())
        merged = f"merged {pluralize(self.statuses.total(), 'record')} that session {self.run_id} left behind"
        ignored = f"; ignored {len(self.outdated):,}, because a later run measured their rows" if self.outdated else ""
        return f"{merged}{counts and f' ({counts})'}{ignored}"


def recover(database: Database, *, own_run: str) -> list[RunWriteBack]:
    """Writes back the journals of killed sessions, oldest first.

    A journal moves to the history of its run when all its records are in the CSVs. A journal with unreadable lines is
    kept under another name. A journal that cannot be written back stays and is reported. Rows keep the results of later
    sessions.
    """
    own = set(journal.run_journals(database, own_run))
    found = []
    for path in journal.journals(database):
        if path in own:
            continue
        try:
            with journal.hold_if_abandoned(path) as abandoned:
                if abandoned:
                    found.append(_recover_journal(database, path))
        except Exception as error:
            remedy = _REMEDY if isinstance(error, OSError) else _NOT_MERGED
            found.append(RunWriteBack(path.stem, problems=[describe_error(error, path, remedy)]))
    return found


def _recover_journal(database: Database, path: Path) -> RunWriteBack:
    """Writes one journal back. Raises OpAtlasError, OSError."""
    try:
        contents = journal.read(path)
    except journal.NotAJournal as error:
        set_aside = [str(error), f"it is kept as {path.rename(free_name(path, 'unreadable'))}"]
        return RunWriteBack(path.stem, problems=set_aside)
    # Named by journal: a killed session may have several.
    header = replace(contents.header, run_id=path.stem)
    return replace(_merge(database, header, {path: contents}, contents.records), run_id=contents.header.run_id)


def write_back_run(
    database: Database, header: JournalHeader, known: Collection[Path] | None = None, left_behind: Collection[Path] = ()
) -> RunWriteBack:
    """Writes the journals of a session back, and moves them to the history of the run.

    A journal whose records are not in the CSVs and the history stays for the next session.

    Args:
        header: the header of the session's journals.
        known: the journals of the session's processes; others are refused, and kept under another name. None: all.
        left_behind: the journals of other runs that were there when the session began. No other session has the
            database meanwhile, so that further ones are forged: they are refused, too.
    """
    problems: list[str] = []
    journals: dict[Path, JournalContents] = {}
    own = journal.run_journals(database, header.run_id)
    for path in journal.journals(database):
        is_genuine = known is None or path in known or path in left_behind
        if is_genuine and path not in own:
            continue
        remedy = f"{_REMEDY}; the next session merges it"
        with described(problems, path, remedy), journal.hold_if_abandoned(path) as is_closed:
            if not is_genuine and (is_closed or path in own):
                kept = path.rename(free_name(path, "refused"))
                problems.append(f"{path}: no process of this session wrote it: it does not count, kept as {kept}")
            elif path in own and not is_closed:
                raise OpAtlasError(f"{path} is still being written: the next session merges it")
            elif path in own:
                journals[path] = journal.read(path)
    records = [record for contents in journals.values() for record in contents.records]
    merged = _merge(database, header, journals, records)
    return replace(merged, problems=[*problems, *merged.problems])


def _merge(
    database: Database, header: JournalHeader, journals: Mapping[Path, JournalContents], records: Sequence[Record]
) -> RunWriteBack:
    """Writes records to the CSVs and the log, and removes their journals if all records are there.

    Args:
        header: the header of the journals.
        records: the records of the journals.
    """
    problems: list[str] = []
    result, is_merged = None, False
    with described(problems, database.path, "the records stay in their journals"):
        result = write_back(database, records, UpdateMode(header.update_mode), prune=header.prune)
        problems += result.problems
        if not result.problems:
            log.add(database, header, records)
            is_merged = True
            measured = {RowName(each.kernel_type, each.signature) for each in records if each.measurement}
            if lost := measured.intersection(result.unmatched):
                are = pluralize(len(lost), "measured row is", "measured rows are")
                restore = shlex.join(["opatlas", "history", str(database.path), "--restore", "csvs"])
                history = log.file_path(database, header.run_id)
                problems.append(
                    f"{are} not in the CSVs any more: kept in {history}; add the rows, and `{restore}` fills them"
                )
    incomplete = bool(problems) or any(contents.unreadable for contents in journals.values())
    for path, contents in journals.items():
        if is_merged or not contents.records:
            try:
                problems += _put_away(path, contents)
            except OSError as error:
                problems.append(f"{path}: {error.strerror}: its records are in the CSVs, remove it")
        else:
            problems.append(
                f"{pluralize(len(contents.records), 'record')} stay in {path}: the next session merges them"
            )
    return RunWriteBack(header.run_id, records, result, problems, is_merged, incomplete)


def _put_away(path: Path, contents: JournalContents) -> list[str]:
    """Removes a journal after write-back; renames it if lines could not be read. Raises OSError."""
    problems = first_of(f"{path}:{line}: {problem}" for line, problem in contents.unreadable)
    if problems:
        problems.append(f"the unreadable lines are kept in {path.rename(free_name(path, 'unreadable'))}")
    else:
        path.unlink()
    if contents.torn:
        problems.append(
            f"{path}: the last record is cut off, because the session was killed; its row counts as not run"
        )
    return problems
