"""How records change the rows of one table.

Samples of a sibling type (opatlas/row/siblings.py) belong to the launched row: its CSV is updated, or the row is
appended. They also fill the requested row, whose Status Reason names the launched type; the requested row is never
appended for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pandas as pd

from opatlas.data.cells import (
    TableEdit,
    crashes_cell,
    duration_columns,
    judged_cells,
    measured_cells,
    positions_by_key,
)
from opatlas.data.manifest import RunOrder
from opatlas.row.columns import (
    CRASHES_IN_A_ROW,
    MAX_ERROR,
    RUN_ID,
    STATUS,
    STATUS_GROUP,
    STATUS_REASON,
    Status,
    microbench_counter,
)
from opatlas.row.quality import valid_duration
from opatlas.row.record import Record
from opatlas.row.signature import signatures

#: The end of a Status Reason if the status is of a later run than the duration.
_LATER_RUN = re.compile(r" \[run ([^\[\]\s]+)\]\Z")


def with_later_run(reason: str, run_id: str) -> str:
    """Returns a Status Reason that names the run of its status."""
    return f"{reason} [run {run_id}]"


def split_later_run(reason: str) -> tuple[str, str]:
    """Returns a Status Reason without the run of its status, and the run; "" if the reason names none."""
    found = _LATER_RUN.search(reason) if reason else None
    return (reason[: found.start()], found[1]) if found else (reason, "")


@dataclass
class TypeRecords:
    """The records for the rows of a kernel type, by signature.

    Attributes:
        own: records of rows that were requested.
        of_siblings: records of rows that were launched for a sibling, and not requested themselves.
    """

    own: dict[str, Record] = field(default_factory=dict)
    of_siblings: dict[str, Record] = field(default_factory=dict)

    def all(self) -> dict[str, Record]:
        return {**self.own, **self.of_siblings}


def records_by_type(records: Iterable[Record]) -> dict[str, TypeRecords]:
    """Groups records by kernel type. The last record of a row counts."""
    found: dict[str, TypeRecords] = {}
    for record in records:
        found.setdefault(record.kernel_type, TypeRecords()).own[record.signature] = record
    for requested in [record for of_type in found.values() for record in of_type.own.values()]:
        launched = requested.launched_record()
        if launched is None:
            continue
        of_type = found.setdefault(launched.kernel_type, TypeRecords())
        own = of_type.own.get(launched.signature)
        if own is not None and own.measurement is not None and own.measurement.ran_as is not None:
            # The row's own record has samples of a sibling; these are samples of the row itself.
            del of_type.own[launched.signature]
            own = None
        if own is None:
            of_type.of_siblings[launched.signature] = launched
    return found


@dataclass
class RowChanges:
    """The changes of records to a table.

    Attributes:
        updated: records that measured rows, by position, with appended rows.
        appended: positions of rows that were appended.
        marked: positions of rows that received a status only.
        unchanged: the number of rows that already had the content of their record.
        outdated: records that were ignored, because the row has the result of a later run.
        missing: records without a row that were not appended.
    """

    updated: dict[int, Record] = field(default_factory=dict)
    appended: set[int] = field(default_factory=set)
    marked: set[int] = field(default_factory=set)
    unchanged: int = 0
    outdated: list[Record] = field(default_factory=list)
    missing: list[Record] = field(default_factory=list)


class TableUpdate:
    """A table in memory while records update it.

    Attributes:
        rows: the cells.
        positions: the positions of the rows, by signature.
    """

    def __init__(self, kernel_type: str, frame: pd.DataFrame) -> None:
        self.kernel_type = kernel_type
        self.rows = TableEdit(frame)
        self.positions = positions_by_key(signatures(kernel_type, frame))

    def apply(
        self, records: TypeRecords, *, append: bool, update_siblings: bool, order: RunOrder | None = None
    ) -> RowChanges:
        """Updates rows with records.

        Args:
            append: append rows for measured records without a row.
            update_siblings: append or update rows that were launched for a sibling. If False, these records fill only
                rows without a duration.
            order: keep the results of runs later than the record's; None: the records are the latest.
        """
        changes = RowChanges()
        for signature, record in records.all().items():
            if signature in self.positions:
                continue
            of_a_sibling = record.measurement is None or record.measurement.ran_as is not None
            if not of_a_sibling and (update_siblings if signature in records.of_siblings else append):
                position = self.rows.append(record.cells)
                self.positions[signature] = [position]
                changes.appended.add(position)
            else:
                changes.missing.append(record)
        measured, marks = self._match(records, update_siblings, order, changes.outdated)
        updated = self._set_measured(measured)
        changes.updated = {position: record for position, record, _ in measured if position in updated}
        changes.marked = {position for position, record in marks if self._set_status(position, record)}
        changes.unchanged = len(measured) + len(marks) - len(updated) - len(changes.marked)
        return changes

    def to_prune(self, records: Iterable[Record]) -> list[int]:
        """Returns the positions of rows that ran and have no valid duration, replayed or captured.

        Skipped and unsupported rows did not run. Checked rows have no work.
        """
        durations = [self.rows[column] for column in duration_columns(self.kernel_type)]
        return sorted(
            position
            for record in records
            if record.status not in (Status.SKIPPED, Status.UNSUPPORTED, Status.CHECKED)
            for position in self.positions.get(record.signature, ())
            if not any(valid_duration(cells[position]) for cells in durations)
        )

    def _match(
        self, records: TypeRecords, update_siblings: bool, order: RunOrder | None, outdated: list[Record]
    ) -> tuple[list[tuple[int, Record, bool]], list[tuple[int, Record]]]:
        """Matches records with rows.

        Args:
            outdated: receives the records that are ignored, because the row has the result of a later run.

        Returns:
            Position and record of each measured row, with whether the row keeps the status of a later run; position
            and record of each row that receives a status only.
        """
        names = duration_columns(self.kernel_type)
        measured, marks = [], []
        for signature, record in records.all().items():
            for position in self.positions.get(signature, ()):
                if record.measurement is None:
                    is_late = order is not None and self._has_later_status(position, record, order)
                    outdated.append(record) if is_late else marks.append((position, record))
                    continue
                # MISSING_ONLY: a row that was not requested keeps its duration, even if it was launched.
                is_by_product = signature in records.of_siblings and not update_siblings
                if is_by_product and any(valid_duration(self.rows[name][position]) for name in names):
                    continue
                if order is None:
                    measured.append((position, record, False))
                elif order.age(self._duration_run(position)) <= order.age(record.run_id):
                    measured.append((position, record, self._has_later_status(position, record, order)))
                else:
                    outdated.append(record)
        return measured, marks

    def _set_measured(self, measured: Sequence[tuple[int, Record, bool]]) -> set[int]:
        """Writes the cells of measured rows; returns the positions of changed rows."""
        changed: set[int] = set()
        later = [(position, self._status_run(position)) for position, _, has_later in measured if has_later]
        for position, record, has_later in measured:
            cells = measured_cells(record)
            if has_later:
                cells = {name: cell for name, cell in cells.items() if name not in STATUS_GROUP}
            if record.measurement:
                cells |= {microbench_counter(name): repr(value) for name, value in record.measurement.counters.items()}
            if self.rows.set_cells(position, cells):
                changed.add(position)
        for position, run_id in later:
            reason = self.rows[STATUS_REASON][position]
            if not split_later_run(reason)[1]:
                self.rows[STATUS_REASON][position] = with_later_run(reason, run_id)
        return changed

    def _set_status(self, position: int, record: Record) -> bool:
        """Writes the status of a row that was not measured; keeps durations. Returns whether a cell changed."""
        there = Status.from_cell(self.rows[STATUS][position])
        if record.status is Status.SKIPPED and there not in (None, Status.SKIPPED):
            # A skipped row keeps the status of an earlier run.
            return False
        cells = {
            STATUS: record.status.value,
            STATUS_REASON: record.reason,
            CRASHES_IN_A_ROW: crashes_cell(record),
            **judged_cells(record),
        }
        if self._has_duration(position):
            # The Run ID column belongs to the duration.
            cells[STATUS_REASON] = with_later_run(record.reason, record.run_id)
        else:
            cells[RUN_ID] = record.run_id
            if record.judged:
                cells[MAX_ERROR] = record.judged.get(MAX_ERROR, "")
        return self.rows.set_cells(position, cells)

    def _has_later_status(self, position: int, record: Record, order: RunOrder) -> bool:
        """Returns whether the status of the row is of a later run than the record's."""
        there = Status.from_cell(self.rows[STATUS][position])
        if there is None or (there is Status.SKIPPED and record.status is not Status.SKIPPED):
            return False
        return order.age(self._status_run(position)) > order.age(record.run_id)

    def _has_duration(self, position: int) -> bool:
        return valid_duration(self.rows[duration_columns(self.kernel_type)[0]][position]) is not None

    def _duration_run(self, position: int) -> str:
        return self.rows[RUN_ID][position] if self._has_duration(position) else ""

    def _status_run(self, position: int) -> str:
        later = split_later_run(self.rows[STATUS_REASON][position])[1] if self._has_duration(position) else ""
        return later or self.rows[RUN_ID][position]
