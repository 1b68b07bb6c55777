"""The merge rule: what records do to the rows of one table.

Samples of a sibling (opatlas.model.siblings) are those of the row of the type that really ran: its
CSV is where they are updated or appended. They fill the row that was asked for too, which says so in
its Status Reason, and are never appended there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from opatlas.model.communication import BY_KERNEL_TYPE, bandwidth_gbps, is_communication
from opatlas.model.quality import Summary, valid_duration
from opatlas.model.record import Measurement, Record
from opatlas.model.schema import (
    ASSUMPTIONS,
    AVERAGE,
    BANDWIDTH,
    BASE,
    BUS_BANDWIDTH,
    CACHE_STATE,
    CHECKED_ELEMENTS,
    CRASHES_IN_A_ROW,
    DURATION,
    INPUT_SHAPES,
    INSTRUMENT,
    MESSAGE,
    MESSAGE_BYTES,
    MICROBENCH_DEVICE_KERNELS,
    MICROBENCH_HELPER_KERNELS,
    MICROBENCH_MEDIAN,
    MICROBENCH_MIN,
    MICROBENCH_SAMPLES,
    MICROBENCH_STD,
    NUM_DEVICES,
    PROFILING_AVERAGE,
    QUALITY,
    QUALITY_REASON,
    RUN_ID,
    STAND_IN,
    STATUS,
    STATUS_GROUP,
    STATUS_REASON,
    Status,
    microbench_counter,
    of_microbench,
)
from opatlas.model.signature import signatures
from opatlas.store.csv_files import Database, read_frame, write_frame
from opatlas.store.manifest import RunOrder
from opatlas.store.table_edit import TableEdit, positions_by

#: Decimals of a stored duration: a tenth of a nanosecond, below what any clock here resolves.
_DECIMALS = 4


def identity_columns(kernel_type: str) -> Sequence[str]:
    """What a new file of a kernel type has at least."""
    return MESSAGE if is_communication(kernel_type) else BASE


def duration_columns(kernel_type: str) -> Sequence[str]:
    """Columns of which any may hold the duration of a row, whoever wrote it; OpAtlas writes the first one."""
    return (DURATION, AVERAGE, PROFILING_AVERAGE) if is_communication(kernel_type) else (AVERAGE, PROFILING_AVERAGE)


def stored_us(kernel_type: str, summary: Summary) -> float:
    """The duration of a row in microseconds: of a kernel the mean of its samples, of a message their median."""
    return summary.median_us if is_communication(kernel_type) else summary.mean_us


def is_measured_column(kernel_type: str, column: str) -> bool:
    """Whether a column of a table holds what a replay found out of a row: durations, how they were taken, status."""
    of_message = is_communication(kernel_type)
    if of_message and column in (DURATION, BANDWIDTH, BUS_BANDWIDTH):
        return True
    return column in STATUS_GROUP or (of_microbench(column) and not (of_message and column == AVERAGE))


def measured_cells(record: Record) -> dict[str, str]:
    """What a measurement fills of a row, by column, but for its counters; alike for all records of a kernel type."""
    measurement = record.measurement
    assert measurement is not None
    summary, verdict = measurement.summary, measurement.verdict
    durations = _of_message if is_communication(record.kernel_type) else _of_kernel
    return {
        **durations(record, summary),
        MICROBENCH_MIN: microseconds(summary.min_us),
        # One sample has no spread; 0 would say that it has none.
        MICROBENCH_STD: microseconds(summary.std_us) if summary.count > 1 else "",
        MICROBENCH_SAMPLES: str(summary.count),
        MICROBENCH_DEVICE_KERNELS: "" if measurement.device_kernels is None else str(measurement.device_kernels),
        MICROBENCH_HELPER_KERNELS: helpers_cell(measurement.helper_kernels),
        CACHE_STATE: measurement.cache_state,
        INSTRUMENT: measurement.instrument,
        QUALITY: verdict.quality.value,
        QUALITY_REASON: verdict.reason,
        ASSUMPTIONS: "; ".join(measurement.assumptions),
        CHECKED_ELEMENTS: _checked(measurement),
        STAND_IN: measurement.stand_in,
        STATUS: Status.MEASURED.value,
        STATUS_REASON: _remark(record),
        CRASHES_IN_A_ROW: crashes_cell(record),
        RUN_ID: record.run_id,
    }


def _checked(measurement: Measurement) -> str:
    """`4096/1048576`; empty where nothing was compared."""
    total = measurement.total_elements
    return f"{measurement.checked_elements}/{total}" if total else ""


def helpers_cell(helper_kernels: Mapping[str, float]) -> str:
    """Of MicroBench Helper Kernels: `Cast 2.1000; TransQuantParamV2 1.2000`."""
    return "; ".join(f"{kernel_type} {microseconds(us)}" for kernel_type, us in helper_kernels.items())


def crashes_cell(record: Record) -> str:
    """Of Crashes In A Row."""
    return str(record.crashes_in_a_row or "")


def microseconds(value: float) -> str:
    """A duration as a cell."""
    return f"{value:.{_DECIMALS}f}"


def _of_kernel(record: Record, summary: Summary) -> dict[str, str]:
    return {
        AVERAGE: microseconds(stored_us(record.kernel_type, summary)),
        MICROBENCH_MEDIAN: microseconds(summary.median_us),
    }


def _of_message(record: Record, summary: Summary) -> dict[str, str]:
    message_bytes, num_devices = int(record.cells[MESSAGE_BYTES]), int(record.cells[NUM_DEVICES])
    gbps = bandwidth_gbps(message_bytes, summary.median_us)
    bus_gbps = BY_KERNEL_TYPE[record.kernel_type].bus_bandwidth_gbps(message_bytes, num_devices, summary.median_us)
    return {
        DURATION: microseconds(stored_us(record.kernel_type, summary)),
        # Six digits at any size: a kilobyte is slow, and its bandwidth a small number.
        BANDWIDTH: f"{gbps:.6g}",
        BUS_BANDWIDTH: f"{bus_gbps:.6g}",
    }


def _remark(record: Record) -> str:
    """What the Status Reason of a measured row says: nothing, where its own call was measured."""
    what_ran = record.of_what_ran()
    if what_ran is None:
        return record.reason
    ran_as = f"ran as {what_ran.kernel_type}"
    if what_ran.signature != record.signature:
        ran_as += f" on {what_ran.cells.get(INPUT_SHAPES, '')}"
    return "; ".join(text for text in (ran_as, record.reason) if text)


#: At the end of the Status Reason of a row whose duration is of another run than its status.
_STATUS_RUN = re.compile(r" \[run ([^\]]+)\]$")


@dataclass
class RecordsOfType:
    """The records that count for the rows of a kernel type, by signature.

    Attributes:
        own: about the rows themselves.
        brought: samples of rows that ran for a sibling's row, and that no record of their own tells of.
    """

    own: dict[str, Record] = field(default_factory=dict)
    brought: dict[str, Record] = field(default_factory=dict)

    def all(self) -> dict[str, Record]:
        return {**self.own, **self.brought}


def by_type(records: Iterable[Record]) -> dict[str, RecordsOfType]:
    """The records that count for each kernel type. Of several about one row, the last counts."""
    found: dict[str, RecordsOfType] = {}
    for record in records:
        found.setdefault(record.kernel_type, RecordsOfType()).own[record.signature] = record
    for asked in [record for of_type in found.values() for record in of_type.own.values()]:
        brought = asked.of_what_ran()
        if brought is None:
            continue
        of_type = found.setdefault(brought.kernel_type, RecordsOfType())
        own = of_type.own.get(brought.signature)
        if own is not None and own.measurement is not None and own.measurement.ran_as is not None:
            # It was filled by a sibling itself, and here are samples of its very own.
            del of_type.own[brought.signature]
            own = None
        if own is None:
            of_type.brought[brought.signature] = brought
    return found


@dataclass
class Changes:
    """What records did to the rows of a table.

    Attributes:
        updated: the records that measured rows anew, by position; rows that were appended are among them.
        appended: positions of the rows that were not there.
        marked: positions of the rows that only got a status.
        unchanged: how many rows hold what their record says already.
        stayed: records whose row holds what a later run found out.
        missing: records whose row is not there, and was not appended.
    """

    updated: dict[int, Record] = field(default_factory=dict)
    appended: set[int] = field(default_factory=set)
    marked: set[int] = field(default_factory=set)
    unchanged: int = 0
    stayed: list[Record] = field(default_factory=list)
    missing: list[Record] = field(default_factory=list)


class TableMerge:
    """The rows of a table while records are merged into them, in memory.

    Attributes:
        rows: the cells.
        positions: of the rows, by signature.
    """

    def __init__(self, kernel_type: str, frame: pd.DataFrame) -> None:
        self.kernel_type = kernel_type
        self.rows = TableEdit(frame)
        self.positions = positions_by(signatures(kernel_type, frame))

    def apply(
        self, records: RecordsOfType, *, append: bool, brought_too: bool, order: RunOrder | None = None
    ) -> Changes:
        """Brings rows up to date with records.

        Args:
            append: append the rows of records that were measured and have no row.
            brought_too: append or update rows that nobody asked for, and that ran for a sibling's row. If
                not, such samples fill only rows without a duration.
            order: leave what later runs than a record's found out; None: the records are the latest.
        """
        changes = Changes()
        for signature, record in records.all().items():
            if signature in self.positions:
                continue
            of_a_sibling = record.measurement is None or record.measurement.ran_as is not None
            if not of_a_sibling and (brought_too if signature in records.brought else append):
                position = self.rows.append(record.cells)
                self.positions[signature] = [position]
                changes.appended.add(position)
            else:
                changes.missing.append(record)
        measured, marks = self._matched(records, brought_too, order, changes.stayed)
        updated = self._set_measured(measured)
        changes.updated = {position: record for position, record, _ in measured if position in updated}
        changes.marked = {position for position, record in marks if self._set_status(position, record)}
        changes.unchanged = len(measured) + len(marks) - len(updated) - len(changes.marked)
        return changes

    def to_prune(self, records: Iterable[Record]) -> list[int]:
        """Positions of the rows that these records ran and that have no valid duration, replayed or captured.

        A row that this device does not support, or for which something was not set up, was not run. One that was too
        noisy is to be measured again.
        """
        durations = [self.rows[column] for column in duration_columns(self.kernel_type)]
        return sorted(
            position
            for record in records
            if record.status not in (Status.SKIPPED, Status.UNSUPPORTED, Status.NOISY)
            for position in self.positions.get(record.signature, ())
            if not any(valid_duration(cells[position]) for cells in durations)
        )

    def _matched(
        self, records: RecordsOfType, brought_too: bool, order: RunOrder | None, stayed: list[Record]
    ) -> tuple[list[tuple[int, Record, bool]], list[tuple[int, Record]]]:
        """The rows that records measured, each with whether its status is of a later run; and those only marked.

        Args:
            stayed: gets the records that are not to change their rows, since a later run found out more.
        """
        names = duration_columns(self.kernel_type)
        measured, marks = [], []
        for signature, record in records.all().items():
            for position in self.positions.get(signature, ()):
                if record.measurement is None:
                    is_late = order is not None and self._has_later_status(position, record, order)
                    stayed.append(record) if is_late else marks.append((position, record))
                    continue
                only_came_by = signature in records.brought and not brought_too
                if only_came_by and any(valid_duration(self.rows[name][position]) for name in names):
                    continue
                if order is None:
                    measured.append((position, record, False))
                elif order.age(self._duration_run(position)) <= order.age(record.run_id):
                    measured.append((position, record, self._has_later_status(position, record, order)))
                else:
                    stayed.append(record)
        return measured, marks

    def _set_measured(self, measured: Sequence[tuple[int, Record, bool]]) -> set[int]:
        """Brings rows up to date with their measurement; the positions of those that changed."""
        changed: set[int] = set()
        later = [(position, self._status_run(position)) for position, _, has_later in measured if has_later]
        # A column at a time: a session may have measured every row of a large table.
        columns: dict[str, tuple[list[int], list[str]]] = {}
        for position, record, has_later in measured:
            for name, cell in measured_cells(record).items():
                if not (has_later and name in STATUS_GROUP):
                    positions, cells = columns.setdefault(name, ([], []))
                    positions.append(position)
                    cells.append(cell)
        for name, (positions, cells) in columns.items():
            changed |= _set_column(self.rows[name], positions, cells)
        for position, record, _ in measured:
            for counter, value in record.measurement.counters.items() if record.measurement else ():
                changed |= _set_column(self.rows[microbench_counter(counter)], [position], [repr(value)])
        for position, run_id in later:
            reason = self.rows[STATUS_REASON][position]
            if not _STATUS_RUN.search(reason):
                self.rows[STATUS_REASON][position] = _with_run(reason, run_id)
        return changed

    def _set_status(self, position: int, record: Record) -> bool:
        """Marks a row that was not measured; its durations stay. Whether that changed anything."""
        there = Status.of_cell(self.rows[STATUS][position])
        if record.status is Status.SKIPPED and there not in (None, Status.SKIPPED):
            # It was not run: what earlier runs found out of it is still all there is to know.
            return False
        cells = {STATUS: record.status.value, STATUS_REASON: record.reason, CRASHES_IN_A_ROW: crashes_cell(record)}
        if self._has_duration(position):
            # The run id stays with the duration that it accounts for.
            cells[STATUS_REASON] = _with_run(record.reason, record.run_id)
        else:
            cells[RUN_ID] = record.run_id
        changed = [_set_column(self.rows[name], [position], [cell]) for name, cell in cells.items()]
        return any(changed)

    def _has_later_status(self, position: int, record: Record, order: RunOrder) -> bool:
        """Whether a later run than the record's ran the row and gave it its status."""
        there = Status.of_cell(self.rows[STATUS][position])
        if there is None or (there is Status.SKIPPED and record.status is not Status.SKIPPED):
            return False
        return order.age(self._status_run(position)) > order.age(record.run_id)

    def _has_duration(self, position: int) -> bool:
        return valid_duration(self.rows[duration_columns(self.kernel_type)[0]][position]) is not None

    def _duration_run(self, position: int) -> str:
        return self.rows[RUN_ID][position] if self._has_duration(position) else ""

    def _status_run(self, position: int) -> str:
        found = _STATUS_RUN.search(self.rows[STATUS_REASON][position]) if self._has_duration(position) else None
        return found[1] if found else self.rows[RUN_ID][position]


def _with_run(reason: str, run_id: str) -> str:
    return f"{reason} [run {run_id}]"


def _set_column(column: list[str], positions: Sequence[int], cells: Sequence[str]) -> set[int]:
    changed = set()
    for position, cell in zip(positions, cells, strict=True):
        if column[position] != cell:
            column[position] = cell
            changed.add(position)
    return changed


PRUNED_REASON = "Pruned Reason"


def pruned_path(database: Database, kernel_type: str) -> Path:
    """Where the pruned rows of a kernel type are. Raises OpAtlasError if the type cannot name a file."""
    return database.pruned_dir / database.csv_path(kernel_type).name


def append_pruned(database: Database, kernel_type: str, rows: pd.DataFrame) -> None:
    """Adds rows to the file of pruned ones. It only grows: a row that comes back and is pruned again stands twice."""
    path = pruned_path(database, kernel_type)
    if path.exists():
        rows = pd.concat([read_frame(path, kernel_type), rows]).fillna("")
    write_frame(rows, path)
