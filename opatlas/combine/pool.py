"""Pools the runs of each row: the median over runs, and the spread between machines.

The runs are in the histories, in the replaced rows and in the table. Only runs with the cache state and instrument of
the row's duration, on the same device and version of torch, are pooled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from opatlas.errors import OpAtlasError
from opatlas.gc_pause import gc_paused
from opatlas.model.quality import valid_duration
from opatlas.model.record import Record, RowName
from opatlas.model.schema import (
    AVERAGE,
    CACHE_STATE,
    INPUT_SHAPES,
    INSTRUMENT,
    MICROBENCH_MEDIAN,
    POOLED,
    POOLED_MACHINES,
    POOLED_MEDIAN,
    POOLED_RUNS,
    POOLED_SPREAD,
    RUN_ID,
)
from opatlas.model.signature import signatures
from opatlas.store import history
from opatlas.store.cells import TableEdit, microseconds
from opatlas.store.csv_files import read_frame
from opatlas.store.database import Database, Table
from opatlas.store.manifest import Manifest, read_manifests


@dataclass(frozen=True)
class RunDuration:
    """The duration of a row in one run: the median of the samples in microseconds, cache state and instrument."""

    median_us: float
    cache_state: str
    instrument: str


@dataclass(frozen=True)
class PooledRow:
    """The pooled duration of a row.

    Attributes:
        median_us: the median over runs of each run's median, in microseconds.
        runs, machines: the numbers of runs and of machines that measured the row.
        spread: the largest minus the smallest median of a machine, as a share of `median_us`; None for one machine.
    """

    kernel_type: str
    input_shapes: str
    median_us: float
    runs: int
    machines: int
    spread: float | None


#: Durations by row and run id.
Durations = dict[RowName, dict[str, RunDuration]]


def pool(database: Database, problems: list[str], on_kernel_type: Callable[[], None]) -> list[PooledRow]:
    """Fills the Pooled columns of every row with a replayed duration; returns these rows.

    Args:
        problems: receives a sentence for each file that cannot be read or written.
        on_kernel_type: called after each kernel type.

    Raises:
        OpAtlasError: the database cannot be locked.
    """
    pooled: list[PooledRow] = []
    with database.lock(), gc_paused():
        manifests = read_manifests(database, problems)
        durations = _durations(database, problems)
        for kernel_type in database.kernel_types():
            try:
                pooled += _pool_table(database, kernel_type, durations, manifests)
            except OpAtlasError as error:
                problems.append(str(error))
            on_kernel_type()
    return pooled


def _durations(database: Database, problems: list[str]) -> Durations:
    """Returns the durations in the histories and the replaced rows of a database."""
    durations: Durations = {}
    for run_id in history.runs(database):
        try:
            records = history.read(database, run_id).records
        except OpAtlasError as error:
            problems.append(str(error))
            continue
        for requested in records:
            for record in filter(None, (requested, requested.launched_record())):
                if record.measurement is not None:
                    row = durations.setdefault(RowName(record.kernel_type, record.signature), {})
                    row[record.run_id] = _record_duration(record)
    for path in history.replaced_tables(database):
        try:
            rows = TableEdit(read_frame(path))
        except OpAtlasError as error:
            problems.append(str(error))
            continue
        for position, signature in enumerate(signatures(path.stem, rows.frame())):
            duration = _row_duration(rows, position)
            if duration is not None:
                durations.setdefault(RowName(path.stem, signature), {}).setdefault(rows[RUN_ID][position], duration)
    return durations


def _record_duration(record: Record) -> RunDuration:
    assert record.measurement is not None
    measurement = record.measurement
    return RunDuration(measurement.summary.median_us, measurement.cache_state, measurement.instrument)


def _row_duration(rows: TableEdit, position: int) -> RunDuration | None:
    average_us = valid_duration(rows[AVERAGE][position])
    if average_us is None:
        return None
    median_us = valid_duration(rows[MICROBENCH_MEDIAN][position]) or average_us
    return RunDuration(median_us, rows[CACHE_STATE][position], rows[INSTRUMENT][position])


def _pool_table(
    database: Database, kernel_type: str, durations: Durations, manifests: Mapping[str, Manifest]
) -> list[PooledRow]:
    table = database.read(kernel_type)
    rows = TableEdit(table.frame)
    before = {name: list(rows[name]) for name in POOLED}
    pooled = []
    for position, signature in enumerate(signatures(kernel_type, table.frame)):
        own, own_run = _row_duration(rows, position), rows[RUN_ID][position]
        cells = dict.fromkeys(POOLED, "")
        if own is not None:
            runs = {**durations.get(RowName(kernel_type, signature), {}), own_run: own}
            row = _pool_row(kernel_type, rows[INPUT_SHAPES][position], own_run, runs, manifests)
            pooled.append(row)
            cells = _cells(row)
        for name, cell in cells.items():
            rows[name][position] = cell
    if any(rows[name] != before[name] for name in POOLED):
        database.write(Table(kernel_type, table.path, rows.frame()))
    return pooled


def _pool_row(
    kernel_type: str,
    input_shapes: str,
    own_run: str,
    runs: Mapping[str, RunDuration],
    manifests: Mapping[str, Manifest],
) -> PooledRow:
    own, software = runs[own_run], _software(manifests.get(own_run))
    alike = {
        run_id: run.median_us
        for run_id, run in runs.items()
        if (run.cache_state, run.instrument) == (own.cache_state, own.instrument)
        and _software(manifests.get(run_id)) in (software, None)
    }
    of_machine: dict[tuple[str, ...], list[float]] = {}
    for run_id, median_us in alike.items():
        of_machine.setdefault(_machine(manifests.get(run_id)), []).append(median_us)
    medians = [median(each) for each in of_machine.values()]
    median_us = median(alike.values())
    spread = (max(medians) - min(medians)) / median_us if len(medians) > 1 else None
    return PooledRow(kernel_type, input_shapes, median_us, len(alike), len(medians), spread)


def _software(manifest: Manifest | None) -> tuple[frozenset[str], str] | None:
    """Returns the devices and the version of torch of a run; None if unknown."""
    return (manifest.device_names, manifest.torch) if manifest is not None and manifest.device_names else None


def _machine(manifest: Manifest | None) -> tuple[str, ...]:
    """Returns what identifies a machine: the serial numbers of its devices, else its name; () if unknown."""
    if manifest is None:
        return ()
    facts = (device.get("facts") for device in (manifest.device, *manifest.other_devices))
    serials = sorted(str(each["uuid"]) for each in facts if isinstance(each, Mapping) and each.get("uuid"))
    return tuple(serials) or (manifest.host,)


def _cells(row: PooledRow) -> dict[str, str]:
    return {
        POOLED_MEDIAN: microseconds(row.median_us),
        POOLED_RUNS: str(row.runs),
        POOLED_MACHINES: str(row.machines),
        POOLED_SPREAD: "" if row.spread is None else f"{100 * row.spread:.2f}",
    }
