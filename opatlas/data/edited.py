"""Edited rows: somebody changed shapes, dtypes or lengths of a row after its run.

The log of the run that the row names has no record of a row with its present cells. So the duration and the status
belong to another case. A row whose run is not in the log is not edited.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from opatlas.data import log
from opatlas.data.database import Database
from opatlas.data.fold import TableFold
from opatlas.data.logged_rows import Log
from opatlas.errors import OpAtlasError, TableError
from opatlas.row.columns import RUN_ID, STATUS_RUN_ID
from opatlas.row.record import RowName
from opatlas.row.table import RowTable


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
            if run in known and not self.log.has_row(run, RowName(table.kernel_type, signature))
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
