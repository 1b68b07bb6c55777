"""The cells of a row that a record fills, and candidates for them: what runs measured, and what other tables have.

opatlas/data/fold.py decides between candidates.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import NamedTuple

from opatlas.grouping import grouped
from opatlas.row import columns as col
from opatlas.row.communication import BY_KERNEL_TYPE, RowKind, bandwidth_gbps, row_kind
from opatlas.row.record import Measurement, Record, RowName, ran_as
from opatlas.row.status import Status
from opatlas.row.table import RowTable
from opatlas.text import parse_whole

#: Decimals of a stored duration in microseconds: finer than any clock here.
_DECIMALS = 4
#: Maximum number of names in a cell of Kernel Names.
_MOST_KERNEL_NAMES = 5


def stored_us(record: Record) -> float:
    """Returns the duration of a measured row in microseconds.

    It is the mean of a kernel's samples without the outliers, and the median of a message's samples.
    """
    assert record.measurement is not None
    return row_kind(record.kernel_type).duration_us(record.measurement.samples_us)


def kernels_cell(names: Sequence[str]) -> str:
    """Returns the cell of the device kernels of a call."""
    more = f" + ... ({len(names)} in all)" if len(names) > _MOST_KERNEL_NAMES else ""
    return " + ".join(names[:_MOST_KERNEL_NAMES]) + more


def duration_cells(record: Record) -> dict[str, str]:
    """Returns the cells about the duration of a measured row; none for another row."""
    measurement = record.measurement
    if measurement is None:
        return {}
    summary, verdict, execution = measurement.summary, measurement.verdict, measurement.execution
    total = measurement.total_elements
    return {
        **_average_cells(record, summary.median_us),
        col.MICROBENCH_MIN: microseconds(summary.min_us),
        # The standard deviation of one sample is unknown, not 0.
        col.MICROBENCH_STD: microseconds(summary.std_us) if summary.count > 1 else "",
        col.MICROBENCH_SAMPLES: str(summary.count),
        col.MICROBENCH_DEVICE_KERNELS: "" if measurement.device_kernels is None else str(measurement.device_kernels),
        col.MICROBENCH_HELPER_KERNELS: helpers_cell(measurement.helper_kernels),
        col.CACHE_STATE: measurement.cache_state,
        col.INSTRUMENT: measurement.instrument,
        col.QUALITY: verdict.quality.value,
        col.QUALITY_REASON: verdict.reason,
        col.ASSUMPTIONS: "; ".join(measurement.assumptions),
        col.CHECKED_ELEMENTS: f"{measurement.checked_elements}/{total}" if total else "",
        col.STAND_IN: measurement.stand_in,
        col.IMPLEMENTATION: execution.implementation,
        col.KERNEL_NAMES: kernels_cell(execution.kernel_names),
        col.SPAN: "" if execution.span_us is None else microseconds(execution.span_us),
        col.OUTPUTS_MISSING: "; ".join(map(str, execution.outputs_missing)),
        col.CONVERSIONS: "; ".join(execution.conversions),
        col.MAX_ERROR: "" if execution.max_error is None else f"{execution.max_error:.3g}",
        col.SET_UP: "" if execution.set_up_s is None else f"{execution.set_up_s:.3f}",
        **_comparison_cells(measurement),
        **{col.microbench_counter(name): repr(value) for name, value in measurement.counters.items()},
        col.RUN_ID: record.run_id,
    }


def _comparison_cells(measurement: Measurement) -> dict[str, str]:
    """Returns the cells about the rounds with the baseline."""
    ratios, rounds = measurement.ratios, measurement.rounds
    control = rounds[0].control if rounds else None
    return {
        col.SPEED_UP: "" if ratios is None else f"{ratios.ratio:.4f}",
        col.SPEED_UP_LOW: "" if ratios is None else f"{ratios.low:.4f}",
        col.SPEED_UP_HIGH: "" if ratios is None else f"{ratios.high:.4f}",
        col.SPEED_UP_ROUNDS: ";".join(str(len(each.kernel_us)) for each in rounds),
        col.SPEED_UP_AGAINST: measurement.against,
        col.CONTROL_RATIO: "" if control is None else f"{control.ratio:.4f}",
    }


def _average_cells(record: Record, median_us: float) -> dict[str, str]:
    """Returns the stored duration; of a message with its bandwidths."""
    if not row_kind(record.kernel_type).is_message:
        return {col.AVERAGE: microseconds(stored_us(record)), col.MICROBENCH_MEDIAN: microseconds(median_us)}
    message_bytes, num_devices = int(record.cells[col.MESSAGE_BYTES]), int(record.cells[col.NUM_DEVICES])
    bus_gbps = BY_KERNEL_TYPE[record.kernel_type].bus_bandwidth_gbps(message_bytes, num_devices, median_us)
    return {
        col.DURATION: microseconds(stored_us(record)),
        # Six digits: the bandwidth of a small message is a small number.
        col.BANDWIDTH: f"{bandwidth_gbps(message_bytes, median_us):.6g}",
        col.BUS_BANDWIDTH: f"{bus_gbps:.6g}",
    }


def status_cells(record: Record) -> dict[str, str]:
    """Returns the cells about the status of a row, and the largest error of a judged kernel."""
    return {
        col.STATUS: record.status.value,
        col.STATUS_REASON: ran_as(record),
        col.STATUS_RUN_ID: record.run_id,
        **{name: record.judged.get(name, "") for name in (*col.JUDGED, col.MAX_ERROR)},
    }


def helpers_cell(helper_kernels: Mapping[str, float]) -> str:
    """Returns a cell of MicroBench Helper Kernels: `Cast 2.1000; TransQuantParamV2 1.2000`."""
    return "; ".join(f"{kernel_type} {microseconds(us)}" for kernel_type, us in helper_kernels.items())


def microseconds(value: float) -> str:
    """Returns a duration in microseconds as a cell."""
    return f"{value:.{_DECIMALS}f}"


_SLOTS = frozenset({*col.INPUT_SLOTS, *col.OUTPUT_SLOTS})


class CellGroup(Enum):
    """A group of columns, whose cells move together (opatlas/data/fold.py)."""

    SLOTS = auto()
    DURATION = auto()
    STATUS = auto()
    CAPTURED = auto()
    POOLED = auto()
    OTHER = auto()


def group_of(column: str, kind: RowKind) -> CellGroup:
    """Returns the group of a column in rows of a kind."""
    if kind.is_replayed(column):
        return CellGroup.DURATION
    if col.is_profiling_column(column):
        return CellGroup.CAPTURED
    named = ((col.STATUS_GROUP, CellGroup.STATUS), (col.POOLED, CellGroup.POOLED), (_SLOTS, CellGroup.SLOTS))
    return next((group for columns, group in named if column in columns), CellGroup.OTHER)


class RunCells(NamedTuple):
    """The cells of one group of a row, and the run that they are of.

    Attributes:
        at: the place in the run: seconds since the epoch.
        is_record: whether a record of the run has them; else they are of a row.
    """

    run_id: str
    cells: Mapping[str, str]
    at: float = 0.0
    is_record: bool = False

    @property
    def status(self) -> Status | None:
        """The status, of a part of that group."""
        return Status.from_cell(self.cells.get(col.STATUS, ""))

    @property
    def crashes(self) -> int:
        """The number of consecutive crashes that a status says; 0 for a record, which knows of its own only."""
        return parse_whole(self.cells.get(col.CRASHES_IN_A_ROW, "")) or 0


@dataclass(frozen=True)
class Candidate:
    """What a run, or a row of another table, has of a row.

    Attributes:
        cells: the cells from which the row is appended where it is missing.
        duration, status, captured: the parts; None if there is none.
        others: cells of columns that no run measures; they fill empty ones.
        appends: whether the row is appended where it is missing.
        launched: whether the row was launched for another one, and not requested itself.
        by_product: whether it was, in a run that adds no other rows: it fills only a row without any duration.
        record: the record of the run; None for a row of another table.
    """

    kernel_type: str
    signature: str
    cells: Mapping[str, str]
    duration: RunCells | None = None
    status: RunCells | None = None
    captured: Mapping[str, str] | None = None
    others: Mapping[str, str] = field(default_factory=dict)
    appends: bool = False
    launched: bool = False
    by_product: bool = False
    record: Record | None = None

    @property
    def run_id(self) -> str:
        part = self.duration or self.status
        return part.run_id if part is not None else ""


@dataclass
class FoldChanges:
    """The changes of a table, by position of the row.

    Attributes:
        measured: rows that have the duration of a candidate, with it: also if their cells were the same before.
        marked: rows that have the status alone of a candidate, with it, likewise.
        appended: rows that were missing.
        changed: rows of which a cell changed.
        outdated: candidates that a later run overrules, with the position.
        missing: candidates without a row that were not appended.
    """

    measured: dict[int, Candidate] = field(default_factory=dict)
    marked: dict[int, Candidate] = field(default_factory=dict)
    appended: set[int] = field(default_factory=set)
    changed: set[int] = field(default_factory=set)
    outdated: list[tuple[int, Candidate]] = field(default_factory=list)
    missing: list[Candidate] = field(default_factory=list)


def candidates_of_records(records: Iterable[Record], appending: Container[str]) -> dict[str, list[Candidate]]:
    """Returns what records have of rows, by kernel type.

    Samples of another type (opatlas/row/slots.py) belong to the launched row alone, which is appended in any run; the
    Status Reason of the requested row names the type. Those of another name of the type, or of other cells, also fill
    the requested row, which is never appended for them. What a run measured of the row itself counts before samples of
    the row that were taken for another one.

    Args:
        appending: the runs that append rows with samples.
    """
    found: dict[str, list[Candidate]] = {}
    for run_id, of_run in grouped((record.run_id, record) for record in records).items():
        appends = run_id in appending
        in_time = sorted(of_run, key=lambda record: record.finished_at)
        by_row = grouped((RowName(record.kernel_type, record.signature), record) for record in in_time)
        own = {name: _counting(of_row) for name, of_row in by_row.items()}
        # A later record of the requested row does not take back what an earlier one measured of the launched row.
        siblings = [(sibling, record) for record in in_time if (sibling := record.launched_record()) is not None]
        launched = {RowName(sibling.kernel_type, sibling.signature): (sibling, asked) for sibling, asked in siblings}
        for name in launched:
            # The row's own record may have samples of a sibling; these are samples of the row itself.
            own[name] = [record for record in own.get(name, ()) if record.launched_record() is None]
        for record in (record for records in own.values() for record in records):
            is_own = record.measurement is not None and record.measurement.ran_as is None
            one = _candidate(record.requested_record(), appends=appends and is_own)
            found.setdefault(record.kernel_type, []).append(one)
        for name, (record, asked) in launched.items():
            if not own[name]:
                one = _candidate(record, appends=appends or asked.ran_as_another_type)
                found.setdefault(record.kernel_type, []).append(replace(one, launched=True, by_product=not appends))
    return found


def _counting(records: Sequence[Record]) -> list[Record]:
    """Returns those of a row's records in a run, in the order of time, that count: the last, and the last with samples.

    A row that was skipped keeps what the run found out. Samples of another type are none of the row.
    """
    ran = [record for record in records if record.status is not Status.SKIPPED] or records
    measured = [record for record in ran if record.requested_record().measurement is not None]
    return [record for record in measured[-1:] if record is not ran[-1]] + [ran[-1]]


def _candidate(record: Record, *, appends: bool) -> Candidate:
    def part(cells: Mapping[str, str]) -> RunCells:
        return RunCells(record.run_id, cells, record.finished_at, is_record=True)

    return Candidate(
        record.kernel_type,
        record.signature,
        record.cells,
        None if record.measurement is None else part(duration_cells(record)),
        part(status_cells(record)),
        appends=appends,
        record=record,
    )


def candidates_of_rows(table: RowTable, positions: Sequence[int]) -> list[Candidate]:
    """Returns what some rows of another table have; all of them are appended where they are missing."""
    groups = grouped((group_of(column, table.kind), column) for column in table.columns)
    found = []
    for position, cells in zip(positions, table.rows(positions), strict=True):
        duration, captured, others = (
            {column: cell for column in groups.get(group, ()) if (cell := cells[column])}
            for group in (CellGroup.DURATION, CellGroup.CAPTURED, CellGroup.OTHER)
        )
        has_duration = bool(table.replayed.known[position])
        found.append(
            Candidate(
                table.kernel_type,
                table.signatures[position],
                cells,
                RunCells(cells.get(col.RUN_ID, ""), duration) if has_duration else None,
                status_part(cells, has_duration=has_duration),
                captured or None,
                others,
                appends=True,
            )
        )
    return found


def status_part(cells: Mapping[str, str], *, has_duration: bool) -> RunCells | None:
    """Returns the status of a row; None for a row that never ran.

    A duration with an empty Status is a status; "measured" without a duration is none. Where no cell names the run of
    the status, it is that of the duration.
    """
    status = cells.get(col.STATUS, "")
    if not has_duration and (not status or Status.from_cell(status) is Status.MEASURED):
        return None
    run_id = cells.get(col.STATUS_RUN_ID, "") or cells.get(col.RUN_ID, "")
    own = {name: cells.get(name, "") for name in (*col.STATUS_GROUP, col.MAX_ERROR)}
    return RunCells(run_id, {**own, col.STATUS_RUN_ID: run_id})
