"""Rows that were edited after a run told of them: what they hold is the duration or the status of another case.

The Run ID of a row leads to the history of the run, which has the cells of each row that the run had. A row
that is not among these was given other shapes, dtypes or lengths since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from opatlas.errors import OpAtlasError, TableError
from opatlas.model.communication import COLLECTIVES
from opatlas.model.quality import valid_duration
from opatlas.model.record import RowName
from opatlas.model.schema import POOLED, RUN_ID
from opatlas.model.signature import signatures
from opatlas.store import history
from opatlas.store.csv_files import Database, Table
from opatlas.store.history import Histories, keep_edited
from opatlas.store.merge_rule import duration_columns, is_measured_column


@dataclass(frozen=True)
class EditedRows:
    """The rows that were found.

    Attributes:
        positions: by kernel type, from 0.
        example: one of them; None if there are none.
        problems: files that could not be written, so that their rows are as they were.
    """

    positions: dict[str, list[int]] = field(default_factory=dict)
    example: RowName | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(map(len, self.positions.values()))


class EditedLookup:
    """Tells which rows of a database's tables were edited; it is false if no run has a history to tell by."""

    def __init__(self, database: Database) -> None:
        self._runs = _whole_histories(database)
        self._histories = Histories(database)

    def __bool__(self) -> bool:
        return bool(self._runs)

    def in_table(self, kernel_type: str, frame: pd.DataFrame) -> dict[int, str]:
        """Returns the signatures of the edited rows of a table, by position from 0."""
        if RUN_ID not in frame.columns:
            return {}
        run_ids = frame[RUN_ID].tolist()
        known = {run for run in self._runs.intersection(run_ids) if self._histories.tell_of_type(run, kernel_type)}
        if not known:
            return {}
        return {
            position: signature
            for position, (run, signature) in enumerate(zip(run_ids, signatures(kernel_type, frame), strict=True))
            if run in known and not self._histories.tell_of(run, RowName(kernel_type, signature))
        }


def find_edited(database: Database) -> EditedRows:
    """Finds the rows of a database that were edited; writes nothing. A file that cannot be read is left to others."""
    return _each_edited(database, None)


def clear_edited(database: Database, run_id: str) -> EditedRows:
    """Clears what edited rows hold of their old shapes; first, the rows are kept in the folder of the run `run_id`.

    Raises:
        OpAtlasError: the database cannot be locked.
    """
    if not history.runs(database):
        return EditedRows()
    with database.lock():
        return _each_edited(database, run_id)


def without_measurement(kernel_type: str, frame: pd.DataFrame, positions: Sequence[int]) -> pd.DataFrame:
    """The rows of a table, of which some hold nothing that a replay found out."""
    return _without(frame, positions, [name for name in frame.columns if is_measured_column(kernel_type, name)])


def _without(frame: pd.DataFrame, positions: Sequence[int], columns: Sequence[str]) -> pd.DataFrame:
    cleared = {}
    for name in columns:
        cells = frame[name].tolist()
        for position in positions:
            cells[position] = ""
        cleared[name] = cells
    result: pd.DataFrame = frame.assign(**cleared)
    return result


def _each_edited(database: Database, run_id: str | None) -> EditedRows:
    """`run_id` is the run that clears the rows; None: they stay as they are."""
    found = EditedRows()
    example = None
    lookup = EditedLookup(database)
    if not lookup:
        return found
    messages = [each.kernel_type for each in COLLECTIVES if database.csv_path(each.kernel_type).is_file()]
    for kernel_type in (*database.kernel_types(), *messages):
        try:
            table = database.read(kernel_type)
        except TableError:
            continue
        edited = lookup.in_table(kernel_type, table.frame)
        if not edited:
            continue
        try:
            if run_id is not None:
                _clear(database, table, list(edited), run_id)
        except OpAtlasError as error:
            found.problems.append(str(error))
            continue
        found.positions[kernel_type] = list(edited)
        example = example or RowName(kernel_type, next(iter(edited.values())))
    return EditedRows(found.positions, example, found.problems)


def _whole_histories(database: Database) -> set[str]:
    """Runs all of whose records are in their history: a journal that is left may tell of any row."""
    with_journal = {path.name.partition(".")[0] for path in database.journal_dir.glob("*.jsonl*")}
    runs = history.runs(database)
    # With several devices a journal has a part after its run id.
    return {run for run in runs if not any(name == run or name.startswith(f"{run}-") for name in with_journal)}


def _clear(database: Database, table: Table, edited: Sequence[int], run_id: str) -> None:
    kernel_type, frame = table.kernel_type, table.frame
    own_duration = duration_columns(kernel_type)[0]
    durations = frame[own_duration].tolist() if own_duration in frame.columns else [""] * len(frame)
    held = [position for position in edited if valid_duration(durations[position]) is not None]
    if held:
        keep_edited(database, run_id, kernel_type, frame.iloc[held])
    pooled = [name for name in POOLED if name in frame.columns]
    cleared = _without(without_measurement(kernel_type, frame, edited), edited, pooled)
    database.write(Table(kernel_type, table.path, cleared))
