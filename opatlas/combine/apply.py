"""Tables, pruned rows and manifests of some databases into those of another.

Nothing but the target is written, a file at a time, each replaced in one step; a file in which
nothing changes is left as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from opatlas.capture.cases import read_ingests
from opatlas.capture.ingest import rebuild_profiling
from opatlas.capture.manifest import manifest_path
from opatlas.combine.table import Conflict, RowTally, combine_tables, final_conflicts
from opatlas.errors import OpAtlasError, TableError
from opatlas.files import read_own
from opatlas.gc_pause import gc_paused
from opatlas.model.quality import valid_duration
from opatlas.model.record import RowName
from opatlas.model.schema import AVERAGE, INPUT_DTYPES, OUTPUT_DTYPES, PROFILING_AVERAGE, RUN_ID
from opatlas.model.signature import signatures
from opatlas.model.slots import unknown_dtypes
from opatlas.store import history
from opatlas.store.csv_files import read_frame, write_bytes, write_frame, write_text
from opatlas.store.database import Database, Table
from opatlas.store.history import EditedLookup, Histories, without_measurement
from opatlas.store.journal import JournalContents
from opatlas.store.manifest import LARGEST_BYTES, Manifest, RunOrder
from opatlas.store.op_mapping import WrittenMapping, write_default_mapping
from opatlas.text import add_counts

#: Stands for a run id in the name of the folder that keeps durations which `combine` did not take.
COMBINE = "combine"
_LARGEST_SAMPLES_BYTES = 4 << 30


@contextmanager
def _told(problems: list[str]) -> Iterator[None]:
    """Adds the error of a file that cannot be read or written to the problems, and goes on after it."""
    try:
        yield
    except OpAtlasError as error:
        problems.append(str(error))
    except OSError as error:
        problems.append(f"{error.filename}: cannot be read ({error.strerror}): check its permissions")


def copy_manifests(target: Database, manifests: Iterable[Path], problems: list[str]) -> int:
    """Copies manifests that the target lacks; gives their number."""
    copied = 0
    for manifest in manifests:
        path = target.runs_dir / manifest.name
        if path.exists():
            continue
        with _told(problems):
            write_text(path, read_own(manifest, LARGEST_BYTES).decode())
            copied += 1
    return copied


def copy_histories(target: Database, source: Database, journal: JournalContents | None, problems: list[str]) -> None:
    """Adds the records of a source to the histories of the target.

    Args:
        journal: the journal that the tables of the source were made of, which are no history of their own.
    """
    for run_id in history.runs(source):
        with _told(problems):
            contents = history.read(source, run_id)
            history.add(target, contents.header, contents.records)
            problems += [f"{history.file_path(source, run_id)}:{line}: {why}" for line, why in contents.unreadable]
    for path in history.replaced_tables(source):
        with _told(problems):
            run_id = path.parent.name.removesuffix(history.REPLACED_SUFFIX)
            history.keep_replaced(target, run_id, path.stem, read_frame(path))
    if journal is not None:
        history.add(target, journal.header, journal.records)


def copy_ingests(target: Database, source: Database, problems: list[str]) -> int:
    """Copies the ingests of a source with their samples; gives their number.

    An ingest whose captures the target has already is not copied.
    """
    copied = 0
    with _told(problems):
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
                    f"{manifest_path(source, run_id)}: of its captures, {there[0].name} is in TARGET already, by "
                    f"{known[there[0].sha256]}, and others are not: ingest these into TARGET"
                )
                continue
            for path in (ingest.samples, manifest_path(source, run_id)):
                content = read_own(path, _LARGEST_SAMPLES_BYTES)
                write_bytes(target.runs_dir / path.name, content)
            known |= {file.sha256: run_id for file in files}
            copied += 1
    return copied


def keep_durations(target: Database, kernel_type: str, not_taken: Sequence[pd.DataFrame], histories: Histories) -> None:
    """Keeps the rows whose durations are not in the table, if no history has them. Raises OpAtlasError."""
    rows = pd.concat([frame for frame in not_taken if len(frame)] or [pd.DataFrame()], ignore_index=True).fillna("")
    if rows.empty:
        return
    run_ids = rows[RUN_ID].tolist() if RUN_ID in rows.columns else [""] * len(rows)
    lost = [
        position
        for position, signature in enumerate(signatures(kernel_type, rows))
        if not histories.has_duration(run_ids[position], RowName(kernel_type, signature))
    ]
    if lost:
        history.keep_replaced(target, COMBINE, kernel_type, rows.iloc[lost])


@dataclass
class DurationCounts:
    """How many rows a table has, and how many of them have a replayed and a captured duration."""

    rows: int = 0
    replayed: int = 0
    captured: int = 0

    @property
    def durations(self) -> str:
        """`106 replayed, 108 captured`."""
        return f"{self.replayed:,} replayed, {self.captured:,} captured"


def duration_counts(frame: pd.DataFrame) -> DurationCounts:
    """Counts the rows of a table of text cells."""
    replayed, captured = (
        sum(valid_duration(cell) is not None for cell in frame[name].tolist()) if name in frame.columns else 0
        for name in (AVERAGE, PROFILING_AVERAGE)
    )
    return DurationCounts(len(frame), replayed, captured)


@dataclass(frozen=True)
class CombineSource:
    """What is combined into a database.

    Attributes:
        name: what the user calls it.
        database: where its tables are.
        manifests: those of its runs, by their paths.
        journal: the journal that the tables were made of; None for a database.
    """

    name: str
    database: Database
    manifests: Mapping[Path, Manifest]
    journal: JournalContents | None = None


@dataclass
class CombineResult:
    """What became of the sources.

    Attributes:
        kernel_types: those that the sources have.
        new: of these, the ones that the target had no file of.
        added: rows that the target lacked.
        holds: what the target has now of `kernel_types`, but for files that cannot be read.
        taken: rows that were there and have a source's duration now.
        kept: rows that were there, and whose own duration stayed although a source has one.
        statuses: rows that were there and have a source's status now, by that status.
        profiled: rows that were there and whose profiling columns were filled.
        filled: other cells that were filled.
        unknown_dtypes: rows that were added with a dtype that OpAtlas cannot name, by that.
        conflicts: one for each value that had to go, the furthest apart first; several sources may leave several of
            a row.
        pruned: pruned rows that were added to the target's.
        edited: rows that held the duration of the shape that they had before somebody edited them.
        manifests, ingests: those that were copied.
        captures_pooled: rows whose captured durations are of launches of several databases now.
        clocks_ahead: runs of machines whose clock was ahead; any other run is taken for the newer one.
        mapping: the op_mapping.yaml that the target got.
        problems: files that could not be read or written.
    """

    kernel_types: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    added: DurationCounts = field(default_factory=DurationCounts)
    holds: DurationCounts = field(default_factory=DurationCounts)
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


def kernel_types_of(sources: Sequence[CombineSource]) -> list[str]:
    """Kernel types that any of the sources has, sorted."""
    return sorted({kernel_type for source in sources for kernel_type in source.database.kernel_types()})


def combine(
    target: Database,
    sources: Sequence[CombineSource],
    manifests: Iterable[Manifest],
    on_kernel_type: Callable[[], None],
) -> CombineResult:
    """Joins the sources into the target, in their order.

    Args:
        manifests: those of the target and of the sources, which tell when each run began.
        on_kernel_type: called after each of `kernel_types_of(sources)`.

    Raises:
        OpAtlasError: the target cannot be locked. A file that cannot be read or written is a
            problem of the outcome, and does not keep the others out.
    """
    outcome = CombineResult(kernel_types_of(sources))
    order = RunOrder({manifest.run_id: manifest.started_at for manifest in manifests})
    with target.lock(), gc_paused():
        # First, so that no Run ID of a table ever leads nowhere.
        for source in sources:
            outcome.manifests += copy_manifests(target, source.manifests, outcome.problems)
            copy_histories(target, source.database, source.journal, outcome.problems)
            outcome.ingests += copy_ingests(target, source.database, outcome.problems)
        histories = Histories(target)
        edited = {source.name: EditedLookup(source.database) for source in sources}
        for kernel_type in outcome.kernel_types:
            try:
                _combine_tables(target, kernel_type, sources, order, histories, edited, outcome)
            except OpAtlasError as error:
                outcome.problems.append(f"{error} (so nothing was combined into it)")
            on_kernel_type()
        if outcome.ingests:
            _pool_captures(target, outcome)
        _combine_pruned(target, sources, outcome)
        outcome.mapping = write_default_mapping(target.path, sources=[source.database.path for source in sources])
    outcome.clocks_ahead = sorted(order.ahead)
    outcome.conflicts.sort(key=lambda conflict: -conflict.distance)
    return outcome


def _pool_captures(target: Database, outcome: CombineResult) -> None:
    """Makes the Profiling columns from the samples of all ingests that the target has now."""
    try:
        remade = rebuild_profiling(target).outcome
    except OpAtlasError as error:
        outcome.problems.append(str(error))
        return
    outcome.problems += remade.problems
    outcome.captures_pooled = remade.updated


def _combine_tables(
    target: Database,
    kernel_type: str,
    sources: Sequence[CombineSource],
    order: RunOrder,
    histories: Histories,
    edited: Mapping[str, EditedLookup],
    outcome: CombineResult,
) -> None:
    path = target.csv_path(kernel_type)
    is_new = not path.exists()
    frame = None if is_new else target.read(kernel_type).frame
    there = 0 if frame is None else len(frame)
    tallies: list[RowTally] = []
    not_taken: list[pd.DataFrame] = []
    paths = [source.database.csv_path(kernel_type) for source in sources]
    for source, rows in _frames(sources, paths, outcome):
        if positions := edited[source.name].in_table(kernel_type, rows):
            rows = without_measurement(kernel_type, rows, list(positions))
            outcome.edited += len(positions)
        before = rows.iloc[:0] if frame is None else frame
        combined = combine_tables(kernel_type, before, rows, order, source.name)
        not_taken += [before.iloc[combined.tally.replaced], rows.iloc[combined.tally.dropped]]
        frame = combined.frame
        tallies.append(combined.tally)
    if frame is None:
        return
    keep_durations(target, kernel_type, not_taken, histories)
    if any(tally.added or tally.edited for tally in tallies):
        target.write(Table(kernel_type, path, frame))
        outcome.new += [kernel_type] * is_new
    add_counts(outcome.holds, duration_counts(frame))
    new = frame.iloc[there:]
    add_counts(outcome.added, duration_counts(new))
    for cells in new[[INPUT_DTYPES, OUTPUT_DTYPES]].to_dict("records"):
        outcome.unknown_dtypes.update(unknown_dtypes(cells))
    _count(tallies, there, outcome)


def _count(tallies: Sequence[RowTally], there: int, outcome: CombineResult) -> None:
    """Adds what became of the first `there` rows of a table, each of which counts once, whatever the sources."""

    def rows(of_each: Iterable[Iterable[int]]) -> set[int]:
        return {position for positions in of_each for position in positions if position < there}

    taken = rows(tally.taken for tally in tallies)
    outcome.taken += len(taken)
    outcome.kept += len(rows(tally.kept for tally in tallies) - taken)
    statuses = {position: status for tally in tallies for position, status in tally.statuses.items()}
    outcome.statuses.update(status for position, status in statuses.items() if position < there)
    outcome.profiled += len(rows(tally.profiled for tally in tallies))
    outcome.filled += sum(tally.filled for tally in tallies)
    outcome.conflicts += final_conflicts([conflict for tally in tallies for conflict in tally.conflicts])


def _combine_pruned(target: Database, sources: Sequence[CombineSource], outcome: CombineResult) -> None:
    """Adds the pruned rows that are not there to the letter."""
    names = sorted({path.name for source in sources for path in source.database.pruned_dir.glob("[!.]*.csv")})
    for name in names:
        path = target.pruned_dir / name
        paths = [source.database.pruned_dir / name for source in sources]
        try:
            there = [read_frame(path)] if path.exists() else []
            coming = [frame for _, frame in _frames(sources, paths, outcome)]
            together = pd.concat([*there, *coming], ignore_index=True).fillna("") if coming else pd.DataFrame()
            before = sum(map(len, there))
            # Rows that stand twice in the target's own file stay.
            repeated = together.duplicated().to_numpy().copy()
            repeated[:before] = False
            if not repeated[before:].all():
                write_frame(together[~repeated], path)
                outcome.pruned += int((~repeated[before:]).sum())
        except OpAtlasError as error:
            outcome.problems.append(str(error))


def _frames(
    sources: Sequence[CombineSource], paths: Sequence[Path], outcome: CombineResult
) -> Iterator[tuple[CombineSource, pd.DataFrame]]:
    """The tables of those sources that have one; one that cannot be read is a problem."""
    for source, path in zip(sources, paths, strict=True):
        try:
            if path.exists():
                yield source, read_frame(path)
        except TableError as error:
            outcome.problems.append(str(error))
