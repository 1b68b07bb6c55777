"""Checks, findings, and the checked database: numbers, manifests of runs, peaks of the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from opatlas.arrays import Floats
from opatlas.capture.cases import PooledCases, pool_cases, read_ingests
from opatlas.combine.provenance import MeasurementOrigin, folder_origin, run_origins
from opatlas.combine.row_devices import database_device
from opatlas.data.cells import duration_columns, stored_us
from opatlas.data.csv_files import read_frame
from opatlas.data.database import Database
from opatlas.data.log import all_records
from opatlas.data.manifest import Manifest, read_manifests
from opatlas.errors import OpAtlasError, TableError
from opatlas.row.columns import (
    CACHE_STATE,
    DTYPE,
    INPUT_SHAPES,
    INSTRUMENT,
    MESSAGE_BYTES,
    MICROBENCH_MEDIAN,
    MICROBENCH_STD,
    NUM_DEVICES,
    PROFILING_AVERAGE,
    PROFILING_MEDIAN,
    PROFILING_STD,
    QUALITY,
    RUN_ID,
    STAND_IN,
    TOPOLOGY_TIER,
)
from opatlas.row.communication import is_communication
from opatlas.row.quality import NOISE_LIMIT, is_composition
from opatlas.row.record import RowName
from opatlas.row.roofline import PEAKS, Peak
from opatlas.row.signature import column_cells, signatures
from opatlas.row.slots import strip_quotes


@dataclass(frozen=True)
class Finding:
    """A row or a run that fails a check.

    Attributes:
        file: the CSV, or the file in `runs/`.
        line: the line of the row in the file, the header is line 1; None if the finding concerns no row.
        kernel_type: "" if the finding concerns no row.
        row: the row's input shapes or message, or the run id.
        value: the cell or number, such as `62.42 us`.
        reason: what is wrong with the value, and the numbers it was compared with.
        weight: the larger, the worse; comparable within one check.
    """

    file: str
    line: int | None
    kernel_type: str
    row: str
    value: str
    reason: str
    weight: float = 1.0

    @property
    def place(self) -> str:
        """`MatMulV2.csv:457`."""
        name = self.file.rpartition("/")[2]
        return name if self.line is None else f"{name}:{self.line}"


_FIRST_LINE = 2
#: The tolerance of a duration, in standard deviations of its samples.
NOISE_WIDTHS = 2.0


@dataclass(frozen=True)
class CheckedDurations:
    """The durations of a kernel type's rows in microseconds; NaN for a row without one.

    Attributes:
        source: "replay" or "capture".
        us: the median, or the average of a row without a median.
        std_us: the standard deviation of the samples; NaN if unknown.
        conditions: cache state and instrument of each row; "" for captures.
    """

    source: str
    us: Floats
    std_us: Floats
    conditions: Sequence[str]

    @cached_property
    def noise_us(self) -> Floats:
        """The tolerance: NOISE_WIDTHS standard deviations; NOISE_LIMIT of the duration where these are unknown."""
        known: Floats = NOISE_WIDTHS * self.std_us
        return np.where(np.isnan(known), NOISE_LIMIT * self.us, known)


class CheckedTable:
    """The rows of one kernel type."""

    def __init__(self, kernel_type: str, path: Path, frame: pd.DataFrame) -> None:
        self.kernel_type = kernel_type
        self.path = path
        self.frame = frame

    def __len__(self) -> int:
        return len(self.frame)

    def cells(self, column: str) -> list[str]:
        """Returns the cells of a column; empty cells if the file lacks the column."""
        return column_cells(self.frame, column)

    def numbers(self, column: str) -> Floats:
        """Returns the numbers of a column; NaN for a cell that is not a number, and if the file lacks the column."""
        if column not in self.frame.columns:
            return np.full(len(self), np.nan)
        found: Floats = pd.to_numeric(self.frame[column], errors="coerce").to_numpy(dtype=float)
        return found

    @cached_property
    def signatures(self) -> list[str]:
        """The signature of each row."""
        return signatures(self.kernel_type, self.frame)

    @cached_property
    def first_indices(self) -> Mapping[str, int]:
        """The position of the first row of each signature, which is the row that replays and ingests fill."""
        indices: dict[str, int] = {}
        for index, signature in enumerate(self.signatures):
            indices.setdefault(signature, index)
        return indices

    @cached_property
    def replayed(self) -> CheckedDurations:
        """The durations that replays measured."""
        average = self.numbers(duration_columns(self.kernel_type)[0])
        conditions = [
            ", ".join(filter(None, pair)) for pair in zip(self.cells(CACHE_STATE), self.cells(INSTRUMENT), strict=True)
        ]
        median = average if is_communication(self.kernel_type) else self.numbers(MICROBENCH_MEDIAN)
        return _durations("replay", median, average, self.numbers(MICROBENCH_STD), conditions)

    @cached_property
    def compositions(self) -> npt.NDArray[np.bool_]:
        """Which rows have the replayed duration of a composition of torch operators."""
        cells = zip(self.cells(QUALITY), self.cells(STAND_IN), strict=True)
        composed = np.array([is_composition(*pair) for pair in cells], dtype=bool)
        found: npt.NDArray[np.bool_] = composed & (self.replayed.us > 0)
        return found

    @cached_property
    def own_kernel(self) -> CheckedDurations:
        """The durations that replays measured, without those of compositions."""
        return replace(self.replayed, us=np.where(self.compositions, np.nan, self.replayed.us))

    @cached_property
    def noise(self) -> Floats:
        """The standard deviation of replayed samples as a share of their mean; NaN if unknown.

        For a message the median stands in for the mean, which is not stored.
        """
        mean, std = self.numbers(duration_columns(self.kernel_type)[0]), self.replayed.std_us
        is_known = (self.replayed.us > 0) & (std > 0) & (mean > 0)
        noise: Floats = np.divide(std, mean, out=np.full(len(self), np.nan), where=is_known)
        return noise

    @cached_property
    def captured(self) -> CheckedDurations:
        """The durations that captures measured."""
        median, average, std = map(self.numbers, (PROFILING_MEDIAN, PROFILING_AVERAGE, PROFILING_STD))
        return _durations("capture", median, average, std, [""] * len(self))

    @cached_property
    def row_names(self) -> list[str]:
        """The name of each row for people: its input shapes, or its message."""
        if not is_communication(self.kernel_type):
            return [strip_quotes(cell) for cell in self.cells(INPUT_SHAPES)]
        messages = zip(*map(self.cells, (MESSAGE_BYTES, NUM_DEVICES, DTYPE, TOPOLOGY_TIER)), strict=True)
        return [f"{size} bytes, {devices} devices, {dtype}, tier {tier}" for size, devices, dtype, tier in messages]

    def finding(self, index: int, value: str, reason: str, weight: float = 1.0) -> Finding:
        """Returns a finding of the row at a position, from 0."""
        line = index + _FIRST_LINE
        return Finding(str(self.path), line, self.kernel_type, self.row_names[index], value, reason, float(weight))


class CheckedDatabase:
    """A database, and what its rows are compared with.

    Attributes:
        database: the folder.
        kernel_types: the types whose CSV can be read, collectives included.
        unreadable: the errors of the other CSVs, by kernel type.
        code: the digest of the present code; "" if unknown.
        replayed_types: the kernel types that have a replay.
    """

    def __init__(
        self,
        path: Path,
        *,
        code: str = "",
        replayed_types: Collection[str] = frozenset(),
    ) -> None:
        """Reads all CSVs. Raises OpAtlasError: a folder of the database is a link."""
        self.database = Database(path)
        self.code = code
        self.replayed_types = replayed_types
        self._tables: dict[str, CheckedTable] = {}
        self.unreadable: dict[str, TableError] = {}
        for file in sorted(path.glob("[!.]*.csv")):
            try:
                self._tables[file.stem] = CheckedTable(file.stem, file, read_frame(file, file.stem))
            except TableError as error:
                self.unreadable[file.stem] = error
        self.kernel_types = list(self._tables)

    @property
    def path(self) -> Path:
        """The folder."""
        return self.database.path

    @property
    def rows(self) -> int:
        """The number of rows of all kernel types."""
        return sum(map(len, self._tables.values()))

    def table(self, kernel_type: str) -> CheckedTable:
        """Returns the rows of one of `kernel_types`."""
        return self._tables[kernel_type]

    def tables(self) -> Iterator[CheckedTable]:
        """Yields the table of each kernel type."""
        yield from self._tables.values()

    @cached_property
    def rows_by_run(self) -> Counter[str]:
        """The number of replayed durations by run id; "" counts rows without a run id."""
        rows: Counter[str] = Counter()
        for table in self.tables():
            run_ids = table.cells(RUN_ID)
            rows.update(run_ids[index].strip() for index in np.flatnonzero(~np.isnan(table.replayed.us)).tolist())
        return rows

    @cached_property
    def _runs(self) -> tuple[Mapping[str, Manifest], list[str]]:
        problems: list[str] = []
        return read_manifests(self.database, problems), problems

    @property
    def manifests(self) -> Mapping[str, Manifest]:
        """The readable manifests of runs, by run id."""
        return self._runs[0]

    @cached_property
    def kept_us(self) -> Mapping[tuple[str, RowName], float]:
        """The stored duration that follows from the samples in the histories, by run id and row."""
        # A history that cannot be read has no samples.
        records = all_records(self.database, [])
        return {
            (record.run_id, RowName(record.kernel_type, record.signature)): stored_us(record)
            for record in records
            if record.measurement is not None
        }

    @cached_property
    def _pooled(self) -> tuple[Mapping[str, PooledCases], frozenset[str], list[str]]:
        try:
            ingests = read_ingests(self.database)
            run_ids = frozenset(ingest.manifest.run_id for ingest in ingests)
        except OpAtlasError as error:
            return {}, frozenset(), [str(error)]
        try:
            return pool_cases(ingests), run_ids, []
        except OpAtlasError as error:
            return {}, run_ids, [str(error)]

    @property
    def pooled(self) -> Mapping[str, PooledCases]:
        """The captured launches that ingests keep, by kernel type; empty if they cannot be read."""
        return self._pooled[0]

    @property
    def ingests(self) -> frozenset[str]:
        """The run ids of the ingests whose manifest can be read."""
        return self._pooled[1]

    @property
    def problems(self) -> Sequence[str]:
        """A sentence for each file in `runs/` that cannot be read."""
        return [*self._runs[1], *self._pooled[2]]

    @cached_property
    def _folder(self) -> MeasurementOrigin:
        return folder_origin(self.database) or MeasurementOrigin()

    @cached_property
    def _origins(self) -> Mapping[str, MeasurementOrigin]:
        origins = {run_id: next(run_origins(manifest), None) for run_id, manifest in self.manifests.items()}
        return {run_id: origin for run_id, origin in origins.items() if origin is not None}

    def origin(self, run_id: str) -> MeasurementOrigin:
        """Returns the device and software of a run, from the manifest or else from the name of the folder."""
        return self._origins.get(run_id.strip(), self._folder)

    @cached_property
    def device(self) -> str:
        """The device of the rows; "" if it is unknown, or there are several."""
        return self._folder.device or database_device(self.path)

    @cached_property
    def peak(self) -> Peak | None:
        """The peaks in the data sheet of the device; None if unknown."""
        return PEAKS.get(self.device)


def _durations(
    source: str, median: Floats, average: Floats, std: Floats, conditions: Sequence[str]
) -> CheckedDurations:
    us = np.where(np.isnan(median), average, median)
    us = np.where(np.isfinite(us) & (us > 0), us, np.nan)
    std = np.where(np.isfinite(std) & (std >= 0), std, np.nan)
    return CheckedDurations(source, us, std, conditions)


#: The kernel type of a check that looks at the whole database.
WHOLE_DATABASE = "database"


@dataclass(frozen=True)
class Check:
    """One data test.

    Attributes:
        name: the name in test ids, in known_findings.yaml and in JSON.
        about: what the findings are: "rows far above both neighbours".
        remedy: what a user can do about a finding.
        check_table: finds rows of one kernel type; None for a check of the whole database.
        check_database: finds rows or runs of the whole database; None for a check of each kernel type.
        advisory: whether findings fail only with --strict.
        why_skipped: says why the check does not apply to a database; "" if it applies.
    """

    name: str
    about: str
    remedy: str
    check_table: Callable[[CheckedDatabase, CheckedTable], Sequence[Finding]] | None = None
    check_database: Callable[[CheckedDatabase], Sequence[Finding]] | None = None
    advisory: bool = False
    why_skipped: Callable[[CheckedDatabase], str] = lambda database: ""

    def find(self, database: CheckedDatabase, kernel_type: str) -> list[Finding]:
        """Returns the findings of a kernel type, or of WHOLE_DATABASE, the worst first. Raises OpAtlasError."""
        if self.check_database is not None:
            found = self.check_database(database)
        else:
            assert self.check_table is not None
            found = self.check_table(database, database.table(kernel_type))
        return sorted(found, key=lambda finding: -finding.weight)
