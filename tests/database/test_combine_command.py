"""`opatlas combine`, as a user runs it."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from test_combine import AVERAGE, MIDDLE, NEW, OLD, PROFILED, contents, failed, manifest, measured
from test_merge import cells, read, record, write

from opatlas.cli.main import main
from opatlas.model.record import Record
from opatlas.store import history
from opatlas.store.database import Database, SessionLock
from opatlas.store.journal import JournalHeader
from opatlas.store.manifest import Manifest

Merge = Callable[..., tuple[int, str, str]]


@pytest.fixture
def merge(capsys: pytest.CaptureFixture[str]) -> Merge:
    """Runs the command; gives status, stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        status = main(["combine", *map(str, arguments)])
        return status, *capsys.readouterr()

    return run


def write_journal(path: Path, *records: Record, run: str = NEW, mode: str = "all") -> Path:
    """A journal as a session leaves it that was killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [asdict(JournalHeader(run, mode, prune=False)), *(record.to_json() for record in records)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_summary_and_the_conflicts(target: Database, source: Database, merge: Merge) -> None:
    write(target, [measured(1, 5.0, OLD), measured(2, 5.0, NEW), {**measured(3, "", ""), "Status": ""}])
    rows = [measured(1, 20.0, MIDDLE), measured(2, 4.0, MIDDLE), measured(3, 6.0, MIDDLE), failed(4, MIDDLE)]
    write(source, [{**row, "Note": "theirs"} for row in rows])
    write(source, [cells(1)], "Neg")
    write(source, [{"message_bytes": "1"}], "hcom_allReduce_")
    manifest(source, MIDDLE, 1.77e9)
    status, out, err = merge(target.path, source.path)
    assert (status, err) == (0, "")
    (report,) = target.reports_dir.iterdir()
    assert (
        out
        == f"""\
sources                1   1 database
kernel types           2   1 new
rows added             2   0 replayed, 0 captured
durations              3   existing rows: 3 taken, 0 kept
statuses               1   1 measured
other cells            3   filled in
manifests              1   copied to runs/
conflicts              2   2 durations, 0 captured durations, 0 other cells
TARGET now             5   rows of these kernel types: 3 replayed, 0 captured

durations that disagree: 2 (the largest first; kept, dropped, microseconds)
  Abs                1,4                           20.00       5.00    4.00 x
  Abs                2,4                            4.00       5.00    0.80 x

ignored (communication has another schema):
  {source.path / "hcom_allReduce_.csv"}

conflicts:
  {report}

database:
  {target.path}
"""
    )
    assert re.fullmatch(r"combine_conflicts_\d{8}_\d{6}\.csv", report.name)
    with open(report, newline="") as file:
        first, second = csv.DictReader(file)
    assert first == {
        "Kernel Type": "Abs",
        "Signature": "1,4|FLOAT|ND|1,4|FLOAT",
        "Input Shapes": "1,4",
        "What": AVERAGE,
        "Kept": "20.0",
        "Kept Run": MIDDLE,
        "Dropped": "5.0",
        "Dropped Run": OLD,
        "Ratio": "4.0000",
        "Source": str(source.path),
    }
    assert (second["Kept"], second["Dropped Run"]) == ("4.0", NEW)


def test_a_source_of_collectives_alone_is_refused_as_such(target: Database, source: Database, merge: Merge) -> None:
    write(target, [cells(1)])
    write(source, [{"message_bytes": "1"}], "hcom_allReduce_")
    status, _, err = merge(target.path, source.path)
    assert status == 2
    assert f"{source.path}: holds collectives only (hcom_allReduce_.csv), which are not combined" in " ".join(
        err.split()
    )


def test_with_no_conflict_there_is_no_report(target: Database, source: Database, merge: Merge) -> None:
    write(target, [cells(1)])
    write(source, [measured(1, 5.0, OLD)])
    status, out, _ = merge(target.path, source.path)
    assert status == 0
    assert "conflicts              0\n" in out
    assert not target.reports_dir.exists()


def test_reports_of_the_same_second_are_numbered(target: Database, source: Database, merge: Merge) -> None:
    write(target, [measured(1, 5.0, NEW)])
    write(source, [measured(1, 6.0, OLD)])
    for _ in range(3):
        merge(target.path, source.path)
    assert len(list(target.reports_dir.iterdir())) == 3


def test_only_the_worst_conflicts_are_shown_and_lines_fit_a_terminal(
    target: Database, source: Database, merge: Merge
) -> None:
    names = [f"AVeryLongKernelTypeIndeed{n}" for n in range(15)]
    for n, name in enumerate(names):
        write(target, [measured(10**30, 1e5, OLD)], name)
        write(source, [measured(10**30, 1e5 * (n + 2), NEW)], name)
    _, out, _ = merge(target.path, source.path)
    shown = [line for line in out.splitlines() if line.endswith(" x")]
    assert (len(shown), shown[0].split()[-2]) == (10, "16.00")
    assert all(len(line) <= 80 for line in shown)
    assert "durations that disagree: 15 (the 10 largest;" in out


def test_several_sources_at_once(target: Database, tmp_path: Path, merge: Merge) -> None:
    shards = [Database(tmp_path / name) for name in ("one", "two")]
    for n, shard in enumerate(shards, start=1):
        write(shard, [measured(n, n, OLD), cells(3 - n)])
    status, out, _ = merge(target.path, *(shard.path for shard in shards))
    assert status == 0
    assert out.startswith("sources                2   2 databases\nkernel types           1   1 new\n")
    assert {row["Input Shapes"]: row[AVERAGE] for row in read(target)} == {"1,4": "1", "2,4": "2"}


@pytest.mark.parametrize("own_journal", [True, False])
def test_a_dry_run_prints_the_same_and_writes_nothing(
    own_journal: bool, target: Database, source: Database, merge: Merge
) -> None:
    write(target, [measured(1, 5.0, OLD), measured(2, 5.0, OLD)])
    if own_journal:
        write_journal(target.journal_dir / f"{MIDDLE}.jsonl", record(2, 9.0, run=MIDDLE))
    write(source, [measured(1, 6.0, NEW), measured(2, 7.0, NEW)])
    (source.path / "Neg.csv").write_text("nonsense\n")
    before = contents(target.path)
    dry_status, dry, dry_err = merge(target.path, source.path, "--dry-run")
    assert contents(target.path) == before
    status, out, err = merge(target.path, source.path)
    assert dry_status == status == 1
    assert dry_err == err
    time = r"\d{8}_\d{6}"
    done = re.sub(time, "", out).replace("TARGET now ", "TARGET then").replace("conflicts:", "conflicts would be in:")
    assert re.sub(time, "", dry) == done + "\ndry run: nothing was written\n"
    assert ("9.00" in out) == own_journal


def test_a_dry_run_makes_no_target(target: Database, source: Database, merge: Merge) -> None:
    write(source, [measured(1, 6.0, NEW)])
    status, out, _ = merge(target.path, source.path, "--dry-run")
    assert (status, "rows added             1   1 replayed, 0 captured\n" in out) == (0, True)
    assert not target.path.exists()


def test_each_row_counts_once_whatever_the_sources(target: Database, tmp_path: Path, merge: Merge) -> None:
    shards = [Database(tmp_path / name) for name in ("one", "two", "three")]
    for n, shard in enumerate(shards, start=1):
        rows = [cells(size) for size in range(1, 5)]
        rows[0] = measured(1, 5.0, OLD, **{PROFILED: "6"})
        rows[n] = measured(n + 1, n, OLD)
        write(shard, rows)
    write(target, [measured(9, 1.0, OLD)], "Neg")
    _, out, _ = merge(target.path, *(shard.path for shard in shards))
    assert "rows added             4   4 replayed, 1 captured\n" in out
    assert "durations              0   existing rows: 0 taken, 0 kept\n" in out
    assert "TARGET now             4   rows of these kernel types: 4 replayed, 1 captured\n" in out
    _, out, _ = merge(target.path, *(shard.path for shard in shards))
    assert "rows added             0\n" in out
    assert "durations              4   existing rows: 0 taken, 4 kept\n" in out
    assert "TARGET now             4   rows of these kernel types: 4 replayed, 1 captured\n" in out


def test_a_row_that_sources_disagree_about_counts_once(target: Database, tmp_path: Path, merge: Merge) -> None:
    write(target, [measured(1, 5.0, OLD), measured(2, 5.0, NEW)])
    for name, run, us in (("one", MIDDLE, 20.0), ("two", NEW, 10.0), ("again", MIDDLE, 20.0)):
        write(Database(tmp_path / name), [measured(1, us, run), measured(2, us, MIDDLE)])
    _, out, _ = merge(target.path, tmp_path / "one", tmp_path / "two", tmp_path / "again")
    assert "durations              2   existing rows: 1 taken, 1 kept\n" in out
    assert "conflicts              2   2 durations," in out
    shapes = [line.split()[1] for line in out.splitlines() if line.startswith("  Abs ")]
    assert sorted(shapes) == ["1,4", "2,4"]
    (report,) = target.reports_dir.iterdir()
    with open(report, newline="") as file:
        rows = [(row["Input Shapes"], row["Kept"], row["Dropped"]) for row in csv.DictReader(file)]
    of_first = {("1,4", "10.0", "5.0"), ("1,4", "10.0", "20.0")}
    assert set(rows) == of_first | {("2,4", "5.0", "20.0"), ("2,4", "5.0", "10.0")}
    assert len(rows) == 4


def test_a_row_with_a_dtype_that_is_none_is_combined_and_told(target: Database, source: Database, merge: Merge) -> None:
    write(source, [cells(1), {**cells(2), "Input Data Types": "DT_FLOAT99"}])
    status, out, _ = merge(target.path, source.path)
    assert status == 0
    assert "kept, with a dtype that OpAtlas does not know: DT_FLOAT99 (1 row)\n" in out
    assert len(read(target)) == 2
    assert "DT_FLOAT99" not in merge(target.path, source.path)[1], "it was there"


# What is refused


def test_what_cannot_be_combined_is_wrong_usage(
    target: Database, source: Database, tmp_path: Path, merge: Merge
) -> None:
    write(target, [cells(1)])
    write(source, [measured(1, 5.0, OLD)])
    empty = tmp_path / "empty"
    (empty / "journal").mkdir(parents=True)
    linked = tmp_path / "linked"
    linked.symlink_to(target.path)
    broken = tmp_path / "broken.jsonl"
    broken.write_text("no journal\n")
    before = contents(tmp_path)
    for arguments, words in (
        ((target.path, target.path), "this is TARGET itself"),
        ((target.path, linked), "this is TARGET itself"),
        ((target.path, source.path, tmp_path / "nowhere"), "nowhere: no such folder or journal"),
        ((target.path, source.path, "x" * 300), "xxx: cannot be read (File name too long)"),
        ((target.path, source.path, empty), "empty: holds no {KernelType}.csv and no journal"),
        ((target.path, source.path, source.path / "Abs.csv"), "Abs.csv: neither a folder nor a journal"),
        ((target.path, source.path, broken), "broken.jsonl:1:"),
        (
            (source.path / "Abs.csv", target.path),
            "TARGET {path}: a file, not a folder".format(path=source.path / "Abs.csv"),
        ),
    ):
        status, out, err = merge(*arguments)
        assert (status, out) == (2, ""), words
        assert err.startswith("error: ")
        assert words in err
    assert contents(tmp_path) == before


def test_other_devices_and_other_torches_are_refused(target: Database, source: Database, merge: Merge) -> None:
    write(target, [measured(1, 5.0, OLD)])
    write(source, [measured(1, 6.0, NEW)])
    manifest(target, OLD, 1e9, "AMD_EPYC")
    for device, torch, words in (
        ("Xeon", "2.13.0", f"{source.path} was measured on Xeon, {target.path} on AMD_EPYC"),
        ("AMD_EPYC", "2.9.0+cpu", f"{source.path} was measured with torch 2.9.0, {target.path} with torch 2.13.0"),
    ):
        manifest(source, NEW, 1.77e9, device, torch)
        before = contents(target.path)
        status, out, err = merge(target.path, source.path)
        assert (status, out) == (2, "")
        assert words in err
        assert "--mixed" in err
        assert contents(target.path) == before
        assert not target.journal_dir.exists()
    assert merge(target.path, source.path, "--mixed")[0] == 0
    assert read(target)[0][AVERAGE] == "6.0"
    assert merge(target.path, source.path)[0] == 0, "the target holds both already"


def test_another_number_of_cpu_threads_is_refused(target: Database, source: Database, merge: Merge) -> None:
    write(target, [measured(1, 5.0, OLD)])
    write(source, [measured(1, 6.0, NEW)])
    for database, run_id, threads in ((target, OLD, 2), (source, NEW, 16)):
        device = {"name": "Intel_Xeon_Processor", "kind": "cpu", "facts": {"threads": threads}}
        Manifest(run_id, 1e9, {}, "", device=device).write(database)
    status, _, err = merge(target.path, source.path)
    assert status == 2
    assert f"{source.path} was measured with CPU threads 16, {target.path} with CPU threads 2" in err


def test_one_device_and_torch_under_another_build_are_combined(
    target: Database, source: Database, merge: Merge
) -> None:
    write(target, [measured(1, 5.0, OLD)])
    write(source, [measured(1, 6.0, NEW)])
    manifest(target, OLD, 1e9, torch="2.13.0+cpu")
    manifest(source, NEW, 1.77e9, torch="2.13.0")
    manifest(source, MIDDLE, 1.77e9)
    empty = source.runs_dir / "killed.json"
    empty.write_text(json.dumps({"started_at": 1.0, "device": {}, "packages": {}}))
    assert merge(target.path, source.path)[0] == 0


def test_every_device_of_a_session_counts(target: Database, source: Database, merge: Merge) -> None:
    write(target, [measured(1, 5.0, OLD)])
    write(source, [measured(1, 6.0, NEW)])
    manifest(target, OLD, 1e9, "NPU")
    path = manifest(source, NEW, 1.77e9, "NPU")
    path.write_text(json.dumps({**json.loads(path.read_text()), "other_devices": [{"name": "Other"}]}))
    status, _, err = merge(target.path, source.path)
    assert (status, "was measured on NPU, Other" in err) == (2, True)


def test_sources_of_different_devices_are_refused_too(target: Database, tmp_path: Path, merge: Merge) -> None:
    sources = [Database(tmp_path / name) for name in ("one", "two")]
    for shard, device in zip(sources, ("AMD_EPYC", "Xeon"), strict=True):
        write(shard, [measured(1, 5.0, OLD)])
        manifest(shard, OLD, 1e9, device)
    status, _, err = merge(target.path, *(shard.path for shard in sources))
    assert status == 2
    assert f"{sources[1].path} was measured on Xeon, {sources[0].path} on AMD_EPYC" in err
    assert not target.path.exists()


def test_manifests_of_the_target_count(target: Database, source: Database, merge: Merge) -> None:
    write(target, [measured(1, 5.0, OLD)])
    write(source, [measured(1, 6.0, NEW)])
    manifest(target, OLD, 1.78e9)
    assert merge(target.path, source.path)[0] == 0
    assert read(target)[0][AVERAGE] == "5.0", "the clock of its machine was wrong, says its manifest"


# Journals


@pytest.mark.parametrize("mode", ["all", "missing-only"])
def test_a_journal_is_a_source(mode: str, target: Database, tmp_path: Path, merge: Merge) -> None:
    write(target, [measured(1, 5.0, OLD), measured(2, 5.0, OLD)])
    path = write_journal(
        tmp_path / "far.jsonl", record(1, 6.0, run=NEW), record(2, run=NEW), record(3, 7.0, run=NEW), mode=mode
    )
    before = path.read_bytes()
    status, out, err = merge(target.path, path)
    assert (status, err) == (0, "")
    assert out.startswith("sources                1   1 journal\n")
    first, second, third = read(target)
    assert (first[AVERAGE], first["MicroBench Samples"], first["Run ID"]) == ("6.0000", "1", NEW)
    assert (second[AVERAGE], second["Status"]) == ("5.0", "failed")
    assert second["Status Reason"] == f"because of 2 [run {NEW}]"
    assert (third[AVERAGE], third["Status"]) == ("7.0000", "measured")
    with open(next(target.reports_dir.iterdir()), newline="") as file:
        assert [row["Source"] for row in csv.DictReader(file)] == [str(path)]
    assert path.read_bytes() == before


def test_journals_of_a_source_count_and_stay(target: Database, source: Database, merge: Merge) -> None:
    write(source, [measured(1, 5.0, OLD), cells(2), cells(3)])
    journals = [
        write_journal(source.journal_dir / f"{OLD}.jsonl", record(2, 4.0, run=OLD), record(3, run=OLD), run=OLD),
        write_journal(source.journal_dir / f"{NEW}.jsonl", record(1, 6.0, run=NEW), record(2, run=NEW)),
    ]
    manifest(source, NEW, 1.77e9)
    before = contents(source.path)
    status, out, _ = merge(target.path, source.path)
    assert status == 0
    assert "sources                3   1 database, 2 journals\n" in out
    assert [(row[AVERAGE], row["Status"], row["Run ID"]) for row in read(target)] == [
        ("6.0000", "measured", NEW),
        ("4.0000", "failed", OLD),
        ("", "failed", OLD),
    ]
    assert (target.runs_dir / f"{NEW}.json").exists()
    assert contents(source.path) == before
    assert all(path.exists() for path in journals)


def test_the_manifest_of_a_journal_in_a_database_comes_along(target: Database, source: Database, merge: Merge) -> None:
    write(target, [measured(1, 5.0, MIDDLE)])
    path = write_journal(source.journal_dir / f"{OLD}.jsonl", record(1, 6.0, run=OLD), run=OLD)
    manifest(source, OLD, 1.78e9)
    manifest(source, NEW, 1.78e9)
    assert merge(target.path, path)[0] == 0
    assert read(target)[0][AVERAGE] == "6.0000"
    assert [path.stem for path in target.runs_dir.glob("*.json")] == [OLD]
    assert [record.run_id for record in history.read(target, OLD).records] == [OLD]


def test_journals_of_the_target_are_merged_first(target: Database, source: Database, merge: Merge) -> None:
    write(target, [cells(1), cells(2)])
    path = write_journal(
        target.journal_dir / f"{MIDDLE}.jsonl", *(record(n, 4.0, run=MIDDLE) for n in (1, 2)), run=MIDDLE
    )
    write(source, [measured(1, 5.0, NEW), measured(2, 5.0, OLD)])
    status, out, _ = merge(target.path, source.path)
    assert status == 0
    assert out.startswith(f"merged 2 records that session {MIDDLE} left behind")
    assert [row[AVERAGE] for row in read(target)] == ["5.0", "4.0000"]
    assert not path.exists()


def test_a_journal_of_the_target_may_be_named(target: Database, merge: Merge) -> None:
    """As the message about records that were rescued suggests."""
    write(target, [cells(1)])
    path = write_journal(target.journal_dir / f"{NEW}.jsonl", record(2, 4.0, run=NEW))
    assert merge(target.path, path)[0] == 0
    assert [row.get(AVERAGE) for row in read(target)] == ["", "4.0000"]


def test_lines_that_cannot_be_read_are_named_and_the_others_count(
    target: Database, source: Database, merge: Merge
) -> None:
    write(source, [cells(1), cells(2)])
    path = write_journal(source.journal_dir / f"{NEW}.jsonl", record(1, 5.0, run=NEW))
    with open(path, "a") as file:
        file.write('{"kernel_type": "Abs"}\n')
        file.write(json.dumps(record(2, 6.0, run=NEW).to_json()) + "\n")
    for arguments in ((target.path, source.path), (target.path, path)):
        status, _, err = merge(*arguments)
        assert status == 1
        assert err.startswith(f"error: {path}:3: not a record of this version")
        assert [row[AVERAGE] for row in read(target)] == ["5.0000", "6.0000"]


def test_a_record_that_is_cut_off_is_named(target: Database, tmp_path: Path, merge: Merge) -> None:
    path = write_journal(tmp_path / "far.jsonl", record(1, 5.0, run=NEW), record(2, 6.0, run=NEW))
    path.write_bytes(path.read_bytes()[:-20])
    status, _, err = merge(target.path, path)
    assert (status, err.partition(":")[2].startswith(f" {path}: the last record is cut off")) == (1, True)
    assert [row[AVERAGE] for row in read(target)] == ["5.0000"]


def test_a_kernel_type_of_a_journal_that_names_no_file(target: Database, tmp_path: Path, merge: Merge) -> None:
    evil = Record("../Abs", "s", cells(1), record(1).status, "why", NEW, 0.0)
    path = write_journal(tmp_path / "far.jsonl", evil, record(1, 5.0, run=NEW))
    status, _, err = merge(target.path, path)
    assert status == 1
    assert err.startswith(f"error: {path}:2: ")
    assert "../Abs" in err
    assert [row[AVERAGE] for row in read(target)] == ["5.0000"]


def test_a_journal_beside_tables_that_is_none_is_a_problem(target: Database, source: Database, merge: Merge) -> None:
    write(source, [measured(1, 5.0, OLD)])
    (source.journal_dir / "x.jsonl").mkdir(parents=True)
    (source.journal_dir / "y.jsonl").write_text("{}\n")
    status, _, err = merge(target.path, source.path)
    assert status == 1
    assert "x.jsonl: Is a directory" in err
    assert "y.jsonl:1:" in err
    assert [row[AVERAGE] for row in read(target)] == ["5.0"]


def test_a_journal_that_was_merged_meanwhile_is_none(target: Database, source: Database, merge: Merge) -> None:
    write(source, [measured(1, 5.0, OLD)])
    source.journal_dir.mkdir()
    (source.journal_dir / "gone.jsonl").symlink_to("nowhere")
    status, out, err = merge(target.path, source.path)
    assert (status, err) == (0, "")
    assert out.startswith("sources                1   1 database\n")


def test_a_target_that_cannot_be_written(target: Database, source: Database, tmp_path: Path, merge: Merge) -> None:
    write(source, [measured(1, 5.0, OLD)])
    (tmp_path / "file").write_text("")
    status, out, err = merge(tmp_path / "file" / "below", source.path)
    assert (status, out) == (1, "")
    assert "cannot be written" in err


def test_a_target_that_a_session_has_is_refused(target: Database, source: Database, merge: Merge) -> None:
    write(target, [measured(1, 5.0, OLD)])
    write(source, [measured(2, 5.0, OLD)])
    session = SessionLock(target, run_id=NEW, command="pytest bench/")
    session.acquire(0, print)
    status, _, err = merge(target.path, source.path)
    assert status == 1
    assert f"{target.path} is in use by session {NEW} (process {os.getpid()} on" in err
    assert len(read(target)) == 1
    session.release()
    assert merge(target.path, source.path)[0] == 0
    assert len(read(target)) == 2


def test_a_run_of_a_clock_that_was_ahead_does_not_win(target: Database, source: Database, merge: Merge) -> None:
    ahead = "20990101T000000-aaaaaa"
    write(target, [measured(1, 5.0, ahead)])
    write(source, [measured(1, 6.0, NEW)])
    status, out, _ = merge(target.path, source.path)
    assert status == 0
    assert [row[AVERAGE] for row in read(target)] == ["6.0"]
    assert f"  {ahead}" in out.splitlines()
    assert merge(source.path, target.path)[0] == 0
    assert read(target) == read(source)
