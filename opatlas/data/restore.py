"""Rows that are not what their runs measured: CSVs that are made again, and edited rows.

Edited: somebody changed shapes, dtypes or lengths of a row after its run. The log of the run that the row names has no
record of a row with its present cells. So the duration and the status belong to another case. A row whose run is not in
the log is not edited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from opatlas.data import log
from opatlas.data.cells import Candidate, candidates_of_records
from opatlas.data.database import Database
from opatlas.data.fold import TableFold
from opatlas.data.log import COMBINE, Log, Pooled
from opatlas.data.manifest import RunOrder, read_manifests
from opatlas.errors import OpAtlasError, TableError, noted
from opatlas.progress import gc_paused
from opatlas.row.columns import POOLED, RUN_ID, STATUS_RUN_ID
from opatlas.row.record import RowName
from opatlas.row.status import UpdateMode
from opatlas.row.table import RowTable


@dataclass
class RebuiltRows:
    """The result of a rebuild.

    Attributes:
        runs: the runs that were read from the log.
        changed: the number of rows whose cells changed, by kernel type.
        added: the number of rows that were missing, by kernel type.
        problems: files that could not be read or written.
    """

    runs: list[str] = field(default_factory=list)
    changed: Counter[str] = field(default_factory=Counter)
    added: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def rebuild(database: Database) -> RebuiltRows:
    """Folds all runs of the log into the CSVs again, file by file, each replaced in one step.

    A duration that no record has is kept in the log before it is replaced.

    Raises:
        OpAtlasError: the database cannot be locked.
    """
    # It takes 70 ms to import, which sessions do without.
    from opatlas.data.pool import Pooling

    rebuilt = RebuiltRows()
    with database.lock(), gc_paused():
        manifests, known = read_manifests(database, rebuilt.problems), Log(database)
        order = log.run_order(database, manifests)
        events = (event for _, event in log.events(database, [], COMBINE))
        pooled = frozenset(next((event.runs for event in [*events][::-1] if isinstance(event, Pooled)), ()))
        #: Each table as it is in its file, and without the cells that the log has, while runs are folded into it.
        tables: dict[str, tuple[RowTable, TableFold] | None] = {}
        runs = sorted(log.runs(database), key=order.age)
        # What was pooled is pooled again, before later runs.
        for is_pooled in (True, False):
            for run_id in (run for run in runs if (run in pooled) == is_pooled):
                for kernel_type, candidates in _candidates(database, run_id, rebuilt).items():
                    if kernel_type not in tables:
                        tables[kernel_type] = _open(known, kernel_type, order, rebuilt, is_pooled=bool(pooled))
                    if (opened := tables[kernel_type]) is not None:
                        opened[1].fold(candidates)
            if is_pooled and tables:
                pooling = Pooling(database, manifests, rebuilt.problems, pooled)
                for _, fold in filter(None, tables.values()):
                    pooling.pool(fold)
        for before, fold in filter(None, tables.values()):
            changed, added = fold.rows.changed(), len(fold.rows) - len(before)
            if not changed and not added:
                continue
            with noted(rebuilt.problems):
                fold.keep_rows(before, changed)
                fold.write(database)
                rebuilt.changed[fold.kernel_type] += len(changed)
                rebuilt.added[fold.kernel_type] += added
    return rebuilt


def _candidates(database: Database, run_id: str, rebuilt: RebuiltRows) -> dict[str, list[Candidate]]:
    """Returns what a run has of rows, by kernel type."""
    with noted(rebuilt.problems):
        contents = log.read(database, run_id)
        rebuilt.runs += [run_id] * bool(contents.records)
        path = log.file_path(database, run_id)
        rebuilt.problems += [f"{path}:{line}: {problem}" for line, problem in contents.unreadable]
        adds_rows = UpdateMode(contents.header.update_mode).adds_rows
        return candidates_of_records(contents.records, {run_id} if adds_rows else frozenset())
    return {}


def _open(
    known: Log, kernel_type: str, order: RunOrder, rebuilt: RebuiltRows, *, is_pooled: bool
) -> tuple[RowTable, TableFold] | None:
    """Returns a table and its fold; None if it cannot be read. `is_pooled`: whether rows will be pooled again."""
    try:
        table = known.database.read_or_empty(kernel_type)
        pruned = known.database.pruned(kernel_type).signatures
    except OpAtlasError as error:
        rebuilt.problems.append(f"{error} (not rebuilt)")
        return None
    fold, explained = TableFold(table, order, known, pruned=pruned), _explained(table, known)
    fold.clear_measured(explained)
    if is_pooled:
        fold.rows.empty(explained, POOLED)
    return table, fold


def _explained(table: RowTable, known: Log) -> list[int]:
    """Returns the positions of rows whose durations and statuses are of runs in the log."""
    found = []
    runs = zip(table.cells(RUN_ID), table.cells(STATUS_RUN_ID), table.replayed.known.tolist(), strict=True)
    for position, (run_id, of_status, has_duration) in enumerate(runs):
        row = RowName(table.kernel_type, table.signatures[position])
        if has_duration:
            # A duration that no record has would be lost.
            is_known = any(each.samples_us for each in known.of_row(run_id, row))
        else:
            named = of_status or run_id
            # Cells of no run are of another tool, or of a person.
            is_known = bool(named and known.of_row(named, row))
        if is_known:
            found.append(position)
    return found


@dataclass
class EditedRows:
    """Edited rows.

    Attributes:
        positions: the positions of the rows, from 0, by kernel type.
        tables: the tables that were read, without the measured cells of these rows, by kernel type.
        example: one of the rows; None if there are none.
        problems: files that could not be written; their rows are unchanged.
    """

    positions: dict[str, list[int]] = field(default_factory=dict)
    tables: dict[str, RowTable] = field(default_factory=dict)
    example: RowName | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(map(len, self.positions.values()))


def edited_in(table: RowTable, known: Log) -> list[int]:
    """Returns the positions of the edited rows of a table.

    A remaining journal of a run may have records of any row, so that only runs that are complete in the log count.
    """
    statuses = table.cells(STATUS_RUN_ID)
    named = [run or of_status for run, of_status in zip(table.cells(RUN_ID), statuses, strict=True)]
    complete = {
        run for run in _complete_runs(known.database).intersection(named) if known.has_type(run, table.kernel_type)
    }
    return [
        position
        for position, run in enumerate(named)
        if run in complete and not known.of_row(run, RowName(table.kernel_type, table.signatures[position]))
    ]


def edited_rows(database: Database) -> EditedRows:
    """Finds the edited rows of a database; writes nothing. Files that cannot be read are skipped."""
    return _each_edited(database, None)


def clear_edited(database: Database, run_id: str) -> EditedRows:
    """Clears the measured cells of edited rows, after their durations are in the log of the run `run_id`.

    Raises:
        OpAtlasError: the database cannot be locked.
    """
    if not log.runs(database):
        return EditedRows()
    with database.lock():
        return _each_edited(database, run_id)


def _each_edited(database: Database, run_id: str | None) -> EditedRows:
    """Finds edited rows, and clears them for the run `run_id`; None leaves them unchanged."""
    found, known = EditedRows(), Log(database)
    for kernel_type in database.kernel_types_and_messages() if _complete_runs(database) else ():
        try:
            table = found.tables[kernel_type] = database.read(kernel_type)
        except TableError:
            continue
        if edited := edited_in(table, known):
            with noted(found.problems):
                fold = cleared(table, edited, known, run_id or "")
                found.tables[kernel_type] = fold.rows.table() if run_id is None else fold.write(database)
                found.positions[kernel_type] = edited
                found.example = found.example or RowName(kernel_type, table.signatures[edited[0]])
    return found


def cleared(table: RowTable, positions: Sequence[int], known: Log | None = None, by: str = "") -> TableFold:
    """Returns a table without the measured cells of some rows. The log of the run `by` is to keep their durations."""
    fold = TableFold(table, log=known, by=by)
    for position in positions:
        fold.clear(position)
    return fold


def _complete_runs(database: Database) -> set[str]:
    """Returns the runs without a journal, which are complete in the log."""
    with_journal = {path.name.partition(".jsonl")[0] for path in database.journal_dir.glob("*.jsonl*")}
    # With several devices the name of a journal has a suffix after the run id.
    return {
        run for run in log.runs(database) if not any(name == run or name.startswith(f"{run}-") for name in with_journal)
    }
