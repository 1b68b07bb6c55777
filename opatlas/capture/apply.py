"""Writes pooled statistics into the CSVs.

An ingest changes the Profiling columns and empty Runtime cells of rows that it has samples for. Everything else stays
as it is: microbench columns, theory rows, unknown columns, the order of rows and columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from opatlas.capture.cases import Case, Cases, SampleLine
from opatlas.capture.launches import SOURCE_PROFILE, TimeShare, add_counts, source_cell, time_shares
from opatlas.data.database import Database
from opatlas.data.fold import TableFold
from opatlas.errors import OpAtlasError, TableError
from opatlas.grouping import positions_by_key
from opatlas.row import columns as col
from opatlas.row.quality import Modes, find_modes, number_cell, valid_duration
from opatlas.row.signature import signatures_of
from opatlas.row.table import RowTable
from opatlas.text import pluralize

#: Separates the run ids of a cell.
_SEPARATOR = ";"
#: CSVs that are written at once.
_WRITERS = 4


@dataclass(frozen=True)
class TwoPopulations:
    """A row whose launches have two typical durations, so that the mean describes neither."""

    kernel_type: str
    shapes: str
    modes: Modes


@dataclass
class CsvChanges:
    """The changes of the CSVs. `new`, `updated` and `unchanged` count signatures.

    Attributes:
        kernel_types: kernel types whose CSVs were read or written.
        mixed: rows whose launches have two typical durations.
        problems: files and rows that stay as they were, each with the reason.
    """

    new: int = 0
    updated: int = 0
    unchanged: int = 0
    kernel_types: list[str] = field(default_factory=list)
    mixed: list[TwoPopulations] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def apply_cases(database: Database, cases: Mapping[str, Cases], known: Collection[str]) -> CsvChanges:
    """Writes the cases into the CSVs, each file in one step. The caller holds the lock of the database.

    A file that cannot be read or written becomes a problem of the result; the other files are written. A row with
    captured durations that no samples explain also becomes a problem, unless the case replaces these durations.

    Args:
        cases: by kernel type.
        known: ids of the ingests whose samples are in the database.
    """

    def apply(kernel_type: str) -> CsvChanges:
        of_type = cases[kernel_type]
        try:
            return _apply_to_table(database, kernel_type, of_type, known)
        except OpAtlasError as error:
            return CsvChanges(problems=[f"{error} (its {pluralize(len(of_type), 'case')} left out)"])

    outcome = CsvChanges()
    # A disk syncs several files in little more time than one.
    with ThreadPoolExecutor(_WRITERS) as pool:
        for changes in pool.map(apply, cases):
            add_counts(outcome, changes)
    return outcome


def _apply_to_table(database: Database, kernel_type: str, cases: Cases, known: Collection[str]) -> CsvChanges:
    is_gpu = any(col.PROFILING_SOURCE in cells for _, cells, _ in cases.cells)
    fold = _CapturedRows(database.read_or_empty(kernel_type, _columns_of_new_table(kernel_type, is_gpu=is_gpu)))
    counts = CsvChanges()
    for case in cases:
        modes = find_modes(case.durations_us)
        profiling, runtime = _profiling_cells(case, modes), _runtime_cells(case)
        positions = fold.case_positions(case.signature)
        unexplained = [] if case.replaced else fold.unexplained(positions, known)
        if unexplained:
            counts.problems.append(_unexplained_problem(database, fold, unexplained[0]))
            continue
        if modes is not None:
            shapes = f"{case.cells.get(col.INPUT_SHAPES, '')} -> {case.cells.get(col.OUTPUT_SHAPES, '')}"
            counts.mixed.append(TwoPopulations(kernel_type, shapes, modes))
        if not positions:
            base = {column: case.cells.get(column, "") for column in col.BASE}
            fold.append({**base, **profiling, **runtime})
            counts.new += 1
            continue
        changed = [fold.update(position, profiling, runtime) for position in positions]
        if any(changed):
            counts.updated += 1
        else:
            counts.unchanged += 1
    if counts.new or counts.updated:
        fold.write(database)
    counts.kernel_types.append(kernel_type)
    return counts


def unexplained_rows(
    database: Database, cases: Mapping[str, Collection[str]], known: Collection[str]
) -> list[SampleLine]:
    """Returns the rows of some cases whose captured durations no samples explain, with these cells as `replaced`.

    Another tool wrote them. Files that cannot be read are skipped: apply_cases reports them, and leaves them as they
    are.

    Args:
        cases: signatures by kernel type.
        known: ids of the ingests whose samples are in the database.
    """
    found = []
    for kernel_type, wanted in cases.items():
        try:
            fold = _CapturedRows(database.read_or_empty(kernel_type))
        except OpAtlasError:
            continue
        if not fold.unexplained(range(len(fold.rows)), known):
            continue
        profiling = [*filter(col.is_profiling_column, fold.rows.columns)]
        for signature in wanted:
            for at in fold.unexplained(fold.case_positions(signature), known):
                cells = {column: fold.rows[column][at] for column in col.BASE}
                held = {column: fold.rows[column][at] for column in profiling if fold.rows[column][at]}
                found.append(SampleLine(kernel_type, cells, replaced=held))
    return found


def clear_edited_rows(
    database: Database, cases: Mapping[str, Cases], known: Collection[str]
) -> dict[str, list[Mapping[str, str]]]:
    """Empties the Profiling cells of edited rows, because no ingest captured a row with their present cells.

    The samples stay, with the cells of the row as captured. Skips files that cannot be read. The caller holds the lock
    of the database.

    Args:
        cases: the cases of all ingests, by kernel type.
        known: ids of the ingests whose samples are in the database.

    Returns:
        The rows before the change, by kernel type.

    Raises:
        OpAtlasError: a file cannot be written.
    """
    found: dict[str, list[Mapping[str, str]]] = {}
    for kernel_type in database.kernel_types():
        try:
            fold = _CapturedRows(database.read(kernel_type))
        except OpAtlasError:
            continue
        columns = [*fold.rows.columns]
        edited = fold.edited(cases[kernel_type].signatures if kernel_type in cases else (), known)
        for at in edited:
            found.setdefault(kernel_type, []).append({name: fold.rows[name][at] for name in columns})
            fold.rows.set_cells(at, dict.fromkeys(filter(col.is_profiling_column, columns), ""))
        if edited:
            fold.write(database)
    return found


def _unexplained_problem(database: Database, fold: _CapturedRows, at: int) -> str:
    rows = fold.rows
    problem = (
        f"the row {rows[col.INPUT_SHAPES][at]} -> {rows[col.OUTPUT_SHAPES][at]} has a captured duration of "
        f"{rows[col.PROFILING_AVERAGE][at]} us without samples in {database.runs_dir}, and was left unchanged"
    )
    return str(
        TableError(
            database.csv_path(fold.kernel_type), problem, "Ingest with --replace to replace the duration", line=at + 2
        )
    )


class _CapturedRows(TableFold):
    """The rows of a kernel type, found by the signatures of cases."""

    def __init__(self, table: RowTable) -> None:
        super().__init__(table)
        self._counters = [name for name in table.columns if name.startswith(col.profiling_counter(""))]

    @cached_property
    def _by_slots(self) -> dict[str, list[int]]:
        slots = [column for column in (*col.INPUT_SLOTS, *col.OUTPUT_SLOTS) if column in self._table.columns]
        return positions_by_key(signatures_of(self._table.kernel_type, slots, self._table.cells))

    def case_positions(self, signature: str) -> list[int]:
        """Returns the positions of the rows that the launches of a case belong to.

        A capture states neither sequence lengths nor EP Size. A row with such cells belongs to the case only if the row
        has a captured duration, which --attention-records copies from the captured row. A theory row with lengths is
        more specific than the capture.
        """
        exact = self.positions.get(signature, [])
        if exact:
            return exact
        same_slots = self._by_slots.get(signature, [])
        return [at for at in same_slots if valid_duration(self.rows[col.PROFILING_AVERAGE][at]) is not None]

    def unexplained(self, positions: Iterable[int], known: Collection[str]) -> list[int]:
        """Returns the positions with a captured duration that names an unknown ingest, or none."""
        durations, run_ids = self.rows[col.PROFILING_AVERAGE], self.rows[col.PROFILING_RUN_ID]
        return [
            at
            for at in positions
            if valid_duration(durations[at]) is not None
            and not all(run_id in known for run_id in run_ids[at].split(_SEPARATOR))
        ]

    def edited(self, captured: Collection[str], known: Collection[str]) -> list[int]:
        """Returns the positions of rows that name known ingests, although no ingest captured the row."""
        named = [
            at
            for at, run_ids in enumerate(self.rows[col.PROFILING_RUN_ID])
            if run_ids and all(run_id in known for run_id in run_ids.split(_SEPARATOR))
        ]
        if not named:
            return []
        there = {at for which in (self.positions, self._by_slots) for text in captured for at in which.get(text, ())}
        return [at for at in named if at not in there]

    def update(self, position: int, profiling: Mapping[str, str], runtime: Mapping[str, str]) -> bool:
        """Replaces the Profiling cells of a row and fills its empty Runtime cells. Returns whether a cell changed."""
        cells = {**dict.fromkeys(self._counters, ""), **profiling}
        for column, text in runtime.items():
            # Values from --attention-records stay. The names of captures follow the durations.
            if text and (column == SOURCE_PROFILE or not self.rows[column][position]):
                cells[column] = text
        return self.rows.set_cells(position, cells)


def _columns_of_new_table(kernel_type: str, *, is_gpu: bool) -> list[str]:
    counters = [] if is_gpu else [col.profiling_counter(name) for name in col.PIPE_UTILIZATION]
    columns = [*col.BASE, col.AVERAGE, *col.PROFILING_DURATIONS, *counters]
    if kernel_type in col.ATTENTION_TYPES:
        columns += col.RUNTIME
    if kernel_type in col.EXPERT_PARALLEL:
        columns += col.EXPERTS
    return col.ordered_columns(columns)


def _runtime_cells(case: Case) -> dict[str, str]:
    cells = {column: text for column, text in case.cells.items() if column in col.RUNTIME}
    return {**cells, SOURCE_PROFILE: source_cell(case.sources)} if case.sources else cells


def _profiling_cells(case: Case, modes: Modes | None) -> dict[str, str]:
    durations = case.durations
    cells = {
        col.PROFILING_AVERAGE: number_cell(durations.mean_us),
        col.PROFILING_MEDIAN: number_cell(durations.median_us),
        # The standard deviation of a single launch is unknown.
        col.PROFILING_STD: number_cell(durations.std_us) if durations.count > 1 else "",
        col.PROFILING_SAMPLES: str(durations.count),
        col.PROFILING_POPULATIONS: "" if modes is None else modes.text("launches"),
        col.PROFILING_RUN_ID: _SEPARATOR.join(case.run_ids),
    }
    for column in (col.PROFILING_KERNEL_NAMES, col.PROFILING_SOURCE):
        if column in case.cells:
            cells[column] = case.cells[column]
    for name, mean in case.counters.items():
        cells[col.profiling_counter(name)] = "" if mean is None else _counter_cell(mean)
    return cells


#: Cached, because many counters have the same value, such as 0 for an unused part of a core.
_counter_cell = lru_cache(maxsize=4096)(number_cell)


def rows_without_replay(database: Database, replayed: Collection[str]) -> tuple[int, list[TimeShare]]:
    """Returns the number of rows of a database, and the kernel types without a replay. Skips unreadable files."""
    rows: Counter[str] = Counter()
    time_us: dict[str, float | None] = {}
    for kernel_type in database.kernel_types():
        with suppress(OpAtlasError):
            table = database.read(kernel_type)
            rows[kernel_type], time_us[kernel_type] = len(table), table.captured_time_us
    return rows.total(), time_shares({name: n for name, n in rows.items() if name not in replayed}, time_us)
