"""Combines source databases into a target: tables, pruned rows, manifests, histories, ingests.

Only the target is written, file by file, each replaced in one step. Unchanged files are not written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from opatlas.counts import add_counts
from opatlas.data import log
from opatlas.data.candidates import runs_of
from opatlas.data.combine_table import CombineTally, Conflict, combine_rows, final_conflicts
from opatlas.data.csv_files import read_table, text_table, write_bytes, write_text
from opatlas.data.database import Database
from opatlas.data.edited import EditedLookup
from opatlas.data.fold import TableFold
from opatlas.data.ingests import manifest_path, read_ingests
from opatlas.data.journal import JournalContents
from opatlas.data.log import COMBINE, ClocksAhead, Log
from opatlas.data.manifest import LARGEST_BYTES, Manifest, is_ahead
from opatlas.data.op_mapping import WrittenMapping, write_default_mapping
from opatlas.data.pruned import add_pruned, pruned_path, pruned_signatures, pruned_types
from opatlas.errors import OpAtlasError, TableError
from opatlas.files import read_safely
from opatlas.gc_pause import gc_paused
from opatlas.progress import track
from opatlas.row.columns import INPUT_DTYPES, OUTPUT_DTYPES, PROFILING_AVERAGE
from opatlas.row.slots import unknown_dtypes
from opatlas.row.table import RowTable

_LARGEST_SAMPLES_BYTES = 4 << 30


@contextmanager
def _collect_errors(problems: list[str]) -> Iterator[None]:
    """Adds errors of reading and writing files to the problems, and continues."""
    try:
        yield
    except OpAtlasError as error:
        problems.append(str(error))
    except OSError as error:
        problems.append(f"{error.filename}: cannot be read ({error.strerror}): check its permissions")


def copy_manifests(target: Database, manifests: Iterable[Path], problems: list[str]) -> int:
    """Copies the manifests that the target lacks; returns their number."""
    copied = 0
    for manifest in manifests:
        path = target.runs_dir / manifest.name
        if path.exists():
            continue
        with _collect_errors(problems):
            write_text(path, read_safely(manifest, LARGEST_BYTES).decode())
            copied += 1
    return copied


def copy_ingests(target: Database, source: Database, problems: list[str]) -> int:
    """Copies the ingests of a source with their samples; returns their number.

    An ingest is skipped if the target already has its captures.
    """
    copied = 0
    with _collect_errors(problems):
        known = {
            file.sha256: ingest.manifest.run_id for ingest in read_ingests(target) for file in ingest.manifest.files
        }
        ingests = [ingest for ingest in read_ingests(source) if ingest.manifest.finished_at is not None]
        for ingest in ingests:
            run_id, files = ingest.manifest.run_id, ingest.manifest.files
            there = [file for file in files if file.sha256 in known]
            if len(there) == len(files) or ingest.samples is None:
                continue
            if there:
                problems.append(
                    f"{manifest_path(source, run_id)}: TARGET already has the capture {there[0].name}, from "
                    f"{known[there[0].sha256]}, but not the others: ingest these into TARGET"
                )
                continue
            for path in (ingest.samples, manifest_path(source, run_id)):
                content = read_safely(path, _LARGEST_SAMPLES_BYTES)
                write_bytes(target.runs_dir / path.name, content)
            known |= {file.sha256: run_id for file in files}
            copied += 1
    return copied


@dataclass
class DurationCounts:
    """The number of rows of a table, and how many have a replayed and a captured duration."""

    rows: int = 0
    replayed: int = 0
    captured: int = 0


@dataclass(frozen=True)
class CombineSource:
    """A database or a journal that is combined into the target.

    Attributes:
        name: the path as the user wrote it.
        database: the tables.
        manifests: the manifests of the runs, by path.
        journal: the journal from which the tables were made; None for a database.
    """

    name: str
    database: Database
    manifests: Mapping[Path, Manifest]
    journal: JournalContents | None = None


@dataclass
class CombineResult:
    """The result of `combine`.

    Attributes:
        kernel_types: the kernel types of the sources.
        new: the kernel types for which the target had no file.
        added: rows that the target lacked.
        target_rows: the rows of `kernel_types` that the target has now, without unreadable files.
        taken: the number of existing rows that have the duration of a source now.
        kept: the number of existing rows that keep their duration although a source has one.
        statuses: the number of existing rows that have the status of a source now, by status.
        profiled: the number of existing rows whose Profiling columns were filled.
        filled: the number of other cells that were filled.
        unknown_dtypes: the number of added rows with an unknown dtype, by dtype.
        conflicts: a conflict for each value that was dropped, largest difference first.
        pruned: the number of pruned rows that were added.
        edited: the number of source rows whose duration was ignored, because the row was edited after its run.
        manifests, ingests: how many were copied.
        captures_pooled: the number of rows whose captured durations changed with the added launches.
        clocks_ahead: runs with a start in the future; every other run counts as newer.
        mapping: the op_mapping.yaml that was written for the target; None if none was.
        problems: files that could not be read or written.
    """

    kernel_types: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    added: DurationCounts = field(default_factory=DurationCounts)
    target_rows: DurationCounts = field(default_factory=DurationCounts)
    taken: int = 0
    kept: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    profiled: int = 0
    filled: int = 0
    unknown_dtypes: Counter[str] = field(default_factory=Counter)
    conflicts: list[Conflict] = field(default_factory=list)
    pruned: int = 0
    edited: int = 0
    manifests: int = 0
    ingests: int = 0
    captures_pooled: int = 0
    clocks_ahead: list[str] = field(default_factory=list)
    mapping: WrittenMapping | None = None
    problems: list[str] = field(default_factory=list)


def combine(
    target: Database,
    sources: Sequence[CombineSource],
    manifests: Iterable[Manifest],
) -> CombineResult:
    """Combines the sources into the target, in their order.

    Where ingests were copied, the caller computes the captured durations again, which count the launches of all of them
    (`opatlas.capture.ingest.rebuild_profiling`).

    Args:
        manifests: the manifests of target and sources, with the start of each run.

    Raises:
        OpAtlasError: the target cannot be locked. A file that cannot be read or written becomes a problem of the
            result; the other files are combined. A source whose histories cannot be written is left out.
    """
    result = CombineResult(sorted({name for source in sources for name in source.database.kernel_types_and_messages()}))
    of_runs = {manifest.run_id: manifest for manifest in manifests}
    with target.lock(), gc_paused():
        # Manifests first, so that every Run ID in a table always has one.
        combined = []
        for source in sources:
            result.manifests += copy_manifests(target, source.manifests, result.problems)
            try:
                log.copy(source.database, target, result.problems)
                if source.journal is not None:
                    log.add(target, source.journal.header, source.journal.records)
            except log.DamagedLog as error:
                result.problems.append(str(error))
            except OpAtlasError as error:
                result.problems.append(f"{error} (no row of {source.name} was combined)")
                continue
            combined.append(source)
            result.ingests += copy_ingests(target, source.database, result.problems)
        sources = combined
        clocks = _AheadRuns(target, of_runs)
        edited = {source.name: EditedLookup(source.database) for source in sources}
        known = Log(target)
        for kernel_type in track(result.kernel_types, "combine, kernel types"):
            try:
                _combine_tables(target, kernel_type, sources, clocks, known, edited, result)
            except OpAtlasError as error:
                result.problems.append(f"{error} (nothing was combined into this file)")
        result.clocks_ahead = sorted(clocks.ahead)
        _combine_pruned(target, sources, result)
        result.mapping = write_default_mapping(target.path, sources=[source.database.path for source in sources])
    result.conflicts.sort(key=lambda conflict: -conflict.distance)
    return result


class _AheadRuns:
    """Finds runs whose start is in the future, and writes them into the log.

    Whether the clock of a run was ahead is decided once, when the run comes into the database.

    Attributes:
        order: the order of runs.
        ahead: the runs with a clock that was ahead.
    """

    def __init__(self, target: Database, manifests: Mapping[str, Manifest]) -> None:
        self._target = target
        self._manifests = manifests
        self.order = log.run_order(target, manifests)
        self.ahead: set[str] = set()
        self.note(manifests)

    def note(self, runs: Iterable[str]) -> None:
        """Finds those of some runs whose start is in the future. Raises OpAtlasError: the log cannot be written."""
        found = {run_id for run_id in runs if is_ahead(self.order.start(run_id))} - self.ahead
        if found:
            self.ahead |= found
            log.add_events(self._target, COMBINE, [ClocksAhead(tuple(sorted(found)))])
            self.order = log.run_order(self._target, self._manifests)


def _combine_tables(
    target: Database,
    kernel_type: str,
    sources: Sequence[CombineSource],
    clocks: _AheadRuns,
    known: Log,
    edited: Mapping[str, EditedLookup],
    result: CombineResult,
) -> None:
    path = target.csv_path(kernel_type)
    is_new = not path.exists()
    paths = [source.database.csv_path(kernel_type) for source in sources]
    opened = list(_tables(sources, paths, result))
    if not opened:
        return
    table = RowTable(kernel_type, path, text_table(opened[0][1].columns)) if is_new else target.read(kernel_type)
    clocks.note(run_id for rows in (table, *(rows for _, rows in opened)) for run_id in runs_of(rows))
    there = len(table)
    tallies: list[CombineTally] = []
    fold = TableFold(table, clocks.order, known, pruned=pruned_signatures(target, kernel_type), by=COMBINE)
    for source, rows in opened:
        if positions := edited[source.name].in_table(rows):
            cleared = TableFold(rows)
            for position in positions:
                cleared.clear(position)
            rows = cleared.rows.table()
            result.edited += len(positions)
        tallies.append(combine_rows(fold, rows, source.name))
    if any(tally.changed for tally in tallies):
        fold.write(target)
        result.new += [kernel_type] * is_new
    else:
        fold.write_log(target)
    now = fold.rows.table()
    replayed, captured = (
        ~np.isnan(now.durations_us(name)) for name in (now.kind.duration_columns[0], PROFILING_AVERAGE)
    )
    for counts, first in ((result.target_rows, 0), (result.added, there)):
        with_one = (int(np.count_nonzero(known[first:])) for known in (replayed, captured))
        add_counts(counts, DurationCounts(len(now) - first, *with_one))
    if not now.kind.starts_together:
        for dtypes in zip(now.cells(INPUT_DTYPES)[there:], now.cells(OUTPUT_DTYPES)[there:], strict=True):
            result.unknown_dtypes.update(unknown_dtypes(dict(zip((INPUT_DTYPES, OUTPUT_DTYPES), dtypes, strict=True))))
    _count(tallies, there, result)


def _count(tallies: Sequence[CombineTally], there: int, result: CombineResult) -> None:
    """Counts the changes of the first `there` rows of a table, each row once for all sources."""

    def rows(of_each: Iterable[Iterable[int]]) -> set[int]:
        return {position for positions in of_each for position in positions if position < there}

    taken = rows(tally.taken for tally in tallies)
    result.taken += len(taken)
    result.kept += len(rows(tally.kept for tally in tallies) - taken)
    statuses = {position: status for tally in tallies for position, status in tally.statuses.items()}
    result.statuses.update(status for position, status in statuses.items() if position < there)
    result.profiled += len(rows(tally.profiled for tally in tallies))
    result.filled += sum(tally.filled for tally in tallies)
    result.conflicts += final_conflicts([conflict for tally in tallies for conflict in tally.conflicts])


def _combine_pruned(target: Database, sources: Sequence[CombineSource], result: CombineResult) -> None:
    """Adds the pruned rows that the target does not have with equal cells."""
    types = {name for source in sources for name in pruned_types(source.database)}
    for kernel_type in sorted(types):
        paths = [pruned_path(source.database, kernel_type) for source in sources]
        try:
            for _, table in _tables(sources, paths, result):
                result.pruned += add_pruned(target, kernel_type, table.rows())
        except OpAtlasError as error:
            result.problems.append(str(error))


def _tables(
    sources: Sequence[CombineSource], paths: Sequence[Path], result: CombineResult
) -> Iterator[tuple[CombineSource, RowTable]]:
    """Yields the sources that have a table, with the table. An unreadable table becomes a problem."""
    for source, path in zip(sources, paths, strict=True):
        try:
            if path.exists():
                yield source, RowTable(path.stem, path, read_table(path))
        except TableError as error:
            result.problems.append(str(error))
