"""The record of one row in one run, which travels from the device process through the journal to the CSV."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from sys import intern
from typing import Annotated, Any, NamedTuple

import msgspec

from opatlas.row.columns import INPUT_SHAPES, MESSAGE_BYTES, NUM_DEVICES, is_file_name
from opatlas.row.communication import BY_KERNEL_TYPE, is_communication
from opatlas.row.quality import QualityVerdict, Summary, judge, judge_composition, summarize
from opatlas.row.rounds import RatioInterval, of_processes, ratio_interval
from opatlas.row.signature import signature
from opatlas.row.slots import base_type
from opatlas.row.status import Status
from opatlas.typed_json import Count, DecodeError, decode, json_line

#: Bounds of the values in a record that is read: 10^15 us are 31 years, and the sum of samples stays finite.
_Durations = Annotated[tuple[Annotated[float, msgspec.Meta(gt=0, le=1e15)], ...], msgspec.Meta(min_length=1)]
#: A run id is part of file names.
_RUN_ID = re.compile(r"\w[\w.+-]{,150}", re.ASCII)
_CELL_COUNT = re.compile("[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True)
class LaunchedCase:
    """The case that a call launched, where the case differs from the row's.

    Attributes:
        kernel_type: the kernel type (a library chooses between sibling types, opatlas/row/slots.py).
        cells: the base columns; empty if they equal the row's.
    """

    kernel_type: str
    cells: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Execution:
    """The software and the device that ran when a row was measured.

    Attributes:
        implementation: name and version ("flashinfer 0.5.3"), or the call of an NPU; "" if unknown.
        kernel_names: names of the device kernels of one call, in the order of their launches; () if unknown.
        span_us: median time from the start of the first to the end of the last device kernel; None if unknown.
        outputs_missing: output slots of the row that the implementation does not compute.
        conversions: inputs and results that were converted outside the measured time, a phrase each.
        set_up_s: seconds of set-up and first call, compilation included; None for torch itself.
        max_error: largest error of a checked element, as a share of its tolerance; None if checked exactly.
    """

    implementation: str = ""
    kernel_names: tuple[str, ...] = ()
    span_us: Annotated[float, msgspec.Meta(ge=0, le=1e15)] | None = None
    outputs_missing: tuple[Count, ...] = ()
    conversions: tuple[str, ...] = ()
    set_up_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    max_error: Annotated[float, msgspec.Meta(ge=0)] | None = None

    @property
    def is_library(self) -> bool:
        """Whether an implementation other than the default ran, whose kernels have names of their own."""
        return self.set_up_s is not None


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of one process: the kernel and the baseline of its row, sampled in turn.

    Attributes:
        kernel_us, baseline_us: the samples of each round in microseconds.
        control_us: a second sample of the baseline in each round; () without a control.
    """

    kernel_us: _Durations
    baseline_us: _Durations
    control_us: tuple[Annotated[float, msgspec.Meta(gt=0, le=1e15)], ...] = ()

    @property
    def ratios(self) -> RatioInterval:
        """The duration of the baseline / the kernel's."""
        return ratio_interval(self.baseline_us, self.kernel_us)

    @property
    def control(self) -> RatioInterval | None:
        """The duration of the baseline / that of the baseline called once more; None without a control."""
        return ratio_interval(self.baseline_us, self.control_us) if self.control_us else None


@dataclass(frozen=True, slots=True)
class Measurement:
    """The samples of one row.

    Attributes:
        samples_us: the duration of each sample in microseconds, in the order of measurement.
        instrument: the instrument ("wall-clock", "cupti", "msprof", ...).
        cache_state: "cold" (last-level cache flushed before each sample), "warm", or "unknown".
        device_kernels: the number of device kernels that one call launched; None if the instrument cannot count them.
        helper_kernels: other kernels of the call, which the samples exclude: microseconds of all launches of a type,
            mean over the samples; empty if the samples cover the whole call.
        calls_per_sample: the number of calls that one sample averages (several for short warm calls).
        checked_elements, total_elements: output elements that were compared with the reference, and all of them.
        assumptions: values that the row does not state, and that were assumed.
        counters: hardware counters of the call, by name.
        stand_in: the call that was timed instead of the row's kernel; "" for the kernel itself.
        throttled: why the device ran below its clock during the samples; "" if it did not.
        bound_us: the least time that the peaks of the device allow; None if unknown.
        ran_as: the case that the call launched, if it is a sibling of the row; None if it is the row. The samples
            then belong to the sibling's row, and fill this row too.
        execution: the implementation, its kernels and its set-up.
        against: the implementation that `rounds` compare with, as in its own row; "" without rounds.
        rounds: of each process that compared; the samples are the kernel's in the first.
    """

    samples_us: _Durations
    instrument: str
    cache_state: str
    device_kernels: Count | None = None
    helper_kernels: Mapping[str, Annotated[float, msgspec.Meta(ge=0, le=1e15)]] = field(default_factory=dict)
    calls_per_sample: Annotated[int, msgspec.Meta(ge=1)] = 1
    checked_elements: Count = 0
    total_elements: Count = 0
    assumptions: tuple[str, ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    stand_in: str = ""
    throttled: str = ""
    bound_us: Annotated[float, msgspec.Meta(gt=0, le=1e15)] | None = None
    ran_as: LaunchedCase | None = None
    execution: Execution = Execution()
    against: str = ""
    rounds: tuple[Rounds, ...] = ()

    @property
    def ratios(self) -> RatioInterval | None:
        """What the rounds of all processes say; None without rounds."""
        return of_processes([each.ratios for each in self.rounds]) if self.rounds else None

    @property
    def verdict(self) -> QualityVerdict:
        """The quality of the samples; computed at each access."""
        verdict = judge(self.samples_us, throttled=self.throttled, bound_us=self.bound_us)
        return judge_composition(verdict) if self.stand_in else verdict

    @property
    def summary(self) -> Summary:
        """The statistics of the samples; computed at each access."""
        return summarize(self.samples_us)


class RowName(NamedTuple):
    """The name of a row in reports: kernel type and signature."""

    kernel_type: str
    signature: str


@dataclass(frozen=True, slots=True)
class Record:
    """One row, run once.

    Attributes:
        kernel_type, signature: the row.
        cells: the identifying cells, from which a missing row is appended.
        status, reason: the result; for a measured row the reason is "" or a remark about the duration.
        measurement: set if and only if the status is measured.
        run_id: the run; its manifest has device, versions and options.
        finished_at: seconds since the epoch.
        judged: for a row with a candidate, the cells of its judgement (columns `JUDGED`).
        host: the machine of a cluster that ran the row; "" without a cluster.
    """

    kernel_type: str
    signature: str
    cells: Mapping[str, str]
    status: Status
    reason: str
    run_id: str
    finished_at: float
    measurement: Measurement | None = None
    judged: Mapping[str, str] = field(default_factory=dict)
    host: str = ""

    def __post_init__(self) -> None:
        if (self.measurement is not None) != (self.status is Status.MEASURED):
            raise ValueError(f"a record with status {self.status} and measurement {self.measurement}")

    @property
    def ran_as_another_type(self) -> bool:
        """Whether the samples are those of another kernel type; AddAiCore and Add are names of one."""
        ran_as = self.measurement.ran_as if self.measurement is not None else None
        return ran_as is not None and base_type(ran_as.kernel_type) != base_type(self.kernel_type)

    def requested_record(self) -> Record:
        """Returns what the record says of the row itself: no samples, if those are of another type."""
        if not self.ran_as_another_type:
            return self
        return replace(self, status=Status.UNSUPPORTED, reason=ran_as(self), measurement=None)

    def launched_record(self) -> Record | None:
        """Returns the same samples as a record of the case that was launched; None if this row was launched."""
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

    @property
    def rows(self) -> set[RowName]:
        """The row, and the row of the case that was launched for it."""
        launched = self.launched_record()
        return {RowName(each.kernel_type, each.signature) for each in (self, launched) if each is not None}

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for the journal and for other processes."""
        return msgspec.to_builtins(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Record:
        """Returns the record of plain values from `to_json`. Raises DecodeError for other values."""
        return cls.decode(json_line(values), "a record")

    @classmethod
    def decode(cls, line: bytes | str, place: str) -> Record:
        """Decodes the record in a line of a journal.

        Args:
            line: JSON; unknown fields are ignored.
            place: names the line in an error.

        Raises:
            DecodeError: the line is not a record, or a duration, a count or the kernel type is impossible.
        """
        record = decode(line, cls, place)
        if not is_run_id(record.run_id):
            raise DecodeError(place, f"run id {record.run_id!r} cannot name a file")
        for kernel_type, cells in record._cases():
            problem = _row_problem(kernel_type, cells)
            if problem:
                raise DecodeError(place, problem)
        _intern_words(record)
        # The cells say which row it is; a signature next to them is not trusted.
        _set(record, "signature", signature(record.kernel_type, record.cells))
        return record

    def _cases(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        yield self.kernel_type, self.cells
        if self.measurement is not None and self.measurement.ran_as is not None:
            yield self.measurement.ran_as.kernel_type, self.measurement.ran_as.cells or self.cells


#: How a reason begins that says what was launched for a row.
RAN_AS = "ran as "


def ran_as(record: Record) -> str:
    """Returns the reason of a record, with a remark about what was launched if it was not the row."""
    launched = record.launched_record()
    if launched is None:
        return record.reason
    shapes = f" on {launched.cells.get(INPUT_SHAPES, '')}" if launched.signature != record.signature else ""
    return "; ".join(filter(None, (f"{RAN_AS}{launched.kernel_type}{shapes}", record.reason)))


def new_run_id() -> str:
    """Returns the id of a run that begins now."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


def is_run_id(text: str) -> bool:
    """Returns whether a text can be the id of a run: it is part of file names."""
    return _RUN_ID.fullmatch(text) is not None


def _row_problem(kernel_type: str, cells: Mapping[str, str]) -> str:
    """Returns why a database cannot have the row; "" if it can."""
    if not is_file_name(kernel_type):
        return f"kernel type {kernel_type!r} cannot name a file"
    if is_communication(kernel_type):
        if kernel_type not in BY_KERNEL_TYPE:
            return f"no collective is called {kernel_type!r}"
        for name in (MESSAGE_BYTES, NUM_DEVICES):
            if not _CELL_COUNT.fullmatch(cells.get(name, "")):
                return f"cell {name!r} = {cells.get(name, '')!r} is not a count"
    return ""


#: Sets a field of a new frozen object. A copy by `replace` would take as long as decoding the object.
_set = object.__setattr__


def _intern_words(record: Record) -> None:
    """Replaces the words of a new record by interned ones.

    A journal repeats few words often: interning halves the memory of its records.
    """
    _set(record, "run_id", intern(record.run_id))
    _set(record, "cells", dict(zip(map(intern, record.cells), map(intern, record.cells.values()), strict=True)))
    measurement = record.measurement
    if measurement is not None:
        _set(measurement, "instrument", intern(measurement.instrument))
        _set(measurement, "cache_state", intern(measurement.cache_state))
        _set(measurement, "assumptions", tuple(map(intern, measurement.assumptions)))


@dataclass(frozen=True)
class SessionHolder:
    """The session that holds a lock of a database or a device, or held it.

    Attributes:
        run_id, command: the session.
        pid, host: process of the session.
        since: time in seconds since the epoch, before the year 10000.
    """

    run_id: str
    command: str
    pid: int
    host: str
    since: Annotated[float, msgspec.Meta(ge=0, lt=253402300800)]

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"session {self.run_id} (process {self.pid} on {self.host}, since {since}: {self.command})"
