"""Combines source databases into a target: tables, pruned rows, manifests, histories, ingests.

Only the target is written, file by file, each replaced in one step. Unchanged files are not written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from opatlas.capture.cases import read_ingests
from opatlas.capture.ingest import rebuild_profiling
from opatlas.capture.manifest import manifest_path
from opatlas.combine.table import CombineTally, Conflict, combine_tables, final_conflicts
from opatlas.counts import add_counts
from opatlas.data import history
from opatlas.data.csv_files import read_frame, write_bytes, write_frame, write_text
from opatlas.data.database import Database
from opatlas.data.history import EditedLookup, Histories, without_measurement
from opatlas.data.journal import JournalContents
from opatlas.data.manifest import LARGEST_BYTES, Manifest, RunOrder
from opatlas.data.op_mapping import WrittenMapping, write_default_mapping
from opatlas.errors import OpAtlasError, TableError
from opatlas.files import read_safely
from opatlas.gc_pause import gc_paused
from opatlas.progress import track
from opatlas.row.columns import AVERAGE, INPUT_DTYPES, OUTPUT_DTYPES, PROFILING_AVERAGE, RUN_ID
from opatlas.row.quality import valid_duration
from opatlas.row.record import RowName
from opatlas.row.signature import column_cells, row_cells, signatures
from opatlas.row.slots import unknown_dtypes
from opatlas.row.table import RowTable

#: The run id in the name of the folder with durations that `combine` did not take.
COMBINE = "combine"
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


@contextmanager
def _damaged_histories(problems: list[str]) -> Iterator[None]:
    """Adds histories that cannot be read to the problems, and continues."""
    try:
        yield
    except history.DamagedHistory as error:
        problems.append(str(error))


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


def copy_histories(target: Database, source: Database, journal: JournalContents | None, problems: list[str]) -> None:
    """Adds the records of a source to the histories of the target.

    Args:
        journal: the journal from which the tables of the source were made; None for a database.

    Raises:
        OpAtlasError: a history of the target cannot be written. It may lack rows of its run, and these would count as
            edited.
    """
    for run_id in history.runs(source):
        with _damaged_histories(problems):
            contents = history.read(source, run_id)
            history.add(target, contents.header, contents.records)
            problems += [f"{history.file_path(source, run_id)}:{line}: {why}" for line, why in contents.unreadable]
    for path in history.replaced_tables(source):
        with _collect_errors(problems):
            run_id = path.parent.name.removesuffix(history.REPLACED_SUFFIX)
            history.save_replaced(target, run_id, path.stem, read_frame(path))
    if journal is not None:
        with _damaged_histories(problems):
            history.add(target, journal.header, journal.records)


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


def save_durations(target: Database, kernel_type: str, not_taken: Sequence[pd.DataFrame], histories: Histories) -> None:
    """Saves the rows whose durations were not taken, if no history has them. Raises OpAtlasError."""
    rows = pd.concat([frame for frame in not_taken if len(frame)] or [pd.DataFrame()], ignore_index=True).fillna("")
    if rows.empty:
        return
    run_ids = column_cells(rows, RUN_ID)
    lost = [
        position
        for position, signature in enumerate(signatures(kernel_type, rows))
        if not histories.has_duration(run_ids[position], RowName(kernel_type, signature))
    ]
    if lost:
        history.save_replaced(target, COMBINE, kernel_type, rows.iloc[lost])


@dataclass
class DurationCounts:
    """The number of rows of a table, and how many have a replayed and a captured duration."""

    rows: int = 0
    replayed: int = 0
    captured: int = 0


def duration_counts(frame: pd.DataFrame) -> DurationCounts:
    """Counts the rows of a table of text cells."""
    replayed, captured = (
        sum(valid_duration(cell) is not None for cell in frame[name].tolist()) if name in frame.columns else 0
        for name in (AVERAGE, PROFILING_AVERAGE)
    )
    return DurationCounts(len(frame), replayed, captured)


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

    Args:
        manifests: the manifests of target and sources, with the start of each run.

    Raises:
        OpAtlasError: the target cannot be locked. A file that cannot be read or written becomes a problem of the
            result; the other files are combined. A source whose histories cannot be written is left out.
    """
    result = CombineResult(sorted({name for source in sources for name in source.database.kernel_types()}))
    order = RunOrder({manifest.run_id: manifest.started_at for manifest in manifests})
    with target.lock(), gc_paused():
        # Manifests first, so that every Run ID in a table always has one.
        combined = []
        for source in sources:
            result.manifests += copy_manifests(target, source.manifests, result.problems)
            try:
                copy_histories(target, source.database, source.journal, result.problems)
            except OpAtlasError as error:
                result.problems.append(f"{error} (no row of {source.name} was combined)")
                continue
            combined.append(source)
            result.ingests += copy_ingests(target, source.database, result.problems)
        sources = combined
        histories = Histories(target)
        edited = {source.name: EditedLookup(source.database) for source in sources}
        for kernel_type in track(result.kernel_types, "combine, kernel types"):
            try:
                _combine_tables(target, kernel_type, sources, order, histories, edited, result)
            except OpAtlasError as error:
                result.problems.append(f"{error} (nothing was combined into this file)")
        if result.ingests:
            _pool_captures(target, result)
        _combine_pruned(target, sources, result)
        result.mapping = write_default_mapping(target.path, sources=[source.database.path for source in sources])
    result.clocks_ahead = sorted(order.ahead)
    result.conflicts.sort(key=lambda conflict: -conflict.distance)
    return result


def _pool_captures(target: Database, result: CombineResult) -> None:
    """Recomputes the Profiling columns from the samples of all ingests of the target."""
    try:
        remade = rebuild_profiling(target).outcome
    except OpAtlasError as error:
        result.problems.append(str(error))
        return
    result.problems += remade.problems
    result.captures_pooled = remade.updated


def _combine_tables(
    target: Database,
    kernel_type: str,
    sources: Sequence[CombineSource],
    order: RunOrder,
    histories: Histories,
    edited: Mapping[str, EditedLookup],
    result: CombineResult,
) -> None:
    path = target.csv_path(kernel_type)
    is_new = not path.exists()
    frame = None if is_new else target.read(kernel_type).frame
    there = 0 if frame is None else len(frame)
    tallies: list[CombineTally] = []
    not_taken: list[pd.DataFrame] = []
    paths = [source.database.csv_path(kernel_type) for source in sources]
    for source, rows in _frames(sources, paths, result):
        if positions := edited[source.name].in_table(kernel_type, rows):
            rows = without_measurement(kernel_type, rows, list(positions))
            result.edited += len(positions)
        before = rows.iloc[:0] if frame is None else frame
        combined = combine_tables(kernel_type, before, rows, order, source.name)
        not_taken += [before.iloc[combined.tally.replaced], rows.iloc[combined.tally.dropped]]
        frame = combined.frame
        tallies.append(combined.tally)
    if frame is None:
        return
    save_durations(target, kernel_type, not_taken, histories)
    if any(tally.added or tally.edited for tally in tallies):
        target.write(RowTable(kernel_type, path, frame))
        result.new += [kernel_type] * is_new
    add_counts(result.target_rows, duration_counts(frame))
    new = frame.iloc[there:]
    add_counts(result.added, duration_counts(new))
    for cells in row_cells(new[[INPUT_DTYPES, OUTPUT_DTYPES]]):
        result.unknown_dtypes.update(unknown_dtypes(cells))
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
    names = sorted({path.name for source in sources for path in source.database.pruned_dir.glob("[!.]*.csv")})
    for name in names:
        path = target.pruned_dir / name
        paths = [source.database.pruned_dir / name for source in sources]
        try:
            there = [read_frame(path)] if path.exists() else []
            coming = [frame for _, frame in _frames(sources, paths, result)]
            together = pd.concat([*there, *coming], ignore_index=True).fillna("") if coming else pd.DataFrame()
            before = sum(map(len, there))
            # Duplicates within the target's own file stay.
            repeated = together.duplicated().to_numpy().copy()
            repeated[:before] = False
            if not repeated[before:].all():
                write_frame(together[~repeated], path)
                result.pruned += int((~repeated[before:]).sum())
        except OpAtlasError as error:
            result.problems.append(str(error))


def _frames(
    sources: Sequence[CombineSource], paths: Sequence[Path], result: CombineResult
) -> Iterator[tuple[CombineSource, pd.DataFrame]]:
    """Yields the sources that have a table, with the table. An unreadable table becomes a problem."""
    for source, path in zip(sources, paths, strict=True):
        try:
            if path.exists():
                yield source, read_frame(path)
        except TableError as error:
            result.problems.append(str(error))
