"""What became of one row in one run: the unit that travels from the device to the CSV."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from sys import intern
from typing import Any

from database.errors import OpAtlasError
from database.schema import Status
from database.signature import signature
from database.statistics import Summary, summarize


@dataclass(frozen=True, slots=True)
class RanAs:
    """What a profiler saw run for a row, where that is another case than the row.

    Attributes:
        kernel_type: its type (database.matmul_family: a library chooses between siblings).
        cells: its base columns; empty where they are the row's.
    """

    kernel_type: str
    cells: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measurement:
    """The samples of one row.

    Attributes:
        samples_us: each sample's duration in microseconds, in the order taken.
        instrument: what took them ("wall-clock", "cupti", "msprof", ...).
        cache_state: "cold" (last-level cache flushed before each sample), "warm", or "unknown" where
            whoever took the samples did not say.
        device_kernels: device kernels that one call launched; None where the instrument cannot tell.
        calls_per_sample: calls that one sample averages over (several for short warm calls).
        checked_elements, total_elements: output elements compared with the reference, and all.
        assumptions: what the row does not tell, and what was taken instead.
        counters: hardware counters of the call, by name.
        ran_as: what really ran, where it was a sibling of the row's kernel type; None where it was the
            row's own. The samples are then also, and first of all, those of the sibling's row.
    """

    samples_us: tuple[float, ...]
    instrument: str
    cache_state: str
    device_kernels: int | None = None
    calls_per_sample: int = 1
    checked_elements: int = 0
    total_elements: int = 0
    assumptions: tuple[str, ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    ran_as: RanAs | None = None

    @property
    def summary(self) -> Summary:
        """Statistics of the samples, computed at each call."""
        return summarize(self.samples_us)


@dataclass(frozen=True)
class RowName:
    """A row, named for reports."""

    kernel_type: str
    signature: str


_MEASUREMENT_FIELDS = tuple(field.name for field in fields(Measurement))


@dataclass(frozen=True, slots=True)
class Record:
    """One row, run once.

    Attributes:
        kernel_type, signature: the row.
        cells: its identifying cells, to append it where it is missing.
        status, reason: what happened; of a measured row the reason is mostly empty, else what a reader
            of its duration should know.
        measurement: set if and only if the status is measured.
        run_id: the run, whose manifest tells device, versions and options.
        finished_at: seconds since the epoch.
        crashes_in_a_row: sessions in a row, this one included, in which the row crashed or timed out.
    """

    kernel_type: str
    signature: str
    cells: Mapping[str, str]
    status: Status
    reason: str
    run_id: str
    finished_at: float
    measurement: Measurement | None = None
    crashes_in_a_row: int = 0

    def __post_init__(self) -> None:
        if (self.measurement is not None) != (self.status is Status.MEASURED):
            raise ValueError(f"a record with status {self.status} and measurement {self.measurement}")

    def of_what_ran(self) -> Record | None:
        """The same samples as those of the row of what really ran; None where that was this row."""
        if self.measurement is None or self.measurement.ran_as is None:
            return None
        ran_as = self.measurement.ran_as
        cells = ran_as.cells or self.cells
        return replace(
            self,
            kernel_type=ran_as.kernel_type,
            signature=signature(ran_as.kernel_type, cells),
            cells=cells,
            reason="",
            measurement=replace(self.measurement, ran_as=None),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the journal and for reports that travel between processes."""
        # By hand: dataclasses.asdict copies every sample, at ten times the cost.
        values: dict[str, Any] = {
            "kernel_type": self.kernel_type,
            "signature": self.signature,
            "cells": dict(self.cells),
            "status": self.status.value,
            "reason": self.reason,
            "run_id": self.run_id,
            "finished_at": self.finished_at,
        }
        if self.crashes_in_a_row:
            values["crashes_in_a_row"] = self.crashes_in_a_row
        if self.measurement is not None:
            values["measurement"] = {name: getattr(self.measurement, name) for name in _MEASUREMENT_FIELDS}
            values["measurement"]["samples_us"] = list(self.measurement.samples_us)
            values["measurement"]["assumptions"] = list(self.measurement.assumptions)
            values["measurement"]["counters"] = dict(self.measurement.counters)
            ran_as = values["measurement"].pop("ran_as")
            if ran_as is not None:
                values["measurement"]["ran_as"] = {"kernel_type": ran_as.kernel_type, "cells": dict(ran_as.cells)}
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Record:
        """The record that `to_json` gave. Raises OpAtlasError for anything else."""
        try:
            values = dict(values)
            values["status"] = Status(values["status"])
            # A journal repeats few words many times; shared, its records take half the memory.
            values["run_id"] = intern(values["run_id"])
            values["cells"] = {intern(name): intern(cell) for name, cell in values["cells"].items()}
            if values.get("measurement") is not None:
                measurement = dict(values["measurement"])
                measurement["samples_us"] = tuple(map(float, measurement["samples_us"]))
                measurement["assumptions"] = tuple(map(intern, measurement.get("assumptions", ())))
                measurement["instrument"] = intern(measurement["instrument"])
                measurement["cache_state"] = intern(measurement["cache_state"])
                if "ran_as" in measurement:
                    measurement["ran_as"] = RanAs(**measurement["ran_as"])
                values["measurement"] = Measurement(**measurement)
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise OpAtlasError(f"not a record of this version: {error}") from None
