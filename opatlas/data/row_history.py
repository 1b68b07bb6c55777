"""The durations of rows in each run, from the histories, the replaced rows and the CSVs: `opatlas history`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opatlas.data import log
from opatlas.data.cells import duration_cells, status_cells
from opatlas.data.csv_files import text_table
from opatlas.data.database import Database
from opatlas.data.manifest import Manifest, read_manifests, run_id_time
from opatlas.errors import noted
from opatlas.progress import track
from opatlas.row.columns import ASSUMPTIONS, CHECKED_ELEMENTS, STATUS_REASON
from opatlas.row.record import Record, RowName
from opatlas.row.signature import RowChoice
from opatlas.row.status import Status
from opatlas.row.table import Row, RowTable
from opatlas.text import parse_whole

_VERSIONS = ("torch", "torch_npu", "vllm-ascend")


@dataclass(frozen=True)
class RowRun:
    """A row in a run.

    Attributes:
        run_id: "" if unknown.
        kept_in: the source: "history", "replaced" (a replaced row that no history has), or "csv" (only in the CSV).
        current: whether the CSV has this duration.
        duration_us: the stored duration: the mean of a kernel's samples without outliers, the median of a message's.
        assumptions: values that the row does not state, and that were assumed.
        checked_elements, total_elements: output elements compared with the reference, and all; None if unknown.
        samples_us: each sample in microseconds, if the run has a history.
        started_at: seconds since the epoch; None if unknown.
    """

    run_id: str
    kept_in: str
    status: str
    reason: str = ""
    current: bool = False
    duration_us: float | None = None
    median_us: float | None = None
    std_us: float | None = None
    samples: int | None = None
    instrument: str = ""
    cache_state: str = ""
    assumptions: tuple[str, ...] = ()
    checked_elements: int | None = None
    total_elements: int | None = None
    samples_us: tuple[float, ...] = ()
    started_at: float | None = None
    devices: tuple[str, ...] = ()
    versions: Mapping[str, str] | None = None

    @property
    def median(self) -> float | None:
        """The median of the samples in microseconds; where it is unknown the duration in the CSV."""
        return self.duration_us if self.median_us is None else self.median_us


def row_histories(database: Database, chosen: RowChoice, problems: list[str]) -> dict[RowName, list[RowRun]]:
    """Returns the runs of each chosen row, the oldest first, also of rows that are no longer in a CSV.

    Args:
        problems: receives a sentence for each file that cannot be read.
    """
    manifests = read_manifests(database, problems)
    order = log.run_order(database, manifests)
    found: dict[RowName, list[RowRun]] = {}
    for kept_in, table, records in _tables(database, chosen, problems):
        for row in table:
            record = records[row.position] if records else None
            if not chosen.holds(row.kernel_type, row.signature):
                continue
            of_row = found.setdefault(RowName(row.kernel_type, row.signature), [])
            run = _run(row, kept_in, record, manifests)
            same = [at for at, other in enumerate(of_row) if run is not None and _is_same(run, other)]
            if same and kept_in == "csv":
                of_row[same[-1]] = replace(of_row[same[-1]], current=True)
            elif run is not None and (record is not None or not same):
                of_row.append(run)
    return {
        name: sorted(of_row, key=lambda run: order.age(run.run_id))
        for name, of_row in sorted(found.items(), key=lambda item: (item[0].kernel_type, item[0].signature))
    }


def record_table(kernel_type: str, records: Iterable[Record]) -> RowTable:
    """Returns records of one kernel type as rows, with the cells that a fold gives them."""
    rows = [{**record.cells, **status_cells(record), **duration_cells(record)} for record in records]
    columns = dict.fromkeys(name for row in rows for name in row)
    return RowTable(kernel_type, Path(f"{kernel_type}.csv"), text_table(columns, rows))


def _tables(
    database: Database, chosen: RowChoice, problems: list[str]
) -> Iterator[tuple[str, RowTable, Sequence[Record]]]:
    """Yields where durations are kept, and the rows there; of the log with their records."""
    by_type: dict[str, list[Record]] = {}
    for requested in log.records(database, problems):
        for record in filter(None, (requested.requested_record(), requested.launched_record())):
            if chosen.holds(record.kernel_type, record.signature):
                by_type.setdefault(record.kernel_type, []).append(record)
    for kernel_type, records in by_type.items():
        yield "history", record_table(kernel_type, records), records
    for kept in log.imported(database, problems):
        yield "replaced", RowTable(kept.kernel_type, Path(), text_table(kept.row, [kept.row])), ()
    for kernel_type in track(database.kernel_types_and_messages(), "history, kernel types"):
        with noted(problems):
            yield "csv", database.read(kernel_type), ()


def _run(row: Row, kept_in: str, record: Record | None, manifests: Mapping[str, Manifest]) -> RowRun | None:
    """Returns the run that a row has the duration of, or its record; None for a row with neither."""
    duration = row.replayed
    if duration is None and record is None:
        return None
    run_id = record.run_id if record is not None else duration.run_id if duration is not None else ""
    manifest = manifests.get(run_id)
    packages = {} if manifest is None else manifest.packages
    checked, _, elements = row.cell(CHECKED_ELEMENTS).partition("/")
    measured: dict[str, Any] = {}
    if duration is not None:
        measured = {
            "duration_us": duration.us,
            "median_us": _known(row.table.replayed.middle_us[row.position]),
            "std_us": _known(duration.std_us),
            "samples": None if math.isnan(duration.samples) else int(duration.samples),
            "instrument": duration.instrument,
            "cache_state": duration.cache,
        }
    return RowRun(
        run_id,
        kept_in,
        Status.MEASURED.value if record is None else record.status.value,
        # The status of a row may be of a later run than the duration.
        row.cell(STATUS_REASON) if record is not None or row.status is Status.MEASURED else "",
        current=kept_in == "csv",
        assumptions=tuple(filter(None, row.cell(ASSUMPTIONS).split("; "))),
        checked_elements=parse_whole(checked),
        total_elements=parse_whole(elements),
        samples_us=record.measurement.samples_us if record is not None and record.measurement is not None else (),
        started_at=run_id_time(run_id) if manifest is None else manifest.started_at,
        devices=() if manifest is None else tuple(sorted(manifest.device_names)),
        versions=None if manifest is None else {name: packages[name] for name in _VERSIONS if name in packages},
        **measured,
    )


def _known(number: float) -> float | None:
    return None if math.isnan(number) else float(number)


def _is_same(run: RowRun, other: RowRun) -> bool:
    """Returns whether two entries are the same duration; a CSV has four decimals."""
    if run.duration_us is None or other.duration_us is None or run.run_id != other.run_id:
        return False
    return abs(run.duration_us - other.duration_us) < 1e-4
