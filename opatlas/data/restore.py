"""Rows that are not what their runs measured: CSVs that are made again, edited rows, and pruned rows that come back.

Edited: somebody changed shapes, dtypes or lengths of a row after its run. The log of the run that the row names has no
record of a row with its present cells. So the duration and the status belong to another case. A row whose run is not in
the log is not edited.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from opatlas.data import log
from opatlas.data.candidates import candidates_of_records
from opatlas.data.cells import positions_by_key
from opatlas.data.database import PRUNED_REASON, Database
from opatlas.data.fold import TableFold
from opatlas.data.log import COMBINE, Log, Pooled
from opatlas.data.manifest import RunOrder, read_manifests
from opatlas.errors import OpAtlasError, TableError
from opatlas.gc_pause import gc_paused
from opatlas.row.columns import POOLED, RUN_ID, STATUS_RUN_ID
from opatlas.row.record import RowName
from opatlas.row.signature import RowChoice
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
        manifests = read_manifests(database, rebuilt.problems)
        pooled = _pooled_runs(database)
        tables = _Tables(database, log.run_order(database, manifests), rebuilt, is_pooled=bool(pooled))
        runs = sorted(log.runs(database), key=tables.order.age)
        for run_id in filter(pooled.__contains__, runs):
            tables.fold(run_id)
        if pooled:
            # What was pooled is pooled again, before later runs.
            pooling = Pooling(database, manifests, rebuilt.problems, pooled)
            for _, fold in tables.folds.values():
                pooling.pool(fold)
        for run_id in (run_id for run_id in runs if run_id not in pooled):
            tables.fold(run_id)
        tables.write()
    return rebuilt


def _pooled_runs(database: Database) -> frozenset[str]:
    """Returns the runs that `combine --pool` pooled at last."""
    pooled = [event.runs for _, event in log.events(database, [], COMBINE) if isinstance(event, Pooled)]
    return frozenset(pooled[-1]) if pooled else frozenset()


class _Tables:
    """The tables that the runs of a database have rows of, without the cells that the log has.

    Attributes:
        order: the order of the runs.
        folds: each table as it is in its file, and as the runs are folded into it, by kernel type.
    """

    def __init__(self, database: Database, order: RunOrder, rebuilt: RebuiltRows, *, is_pooled: bool) -> None:
        """`is_pooled` is whether the rows will be pooled again."""
        self.order = order
        self.folds: dict[str, tuple[RowTable, TableFold]] = {}
        self._database = database
        self._rebuilt = rebuilt
        self._is_pooled = is_pooled
        self._log = Log(database)
        self._unreadable: set[str] = set()

    def fold(self, run_id: str) -> None:
        """Folds a run into its tables."""
        database, problems = self._database, self._rebuilt.problems
        try:
            contents = log.read(database, run_id)
        except OpAtlasError as error:
            problems.append(str(error))
            return
        if not contents.records:
            return
        self._rebuilt.runs.append(run_id)
        path = log.file_path(database, run_id)
        problems += [f"{path}:{line}: {problem}" for line, problem in contents.unreadable]
        appending = {run_id} if UpdateMode(contents.header.update_mode).adds_rows else frozenset[str]()
        for kernel_type, candidates in candidates_of_records(contents.records, appending).items():
            if kernel_type not in self.folds and kernel_type not in self._unreadable:
                try:
                    self._open(kernel_type)
                except OpAtlasError as error:
                    problems.append(f"{error} (not rebuilt)")
                    self._unreadable.add(kernel_type)
            if kernel_type in self.folds:
                self.folds[kernel_type][1].fold(candidates)

    def _open(self, kernel_type: str) -> None:
        """Raises OpAtlasError."""
        database = self._database
        table = database.read_or_empty(kernel_type)
        fold = TableFold(table, self.order, self._log, pruned=database.pruned(kernel_type).signatures)
        explained = _explained(table, self._log)
        fold.clear_measured(explained)
        if self._is_pooled:
            fold.rows.empty(explained, POOLED)
        self.folds[kernel_type] = table, fold

    def write(self) -> None:
        """Writes the tables that changed."""
        for kernel_type, (before, fold) in self.folds.items():
            changed, added = fold.rows.changed(), len(fold.rows) - len(before)
            if not changed and not added:
                continue
            try:
                fold.keep_rows(before, changed)
                fold.write(self._database)
            except OpAtlasError as error:
                self._rebuilt.problems.append(str(error))
                continue
            self._rebuilt.changed[kernel_type] += len(changed)
            self._rebuilt.added[kernel_type] += added


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
class UnpruneResult:
    """The result of `unprune`.

    Attributes:
        restored: rows that are in the CSVs again.
        kept: rows that stay in `pruned/`, because the CSV has a row of the same signature.
        problems: files that could not be read or written.
    """

    restored: list[RowName] = field(default_factory=list)
    kept: list[RowName] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def unprune(database: Database, chosen: RowChoice) -> UnpruneResult:
    """Moves pruned rows back, file by file: adds them to the CSV, then removes them from `pruned/`.

    Of several pruned rows with one signature, the last one is moved and the others stay.

    Raises:
        OpAtlasError: the database cannot be locked.
    """
    unpruned = UnpruneResult()
    with database.lock():
        for kernel_type in database.pruned_types():
            try:
                _unprune_table(database, kernel_type, chosen, unpruned)
            except OpAtlasError as error:
                unpruned.problems.append(str(error))
    return unpruned


def _unprune_table(database: Database, kernel_type: str, chosen: RowChoice, unpruned: UnpruneResult) -> None:
    pruned = database.pruned(kernel_type)
    fold = TableFold(database.read_or_empty(kernel_type))
    restored: dict[int, RowName] = {}
    kept = []
    for signature, positions in positions_by_key(pruned.signatures).items():
        if not chosen.holds(kernel_type, signature):
            continue
        row = RowName(kernel_type, signature)
        if signature in fold.positions:
            kept.append(row)
        else:
            restored[positions[-1]] = row
            kept += [row] * (len(positions) - 1)
    if restored:
        for cells in pruned.rows(sorted(restored)):
            fold.append({name: cell for name, cell in cells.items() if cell and name != PRUNED_REASON})
        fold.write(database)
        left = pruned.without(restored)
        if len(left):
            database.write(left)
        else:
            pruned.path.unlink()
    unpruned.restored += restored.values()
    unpruned.kept += kept


@dataclass(frozen=True)
class EditedRows:
    """Edited rows.

    Attributes:
        positions: the positions of the rows, from 0, by kernel type.
        example: one of the rows; None if there are none.
        problems: files that could not be written; their rows are unchanged.
    """

    positions: dict[str, list[int]] = field(default_factory=dict)
    example: RowName | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(map(len, self.positions.values()))


class EditedLookup:
    """Finds the edited rows of tables. False if no run of the database is complete in the log.

    Attributes:
        log: the log of the database.
    """

    def __init__(self, database: Database) -> None:
        self._runs = _complete_runs(database)
        self.log = Log(database)

    def __bool__(self) -> bool:
        return bool(self._runs)

    def in_table(self, table: RowTable) -> list[int]:
        """Returns the positions of the edited rows of a table."""
        statuses = table.cells(STATUS_RUN_ID)
        named = [run or of_status for run, of_status in zip(table.cells(RUN_ID), statuses, strict=True)]
        known = {run for run in self._runs.intersection(named) if self.log.has_type(run, table.kernel_type)}
        if not known:
            return []
        rows = enumerate(zip(named, table.signatures, strict=True))
        return [
            position
            for position, (run, signature) in rows
            if run in known and not self.log.of_row(run, RowName(table.kernel_type, signature))
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
    found = EditedRows()
    example = None
    lookup = EditedLookup(database)
    if not lookup:
        return found
    for kernel_type in database.kernel_types_and_messages():
        try:
            table = database.read(kernel_type)
        except TableError:
            continue
        edited = lookup.in_table(table)
        if not edited:
            continue
        try:
            if run_id is not None:
                cleared = TableFold(table, log=lookup.log, by=run_id)
                for position in edited:
                    cleared.clear(position)
                cleared.write(database)
        except OpAtlasError as error:
            found.problems.append(str(error))
            continue
        found.positions[kernel_type] = edited
        example = example or RowName(kernel_type, table.signatures[edited[0]])
    return EditedRows(found.positions, example, found.problems)


def _complete_runs(database: Database) -> set[str]:
    """Returns the runs that are complete in the log. A remaining journal of a run may have records of any row."""
    with_journal = {path.name.partition(".jsonl")[0] for path in database.journal_dir.glob("*.jsonl*")}
    # With several devices the name of a journal has a suffix after the run id.
    return {
        run for run in log.runs(database) if not any(name == run or name.startswith(f"{run}-") for name in with_journal)
    }
