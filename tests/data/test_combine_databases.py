"""Combining databases: tables, captures, manifests, histories and pruned rows, each file once."""

from __future__ import annotations

from pathlib import Path

import pytest
from abs_rows import NEW, OLD, cells, contents, manifest, measured, read, record, write
from captures import cells as captured_cells, launched, table, write_capture
from combining import apply

from opatlas.cli.main import main
from opatlas.data import log
from opatlas.data.database import Database
from opatlas.data.journal import JournalHeader
from opatlas.data.restore import edited_rows
from opatlas.errors import OpAtlasError
from opatlas.row.columns import AVERAGE, PROFILING_AVERAGE


def test_manifests_tell_which_run_is_newer_and_come_along(target: Database, source: Database) -> None:
    write(target, [measured(1, 5.0, NEW)])
    write(source, [measured(1, 6.0, OLD)])
    manifest(source, OLD, started_at=1.78e9)
    assert apply(target, source).manifests == 1
    assert read(target)[0][AVERAGE] == "6.0", "the clock of its machine was wrong, says its manifest"
    assert (target.runs_dir / f"{OLD}.json").read_bytes() == (source.runs_dir / f"{OLD}.json").read_bytes()
    assert apply(target, source).manifests == 0


def test_a_target_that_is_not_there_is_made(target: Database, source: Database) -> None:
    write(source, [{"Mine": "1", "Empty": "", **measured(1, 5.0, OLD)}])
    write(source, [measured(2, 5.0, OLD)], "Neg")
    before = contents(source.path)
    outcome = apply(target, source)
    assert outcome.new == ["Abs", "Neg"]
    assert contents(target.path) == before
    assert contents(source.path) == before


def test_a_file_in_which_nothing_changes_is_left_as_it_is(target: Database, source: Database) -> None:
    path = write(target, [measured(1, 5.0, NEW)])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    before = path.read_bytes()
    write(source, [measured(1, 6.0, OLD)])
    apply(target, source)
    assert path.read_bytes() == before


def test_a_source_whose_history_does_not_fit_waits_for_the_next_time(
    target: Database, source: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A history with a part of the run's rows would make the other rows count as edited."""
    header = JournalHeader(OLD, "all", prune=False)
    write(target, [measured(1, 5.0, OLD), cells(2)])
    write(source, [measured(1, 5.0, OLD), measured(2, 6.0, OLD)])
    log.add(target, header, [record(1, 5.0, run=OLD)])
    log.add(source, header, [record(1, 5.0, run=OLD), record(2, 6.0, run=OLD)])

    def refuse(path: Path, content: bytes) -> None:
        raise OpAtlasError(f"{path}: no room")

    with monkeypatch.context() as full:
        full.setattr(log, "write_bytes", refuse)
        outcome = apply(target, source)
    assert len(outcome.problems) == 1
    assert edited_rows(target).count == 0
    assert [row[AVERAGE] for row in read(target)] == ["5.0", ""]
    assert not apply(target, source).problems
    assert edited_rows(target).count == 0
    assert [row[AVERAGE] for row in read(target)] == ["5.0", "6.0"]


def test_a_file_that_cannot_be_read_keeps_only_itself_out(target: Database, source: Database) -> None:
    for kernel_type in ("Abs", "Neg", "Exp"):
        write(source, [measured(1, 5.0, OLD)], kernel_type)
    (source.path / "Neg.csv").write_text("nonsense\n")
    write(target, [cells(1)], "Exp").write_text("version https://git-lfs.github.com/spec/v1\n")
    outcome = apply(target, source)
    told = dict.fromkeys(problem.partition(": ")[0] for problem in outcome.problems)
    assert [*told] == [str(target.path / "Exp.csv"), f"{source.path / 'Neg.csv'}:1"]
    assert read(target)[0][AVERAGE] == "5.0"
    assert not (target.path / "Neg.csv").exists()


def test_pruned_rows_are_combined_once(target: Database, source: Database) -> None:
    def prune(database: Database, *rows: dict[str, str]) -> None:
        database.pruned_dir.mkdir(parents=True)
        write(Database(database.pruned_dir), list(rows))

    reason = {"Pruned Reason": "crashed"}
    prune(target, {**cells(1), **reason}, {**cells(1), **reason})
    prune(
        source,
        {**cells(1), **reason, "Extra": ""},
        {**cells(2), **reason, "Extra": "x"},
        {**cells(2), **reason, "Extra": "x"},
    )
    assert apply(target, source).pruned == 1
    pruned = read(Database(target.pruned_dir))
    assert [row["Input Shapes"] for row in pruned] == ["1,4", "1,4", "2,4"]
    before = (target.pruned_dir / "Abs.csv").stat()
    assert apply(target, source).pruned == 0
    assert (target.pruned_dir / "Abs.csv").stat() == before, "the file is written again"


def test_each_row_counts_once_whatever_the_sources(target: Database, tmp_path: Path) -> None:
    shards = [Database(tmp_path / name) for name in ("one", "two", "three")]
    for n, shard in enumerate(shards, start=1):
        rows = [cells(size) for size in range(1, 5)]
        rows[0] = measured(1, 5.0, OLD, **{PROFILING_AVERAGE: "6"})
        rows[n] = measured(n + 1, n, OLD)
        write(shard, rows)
    write(target, [measured(9, 1.0, OLD)], "Neg")
    first, second = (apply(target, *shards) for _ in range(2))
    assert (first.added, first.taken, first.changed, first.target_rows) == (4, 0, 0, 5)
    assert (second.added, second.taken, second.changed, second.target_rows) == (0, 0, 0, 5)
    target.csv_path("Neg").write_bytes(b"\xff")
    damaged = apply(target, *shards)
    assert (damaged.added, damaged.target_rows, len(damaged.problems)) == (0, 4, 1)


TYPE = "MatMulV2"


def ingest(database: Path, capture: Path) -> None:
    assert main(["ingest", "--profiling-path", str(capture), "--database-path", str(database)]) == 0


def statistics(database: Path) -> list[tuple[str, ...]]:
    names = ("Input Shapes", "Profiling Average Duration(us)", "Profiling Median Duration(us)", "Profiling Samples")
    return sorted(tuple(row[name] for name in names) for row in table(database / f"{TYPE}.csv"))


@pytest.fixture
def captures(tmp_path: Path) -> tuple[Path, Path]:
    first = [launched(TYPE, us) for us in (1.0, 2.0, 30.0)]
    second = [launched(TYPE, us) for us in (4.0, 3.0)] + [launched(TYPE, 7.0, captured_cells("8,32;64,32", "8,64"))]
    return (
        write_capture(tmp_path / "a" / "kernel_details.csv", first),
        write_capture(tmp_path / "b" / "kernel_details.csv", second),
    )


def test_launches_of_both_count_as_if_one_had_ingested_all(tmp_path: Path, captures: tuple[Path, Path]) -> None:
    one, two, all_in_one = (tmp_path / name for name in ("one", "two", "all"))
    ingest(one, captures[0])
    ingest(two, captures[1])
    for capture in captures:
        ingest(all_in_one, capture)
    assert main(["combine", str(one), str(two)]) == 0
    assert statistics(one) == statistics(all_in_one)
    before = {path.name: path.read_bytes() for path in one.glob("*.csv")}
    assert main(["combine", str(one), str(two)]) == 0
    assert {path.name: path.read_bytes() for path in one.glob("*.csv")} == before


def test_an_ingest_that_shares_one_of_its_captures_is_told(
    tmp_path: Path, captures: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    ingest(one, captures[0])
    folder = tmp_path / "both"
    for capture in captures:
        (folder / capture.parent.name).mkdir(parents=True)
        (folder / capture.parent.name / capture.name).write_bytes(capture.read_bytes())
    ingest(two, folder)
    before = statistics(one)
    assert main(["combine", str(one), str(two)]) == 1
    assert captures[0].name in capsys.readouterr().err
    assert [row for row in statistics(one) if row[0] == before[0][0]] == before
