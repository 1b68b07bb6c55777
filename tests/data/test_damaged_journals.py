"""Damaged journals: each line is read by itself, nothing is told twice, and no other journal is kept out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from abs_rows import read, record
from folding import killed

from opatlas.data import journal
from opatlas.data.database import Database
from opatlas.data.journal import NotAJournal
from opatlas.data.write_back import recover

AVERAGE = "Average Duration(us)"
DEEP = b'{"cells":' * 100_000


def averages(database: Database) -> list[str]:
    return [row[AVERAGE] for row in read(database)]


def two_records(database: Database) -> tuple[Path, list[bytes]]:
    """A journal of two records: its path, and its three lines without their ends."""
    path = killed(database, record(1, 10.0), record(2, 20.0))
    return path, path.read_bytes().splitlines()


def changed(change: Mapping[str, Any], **measurement: Any) -> bytes:
    """The line of a record about row 3, with other values in it."""
    values = {**record(3, 30.0).to_json(), **change}
    if measurement:
        values["measurement"] = {**values["measurement"], **measurement}
    return json.dumps(values).encode()


NO_RECORDS = {
    "kernel type is a number": changed({"kernel_type": 3}),
    "kernel type is a path": changed({"kernel_type": "../Abs"}),
    "kernel type of what ran is a path": changed({}, ran_as={"kernel_type": "../Abs"}),
    "unknown collective": changed({"kernel_type": "hcom_unknown_"}),
    "collective without a size": changed({"kernel_type": "hcom_allReduce_"}),
    "signature is a number": changed({"signature": 7}),
    "a cell is a number": changed({"cells": {"Input Shapes": 7}}),
    "status is unknown": changed({"status": "of a later version"}),
    "measured without samples": changed({"measurement": None}),
    "samples without being measured": changed({"status": "failed"}),
    "no sample": changed({}, samples_us=[]),
    "sample of 0": changed({}, samples_us=[1.0, 0.0]),
    "sample is NaN": changed({}, samples_us=[float("nan")]),
    "sample of 5,000 digits": changed({}).replace(b"30.0", b"1" * 5000),
    "counter is text": changed({}, counters={"MAC": "1"}),
    "negative count": changed({}, checked_elements=-1),
    "deep": DEEP,
    "a list": b"[]",
    "cut": changed({})[:-9],
    "not UTF-8": changed({}).replace(b"Abs", b"A\xffs"),
    "zeros within": changed({})[:40] + bytes(40) + changed({})[80:],
}


@pytest.mark.parametrize("line", NO_RECORDS.values(), ids=NO_RECORDS)
def test_a_line_that_is_no_record_costs_itself_only(database: Database, line: bytes) -> None:
    path, (header, first, second) = two_records(database)
    path.write_bytes(b"\n".join((header, first, line, second, b"")))
    contents = journal.read(path)
    assert len(contents.records) == 2
    assert [number for number, _ in contents.unreadable] == [3]
    (found,) = recover(database, own_run="")
    assert (found.statuses, found.incomplete) == ({"measured": 2}, True)
    assert averages(database) == ["10.0000", "20.0000", ""]
    assert path.with_name(f"{path.name}.unreadable").read_bytes().splitlines()[2] == line
    assert recover(database, own_run="") == []


HEADERS = {
    "cut": b'run-1","update_mode":"all","prune":true,"version":3}\n',
    "zeros": bytes(60) + b"\n",
    "another update mode": b'{"run_id":"run-1","update_mode":"x","prune":true,"version":3}\n',
    "deep": DEEP + b"\n",
    "a later version": b'{"run_id":"run-1","update_mode":"all","prune":true,"version":99,"more":{"a":[1]}}\n',
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_records_behind_a_header_that_is_none_are_merged_and_the_file_is_kept(
    database: Database, header: bytes
) -> None:
    path, (_, first, second) = two_records(database)
    text = header + b"\n".join((first, second, b""))
    path.write_bytes(text)
    (found,) = recover(database, own_run="")
    assert (found.run_id, found.statuses, found.incomplete) == ("run-1", {"measured": 2}, True)
    assert averages(database) == ["10.0000", "20.0000", ""]
    assert path.with_name(f"{path.name}.unreadable").read_bytes() == text
    assert recover(database, own_run="") == []


def test_records_without_a_header_neither_add_rows_nor_prune_any(database: Database) -> None:
    path = killed(database, record(1), record(9, 90.0))
    path.write_bytes(path.read_bytes().partition(b"\n")[2])
    (found,) = recover(database, own_run="")
    assert len(read(database)) == 3
    assert "--restore csvs" in found.problems[0]
    assert found.statuses == {str(record(1).status): 1}


NOT_JOURNALS = {"empty": b"", "zeros": bytes(4096), "text": b"something else\nof two lines\n", "cut": b'{"run_id":"ru'}


@pytest.mark.parametrize("text", NOT_JOURNALS.values(), ids=NOT_JOURNALS)
def test_a_file_that_is_no_journal_is_kept_and_told_of_once(database: Database, text: bytes) -> None:
    whole = killed(database, record(1, 10.0), run="run-2")
    path = whole.with_name("run-1.jsonl")
    path.write_bytes(text)
    with pytest.raises(NotAJournal):
        journal.read(path)
    damaged, other = recover(database, own_run="")
    assert (damaged.incomplete, bool(damaged)) == (True, False)
    assert str(path) in damaged.problems[0]
    assert path.with_name("run-1.jsonl.unreadable").read_bytes() == text
    assert other.statuses == {"measured": 1}
    assert recover(database, own_run="") == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: b"\r\n".join((*lines, b"")),
        lambda lines: b"".join(line + b"\n" + line + b"\n" for line in lines),
        lambda lines: b"\n".join((*lines, b"")) * 2,
        lambda lines: b"\n".join((*lines, b"")) + bytes(4096),
        lambda lines: b"\n".join((lines[0], bytes(512) + lines[1], bytes(512) + lines[2], b"")),
        lambda lines: b"\n".join(lines),
        lambda lines: b"\n\n".join((*lines, b"")),
    ],
    ids=["CRLF", "doubled lines", "doubled", "zeros behind", "zeros between", "last end missing", "blank lines"],
)
def test_a_journal_that_only_looks_damaged_is_read_whole_and_each_record_counts_once(
    database: Database, damage: Any
) -> None:
    path, lines = two_records(database)
    path.write_bytes(damage(lines))
    (found,) = recover(database, own_run="")
    assert (found.run_id, found.statuses, found.incomplete) == ("run-1", {"measured": 2}, False)
    assert averages(database) == ["10.0000", "20.0000", ""]
    assert not list(path.parent.glob("run-1*"))


def test_an_error_that_nobody_has_foreseen_costs_one_table_and_one_journal(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = killed(database, record(1, 10.0))

    def broken(kernel_type: str) -> Any:
        raise RecursionError("deep")

    with monkeypatch.context() as patch:
        patch.setattr(database, "read", broken)
        (found,) = recover(database, own_run="")
    assert (found.incomplete, path.exists()) == (True, True)
    assert "Abs.csv" in found.problems[0]
    (found,) = recover(database, own_run="")
    assert (found.statuses, found.incomplete) == ({"measured": 1}, False)


def test_an_error_that_nobody_has_foreseen_in_one_journal_keeps_no_other_out(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = killed(database, record(1, 10.0), run="run-1")
    killed(database, record(2, 20.0), run="run-2")
    whole = journal.read

    def broken(path: Path) -> journal.JournalContents:
        if path == bad:
            raise KeyError("x")
        return whole(path)

    monkeypatch.setattr(journal, "read", broken)
    first, second = recover(database, own_run="")
    assert (first.incomplete, second.statuses) == (True, {"measured": 1})
    assert str(bad) in first.problems[0]
    assert bad.exists()
