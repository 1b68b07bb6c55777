"""Drawn lives of a database: runs that measured rows, ingests, and rows that no run explains."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from abs_rows import cells, read, record, write
from captures import cells as slot_cells, launched, write_capture
from folding import at, joined, killed, recovered, session

from opatlas.capture.ingest import IngestRequest, ingest_captures
from opatlas.data.database import Database
from opatlas.row.columns import (
    AVERAGE,
    ERROR_CLASS,
    LEVEL,
    MAX_ERROR,
    POOLED,
    PROFILING_AVERAGE,
    PROFILING_RUN_ID,
    RUN_ID,
    STATUS,
    is_profiling_column,
)
from opatlas.row.communication import row_kind
from opatlas.row.record import LaunchedCase, Record
from opatlas.row.signature import signature
from opatlas.row.status import Status

V2, V3 = "MatMulV2", "MatMulV3"
#: Rows that runs measure; the last one is in no CSV before.
SIZES = (1, 2, 3)
NEW_SIZE = 6
#: Rows that no run measures.
FOREIGN = (7, 8, 9)
PRODUCT = slot_cells()


@dataclass(frozen=True, repr=False)
class DrawnRun:
    """A session, as it is drawn.

    Attributes:
        records: in the order of the journals, not of time.
        parts: after how many records another process has the next ones.
    """

    run_id: str
    records: tuple[Record, ...]
    mode: str
    is_killed: bool
    parts: int

    def __repr__(self) -> str:
        how = f"killed in {self.parts} parts" if self.is_killed else "ended"
        records = ", ".join(map(_told, self.records))
        return f"<{self.run_id} {self.mode} {how}: {records}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Hypothesis would print all fields."""
        printer.text(repr(self))


def _told(record: Record) -> str:
    samples = record.measurement.samples_us if record.measurement is not None else ""
    launched = record.launched_record()
    ran_as = f" as {launched.kernel_type}" if launched is not None else ""
    shapes = record.cells["Input Shapes"]
    return f"{record.kernel_type} {shapes}{ran_as} {record.status.value} {samples} at {record.finished_at:g}"


class BaseRow(dict[str, str]):
    """A row before any run."""

    def __repr__(self) -> str:
        names = ("Input Shapes", AVERAGE, RUN_ID, STATUS, PROFILING_AVERAGE)
        return f"row {' | '.join(self[name] for name in names)}"


@dataclass(frozen=True)
class DrawnIngest:
    """A capture: durations by the size of the row."""

    number: int
    durations_us: Mapping[int, Sequence[float]]


Event = DrawnRun | DrawnIngest


@st.composite
def _records(draw: st.DrawFn, run_id: str, sizes: Sequence[int]) -> list[Record]:
    found = []
    for size in draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=4)):
        # A row that is in no CSV is appended with its duration.
        status = draw(st.sampled_from([Status.MEASURED] * 5 + list(Status) * (size != NEW_SIZE)))
        finished_at = float(draw(st.integers(1, 10_000)))
        if status is Status.MEASURED:
            samples = draw(st.lists(st.integers(1, 400).map(lambda n: n / 8), min_size=1, max_size=3))
            counters = {"aic_mac_ratio": 0.5} if draw(st.booleans()) else {}
            one = record(size, *samples, run=run_id, counters=counters)
        else:
            judged = draw(st.sampled_from([{}, {}, {LEVEL: "L1", ERROR_CLASS: "mismatch/nan", MAX_ERROR: "3.5"}]))
            one = replace(record(size, status=status, run=run_id), judged=judged)
        found.append(at(one, finished_at))
    return found


@st.composite
def _products(draw: st.DrawFn, run_id: str) -> list[Record]:
    """Records of rows of MatMulV2 and MatMulV3; the former may have launched the latter."""
    found = []
    for asked in draw(st.lists(st.sampled_from([V2, V3]), max_size=2)):
        one = record(1, draw(st.integers(1, 400)) / 8, run=run_id)
        ran = LaunchedCase(V3, {}) if asked == V2 and draw(st.booleans()) else None
        measurement = replace(one.measurement, ran_as=ran) if one.measurement is not None else None
        name = signature(asked, PRODUCT)
        one = replace(one, kernel_type=asked, cells=PRODUCT, signature=name, measurement=measurement)
        found.append(at(one, float(draw(st.integers(1, 10_000)))))
    return found


@st.composite
def _runs(draw: st.DrawFn, number: int) -> DrawnRun:
    run_id = f"202511{number + 1:02}T120000-aaaaaa"
    mode = draw(st.sampled_from(["all", "all", "missing-only"]))
    # A row that a run did not append is only in its log, from where a restore gives it to whoever has the row then.
    found = draw(_records(run_id, (*SIZES, NEW_SIZE) if mode == "all" else SIZES))
    if mode == "all":
        found += draw(_products(run_id))
    # A row has one record at a time.
    unique = {each.finished_at: each for each in found}
    return DrawnRun(run_id, tuple(unique.values()), mode, draw(st.booleans()), draw(st.integers(1, 3)))


@st.composite
def lives(draw: st.DrawFn, most: int = 4, *, other: bool = False) -> list[Event]:
    """Events in the order in which they come, which is not that of the starts of the runs.

    Args:
        other: whether the runs start between those of other lives.
    """
    numbers = range(other, other + 2 * draw(st.integers(1, most)), 2)
    events: list[Event] = [draw(_runs(number)) for number in numbers]
    for number in range(draw(st.sampled_from([0, 0, 1, 2]))):
        durations = st.lists(st.integers(1, 400).map(lambda n: n / 8), min_size=1, max_size=2)
        events.append(DrawnIngest(number, draw(st.dictionaries(st.sampled_from(SIZES), durations, min_size=1))))
    return draw(st.permutations(events))


@st.composite
def bases(draw: st.DrawFn) -> list[dict[str, str]]:
    """The rows before any run: unmeasured ones, those of other tools, those typed by hand, and duplicates."""
    # Of other duplicates, each would get what another one has when databases are combined.
    sizes = [*SIZES, *FOREIGN, *draw(st.lists(st.sampled_from(SIZES), max_size=2))]
    rows = []
    for number, size in enumerate(draw(st.permutations(sizes))):
        row = {**cells(size), AVERAGE: "", RUN_ID: "", STATUS: "", PROFILING_AVERAGE: "", "Note": f"note {number}"}
        if size in FOREIGN or draw(st.booleans()):
            row[AVERAGE] = draw(st.sampled_from(["", "0007.50", "1e1", "nan", "12"]))
            row[RUN_ID] = draw(st.sampled_from(["", "", "another-tool", "20240101T120000-aaaaaa"]))
            row[STATUS] = draw(st.sampled_from(["", "measured", "failed"]))
        if size in FOREIGN:
            row[PROFILING_AVERAGE] = draw(st.sampled_from(["", "3.25"]))
        rows.append(BaseRow(row))
    return rows


def new_database(folder: Path, base: Sequence[Mapping[str, str]]) -> Database:
    folder.parent.mkdir(exist_ok=True)
    database = Database(folder)
    write(database, [dict(row) for row in base])
    write(database, [PRODUCT], V2)
    return database


def live(database: Database, events: Iterable[Event]) -> Database:
    """Brings events into a database, in this order."""
    for event in events:
        if isinstance(event, DrawnIngest):
            _ingest(database, event)
            continue
        if event.is_killed:
            for part in range(event.parts):
                if of_part := event.records[part :: event.parts]:
                    killed(database, *of_part, mode=event.mode, part=f"-gw{part}")
            recovered(database)
        else:
            session(database, *event.records, mode=event.mode)
    return database


def _ingest(database: Database, event: DrawnIngest) -> None:
    path = database.path.parent / f"{database.path.name}-{event.number}" / "kernel_details.csv"
    launches = [launched("Abs", us, cells(size)) for size, all_us in event.durations_us.items() for us in all_us]
    write_capture(path, launches)
    done = ingest_captures(database, [path], IngestRequest(path))
    assert not done.problems


def combined(folder: Path, base: Sequence[Mapping[str, str]], groups: Iterable[Iterable[Event]]) -> Database:
    """Combines databases, each of which has the events of a group, into one that has none."""
    target = new_database(folder / "target", base)
    for number, group in enumerate(groups):
        joined(target, live(new_database(folder / f"source-{number}", base), group))
    return target


Moving = dict[tuple[str, str, int], dict[str, str]]


def moving_cells(database: Database) -> Moving:
    """The cells of durations, statuses, captures and pools, of each row of a signature."""
    found: Moving = {}
    for path in sorted(database.path.glob("*.csv")):
        kind = row_kind(path.stem)
        counts: dict[str, itertools.count[int]] = {}
        for row in read(database, path.stem):
            name = signature(path.stem, row)
            number = next(counts.setdefault(name, itertools.count()))
            found[path.stem, name, number] = {
                column: cell
                for column, cell in row.items()
                if cell and column != PROFILING_RUN_ID
                if kind.is_measured(column) or is_profiling_column(column) or column in POOLED
            }
    return found
