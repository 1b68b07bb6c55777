"""Pools the runs of each row: the row gets the duration of the run with the median, and the spread between machines.

The runs are in the log, in the table, and in what an earlier pooling wrote of runs that the log does not have. Only
runs with the cache state, instrument and implementation of the row's duration, on the same device and version of torch,
are pooled.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from opatlas.data import log
from opatlas.data.cells import RunCells, candidates_of_records, microseconds
from opatlas.data.database import Database
from opatlas.data.fold import TableFold
from opatlas.data.log import COMBINE, Log, Pooled
from opatlas.data.manifest import Manifest, read_manifests
from opatlas.errors import noted
from opatlas.grouping import grouped
from opatlas.progress import gc_paused, track
from opatlas.row import columns as col
from opatlas.row.quality import Quality, is_composition, is_noisy, run_medians, valid_duration
from opatlas.row.record import RowName
from opatlas.row.signature import signature
from opatlas.row.status import Status
from opatlas.text import parse_real


@dataclass(frozen=True)
class RunDuration:
    """The duration of a row in one run.

    Attributes:
        median_us: the median of the samples, in microseconds.
        conditions: cache state, instrument, and whether a composition was timed.
        implementation: the implementation that was timed; "" if unknown.
        cells: the cells of the duration, and the Status Reason; None if only the median is known.
        host: the machine of a cluster that ran the row; "" without a cluster, or if unknown.
    """

    median_us: float
    conditions: tuple[str, str, bool]
    implementation: str
    cells: Mapping[str, str] | None = field(repr=False)
    host: str = ""

    @property
    def is_noisy(self) -> bool:
        """Whether the samples need a warning."""
        cells = self.cells or {}
        std_us, average_us = parse_real(cells.get(col.MICROBENCH_STD, "")), valid_duration(cells.get(col.AVERAGE, ""))
        noise = std_us / average_us if std_us is not None and average_us else None
        return is_noisy(Quality.from_cell(cells.get(col.QUALITY, "")), noise)


@dataclass(frozen=True)
class PooledRow:
    """The pooled duration of a row.

    Attributes:
        median_us: the median over runs of each run's median, in microseconds.
        machines: the number of machines that measured the row.
        spread: the largest minus the smallest median of a machine, as a share of `median_us`; None for one machine.
        run_medians: the median of each run, in microseconds.
        representative: the run whose duration the row gets: of the quiet runs the one nearest to `median_us`; of two
            equally near ones the newer.
    """

    kernel_type: str
    signature: str
    median_us: float
    machines: int
    spread: float | None
    run_medians: Mapping[str, float]
    representative: str

    @property
    def runs(self) -> int:
        """The number of runs that measured the row."""
        return len(self.run_medians)


#: Durations by row and run id.
Durations = dict[RowName, dict[str, RunDuration]]


def pool(database: Database, problems: list[str]) -> list[PooledRow]:
    """Gives every row with a replayed duration the one of the run with the median, and fills its Pooled columns.

    A duration that no record has is kept in the log before it is replaced.

    Args:
        problems: receives a sentence for each file that cannot be read or written.

    Returns:
        The pooled rows.

    Raises:
        OpAtlasError: the database cannot be locked.
    """
    pooled: list[PooledRow] = []
    with database.lock(), gc_paused():
        pooling = Pooling(database, read_manifests(database, problems), problems)
        order, known = log.run_order(database, pooling.manifests), Log(database)
        folds = []
        for kernel_type in track(database.kernel_types(), "pool, kernel types"):
            with noted(problems):
                folds.append(TableFold(database.read(kernel_type), order, known, by=COMBINE))
        own = {run_id for fold in folds for run_id in fold.rows[col.RUN_ID] if run_id}
        # Before the CSVs, so that they can be made again.
        log.add_events(database, COMBINE, [Pooled(tuple(sorted(own | pooling.runs)))])
        for fold in folds:
            with noted(problems):
                rows = pooling.pool(fold)
                fold.write(database)
                pooled += rows
    return pooled


def _durations(database: Database, problems: list[str]) -> Durations:
    """Returns the durations in the log of a database."""
    durations: Durations = {}
    for candidates in candidates_of_records(log.records(database, problems), ()).values():
        for each in candidates:
            if each.record is not None and each.duration is not None and each.status is not None:
                there = durations.setdefault(RowName(each.kernel_type, each.signature), {})
                for run_id, duration in _run_durations({**each.status.cells, **each.duration.cells}):
                    there[run_id] = replace(duration, host=each.record.host)
    for kept in log.imported(database, problems):
        there = durations.setdefault(RowName(kept.kernel_type, signature(kept.kernel_type, kept.row)), {})
        for run_id, duration in _run_durations(kept.row):
            # What is known of the samples is preferred to a median alone.
            if run_id not in there or (there[run_id].cells is None and duration.cells is not None):
                there[run_id] = duration
    return durations


def _run_durations(cells: Mapping[str, str]) -> Iterator[tuple[str, RunDuration]]:
    """Yields the runs that the cells of a row tell of: the run of its duration, then those it was pooled with."""
    average_us = valid_duration(cells.get(col.AVERAGE, ""))
    if average_us is None:
        return
    own_run, implementation = cells.get(col.RUN_ID, ""), cells.get(col.IMPLEMENTATION, "")
    composition = is_composition(cells.get(col.QUALITY, ""), cells.get(col.STAND_IN, ""))
    conditions = (cells.get(col.CACHE_STATE, ""), cells.get(col.INSTRUMENT, ""), composition)
    median_us = valid_duration(cells.get(col.MICROBENCH_MEDIAN, "")) or average_us
    own = {name: cell for name, cell in cells.items() if col.is_microbench_column(name) or name == col.STATUS_REASON}
    yield own_run, RunDuration(median_us, conditions, implementation, own)
    listed = run_medians(cells.get(col.POOLED_RUN_DURATIONS, ""))
    # Of a duration that was replaced since, the conditions are not known.
    for run_id, us in listed.items() if own_run in listed else ():
        if run_id != own_run:
            yield run_id, RunDuration(us, conditions, implementation, None)


class Pooling:
    """The durations in the log of a database, to be pooled.

    Attributes:
        manifests: of the runs.
        runs: the runs that have durations in the log.
    """

    def __init__(
        self,
        database: Database,
        manifests: Mapping[str, Manifest],
        problems: list[str],
        runs: Container[str] | None = None,
    ) -> None:
        """`runs` are the runs that are pooled; None: all."""
        self.manifests = manifests
        self._machines = _Machines(manifests)
        self._durations = {
            row: {run_id: each for run_id, each in of_row.items() if runs is None or run_id in runs}
            for row, of_row in _durations(database, problems).items()
        }
        self.runs = {run_id for of_row in self._durations.values() for run_id in of_row}

    def pool(self, fold: TableFold) -> list[PooledRow]:
        """Pools the rows of a table in memory, and returns them."""
        pooled: list[PooledRow] = []
        for position, (cells, name) in enumerate(zip(fold.rows.table().rows(), fold.signatures, strict=True)):
            now = dict.fromkeys(col.POOLED, "")
            of_row = dict(_run_durations(cells))
            if of_row:
                kept = self._durations.get(RowName(fold.kernel_type, name), {})
                own_run = cells.get(col.RUN_ID, "")
                # No cell has the host.
                own = replace(of_row[own_run], host=kept[own_run].host if own_run in kept else "")
                row = self._pooled(RowName(fold.kernel_type, name), cells, {**of_row, **kept, own_run: own})
                pooled.append(row)
                now = pooled_cells(row)
                if row.representative != own_run:
                    taken = {**(kept[row.representative].cells or {})}
                    reason = taken.pop(col.STATUS_REASON, "")
                    fold.put_duration(position, RunCells(row.representative, taken))
                    if Status.from_cell(cells.get(col.STATUS, "")) is Status.MEASURED:
                        now[col.STATUS_REASON] = reason
            fold.rows.set_cells(position, now)
        return pooled

    def _pooled(self, name: RowName, cells: Mapping[str, str], runs: Mapping[str, RunDuration]) -> PooledRow:
        """Pools the runs of a row that were measured as the run of its duration was."""
        own_run = cells.get(col.RUN_ID, "")
        own, software = runs[own_run], _software(self.manifests.get(own_run))
        alike = {
            run_id: run
            for run_id, run in sorted(runs.items())
            if run.conditions == own.conditions
            and (run.implementation == own.implementation or not (run.implementation and own.implementation))
            and _software(self.manifests.get(run_id)) in (software, None)
        }
        of_machine = grouped((self._machines.of(run_id, run.host), run.median_us) for run_id, run in alike.items())
        machines = [median(each) for each in of_machine.values()]
        median_us = median(run.median_us for run in alike.values())
        return PooledRow(
            *name,
            median_us,
            len(machines),
            (max(machines) - min(machines)) / median_us if len(machines) > 1 else None,
            {run_id: run.median_us for run_id, run in alike.items()},
            representative=min(
                (run_id for run_id in reversed(alike) if alike[run_id].cells is not None),
                # Cells have four digits; the rest is rounding error.
                key=lambda run_id: (alike[run_id].is_noisy, round(abs(alike[run_id].median_us - median_us), 5)),
            ),
        )


def _software(manifest: Manifest | None) -> tuple[frozenset[str], str] | None:
    """Returns the devices and the version of torch of a run; None if unknown."""
    return (manifest.device_names, manifest.torch) if manifest is not None and manifest.device_names else None


class _Machines:
    """Tells the machines of runs apart: by the serial numbers of their devices, else by their names."""

    def __init__(self, manifests: Mapping[str, Manifest]) -> None:
        self._names = {run_id: manifest.host for run_id, manifest in manifests.items()}
        #: The serial numbers of each host of a run; "" is the host of a run without a cluster.
        self._serials: dict[str, dict[str, set[str]]] = {}
        for run_id, manifest in manifests.items():
            hosts = self._serials[run_id] = {}
            for device in (manifest.device, *manifest.other_devices):
                if isinstance(facts := device.get("facts"), Mapping):
                    own = hosts.setdefault(str(facts.get("host") or ""), set())
                    own.update({str(facts["uuid"])} if facts.get("uuid") else ())
        # A run may use some devices of a machine, and another run others.
        self._machines: list[set[str]] = []
        for serials in (each for hosts in self._serials.values() for each in hosts.values() if each):
            same = [each for each in self._machines if each & serials]
            self._machines = [each for each in self._machines if not each & serials] + [serials.union(*same)]

    def of(self, run_id: str, host: str) -> str:
        """Returns what identifies the machine of a run, or its host in a cluster; "" if unknown."""
        hosts = self._serials.get(run_id, {})
        if not host and len(hosts) > 1:
            return ""
        serials = hosts.get(host, set()) if host else next(iter(hosts.values()), set())
        known = next((each for each in self._machines if each & serials), None)
        return min(known) if known else host or next(filter(None, hosts), self._names.get(run_id, ""))


def pooled_cells(row: PooledRow) -> dict[str, str]:
    """Returns the Pooled cells of a row."""
    return {
        col.POOLED_MEDIAN: microseconds(row.median_us),
        col.POOLED_RUNS: str(row.runs),
        col.POOLED_MACHINES: str(row.machines),
        col.POOLED_SPREAD: "" if row.spread is None else f"{100 * row.spread:.2f}",
        col.POOLED_RUN_DURATIONS: "; ".join(f"{run_id} {microseconds(us)}" for run_id, us in row.run_medians.items()),
    }
