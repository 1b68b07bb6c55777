"""Captures: kernel_details of torch_npu, op_summary of msprof, ingested into a database that has rows."""

from __future__ import annotations

import csv
import gzip
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import captures

from opatlas.capture.cases import Aggregate

from .target import Target, command, expect, files_of, tables_of

#: Columns that an ingest must not touch.
_FOREIGN, _MEASURED = "Remark", "MicroBench Average Duration(us)"
_BASE = captures.cells("16,32;64,32", "16,64")
_THERE = [
    {**_BASE, "Average Duration(us)": "3.5", _FOREIGN: 'a "word", and =1+1', _MEASURED: "3.50"},
    {**captures.cells("9,9;9,9", "9,9"), "Average Duration(us)": "", _FOREIGN: "  blanks ", _MEASURED: ""},
]
_LAUNCHES = [
    captures.launched("MatMulV3", 10.5),
    captures.launched("MatMulV3", 12, captures.cells("16,32;64,32", "16,64")),
    captures.launched("Add", 3, captures.cells("128,7168;128,7168", "128,7168")),
    captures.launched("Slice", 4, captures.cells("128,7168;2", "128,64")),
    captures.launch(captures.COLLECTIVE),
    captures.launch(shapes="N/A", dtypes="N/A", formats="N/A"),
]


def _seeds_of_kernel_details() -> Iterator[bytes]:
    yield captures.capture_text(_LAUNCHES).encode()
    yield captures.capture_text(_LAUNCHES[:2]).encode()
    yield b"\xef\xbb\xbf" + captures.capture_text(_LAUNCHES).replace("\n", "\r\n").encode()


def _seeds_of_op_summary() -> Iterator[bytes]:
    yield captures.summary_text(_LAUNCHES).encode()
    yield captures.summary_text(_LAUNCHES[1:], older=True).encode()


def _check(name: str, data: bytes, folder: Path) -> None:
    path, database = folder / name, folder / "database"
    path.write_bytes(data)
    database.mkdir()
    there = database / "MatMulV3.csv"
    with open(there, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(_THERE[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(_THERE)
    ingest = ("ingest", "--profiling-path", path, "--database-path", database)
    status, _, _ = command(*ingest)
    tables = tables_of(database)
    with open(there, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for before, after in zip(_THERE, rows, strict=False):
        expect(
            {**before, "Average Duration(us)": ""}
            == {**{name: after[name] for name in before}, "Average Duration(us)": ""}
            and after["Average Duration(us)"] == before["Average Duration(us)"],
            "a cell that is not the capture's was changed",
        )
    again, _, _ = command(*ingest)
    # A capture that lost rows to an error, or all of them, may be in already, or may not.
    expect(again in (0, status), f"exit status {status}, and {again} for the same capture again")
    expect(tables_of(database) == tables, "the same capture again changed a table")
    aggregate = Aggregate()
    if aggregate.add_files([path]):
        return
    account = aggregate.account
    expect(account.rows == account.ingested + account.left_out.total(), f"the account does not add up: {account}")
    launches = sum(len(case.durations_us) for of_type in aggregate.cases().values() for case in of_type)
    expect(launches == account.ingested, f"{launches} launches in cases, {account.ingested} ingested")


_SAMPLES = "ingest-20261121T163006Z-1f0c9a.jsonl.gz"


def _seeds_of_samples() -> Iterator[bytes]:
    for launches in (_LAUNCHES, [captures.launched("Add", 3)]):
        with tempfile.TemporaryDirectory() as folder:
            path = captures.write_capture(Path(folder, "kernel_details.csv"), launches)
            status, _, _ = command("ingest", "--profiling-path", path, "--database-path", Path(folder, "database"))
            assert status == 0
            (samples,) = Path(folder, "database/runs").glob("*.gz")
            yield gzip.decompress(samples.read_bytes())


def _check_samples(data: bytes, folder: Path) -> None:
    path = captures.write_capture(folder / "kernel_details.csv", [captures.launched("MatMulV3", 20.5)])
    database = folder / "database"
    (database / "runs").mkdir(parents=True)
    (database / "runs" / _SAMPLES).write_bytes(gzip.compress(data, 1))
    before = files_of(database / "runs")
    status, _, errors = command("ingest", "--profiling-path", path, "--database-path", database)
    after = files_of(database / "runs")
    expect(all(after[name] == text for name, text in before.items()), "samples of an earlier ingest were changed")
    expect(status == 0 or _SAMPLES.partition(".")[0] in errors or ".csv" in errors, f"nothing named: {errors}")


_WORDS = (
    b"MatMulV3",
    b"Type",
    b"OP Type",
    b"Duration(us)",
    b"Context ID",
    b"Input Shapes",
    b"DT_BF16",
    b"16,64",
    b"_kernel_0",
)
CAPTURE = Target(
    "capture",
    "ingest of kernel_details: every row accounted for, cells of others untouched, a second ingest changes nothing",
    _seeds_of_kernel_details,
    partial(_check, "kernel_details.csv"),
    _WORDS,
)
SAMPLES = Target(
    "ingest-samples",
    "samples that an ingest has left: added to, or named with nothing changed",
    _seeds_of_samples,
    _check_samples,
    (*_WORDS, b"durations_us", b"counters", b"replaced", b"sources", b"cells", b"finished_at"),
)
OP_SUMMARY = Target(
    "op-summary",
    "ingest of op_summary: the same",
    _seeds_of_op_summary,
    partial(_check, "op_summary.csv"),
    _WORDS,
)
