"""The fold: of which run each group of a row's cells is. Nothing else decides this, and nothing else changes a CSV.

The cells of a row are in groups. A group moves as a whole, so that no row mixes two measurements:

duration    what replays measured, and how: of the newest run that measured the row
status      Status and its reason, what a judged kernel got: of the newest run that ran the row
captured    Profiling columns: computed from the launches of all ingests (opatlas/capture), else as they came
pooled      Pooled columns: computed by opatlas/data/pool.py
others      the identity of the row, lengths of attention, columns of other tools: only empty cells are filled

The order is that of the starts of runs (`RunOrder`), and within a run that of the records. So the CSVs are a function
of the runs, whatever the order in which these come. Cells that a person or another tool changed stay until a newer run
measures the row. They are then kept in the log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from opatlas.data.cells import Candidate, FoldChanges, RunCells, status_part
from opatlas.data.csv_files import TableEdit
from opatlas.data.database import PRUNED_REASON, Database
from opatlas.data.log import Imported, Log, add_events
from opatlas.data.manifest import Age, RunOrder
from opatlas.grouping import grouped, positions_by_key
from opatlas.row import columns as col
from opatlas.row.quality import valid_duration
from opatlas.row.record import RowName
from opatlas.row.signature import signature
from opatlas.row.slots import EMPTY_SHAPE
from opatlas.row.status import Status
from opatlas.row.table import RowTable


class TableFold:
    """A table in memory while runs are folded into it, and the only writer of its CSV.

    Attributes:
        rows: the cells.
        signatures: the signature of each row.
        positions: the positions of the rows, by signature.
        replaced: the rows whose durations the log is to keep, by the run that replaces them.
    """

    def __init__(
        self,
        table: RowTable,
        order: RunOrder | None = None,
        log: Log | None = None,
        *,
        pruned: Collection[str] = (),
        by: str = "",
    ) -> None:
        """
        Args:
            order: the order of runs; None for changes that bring no duration.
            log: the records of earlier runs; None: durations that are replaced are not kept in the log.
            pruned: the signatures of rows that are not appended again.
            by: the run in whose log replaced durations are kept; default: the run that replaces them.
        """
        self.kernel_type = table.kernel_type
        self.rows = TableEdit(table)
        self.signatures = [*table.signatures]
        self.positions = positions_by_key(self.signatures)
        self._table = table
        self._order = order or RunOrder()
        self._log = log
        self._pruned = pruned
        self._by = by
        self._kind = table.kind
        self._replayed: list[str] = []
        self._columns_before = 0
        self.replaced: dict[str, list[Imported]] = {}
        #: The rows that have the duration of a record of this fold.
        self._recorded: set[int] = set()
        #: The rows that leave the table, and the content of the rows for the file of pruned rows.
        self._gone: set[int] = set()
        self._set_aside: list[Mapping[str, str]] = []

    def fold(self, candidates: Iterable[Candidate]) -> FoldChanges:
        """Brings what runs have of the rows into the table."""
        changes = FoldChanges()
        for name, of_row in grouped((each.signature, each) for each in candidates).items():
            if name not in self.positions:
                first = next((each for each in of_row if each.appends), None)
                if first is None or name in self._pruned:
                    changes.missing += of_row
                    continue
                changes.appended.add(self.append({key: cell for key, cell in first.cells.items() if cell}, name))
                if first.record is None:
                    # A row of another table comes with all of its cells.
                    of_row = [each for each in of_row if each is not first]
            for position in self.positions[name]:
                # Read before the duration moves: where no cell names the run of a status, it is that of the duration.
                status = self.status_of(position)
                self._fold_duration(position, of_row, changes)
                self._fold_status(position, status, of_row, changes)
                for each in of_row:
                    taken = each.captured is not None and self._take_captured(position, each.captured)
                    if self.fill(position, each.others) or taken:
                        changes.changed.add(position)
        return changes

    def append(self, cells: Mapping[str, str], name: str = "") -> int:
        """Appends a row and returns its position.

        An empty shape cell, of a single 0-dim tensor, becomes `""`, as profilers write it: pandas reads an empty cell
        as missing, and the loader of msmodeling fails.

        Args:
            name: the signature, if it is known.
        """
        for shapes, dtypes in ((col.INPUT_SHAPES, col.INPUT_DTYPES), (col.OUTPUT_SHAPES, col.OUTPUT_DTYPES)):
            if cells.get(dtypes) and not cells.get(shapes):
                cells = {**cells, shapes: EMPTY_SHAPE}
        # A column that the CSV lacks is added only for a cell.
        position = self.rows.append({key: cell for key, cell in cells.items() if cell or key in self._table.columns})
        name = name or signature(self.kernel_type, cells)
        self.positions.setdefault(name, []).append(position)
        self.signatures.append(name)
        return position

    def append_missing(self, rows: Iterable[Mapping[str, str]]) -> int:
        """Appends the rows that the table lacks and that were not pruned, each once; returns their number."""
        before = len(self.rows)
        for cells in rows:
            name = signature(self.kernel_type, cells)
            if name not in self.positions and name not in self._pruned:
                self.append(cells, name)
        return len(self.rows) - before

    def fill(self, position: int, cells: Mapping[str, str]) -> bool:
        """Fills the empty ones of some cells. Returns whether a cell changed."""
        empty = {name: cell for name, cell in cells.items() if not self.rows[name][position]}
        return self.rows.set_cells(position, empty)

    def put_duration(self, position: int, part: RunCells) -> bool:
        """Gives a row a duration; what it replaces is kept in the log. Returns whether a cell changed."""
        own, status = self._own_duration(position), self.status_of(position)
        if own is not None and self._differ(own, part):
            self._keep_own(position, part.run_id)
        if status is not None and not self.rows[col.STATUS_RUN_ID][position]:
            # The run of a status is written into its own column, before the run of the duration changes.
            named = {name: status.cells[name] for name in (col.STATUS_REASON, col.STATUS_RUN_ID)}
            self.rows.set_cells(position, named)
        (self._recorded.add if part.is_record else self._recorded.discard)(position)
        return self.rows.set_cells(position, {**dict.fromkeys(self._replayed_columns(), ""), **part.cells})

    def clear(self, position: int) -> None:
        """Empties duration, status and pooled cells of a row, whose cells are of another case now."""
        if self.has_duration(position):
            self._keep(self._by, self._cells(position), "edited")
        self.rows.set_cells(position, dict.fromkeys((name for name in col.POOLED if name in self.rows.columns), ""))
        self.clear_measured([position])

    def clear_measured(self, positions: Sequence[int]) -> None:
        """Empties duration and status of rows, which their runs bring again. A text that is no duration stays."""
        column = self._kind.duration_columns[0]
        names = [name for name in self.rows.columns if self._kind.is_measured(name)]
        self.rows.empty([at for at in positions if self.has_duration(at)], [column])
        self.rows.empty(positions, [name for name in names if name != column])

    def prune(self, reasons: Mapping[int, str]) -> None:
        """Moves rows to the pruned ones, each with its reason."""
        self._gone |= reasons.keys()
        self.set_aside([{**self._cells(position), PRUNED_REASON: reason} for position, reason in reasons.items()])

    def set_aside(self, rows: Iterable[Mapping[str, str]]) -> None:
        """Adds rows to the pruned ones, before the CSV is written."""
        self._set_aside += rows

    def keep_rows(self, before: RowTable, positions: Iterable[int]) -> None:
        """Has the log keep the durations of rows that are other ones now."""
        column = self._kind.duration_columns[0]
        for position in positions:
            if before.replayed.known[position] and before.cells(column)[position] != self.rows[column][position]:
                row = before.row(position).cells
                if not self._is_kept(before.signatures[position], row):
                    self._keep(self._by or self.rows[col.RUN_ID][position], row)

    def has_duration(self, position: int) -> bool:
        """Returns whether a row has the duration of a replay."""
        return valid_duration(self.rows[self._kind.duration_columns[0]][position]) is not None

    def has_any_duration(self, position: int) -> bool:
        """Returns whether a row has a duration, replayed or captured."""
        return any(valid_duration(self.rows[name][position]) is not None for name in self._kind.duration_columns)

    def write(self, database: Database) -> RowTable:
        """Writes the CSV in one step if a cell changed, after all that it loses is in the log or with the pruned rows.

        The caller holds the lock. Returns the table.

        Raises:
            OpAtlasError: a file cannot be written; the CSV is as it was.
        """
        table = self.rows.table()
        keep_replaced(database, [self])
        if self._set_aside:
            database.add_pruned(self.kernel_type, self._set_aside)
        table = table.without(self._gone) if self._gone else table
        if not table.arrow.equals(self._table.arrow):
            database.write(table)
        return table

    def _fold_duration(self, position: int, candidates: Sequence[Candidate], changes: FoldChanges) -> None:
        with_one = [each for each in candidates if each.duration is not None]
        direct = [each for each in with_one if not each.by_product]
        if not direct and self.has_any_duration(position):
            return
        for candidate in sorted(direct or with_one, key=lambda each: self._key(each.duration)):
            part, own = candidate.duration, self._own_duration(position)
            assert part is not None
            if self._is_newer(position, candidate, part, own):
                if self.put_duration(position, part):
                    changes.changed.add(position)
                changes.measured[position] = candidate
            elif candidate.record is not None:
                changes.outdated.append((position, candidate))
            elif (
                own is not None and self._differ(own, part) and not self._is_kept(candidate.signature, candidate.cells)
            ):
                self._keep(self._by or own.run_id, candidate.cells)

    def _own_duration(self, position: int) -> RunCells | None:
        if not self.has_duration(position):
            return None
        column = self._kind.duration_columns[0]
        return RunCells(self.rows[col.RUN_ID][position], {column: self.rows[column][position]})

    def _differ(self, own: RunCells, other: RunCells) -> bool:
        column = self._kind.duration_columns[0]
        # Of one run, and without a run id, different durations are different measurements.
        return own.run_id != other.run_id or (
            valid_duration(own.cells[column]) != valid_duration(other.cells.get(column, ""))
        )

    def _is_newer(self, position: int, candidate: Candidate, part: RunCells, own: RunCells | None) -> bool:
        if own is None:
            return True
        if own.run_id == part.run_id:
            return self._counts_in_run(candidate, part, own)
        pooled = self.rows[col.POOLED_RUN_DURATIONS][position]
        if pooled and own.run_id in pooled and part.run_id in pooled:
            # The row has the duration of the run that stands for both.
            return False
        return self._order.age(part.run_id) > self._order.age(own.run_id)

    def _counts_in_run(self, candidate: Candidate, part: RunCells, own: RunCells) -> bool:
        """Returns whether a duration replaces another one of the same run."""
        if part.is_record:
            return True
        if self._log is None or not self._differ(own, part):
            return False
        # Two rows of one run differ if the run measured the row twice: the later record counts.
        column = self._kind.duration_columns[0]
        return self._log.is_last(
            part.run_id, RowName(self.kernel_type, candidate.signature), part.cells.get(column, "")
        )

    def _fold_status(
        self, position: int, own: RunCells | None, candidates: Sequence[Candidate], changes: FoldChanges
    ) -> None:
        # A by-product that the row has no use for decides nothing.
        used = [each for each in candidates if not each.by_product or changes.measured.get(position) is each]
        there = [each for each in used if each.status is not None]
        ran = [each for each in there if each.status is not None and each.status.status is not Status.SKIPPED]
        if own is not None and own.status is not Status.SKIPPED:
            there = ran
        newest = max(ran or there, key=self._status_key, default=None)
        if newest is None or newest.status is None:
            # A row that was not run keeps what earlier runs found out.
            for each in candidates:
                if each.record is not None:
                    changes.marked[position] = each
            return
        part = newest.status
        is_own_run = own is not None and own.run_id == part.run_id
        is_first = own is None or (own.status is Status.SKIPPED and part.status is not Status.SKIPPED)
        if own is None or is_first or (is_own_run and part.is_record):
            taken = True
        elif is_own_run:
            # Of two rows of one run, of which the log does not say which was later, the one with a duration counts.
            last = self._logged(newest.signature).get(part.run_id, Status.MEASURED)
            taken = part.status is last and (own.status is not last or changes.measured.get(position) is newest)
        else:
            taken = self._order.age(part.run_id) > self._order.age(own.run_id)
        if not taken:
            if newest.duration is None and newest.record is not None:
                changes.outdated.append((position, newest))
            assert own is not None
            if own.status is not None and own.status.crash and self._logged(candidates[0].signature):
                # An earlier run came late.
                self._set_status(position, {col.CRASHES_IN_A_ROW: self._crashes(own, own, there)}, changes)
            return
        cells = dict(part.cells)
        if not self.has_duration(position):
            # Without a duration no run is that of one, and the largest error is that of the judged kernel.
            cells[col.RUN_ID] = ""
        else:
            cells.pop(col.MAX_ERROR, None)
            if not part.is_record and self.rows[col.RUN_ID][position] == part.run_id:
                # The row it comes from had both, as this one has now.
                cells[col.STATUS_RUN_ID] = newest.cells.get(col.STATUS_RUN_ID, "")
        cells[col.CRASHES_IN_A_ROW] = self._crashes(part, own, there)
        self._set_status(position, cells, changes)
        if newest.duration is None:
            changes.marked[position] = newest

    def _status_key(self, candidate: Candidate) -> tuple[tuple[Age, float], bool]:
        """Returns a sort key. Of two rows of one run that do not say which was later, the measured one counts."""
        part = candidate.status
        return self._key(part), part is not None and part.status is Status.MEASURED

    def status_of(self, position: int) -> RunCells | None:
        """Returns the status of a row; None for a row that never ran."""
        names = (*col.STATUS_GROUP, col.MAX_ERROR, col.RUN_ID)
        cells = {name: self.rows[name][position] for name in names}
        return status_part(cells, has_duration=self.has_duration(position))

    def _set_status(self, position: int, cells: Mapping[str, str], changes: FoldChanges) -> None:
        if self.rows.set_cells(position, cells):
            changes.changed.add(position)

    def _crashes(self, newest: RunCells, own: RunCells | None, candidates: Sequence[Candidate]) -> str:
        """Returns a cell with the number of consecutive runs that crashed up to the newest; those that skipped pass.

        Args:
            own: the status that the row had; None if it had none.
            candidates: of further runs, which may be later ones. Records among them are the last of their runs.
        """
        if newest.status is None or not newest.status.crash:
            return ""
        counted = [part for part in (*(each.status for each in candidates), own) if part is not None]
        counted.sort(key=lambda part: (part.status is newest.status, part.status is not None, part.crashes))
        # Of other tables a status without a run has no place in the order.
        parts = {part.run_id: part for part in counted if part.run_id or part in (newest, own)}
        if not newest.is_record or any(run_id not in (newest.run_id, own and own.run_id) for run_id in parts):
            # Late; the count in a cell does not say which runs it counted.
            new = {part.run_id for part in counted if part.is_record and part.status is not Status.SKIPPED}
            logged = self._logged(candidates[0].signature).items()
            parts |= {run: RunCells(run, {col.STATUS: status.value}) for run, status in logged if run not in new}
        count = 0
        for part in sorted(parts.values(), key=self._key):
            if part.status is not None and part.status.crash:
                count = max(count + 1, part.crashes)
            elif part.status is not Status.SKIPPED:
                count = 0
            if part.run_id == newest.run_id:
                break
        return str(count or "")

    def _logged(self, name: str) -> Mapping[str, Status]:
        """Returns the statuses of a row in the runs of the log."""
        return {} if self._log is None else self._log.statuses(RowName(self.kernel_type, name))

    def _take_captured(self, position: int, cells: Mapping[str, str]) -> bool:
        """Gives a row captured cells if they have a duration and the row has none; returns whether it took them."""
        if valid_duration(self.rows[col.PROFILING_AVERAGE][position]) is not None:
            return False
        names = [name for name in self.rows.columns if col.is_profiling_column(name)]
        if _captured_rank(cells) <= _captured_rank({name: self.rows[name][position] for name in names}):
            return False
        return self.rows.set_cells(position, {**dict.fromkeys(names, ""), **cells})

    def _replayed_columns(self) -> Sequence[str]:
        """Returns the columns of replayed durations; an earlier duration may have brought further counters."""
        if self._columns_before != len(self.rows.columns):
            self._columns_before = len(self.rows.columns)
            self._replayed = [name for name in self.rows.columns if self._kind.is_replayed(name)]
        return self._replayed

    def _keep_own(self, position: int, by: str) -> None:
        names = col.RUN_ID, self._kind.duration_columns[0]
        own = {name: self.rows[name][position] for name in names}
        if position not in self._recorded and not self._is_kept(self.signatures[position], own):
            self._keep(self._by or by, self._cells(position))

    def _keep(self, by: str, cells: Mapping[str, str], why: Literal["replaced", "edited"] = "replaced") -> None:
        """Has the log keep a row with its duration."""
        if self._log is not None:
            row = {column: cell for column, cell in cells.items() if cell}
            self.replaced.setdefault(by, []).append(Imported(self.kernel_type, row, why))

    def _is_kept(self, name: str, cells: Mapping[str, str]) -> bool:
        """Returns whether the log has the duration of a row."""
        if self._log is None:
            return False
        row, run_id = RowName(self.kernel_type, name), cells.get(col.RUN_ID, "")
        duration = cells.get(self._kind.duration_columns[0], "")
        return self._log.explains(run_id, row, duration) or self._log.has_imported(run_id, row, duration)

    def _cells(self, position: int) -> dict[str, str]:
        return {name: self.rows[name][position] for name in self.rows.columns}

    def _key(self, part: RunCells | None) -> tuple[Age, float]:
        assert part is not None
        return self._order.age(part.run_id), part.at


def _captured_rank(cells: Mapping[str, str]) -> int:
    return 2 if valid_duration(cells.get(col.PROFILING_AVERAGE, "")) is not None else int(any(cells.values()))


def keep_replaced(database: Database, folds: Sequence[TableFold]) -> None:
    """Has the log keep what tables lose, of all of them at once: each addition reads what the log of the run has.

    Raises:
        OpAtlasError: the log cannot be written; the tables keep it when they are written.
    """
    replaced = ((run_id, event) for fold in folds for run_id, kept in fold.replaced.items() for event in kept)
    for run_id, events in grouped(replaced).items():
        add_events(database, run_id, events)
    for fold in folds:
        fold.replaced.clear()


def add_rows(database: Database, rows: Mapping[str, Iterable[Mapping[str, str]]]) -> int:
    """Appends rows that a database neither has nor has pruned, and returns their number.

    Args:
        rows: rows without durations, by kernel type.

    Raises:
        OpAtlasError: a file cannot be read or written.
    """
    added = 0
    for kernel_type, cells in rows.items():
        with database.lock():
            fold = TableFold(database.read_or_empty(kernel_type), pruned=database.pruned(kernel_type).signatures)
            added += fold.append_missing(cells)
            fold.write(database)
    return added
