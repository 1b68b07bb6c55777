"""Looks up rows in the log of a database: in which runs they were measured, when, with which samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median
from sys import intern
from typing import Annotated, NamedTuple

import msgspec

from opatlas.data.cells import microseconds
from opatlas.data.database import Database
from opatlas.data.log import file_path, imported, read_lines, runs
from opatlas.errors import OpAtlasError
from opatlas.gc_pause import gc_paused
from opatlas.row.columns import RUN_ID
from opatlas.row.communication import row_kind
from opatlas.row.quality import typical_mean
from opatlas.row.record import RowName
from opatlas.row.signature import signature
from opatlas.row.status import Status
from opatlas.typed_json import DecodeError, decode


class Log:
    """The rows in the log of a database. The file of a run is read when it is first needed.

    A file that cannot be read counts as empty.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._loaded: dict[str, _LoggedRun] = {}
        self._types: dict[str, set[str]] = {}
        self._imported: set[tuple[str, RowName, str]] | None = None
        self._run_ids: Sequence[str] | None = None

    def explains(self, run_id: str, row: RowName, duration: str) -> bool:
        """Returns whether a run has samples of a row with a stored duration, which is a cell of the row."""
        return any(each.has_duration(duration) for each in self._records_of(run_id, row))

    def has_imported(self, run_id: str, row: RowName, duration: str) -> bool:
        """Returns whether the log keeps a duration that a fold replaced, of a row that names a run."""
        if self._imported is None:
            self._imported = {
                (each.row.get(RUN_ID, ""), RowName(each.kernel_type, signature(each.kernel_type, each.row)), cell)
                for each in imported(self.database, [])
                if (cell := each.row.get(row_kind(each.kernel_type).duration_columns[0], ""))
            }
        return (run_id, row, duration) in self._imported

    def is_last(self, run_id: str, row: RowName, duration: str) -> bool:
        """Returns whether a stored duration is that of the record of a row in a run that counts."""
        measured = [each for each in self._counting(run_id, row) if each.samples_us]
        return any(each.has_duration(duration) for each in measured[-1:])

    def has_duration(self, run_id: str, row: RowName) -> bool:
        """Returns whether a run has samples of a row."""
        return any(each.samples_us for each in self._records_of(run_id, row))

    def last_at(self, run_id: str, row: RowName, *, launched: bool, measured: bool) -> float:
        """Returns when a run had a row at last, in seconds since the epoch; `-inf` if the log does not say.

        Args:
            launched: whether records of other rows count that launched the row.
            measured: whether only records with samples count.
        """
        return max(
            (
                each.finished_at
                for each in self._records_of(run_id, row)
                if (launched or each.is_requested) and (not measured or each.samples_us)
            ),
            default=-math.inf,
        )

    def has_own(self, run_id: str, row: RowName) -> bool:
        """Returns whether a run had a row itself, and not only launched it for another one."""
        return any(each.is_own for each in self._records_of(run_id, row))

    def has_type(self, run_id: str, kernel_type: str) -> bool:
        """Returns whether a run has records of a kernel type, measured or not."""
        if run_id not in self._types:
            self._types[run_id] = {row.kernel_type for row in self._run(run_id)}
        return kernel_type in self._types[run_id]

    def has_row(self, run_id: str, row: RowName) -> bool:
        """Returns whether a run has a record of a row, measured or not."""
        return row in self._run(run_id)

    def statuses(self, row: RowName) -> Mapping[str, Status]:
        """Returns the last status of a row in each run; skipped only if the run did nothing else with the row."""
        if self._run_ids is None:
            self._run_ids = runs(self.database)
        found = {}
        for run_id in self._run_ids:
            if statuses := [each.status for each in self._counting(run_id, row)]:
                found[run_id] = next((each for each in reversed(statuses) if each is not Status.SKIPPED), statuses[-1])
        return found

    def _counting(self, run_id: str, row: RowName) -> Sequence[_LoggedRow]:
        """Returns the records of a row in a run; those of other rows that launched it only if there are no others."""
        found = self._records_of(run_id, row)
        return [each for each in found if each.is_requested] or found

    def _records_of(self, run_id: str, row: RowName) -> Sequence[_LoggedRow]:
        """Returns the records of a row in a run, in the order of time."""
        return self._run(run_id).get(row, ())

    def _run(self, run_id: str) -> _LoggedRun:
        if run_id not in self._loaded:
            found: _LoggedRun = {}
            with suppress(OpAtlasError), gc_paused():
                found = _read_rows(file_path(self.database, run_id))
            for of_row in found.values():
                of_row.sort(key=lambda each: each.finished_at)
            self._loaded[run_id] = found
        return self._loaded[run_id]


_Samples = Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]


class _LoggedRow(NamedTuple):
    """What a record says of a row.

    Attributes:
        samples_us: the text of the samples, because most are not asked for; None if it did not measure.
        is_requested: whether the row was requested, whatever was launched.
        is_own: whether the row was requested, and no other kernel was launched.
    """

    status: Status
    finished_at: float
    samples_us: bytes | None
    is_requested: bool
    is_own: bool

    def has_duration(self, cell: str) -> bool:
        """Returns whether a stored duration follows from the samples.

        Earlier versions stored the mean of all of them.
        """
        if self.samples_us is None:
            return False
        try:
            samples_us = decode(self.samples_us, _Samples, "samples")
        except DecodeError:
            return False
        return any(microseconds(float(rule(samples_us))) == cell.strip() for rule in (fmean, typical_mean, median))


#: The rows of a run.
_LoggedRun = dict[RowName, list[_LoggedRow]]


class _LaunchedFields(msgspec.Struct):
    kernel_type: str
    cells: dict[str, str] = {}


class _MeasurementFields(msgspec.Struct):
    samples_us: msgspec.Raw
    ran_as: _LaunchedFields | None = None


class _RecordFields(msgspec.Struct):
    """The fields of a record that name its rows, and its samples; decoding only these is faster."""

    kernel_type: str
    cells: dict[str, str]
    status: Status
    finished_at: float
    measurement: _MeasurementFields | None = None


def _read_rows(path: Path) -> _LoggedRun:
    """Returns the rows of a log: of each record the requested row, and the launched one if it differs.

    Signatures are computed from the cells. Raises OpAtlasError.
    """
    found: _LoggedRun = {}
    for number, line in enumerate(read_lines(path) if path.exists() else (), start=1):
        if number == 1:
            continue
        record = decode(line, _RecordFields, str(path))
        measurement, kernel_type = record.measurement, intern(record.kernel_type)
        ran_as = None if measurement is None else measurement.ran_as
        samples = None if measurement is None else bytes(measurement.samples_us)
        logged = _LoggedRow(record.status, record.finished_at, samples, True, ran_as is None)
        found.setdefault(RowName(kernel_type, signature(kernel_type, record.cells)), []).append(logged)
        if ran_as is not None:
            name = RowName(ran_as.kernel_type, signature(ran_as.kernel_type, ran_as.cells or record.cells))
            found.setdefault(name, []).append(logged._replace(is_requested=False))
    return found
