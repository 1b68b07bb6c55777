"""Journals as sources of `opatlas combine`, and journals of its target."""

from __future__ import annotations

import json

import pytest
from abs_rows import MIDDLE, NEW, OLD, cells, contents, manifest, measured, read, record, write, write_journal
from combining import RunCombine

from opatlas.data.database import Database
from opatlas.row.columns import AVERAGE


@pytest.mark.parametrize("mode", ["all", "missing-only"])
def test_a_database_may_have_a_journal_alone(
    mode: str, target: Database, source: Database, run_combine: RunCombine
) -> None:
    write(target, [measured(1, 5.0, OLD), measured(2, 5.0, OLD)])
    path = write_journal(
        source.journal_dir / "far.jsonl",
        record(1, 6.0, run=NEW),
        record(2, run=NEW),
        record(3, 7.0, run=NEW),
        mode=mode,
    )
    before = path.read_bytes()
    status, out, err = run_combine(target.path, source.path)
    assert (status, err) == (0, "")
    assert (out["databases"], out["journals"]) == (1, 1)
    first, second, third = read(target)
    assert (first[AVERAGE], first["MicroBench Samples"], first["Run ID"]) == ("6.0000", "1", NEW)
    assert (second[AVERAGE], second["Status"]) == ("5.0", "failed")
    assert (second["Status Reason"], second["Run ID"], second["Status Run ID"]) == ("because of 2", OLD, NEW)
    assert (third[AVERAGE], third["Status"]) == ("7.0000", "measured")
    assert path.read_bytes() == before


def test_journals_of_a_source_count_and_stay(target: Database, source: Database, run_combine: RunCombine) -> None:
    write(source, [measured(1, 5.0, OLD), cells(2), cells(3)])
    journals = [
        write_journal(source.journal_dir / f"{OLD}.jsonl", record(2, 4.0, run=OLD), record(3, run=OLD), run=OLD),
        write_journal(source.journal_dir / f"{NEW}.jsonl", record(1, 6.0, run=NEW), record(2, run=NEW)),
    ]
    manifest(source, NEW, 1.77e9)
    before = contents(source.path)
    status, out, _ = run_combine(target.path, source.path)
    assert status == 0
    assert (out["databases"], out["journals"]) == (1, 2)
    assert [(row[AVERAGE], row["Status"], row["Run ID"]) for row in read(target)] == [
        ("6.0000", "measured", NEW),
        ("4.0000", "failed", OLD),
        ("", "failed", ""),
    ]
    assert (target.runs_dir / f"{NEW}.json").exists()
    assert contents(source.path) == before
    assert all(path.exists() for path in journals)


def test_journals_of_the_target_are_merged_first(target: Database, source: Database, run_combine: RunCombine) -> None:
    write(target, [cells(1), cells(2)])
    path = write_journal(
        target.journal_dir / f"{MIDDLE}.jsonl", *(record(n, 4.0, run=MIDDLE) for n in (1, 2)), run=MIDDLE
    )
    write(source, [measured(1, 5.0, NEW), measured(2, 5.0, OLD)])
    status, _, err = run_combine(target.path, source.path)
    assert status == 0
    assert MIDDLE in err
    assert [row[AVERAGE] for row in read(target)] == ["5.0", "4.0000"]
    assert not path.exists()


def test_lines_that_cannot_be_read_are_named_and_the_others_count(
    target: Database, source: Database, run_combine: RunCombine
) -> None:
    write(source, [cells(1), cells(2)])
    path = write_journal(source.journal_dir / f"{NEW}.jsonl", record(1, 5.0, run=NEW))
    with open(path, "a") as file:
        file.write('{"kernel_type": "Abs"}\n')
        file.write(json.dumps(record(2, 6.0, run=NEW).to_json()) + "\n")
    status, _, err = run_combine(target.path, source.path)
    assert status == 1
    assert err.startswith(f"error: {path}:3: ")
    assert [row[AVERAGE] for row in read(target)] == ["5.0000", "6.0000"]


def test_a_journal_beside_tables_that_is_none_is_a_problem(
    target: Database, source: Database, run_combine: RunCombine
) -> None:
    write(source, [measured(1, 5.0, OLD)])
    (source.journal_dir / "x.jsonl").mkdir(parents=True)
    (source.journal_dir / "y.jsonl").write_text("{}\n")
    status, _, err = run_combine(target.path, source.path)
    assert status == 1
    assert all(place in err for place in ("x.jsonl: ", "y.jsonl:1: "))
    assert [row[AVERAGE] for row in read(target)] == ["5.0"]
