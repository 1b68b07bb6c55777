"""The durations of rows in each run, from the histories, the replaced rows and the CSVs: `opatlas history`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from opatlas.data import log
from opatlas.data.cells import stored_us
from opatlas.data.csv_files import read_table, text_table
from opatlas.data.database import Database
from opatlas.data.manifest import Manifest, read_manifests, run_id_time
from opatlas.errors import OpAtlasError
from opatlas.progress import track
from opatlas.row.columns import STATUS_REASON
from opatlas.row.record import Record, RowName
from opatlas.row.signature import RowChoice
from opatlas.row.status import Status
from opatlas.row.table import Row, RowTable

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
    runs: dict[RowName, list[RowRun]] = {}
    for requested in log.records(database, problems):
        for record in filter(None, (requested, requested.launched_record())):
            if chosen.holds(record.kernel_type, record.signature):
                name = RowName(record.kernel_type, record.signature)
                runs.setdefault(name, []).append(_run_from_record(record))
    for kept in log.imported(database, problems):
        row = RowTable(kept.kernel_type, Path(), text_table(kept.row, [kept.row])).row(0)
        if chosen.holds(kept.kernel_type, row.signature):
            run, of_row = _run_from_row(row, "replaced"), runs.setdefault(RowName(row.kernel_type, row.signature), [])
            if run is not None and not any(_is_same(run, other) for other in of_row):
                of_row.append(run)
    for kernel_type in track(database.kernel_types_and_messages(), "history, kernel types"):
        for row in _rows(database.csv_path(kernel_type), kernel_type, chosen, problems):
            run, of_row = _run_from_row(row, "csv"), runs.setdefault(RowName(kernel_type, row.signature), [])
            if run is not None:
                same = [index for index, other in enumerate(of_row) if _is_same(run, other)]
                if same:
                    of_row[same[-1]] = replace(of_row[same[-1]], current=True)
                else:
                    of_row.append(replace(run, current=True))
    return {
        name: [_with_manifest(run, manifests) for run in sorted(of_row, key=lambda run: order.age(run.run_id))]
        for name, of_row in sorted(runs.items(), key=lambda item: (item[0].kernel_type, item[0].signature))
    }


def _rows(path: Path, kernel_type: str, chosen: RowChoice, problems: list[str]) -> Iterator[Row]:
    try:
        table = RowTable(kernel_type, path, read_table(path, kernel_type))
    except OpAtlasError as error:
        problems.append(str(error))
        return
    yield from (row for row in table if chosen.holds(kernel_type, row.signature))


def _run_from_record(record: Record) -> RowRun:
    run = RowRun(record.run_id, "history", record.status.value, record.reason)
    measurement = record.measurement
    if measurement is None:
        return run
    summary = measurement.summary
    ran_as = f"ran as {measurement.ran_as.kernel_type}" if measurement.ran_as is not None else ""
    return replace(
        run,
        reason="; ".join(text for text in (ran_as, record.reason) if text),
        duration_us=stored_us(record),
        median_us=summary.median_us,
        std_us=summary.std_us if summary.count > 1 else None,
        samples=summary.count,
        instrument=measurement.instrument,
        cache_state=measurement.cache_state,
        assumptions=measurement.assumptions,
        checked_elements=measurement.checked_elements,
        total_elements=measurement.total_elements,
        samples_us=measurement.samples_us,
    )


def _run_from_row(row: Row, kept_in: str) -> RowRun | None:
    """Returns the run that a row has the duration of; None for a row without one."""
    duration = row.replayed
    if duration is None:
        return None
    return RowRun(
        run_id=duration.run_id,
        kept_in=kept_in,
        status=Status.MEASURED.value,
        # The Status column may be of a later run than the duration.
        reason=row.cell(STATUS_REASON) if row.status is Status.MEASURED else "",
        duration_us=duration.us,
        median_us=_known(row.table.replayed.middle_us[row.position]),
        std_us=_known(duration.std_us),
        samples=None if math.isnan(duration.samples) else int(duration.samples),
        instrument=duration.instrument,
        cache_state=duration.cache,
    )


def _known(number: float) -> float | None:
    return None if math.isnan(number) else float(number)


def _is_same(run: RowRun, other: RowRun) -> bool:
    """Returns whether two entries are the same duration; a CSV has four decimals."""
    if run.duration_us is None or other.duration_us is None or run.run_id != other.run_id:
        return False
    return abs(run.duration_us - other.duration_us) < 1e-4


def _with_manifest(run: RowRun, manifests: Mapping[str, Manifest]) -> RowRun:
    manifest = manifests.get(run.run_id)
    if manifest is None:
        return replace(run, started_at=run_id_time(run.run_id))
    versions = {name: manifest.packages[name] for name in _VERSIONS if name in manifest.packages}
    return replace(run, started_at=manifest.started_at, devices=tuple(sorted(manifest.device_names)), versions=versions)
