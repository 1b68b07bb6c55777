"""Lives of a database: sessions, killed sessions, combinations and restores, through public ways."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from abs_rows import read
from combining import apply

from opatlas.data import journal, log
from opatlas.data.database import Database
from opatlas.data.journal import JournalHeader
from opatlas.data.pool import pool
from opatlas.data.restore import rebuild
from opatlas.data.write_back import RunWriteBack, recover, write_back_run
from opatlas.row.record import Record


def at(record: Record, finished_at: float) -> Record:
    """The record, finished at another time, in seconds since the epoch."""
    return replace(record, finished_at=finished_at)


def write_back_records(database: Database, header: JournalHeader, *records: Record) -> RunWriteBack:
    """Writes the records back that a session has put into its journal."""
    journal.write(journal.path_of(database, header.run_id), header, [record.to_json() for record in records])
    return write_back_run(database, header)


def session(database: Database, *records: Record, mode: str = "all", prune: bool = False) -> RunWriteBack:
    """A session that measured this, to its end. All records are of one run."""
    header = JournalHeader(records[0].run_id, mode, prune)
    done = write_back_records(database, header, *records)
    assert not done.problems
    return done


def killed(database: Database, *records: Record, run: str = "", mode: str = "all", part: str = "") -> Path:
    """A session that measured this, and was killed before its end; returns its journal."""
    run = run or records[0].run_id
    path = database.journal_dir / f"{run}{part}.jsonl"
    journal.write(path, JournalHeader(run, mode, prune=False), [record.to_json() for record in records])
    return path


def recovered(database: Database) -> None:
    # Two records of one row in one run are a problem that is told; both are merged.
    recover(database, own_run="")
    assert not journal.journals(database)


def joined(target: Database, *sources: Database, pooled: bool = False) -> None:
    """`opatlas combine`, with --pool."""
    assert not apply(target, *sources).problems
    if pooled:
        problems: list[str] = []
        pool(target, problems)
        assert not problems


def restored(database: Database) -> None:
    """`opatlas history --restore csvs`."""
    assert not rebuild(database).problems


def csvs(database: Database) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(database.path.glob("*.csv"))}


def differences(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[str]:
    """The cells of CSVs that differ; whole files, if only their bytes do."""
    found = list(before.keys() ^ after.keys())
    for name in before.keys() & after.keys():
        tables = [list(csv.DictReader(text[name].decode().splitlines())) for text in (before, after)]
        cells = [
            f"{name} {row['Input Shapes']}: {column} {row.get(column)!r} -> {other.get(column)!r}"
            for row, other in zip_longest(*tables, fillvalue={"Input Shapes": "no row"})
            for column in row | other
            if (row.get(column) or "") != (other.get(column) or "")
        ]
        found += cells or ([name] if before[name] != after[name] else [])
    return found


def row_of(database: Database, size: int = 1, kernel_type: str = "Abs") -> dict[str, str]:
    """The only row of a size, without its empty cells."""
    (row,) = [row for row in read(database, kernel_type) if row["Input Shapes"].strip('"') == f"{size},4"]
    return filled(row)


def filled(row: Mapping[str, str]) -> dict[str, str]:
    """A row without its empty cells."""
    return {name: cell for name, cell in row.items() if cell}


def imported(database: Database, kind: Literal["replaced", "edited"] = "replaced") -> list[Mapping[str, str]]:
    """The rows that the log keeps, because no record has their durations."""
    problems: list[str] = []
    found = [event.row for event in log.imported(database, problems, kind)]
    assert not problems
    return found
