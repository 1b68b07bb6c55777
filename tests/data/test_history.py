"""The history: each record that was merged stays in `runs/`, and so does each duration that one replaced."""

from __future__ import annotations

import gzip
import tracemalloc
from dataclasses import asdict
from pathlib import Path

import pytest
from abs_rows import cells, read, record, write
from folding import imported, killed, write_back_records

from opatlas.cli.main import main
from opatlas.data import journal, log as history
from opatlas.data.database import Database
from opatlas.data.journal import JournalHeader
from opatlas.data.write_back import recover, write_back
from opatlas.errors import OpAtlasError
from opatlas.row.record import LaunchedCase, Record
from opatlas.row.status import UpdateMode


def whole_record() -> Record:
    """A record that holds something in each field."""
    more = {"assumptions": ("lengths",), "checked_elements": 3, "total_elements": 7, "counters": {"aic_mac_ratio": 0.5}}
    return record(1, 1.0, 2.5, ran_as=LaunchedCase("Exp", cells(1)), **more)


class TestRecords:
    def test_a_merged_journal_moves_to_the_history_with_all_that_it_holds(self, database: Database) -> None:
        records = (whole_record(), record(2))
        path = killed(database, *records)
        recover(database, own_run="")
        assert not path.exists()
        kept = history.read(database, "run-1")
        assert kept.records == records
        assert kept.header == JournalHeader("run-1", "all", prune=False)

    def test_the_journals_of_a_runs_workers_become_one_history(self, database: Database) -> None:
        header = JournalHeader("run-1", "all", prune=False)
        for part, entry in (("-gw0", record(1, 1.0)), ("-gw1", record(2, 2.0))):
            killed(database, entry, part=part)
        merged = write_back_records(database, header, record(3, 3.0))
        assert merged.problems == []
        assert history.read(database, "run-1").records == (record(1, 1.0), record(2, 2.0), record(3, 3.0))
        assert history.runs(database) == ["run-1"]
        assert journal.journals(database) == []

    def test_damage_of_a_run_costs_no_row_that_the_run_replaced(self, database: Database) -> None:
        history.add(database, JournalHeader("run-1", "all", prune=False), [record(1, 1.0)])
        history.add_events(database, "run-1", [history.Imported("Abs", {"Run ID": "of another tool"})])
        history.file_path(database, "run-1").write_bytes(b"damaged")
        assert [each.row["Run ID"] for each in history.imported(database, [])] == ["of another tool"]

    @pytest.mark.parametrize("cut_off_at", ["before", "after"])
    def test_a_merge_that_is_cut_off_is_done_again_without_loss_or_repetition(
        self, database: Database, monkeypatch: pytest.MonkeyPatch, cut_off_at: str
    ) -> None:
        records = (record(1, 1.0), record(2, 2.0))
        path = killed(database, *records)

        unlink = Path.unlink

        def cut_off(first: object, *_: object, **more: bool) -> None:
            if isinstance(first, Path) and first != path:
                return unlink(first, **more)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            owner, name = {"before": (history, "add"), "after": (Path, "unlink")}[cut_off_at]
            patched.setattr(owner, name, cut_off)
            with pytest.raises(KeyboardInterrupt):
                recover(database, own_run="")
        assert journal.read(path).records == records
        before = read(database)
        recover(database, own_run="")
        assert history.read(database, "run-1").records == records
        assert read(database) == before
        assert not path.exists()

    def test_a_damaged_history_is_left_as_it_is_and_the_journal_with_it(self, database: Database) -> None:
        damaged = history.file_path(database, "run-1")
        damaged.parent.mkdir()
        damaged.write_bytes(b"something else")
        path = killed(database, record(1, 1.0))
        (found,) = recover(database, own_run="")
        assert found.incomplete
        assert str(damaged) in found.problems[0]
        assert (damaged.read_bytes(), path.exists()) == (b"something else", True)

    @pytest.mark.parametrize("run", ["../run-1", "a/b", "", ".hidden", "-x\n"])
    def test_a_run_id_that_names_no_file_of_the_folder_is_refused(self, database: Database, run: str) -> None:
        with pytest.raises(OpAtlasError):
            history.file_path(database, run)

    @pytest.mark.parametrize(
        ("line", "command"), [(b"{}\n", "history DB Abs"), (b"\n", "combine new DB"), (b" " * 999, "history DB")]
    )
    def test_a_small_file_does_not_fill_the_memory(
        self,
        database: Database,
        line: bytes,
        command: str,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(history, "_MOST_BYTES", 8 << 20)
        monkeypatch.setattr(history, "_MOST_LINES", 10_000)
        header = journal.line(asdict(JournalHeader("20260101T000000-aaaaaa", "all", prune=False)))
        path = history.file_path(database, "20260101T000000-aaaaaa")
        path.parent.mkdir()
        with gzip.open(path, "wb", compresslevel=1) as file:
            file.write(header)
            for _ in range(64):
                file.write(line * ((1 << 20) // len(line)))
        tracemalloc.start()
        try:
            main([str(database.path) if word == "DB" else word for word in command.split()])
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 48 << 20
        assert path.name in "".join(capsys.readouterr())


class TestReplacedRows:
    def test_doing_a_merge_again_keeps_it_once(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        write(database, [{**cells(1), "Average Duration(us)": "7.5"}])

        def full(*_: object) -> None:
            raise OpAtlasError("no room")

        with monkeypatch.context() as patched:
            patched.setattr(Database, "write", full)
            assert write_back(database, [record(1, 1.0)], UpdateMode.ALL, prune=False).problems
        for _ in range(2):
            assert not write_back(database, [record(1, 1.0)], UpdateMode.ALL, prune=False).problems
        assert len(imported(database)) == 1
