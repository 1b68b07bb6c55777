"""Tables, pruned rows and manifests of some databases into those of another.

Nothing but the target is written, a file at a time, each replaced in one step; a file in which
nothing changes is left as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from database.bulk import without_cycle_collection
from database.combine.counts import DurationCounts, duration_counts
from database.combine.runs import copy_histories, copy_ingests, copy_manifests, keep_durations
from database.combine.table import Conflict, Tally, combine_tables, settled
from database.counts import add_counts
from database.dtypes import unknown_dtypes
from database.edited import EditedLookup, without_measurement
from database.errors import OpAtlasError, TableError
from database.history import Histories
from database.ingest.ingest import remake_profiling
from database.journal import Contents
from database.manifest import Manifest
from database.mapping.provide import Provided, provide_mapping
from database.run_order import RunOrder
from database.schema import INPUT_DTYPES, OUTPUT_DTYPES
from database.store import Database, Table, read_frame, write_frame


@dataclass(frozen=True)
class Source:
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
    journal: Contents | None = None


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
    mapping: Provided | None = None
    problems: list[str] = field(default_factory=list)


def kernel_types_of(sources: Sequence[Source]) -> list[str]:
    """Kernel types that any of the sources has, sorted."""
    return sorted({kernel_type for source in sources for kernel_type in source.database.kernel_types()})


def combine(
    target: Database, sources: Sequence[Source], manifests: Iterable[Manifest], on_kernel_type: Callable[[], None]
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
    with target.lock(), without_cycle_collection():
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
        outcome.mapping = provide_mapping(target.path, sources=[source.database.path for source in sources])
    outcome.clocks_ahead = sorted(order.ahead)
    outcome.conflicts.sort(key=lambda conflict: -conflict.distance)
    return outcome


def _pool_captures(target: Database, outcome: CombineResult) -> None:
    """Makes the Profiling columns from the samples of all ingests that the target has now."""
    try:
        remade = remake_profiling(target).outcome
    except OpAtlasError as error:
        outcome.problems.append(str(error))
        return
    outcome.problems += remade.problems
    outcome.captures_pooled = remade.updated


def _combine_tables(
    target: Database,
    kernel_type: str,
    sources: Sequence[Source],
    order: RunOrder,
    histories: Histories,
    edited: Mapping[str, EditedLookup],
    outcome: CombineResult,
) -> None:
    path = target.csv_path(kernel_type)
    is_new = not path.exists()
    frame = None if is_new else target.read(kernel_type).frame
    there = 0 if frame is None else len(frame)
    tallies: list[Tally] = []
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


def _count(tallies: Sequence[Tally], there: int, outcome: CombineResult) -> None:
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
    outcome.conflicts += settled([conflict for tally in tallies for conflict in tally.conflicts])


def _combine_pruned(target: Database, sources: Sequence[Source], outcome: CombineResult) -> None:
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
    sources: Sequence[Source], paths: Sequence[Path], outcome: CombineResult
) -> Iterator[tuple[Source, pd.DataFrame]]:
    """The tables of those sources that have one; one that cannot be read is a problem."""
    for source, path in zip(sources, paths, strict=True):
        try:
            if path.exists():
                yield source, read_frame(path)
        except TableError as error:
            outcome.problems.append(str(error))
