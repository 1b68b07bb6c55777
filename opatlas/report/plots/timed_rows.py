"""Reads the rows of a database that have a duration, with their tensors."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from opatlas.combine.row_devices import RowDevices, are_one_device
from opatlas.data.database import Database
from opatlas.data.header import expect_columns, read_header
from opatlas.errors import CellError, OpAtlasError
from opatlas.gc_pause import gc_paused
from opatlas.progress import track
from opatlas.row.columns import (
    AVERAGE,
    CACHE_STATE,
    INPUT_SLOTS,
    INSTRUMENT,
    MICROBENCH_MIN,
    MICROBENCH_STD,
    OUTPUT_SLOTS,
    PROFILING_AVERAGE,
    QUALITY,
    RUN_ID,
    STAND_IN,
)
from opatlas.row.named_databases import expect_database
from opatlas.row.quality import is_composition, valid_duration
from opatlas.row.signature import column_cells
from opatlas.row.slots import Slot, parse_slots
from opatlas.text import pluralize

#: Patterns for databases below a folder: version, software, device.
_BELOW = ("*", "*/*", "*/*/*")


@dataclass(frozen=True, slots=True)
class TimedRow:
    """A row with a duration.

    Attributes:
        microbench_us, profiling_us: the averages of the replay and of the capture; None if missing.
        conditions: cache state and instrument of the replay, `cold, cupti`; "" if unknown.
        device: the device of the replay; "" if unknown.
        fastest_us, std_us: of the samples of the replay; None if missing.
        is_composition: whether the replay timed several operators of torch in place of the kernel, so that
            `microbench_us` is no estimate of the kernel's own duration (columns Quality and Stand-In).
    """

    kernel_type: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    microbench_us: float | None
    profiling_us: float | None
    conditions: str
    device: str = ""
    is_composition: bool = False
    fastest_us: float | None = None
    std_us: float | None = None

    @property
    def duration_us(self) -> float:
        """The replayed duration, or else the captured one."""
        duration_us = self.microbench_us or self.profiling_us
        assert duration_us is not None
        return duration_us


@dataclass(frozen=True)
class TimedRows:
    """The timed rows of a database.

    Attributes:
        folder: the folder of the database.
        device: the device of the rows; "" if unknown.
        problems: files that could not be read, and rows with malformed cells.
        captured_on: the devices of captures.
    """

    folder: Path
    device: str
    rows: Sequence[TimedRow]
    problems: Sequence[str]
    captured_on: Collection[str] = ()


def read_timed_rows(folder: Path | str, kernel_types: Collection[str] = ()) -> TimedRows:
    """Returns the rows with a duration of some kernel types, or of all.

    Raises:
        OpAtlasError: the folder, or the CSV of a kernel type, does not exist.
    """
    folder = Path(folder)
    expect_tables(folder)
    database = Database(folder)
    there = database.kernel_types()
    missing = sorted(set(kernel_types) - set(there))
    if missing:
        raise OpAtlasError(f"{folder} has no rows of {', '.join(missing)}: name files that are there, without .csv")
    rows: list[TimedRow] = []
    problems: list[str] = []
    devices = RowDevices(folder)
    with gc_paused():
        for kernel_type in track(sorted(kernel_types) or there, "read, kernel types"):
            try:
                rows += _read_rows(database, kernel_type, devices, problems)
            except OpAtlasError as error:
                problems.append(str(error))
    return TimedRows(folder, devices.device, rows, problems, devices.captured_on)


def on_device(row: TimedRow, device: str) -> TimedRow | None:
    """Returns a row without the duration of a replay on another device; None if it has no other duration."""
    if row.microbench_us is None or are_one_device(row.device, device):
        return row
    return _without_replay(row)


def without_composition(row: TimedRow) -> TimedRow | None:
    """Returns a row without the duration of a composition; None if it has no other duration."""
    return _without_replay(row) if row.is_composition else row


def _without_replay(row: TimedRow) -> TimedRow | None:
    if row.profiling_us is None:
        return None
    return replace(
        row, microbench_us=None, conditions="", device="", is_composition=False, fastest_us=None, std_us=None
    )


def expect_tables(folder: Path) -> None:
    """Checks that a folder has CSVs of a database.

    Raises:
        OpAtlasError: the folder is missing, or has no such CSV; the message names a folder below it that has.
    """
    expect_database(folder)
    tables = sorted(folder.glob("*.csv"))
    if not tables:
        below = itertools.chain.from_iterable(sorted(folder.glob(f"{level}/*.csv")) for level in _BELOW)
        example = next(below, None)
        where = f"a folder that does, such as {example.parent}" if example else "a folder that does"
        raise OpAtlasError(f"{folder}: holds no CSV: name {where}")
    problems: list[str] = []
    for path in tables:
        try:
            expect_columns(path, read_header(path).names)
            return
        except OpAtlasError as error:
            problems.append(str(error))
    raise OpAtlasError(f"{folder}: no database, none of its CSVs has kernels or collectives: {problems[0]}")


def _read_rows(database: Database, kernel_type: str, devices: RowDevices, problems: list[str]) -> Iterator[TimedRow]:
    """Yields the timed rows of a kernel type. Raises OpAtlasError."""
    table = database.read(kernel_type)
    frame, unread, example = table.frame, 0, ""
    column = partial(column_cells, frame)
    slots_and_durations = map(column, (*INPUT_SLOTS, *OUTPUT_SLOTS, AVERAGE, PROFILING_AVERAGE))
    of_replay = zip(
        *map(column, (CACHE_STATE, INSTRUMENT, RUN_ID, QUALITY, STAND_IN, MICROBENCH_MIN, MICROBENCH_STD)), strict=True
    )
    for i_shapes, i_dtypes, i_formats, o_shapes, o_dtypes, o_formats, replayed, captured, (
        cache,
        instrument,
        run_id,
        quality,
        stand_in,
        fastest,
        std,
    ) in zip(*slots_and_durations, of_replay, strict=True):
        microbench_us, profiling_us = valid_duration(replayed), valid_duration(captured)
        if microbench_us is None and profiling_us is None:
            continue
        try:
            inputs = parse_slots(i_shapes, i_dtypes, i_formats, INPUT_SLOTS)
            outputs = parse_slots(o_shapes, o_dtypes, o_formats, OUTPUT_SLOTS)
        except CellError as error:
            unread, example = unread + 1, example or str(error)
            continue
        conditions = ", ".join(word for word in (cache, instrument) if word) if microbench_us else ""
        device = devices.replayed(run_id) if microbench_us else ""
        yield TimedRow(
            kernel_type,
            inputs,
            outputs,
            microbench_us,
            profiling_us,
            conditions,
            device,
            microbench_us is not None and is_composition(quality, stand_in),
            valid_duration(fastest) if microbench_us else None,
            valid_duration(std) if microbench_us else None,
        )
    if unread:
        problems.append(f"{table.path}: {pluralize(unread, 'row')} left out: {example}; correct the cell")
