"""Databases of any size, for benchmarks."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from opatlas.data import log
from opatlas.data.database import Database
from opatlas.data.journal import Journal, JournalHeader
from opatlas.data.write_back import write_back
from opatlas.row.columns import BASE, PIPE_UTILIZATION, PROFILING_DURATIONS, profiling_counter
from opatlas.row.record import Measurement, Record
from opatlas.row.signature import signatures
from opatlas.row.status import Status, UpdateMode


def write_adds(database: Path, rows: int, *, counters: bool = False) -> Path:
    """An Add.csv whose rows add two vectors of one more element each; with the columns of a capture."""
    database.mkdir(parents=True)
    path = database / "Add.csv"
    profiled = (*PROFILING_DURATIONS, *map(profiling_counter, PIPE_UTILIZATION)) if counters else ()
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*BASE, *profiled])
        values = ["1.2345"] * len(profiled)
        for n in range(1, rows + 1):
            slots = (f"{n};{n}", "FLOAT;FLOAT", "ND;ND", f"{n}", "FLOAT", "ND")
            writer.writerow(["dynamic", "AI_VECTOR_CORE", *slots, *values])
    return path


def write_rows(database: Path, rows: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
    """Writes the cells of rows by kernel type."""
    database.mkdir(parents=True, exist_ok=True)
    for kernel_type, of_type in rows.items():
        with open(database / f"{kernel_type}.csv", "w", newline="", encoding="utf-8") as file:
            columns = dict.fromkeys([*BASE, *(column for row in of_type for column in row)])
            writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(of_type)


def write_plain_test(path: Path, rows: int) -> None:
    """The baseline: a test that does nothing, parametrized as many times as a database has rows."""
    path.write_text(
        f"import pytest\n\n\n@pytest.mark.parametrize('row', range({rows}))\ndef test_add(row):\n    pass\n"
    )


def add_records(database: Database, run_id: str, *, samples: int, every: int = 1) -> Iterator[Record]:
    """A record of the first row of each `every` rows of an Add.csv. Each row has a duration of its own, also by run."""
    frame = database.read("Add").frame
    rows = zip(signatures("Add", frame), frame[list(BASE)].to_dict("records"), strict=True)
    offset = sum(map(ord, run_id)) * 1e-3
    for number, (signature, cells) in enumerate(itertools.islice(rows, 0, None, every)):
        samples_us = tuple(3.0 + offset + number * 1e-3 + sample * 1e-4 for sample in range(samples))
        measurement = Measurement(samples_us, "wall-clock", "cold")
        yield Record("Add", signature, cells, Status.MEASURED, "", run_id, float(number), measurement)


def write_run(folder: Path, run_id: str, *, samples: int, every: int = 1) -> None:
    """Leaves a run with `add_records` in a database, as a session does: in the CSV and in the log."""
    database = Database(folder)
    records = list(add_records(database, run_id, samples=samples, every=every))
    assert not write_back(database, records, UpdateMode.ALL, prune=False).problems
    log.add(database, JournalHeader(run_id, UpdateMode.ALL.value, prune=False), records)


def write_journal(folder: Path, run_id: str, *, samples: int, every: int = 1) -> None:
    """Leaves a journal with `add_records` in a database, as a killed session does."""
    database = Database(folder)
    journal = Journal(database, JournalHeader(run_id, UpdateMode.ALL.value, prune=False))
    for record in add_records(database, run_id, samples=samples, every=every):
        journal.append(record.to_json())
    journal.close()
