"""Journals into CSVs, histories of runs, and manifests."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import captures

from opatlas.data import journal
from opatlas.data import log as history
from opatlas.data.database import Database
from opatlas.data.write_back import recover
from opatlas.row.record import LaunchedCase, Measurement, Record
from opatlas.row.signature import signature
from opatlas.row.status import Status

from .target import Target, expect, files_of, packed, refusing, tables_of

_RUN = "20261121T163006-1f0c9a"
_MEASURED, _UNTOUCHED = captures.cells("16,32;64,32", "16,64"), captures.cells("9,9;9,9", "9,9")
_REMARK = 'untouched, "to the letter" \u00e9'


_MESSAGE = {"message_bytes": "1024", "num_devices": "2", "dtype": "BF16", "topology_tier": "1"}


def _record(
    status: Status,
    measurement: Measurement | None = None,
    reason: str = "",
    kernel_type: str = "MatMulV3",
    cells: Mapping[str, str] = _MEASURED,
) -> dict[str, Any]:
    named = signature(kernel_type, cells)
    return Record(kernel_type, named, cells, status, reason, _RUN, 1.7e9, measurement).to_json()


def _journal(mode: str, *records: dict[str, Any], prune: bool = False) -> bytes:
    return b"".join(
        json.dumps(line).encode() + b"\n" for line in (asdict(journal.JournalHeader(_RUN, mode, prune)), *records)
    )


def _seeds() -> Iterator[bytes]:
    measurement = Measurement(
        samples_us=(10.5, 11.0, 10.75),
        instrument="wall-clock",
        cache_state="cold",
        device_kernels=1,
        helper_kernels={"MemSet": 0.5},
        checked_elements=64,
        total_elements=1024,
        assumptions=("lengths: 3",),
        counters={"a": 1.5},
    )
    sibling = Measurement((2.0,), "msprof", "warm", ran_as=LaunchedCase("MatMulV2", _MEASURED))
    yield _journal("all", _record(Status.MEASURED, measurement), _record(Status.FAILED, reason="ValueError: no"))
    message = _record(Status.MEASURED, measurement, kernel_type="hcom_allReduce_", cells=_MESSAGE)
    yield _journal("all", message)
    yield _journal("missing-only", _record(Status.MEASURED, sibling), prune=True)
    yield _journal("all", _record(Status.INVALID, reason="a dimension"), prune=True) + b'{"kernel_type": "Ma'


def _read(data: bytes, folder: Path) -> None:
    path = folder / f"{_RUN}.jsonl"
    path.write_bytes(data)
    with refusing(path):
        journal.read(path)


def _history(data: bytes, folder: Path) -> None:
    database = Database(folder)
    path = history.file_path(database, _RUN)
    path.parent.mkdir()
    path.write_bytes(data)
    with refusing(path):
        history.read(database, _RUN)


def _write_back(data: bytes, folder: Path) -> None:
    found = []
    for name in ("one", "two"):
        database = Database(folder / name)
        database.journal_dir.mkdir(parents=True)
        path = database.path / "MatMulV3.csv"
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*_MEASURED, "Remark"])
            writer.writerow([*_UNTOUCHED.values(), _REMARK])
            writer.writerow([*_MEASURED.values(), ""])
        (database.journal_dir / f"{_RUN}.jsonl").write_bytes(data)
        recover(database, own_run="")
        tables = tables_of(database.path)
        with open(path, encoding="utf-8", newline="") as file:
            rows = [{name: cell for name, cell in row.items() if cell} for row in csv.DictReader(file)]
        expect({**_UNTOUCHED, "Remark": _REMARK} in rows or b"9,9" in data, "a row that no record is of was changed")
        before = files_of(database.path)
        recover(database, own_run="")
        expect(
            files_of(database.path).keys() <= before.keys() | {"journal/database.lock"}, "a second recovery left files"
        )
        expect(tables_of(database.path) == tables, "a second recovery changed a table")
        found.append(tables)
    expect(found[0] == found[1], "the same journal gives another table")
    expect(sorted(path.name for path in folder.iterdir()) == ["one", "two"], "a file outside of the database")


_WORDS = (
    b'"measured"',
    b'"failed"',
    b'"version"',
    b'"samples_us"',
    b'"cells"',
    b'"ran_as"',
    b'"MatMulV2"',
    b"\n",
    b"2",
    b"3",
    b"4",
)
JOURNAL = Target("journal", "records of a journal are read, or refused", _seeds, _read, _WORDS)
HISTORY = Target("history", "the records of a run's history are read, or refused", packed(_seeds), _history, _WORDS)
WRITE_BACK = Target(
    "write-back",
    "journal to CSV: twice the same, rows of others keep their bytes, no file outside",
    _seeds,
    _write_back,
    _WORDS,
)
