"""Combines databases and journals into a target: tables, pruned rows, manifests, logs, ingests.

Only the target is written, file by file, each replaced in one step. Unchanged files are not written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from opatlas.data import journal, log
from opatlas.data.cells import Candidate, CellGroup, candidates_of_rows, group_of
from opatlas.data.comparable import expect_comparable
from opatlas.data.csv_files import write_bytes
from opatlas.data.database import Database
from opatlas.data.fold import TableFold
from opatlas.data.journal import JournalContents
from opatlas.data.log import COMBINE, Log
from opatlas.data.manifest import LARGEST_BYTES, Manifest, read_ingests, read_manifests
from opatlas.data.op_mapping import WrittenMapping, write_default_mapping
from opatlas.data.restore import cleared, edited_in
from opatlas.data.write_back import WriteBackResult, write_back
from opatlas.errors import OpAtlasError, describe_error, noted
from opatlas.files import expect_folder, read_safely
from opatlas.grouping import positions_by_key
from opatlas.progress import gc_paused, track
from opatlas.row import columns as col
from opatlas.row.communication import row_kind
from opatlas.row.status import UpdateMode
from opatlas.row.table import RowTable, position_array

_LARGEST_SAMPLES_BYTES = 4 << 30
_ROWS_AT_A_TIME = 4096


@dataclass
class CombineSource:
    """A database that is combined into the target.

    Attributes:
        name: the path as the user wrote it.
        manifests: the manifests of its runs, by run id.
        journals: what sessions that run or were killed have measured, oldest first.
    """

    name: str
    database: Database
    manifests: Mapping[str, Manifest]
    journals: Sequence[JournalContents] = ()

    @property
    def kernel_types(self) -> set[str]:
        """The kernel types of the tables and of the journals."""
        records = (record for contents in self.journals for record in contents.records)
        return {*self.database.kernel_types_and_messages(), *(row.kernel_type for each in records for row in each.rows)}


@dataclass
class CombineSources:
    """The sources of `combine`.

    Attributes:
        sources: in the order of the command line.
        target_manifests: the manifests of the target, by run id.
        problems: files that could not be read.
    """

    sources: list[CombineSource] = field(default_factory=list)
    target_manifests: Mapping[str, Manifest] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def journals(self) -> int:
        """The number of journals."""
        return sum(len(source.journals) for source in self.sources)


def open_sources(target: Database, paths: Sequence[Path]) -> CombineSources:
    """Opens the sources.

    Journals are read now, and tables when they are combined, so that a record which a session writes back in between is
    in the journal or in a table.

    Args:
        paths: folders of `{KernelType}.csv` files.

    Raises:
        OpAtlasError: the target is not a folder; a path is missing, unreadable, no database, or the target itself.
    """
    expect_folder(target.path, "", option="TARGET", may_be_made=True)
    opened = CombineSources()
    opened.target_manifests = read_manifests(target, opened.problems)
    for path in track(paths, "read, sources"):
        try:
            if not path.is_dir():
                raise OpAtlasError(f"{path}: no such folder; name the folder of the CSVs")
            _open_database(target, path, opened)
        except OSError as error:
            raise OpAtlasError(f"{path}: cannot be read ({error.strerror}); check its name and permissions") from None
    return opened


def _open_database(target: Database, path: Path, opened: CombineSources) -> None:
    """Raises OpAtlasError, OSError."""
    if target.path.exists() and path.samefile(target.path):
        raise OpAtlasError(f"{path}: this is TARGET itself; name other databases to combine into it")
    database = Database(path)
    # Raises UnsafePath before anything is read, if a folder of the source is a link.
    database.folders()
    paths = journal.journals(database)
    if not database.kernel_types_and_messages() and not paths:
        raise OpAtlasError(f"{path}: holds no {{KernelType}}.csv and no journal; name the folder that the CSVs are in")
    journals = [contents for each in paths if (contents := _read_journal(each, opened.problems)) is not None]
    # After the journals, since a session writes its manifest before its first record.
    opened.sources.append(CombineSource(str(path), database, read_manifests(database, opened.problems), journals))


def _read_journal(path: Path, problems: list[str]) -> JournalContents | None:
    """Returns a journal; None if it cannot be read, or was written back meanwhile: its records are in the tables."""
    try:
        contents = journal.read(path)
    except FileNotFoundError:
        return None
    except (OSError, OpAtlasError) as error:
        problems.append(describe_error(error, path, "make it readable"))
        return None
    problems += [f"{path}:{line}: {problem}" for line, problem in contents.unreadable]
    if contents.torn:
        problems.append(f"{path}: the last record is cut off: its session was killed, or still runs")
    return contents


def refuse_mixed(target: Path, opened: CombineSources) -> None:
    """Raises OpAtlasError if, by the manifests, a source differs from the target or from an earlier source."""
    named = [(source.name, source.manifests.values()) for source in opened.sources]
    expect_comparable([(str(target), opened.target_manifests.values()), *named])


@dataclass
class CombineResult:
    """The result of `combine`.

    Attributes:
        added: the number of rows that the tables lacked; they follow in the order of the sources.
        target_rows: the number of rows of the whole target now.
        taken: the number of existing rows that have the duration of a source now.
        changed: the number of other existing rows with a cell of a source now.
        kernel_types: the kernel types of the sources.
        new: the kernel types for which the target had no file.
        pruned: the number of pruned rows that were added.
        edited: the number of source rows whose duration was ignored, because the row was edited after its run.
        manifests, ingests: how many were copied.
        captures_pooled: the number of rows whose captured durations changed with the added launches.
        mapping: the op_mapping.yaml that was written for the target; None if none was.
        problems: files that could not be read or written, each as often as it was tried.
    """

    added: int = 0
    target_rows: int = 0
    taken: int = 0
    changed: int = 0
    kernel_types: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    pruned: int = 0
    edited: int = 0
    manifests: int = 0
    ingests: int = 0
    captures_pooled: int = 0
    mapping: WrittenMapping | None = None
    problems: list[str] = field(default_factory=list)

    def add_journal(self, written: WriteBackResult) -> None:
        """Adds what the records of a journal changed."""
        self.added += written.added.total()
        self.taken += written.updated.total()
        self.changed += written.marked.total()
        self.problems += written.problems


def combine(target: Database, opened: CombineSources) -> CombineResult:
    """Combines the sources into the target, in their order, and writes the records of their journals there.

    Where ingests were copied, the caller computes the captured durations again, which count the launches of all of them
    (`opatlas.capture.ingest.rebuild_profiling`).

    Raises:
        OpAtlasError: the target cannot be locked. A file that cannot be read or written becomes a problem of the
            result; the other files are combined. A source whose log cannot be written is left out.
    """
    there = {*target.kernel_types_and_messages()}
    with target.lock(), gc_paused():
        result = _Combination(target, opened).run()
    for source in opened.sources:
        for contents in source.journals:
            try:
                log.add(target, contents.header, contents.records)
            except OpAtlasError as error:
                result.problems.append(f"{error} (no record of the journals of {source.name} was combined)")
            else:
                result.add_journal(write_back(target, contents.records, UpdateMode.ALL, prune=False))
    for name in target.kernel_types_and_messages():
        with noted(result.problems):
            result.target_rows += len(target.read(name))
    result.new = [name for name in result.kernel_types if name not in there and target.csv_path(name).exists()]
    return result


class _Combination:
    """A combination in progress; the caller holds the lock of the target."""

    def __init__(self, target: Database, opened: CombineSources) -> None:
        self._target = target
        self._sources = opened.sources
        # Those of the target take precedence.
        each = [*(source.manifests for source in opened.sources), opened.target_manifests]
        self._manifests = {run_id: manifest for manifests in each for run_id, manifest in manifests.items()}
        self._result = CombineResult(
            kernel_types=sorted({name for source in opened.sources for name in source.kernel_types})
        )

    def run(self) -> CombineResult:
        """Combines everything."""
        result, target = self._result, self._target
        # Manifests and logs first, so that every Run ID in a table always has one.
        sources = [source for source in self._sources if self._copy_runs(source)]
        self._order = log.run_order(target, self._manifests)
        self._known = Log(target)
        databases = [source.database for source in sources]
        readers = [self._reader(database) for database in databases]
        for kernel_type in track(result.kernel_types, "combine, kernel types"):
            with self._errors():
                self._combine_table(kernel_type, readers)
        for database in databases:
            for kernel_type in database.pruned_types():
                with self._errors():
                    result.pruned += target.add_pruned(kernel_type, database.pruned(kernel_type).rows())
        result.mapping = write_default_mapping(target.path, sources=[database.path for database in databases])
        return result

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Adds errors of reading and writing files to the problems, and continues."""
        try:
            yield
        except OpAtlasError as error:
            self._result.problems.append(str(error))
        except OSError as error:
            why = f"{error.filename}: cannot be read ({error.strerror}): check its permissions"
            self._result.problems.append(why)

    def _copy_runs(self, source: CombineSource) -> bool:
        """Copies manifests, log and ingests that the target lacks. Returns whether the log could be written."""
        target, problems = self._target, self._result.problems
        for run_id in source.manifests:
            path = Manifest.path(target, run_id)
            with self._errors():
                if not path.exists():
                    write_bytes(path, read_safely(Manifest.path(source.database, run_id), LARGEST_BYTES))
                    self._result.manifests += 1
        try:
            log.copy(source.database, target, problems)
        except log.DamagedLog as error:
            problems.append(str(error))
        except OpAtlasError as error:
            problems.append(f"{error} (no row of {source.name} was combined)")
            return False
        with self._errors():
            self._copy_ingests(source.database)
        return True

    def _copy_ingests(self, source: Database) -> None:
        """Copies the ingests of a source with their samples, but those whose captures the target already has."""
        target = self._target
        known = {file.sha256: each.manifest.run_id for each in read_ingests(target) for file in each.manifest.files}
        for ingest in read_ingests(source):
            run_id, files = ingest.manifest.run_id, ingest.manifest.files
            there = [file for file in files if file.sha256 in known]
            if ingest.manifest.finished_at is None or len(there) == len(files) or ingest.samples is None:
                continue
            if there:
                self._result.problems.append(
                    f"{Manifest.path(source, run_id)}: TARGET already has the capture {there[0].name}, from "
                    f"{known[there[0].sha256]}, but not the others: ingest these into TARGET"
                )
                continue
            for path in (ingest.samples, Manifest.path(source, run_id)):
                write_bytes(target.runs_dir / path.name, read_safely(path, _LARGEST_SAMPLES_BYTES))
            known |= {file.sha256: run_id for file in files}
            self._result.ingests += 1

    def _reader(self, database: Database) -> Callable[[str], RowTable | None]:
        """Returns a function that reads the rows of a kernel type; None if a source has none.

        Rows that were edited after their run have no duration and no status.
        """
        known = Log(database)

        def read(kernel_type: str) -> RowTable | None:
            with self._errors():
                if database.csv_path(kernel_type).exists():
                    rows = database.read(kernel_type)
                    edited = edited_in(rows, known)
                    self._result.edited += len(edited)
                    return cleared(rows, edited).rows.table() if edited else rows
            return None

        return read

    def _combine_table(self, kernel_type: str, readers: Sequence[Callable[[str], RowTable | None]]) -> None:
        target, sources = self._target, [rows for read in readers if (rows := read(kernel_type)) is not None]
        if sources:
            table, pruned = target.read_or_empty(kernel_type, sources[0].columns), target.pruned(kernel_type).signatures
            fold = TableFold(table, self._order, self._known, pruned=pruned, by=COMBINE)
            combine_table(fold, sources, target, self._result)


def combine_table(fold: TableFold, sources: Sequence[RowTable], target: Database, changes: CombineResult) -> None:
    """Folds what sources have into a table, one source after the other, and writes it.

    All rows of the table with one signature receive the same cells.

    Args:
        sources: the rows of each source.
        changes: receives what changed.

    Raises:
        OpAtlasError: a file cannot be written; the table is as it was.
    """
    kind, before = row_kind(fold.kernel_type), fold.rows.table()
    for source in sources:
        for candidates in _batches(fold, source):
            fold.fold(candidates)
    after = fold.write(target)
    rows = after.arrow.slice(0, len(before))
    taken = changed = np.zeros(len(before), dtype=bool)
    for name in after.columns:
        # A status of another run is no other status.
        if name != col.STATUS_RUN_ID:
            cells = before.arrow.column(name) if name in before.columns else ""
            changed = changed | (differs := pc.not_equal(rows.column(name), cells).to_numpy())
            taken = taken | differs if group_of(name, kind) is CellGroup.DURATION else taken
    changes.added += len(after) - len(before)
    changes.taken += int(taken.sum())
    changes.changed += int((changed & ~taken).sum())


def _batches(fold: TableFold, source: RowTable) -> Iterator[Sequence[Candidate]]:
    """Yields the candidates of a source: rows that the other table lacks, or has with other cells.

    They are yielded a few at a time, because they take ten times the memory of cells; those of one signature together.
    """
    signatures, ours = source.signatures, fold.rows.table()
    rows = {of for of, name in enumerate(signatures) if name not in fold.positions}
    pairs = [(at, of) for of, name in enumerate(signatures) for at in fold.positions.get(name, ())]
    at, of = (position_array([pair[side] for pair in pairs]) for side in (0, 1))
    for name in source.columns:
        # Rows with equal signatures may spell their slots differently; the target's spelling stays.
        if group_of(name, source.kind) not in (CellGroup.SLOTS, CellGroup.POOLED):
            theirs = source.arrow.column(name).take(of)
            there = ours.arrow.column(name).take(at) if name in ours.columns else ""
            differ = pc.and_(pc.not_equal(there, theirs), pc.not_equal(theirs, "")).to_numpy()
            rows.update(pairs[index][1] for index in np.flatnonzero(differ).tolist())
    ordered = sorted(rows)
    of_signatures = list(positions_by_key(signatures[row] for row in ordered).values())
    for first in range(0, len(of_signatures), _ROWS_AT_A_TIME):
        together = chain.from_iterable(of_signatures[first : first + _ROWS_AT_A_TIME])
        yield candidates_of_rows(source, [ordered[position] for position in together])
