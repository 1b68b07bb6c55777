"""Only the process of a journal writes it: lines of others are refused, and its own that are missing are named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from abs_rows import cells, read, record, write

from opatlas.data import journal
from opatlas.data.database import Database
from opatlas.data.journal import Journal, JournalHeader, OwnLines, check_ended
from opatlas.data.write_back import write_back_run
from opatlas.row.record import Record

HEADER = JournalHeader("run-1", "all", prune=False)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    database = Database(tmp_path / "database")
    write(database, [cells(size) for size in range(1, 10)])
    return database


def line(entry: Record) -> bytes:
    return json.dumps(entry.to_json()).encode() + b"\n"


def add_to(path: Path, *lines: bytes) -> None:
    with open(path, "ab") as file:
        file.write(b"".join(lines))


def averages(database: Database) -> list[str]:
    return [row["Average Duration(us)"] for row in read(database)]


def refused(path: Path) -> bytes:
    (kept,) = path.parent.glob(f"{path.name}.refused*")
    return kept.read_bytes()


@pytest.mark.parametrize("goes_on", [False, True])
def test_lines_of_another_process_are_refused_kept_and_named_with_their_row(database: Database, goes_on: bool) -> None:
    kept = Journal(database, HEADER)
    own = [record(1, 10.0), record(2, 20.0)]
    kept.append(own[0].to_json())
    kept.append(own[1].to_json())
    forged = line(record(1, 0.5)), b"no record\n", line(record(3, 0.5))
    add_to(kept.path, *forged)
    if goes_on:
        own.append(record(4, 40.0))
        kept.append(own[2].to_json())
    problems = kept.close()
    assert refused(kept.path) == b"".join(forged)
    for number, signature in ((4, record(1).signature), (6, record(3).signature)):
        assert any(f"{kept.path}:{number}: " in each and f"Abs {signature}" in each for each in problems)
    assert any(f"{kept.path}:5: " in problem for problem in problems)
    assert any(f"{kept.path.name}.refused" in problem for problem in problems)
    contents = journal.read(kept.path)
    assert (contents.header, contents.records, contents.unreadable) == (HEADER, tuple(own), ())
    write_back_run(database, HEADER)
    assert averages(database)[:4] == ["10.0000", "20.0000", "", "40.0000" if goes_on else ""]


def test_a_changed_line_of_equal_length_is_refused_and_the_lost_record_told(database: Database) -> None:
    kept = Journal(database, HEADER)
    for size in (1, 2, 3):
        kept.append(record(size, 22.0).to_json())
    content = kept.path.read_bytes()
    lines = content.splitlines(keepends=True)
    forged = lines[2].replace(b"22.0", b"11.0")
    with open(kept.path, "r+b") as file:
        file.write(b"".join([*lines[:2], forged, lines[3]]))
    kept.append(record(4, 22.0).to_json())
    problems = kept.close()
    assert refused(kept.path) == forged
    assert any(f"{kept.path}:3: " in problem for problem in problems)
    assert any("1 record " in problem for problem in problems)
    assert [each.signature for each in journal.read(kept.path).records] == [record(n).signature for n in (1, 3, 4)]


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("cut", [0, 1])
def test_a_truncated_journal_tells_how_many_records_are_lost(database: Database, goes_on: bool, cut: int) -> None:
    kept = Journal(database, HEADER)
    for size in (1, 2, 3, 4):
        kept.append(record(size, 10.0).to_json())
    lines = kept.path.read_bytes().splitlines(keepends=True)
    os.truncate(kept.path, len(b"".join(lines[:3])) + cut * len(lines[3]) // 2)
    if goes_on:
        kept.append(record(5, 10.0).to_json())
    problems = kept.close()
    assert sum("2 records " in problem for problem in problems) == 1
    expected = [record(size).signature for size in ((1, 2, 5) if goes_on else (1, 2))]
    contents = journal.read(kept.path)
    assert [each.signature for each in contents.records] == expected
    assert (contents.header, contents.unreadable, contents.torn) == (HEADER, (), False)


def test_a_journal_that_another_process_replaced_is_written_again_and_the_other_kept(database: Database) -> None:
    kept = Journal(database, HEADER)
    kept.append(record(1, 10.0).to_json())
    forged = kept.path.read_bytes().partition(b"\n")[0] + b"\n" + line(record(1, 0.5))
    kept.path.unlink()
    kept.path.write_bytes(forged)
    (problem,) = kept.close()
    assert str(kept.path) in problem
    assert refused(kept.path) == forged
    assert journal.read(kept.path).records == (record(1, 10.0),)


def test_the_journal_of_a_worker_is_checked_again_when_it_is_merged(database: Database) -> None:
    kept = Journal(database, HEADER, part="gw0")
    kept.append(record(1, 10.0).to_json())
    assert kept.close() == []
    written = OwnLines(kept.own_lines.header, kept.own_lines.digests)
    add_to(kept.path, line(record(2, 0.5)))
    problems = check_ended({kept.path: written})
    assert any(record(2).signature in problem for problem in problems)
    assert refused(kept.path) == line(record(2, 0.5))
    assert journal.read(kept.path).records == (record(1, 10.0),)
