"""What an ingest does to the CSVs of a database, what is kept of each capture, and what a further one does."""

from __future__ import annotations

import gzip
import random
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from captures import COUNTERS, KERNEL_DETAILS, launch, table, write_capture
from frames import rewrite
from printed import numbers_in

from opatlas.capture.cases import Aggregate, read_samples
from opatlas.capture.ingest import IngestRequest, IngestResult, ingest_captures, rebuild_profiling
from opatlas.cli.main import main
from opatlas.data.database import Database
from opatlas.errors import OpAtlasError
from opatlas.row.columns import BASE, PIPE_UTILIZATION, PROFILING_RUN_ID
from opatlas.row.versions import Versions

AVERAGE, MEDIAN = "Profiling Average Duration(us)", "Profiling Median Duration(us)"
STD, SAMPLES = "Profiling Std Duration(us)", "Profiling Samples"


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "database")


def capture(folder: Path, *durations: float, **more: str) -> Path:
    """A capture in which a product was launched with these durations."""
    return write_capture(folder / "kernel_details.csv", [launch(duration=str(us), **more) for us in durations])


def ingest(database: Database, *paths: Path, replace: bool = False) -> IngestResult:
    done = ingest_captures(database, paths, IngestRequest(paths[0], replace))
    assert not done.problems
    return done


def run_id(done: IngestResult) -> str:
    assert done.manifest is not None
    return done.manifest.run_id


def rows(database: Database, kernel_type: str = "MatMulV3") -> list[dict[str, str]]:
    return table(database.csv_path(kernel_type))


def row(database: Database, kernel_type: str = "MatMulV3") -> dict[str, str]:
    (only,) = rows(database, kernel_type)
    return only


def profiling(of: Mapping[str, str]) -> dict[str, str]:
    """The Profiling cells of a row, but for where they came from."""
    return {name: cell for name, cell in of.items() if name.startswith("Profiling ") and name != PROFILING_RUN_ID}


def everything(database: Database) -> dict[Path, bytes]:
    """All files of a database, but for locks."""
    return {path: path.read_bytes() for path in database.path.rglob("*") if path.is_file() and path.suffix != ".lock"}


def forget_samples(database: Database) -> None:
    """Makes it a database of an OpAtlas that kept no samples."""
    shutil.rmtree(database.runs_dir)
    for path in database.path.glob("*.csv"):
        stored = database.read(path.stem)
        stored.frame = stored.frame.drop(columns=PROFILING_RUN_ID)
        rewrite(database, stored)


class TestAdding:
    def test_captures_one_after_the_other_are_those_in_one_command(self, tmp_path: Path) -> None:
        draw = random.Random(7)
        paths = []
        for number in range(3):
            launches = [
                launch(
                    {name: draw.choice(["N/A", f"{draw.uniform(0, 1e4):.3f}"]) for name in COUNTERS},
                    duration=f"{draw.lognormvariate(3, 2):.3f}",
                    type=draw.choice(["Add", "Mul"]),
                    shapes=draw.choice(["8,8;8,8", "4,4;4,4"]),
                )
                for _ in range(40)
            ]
            paths.append(write_capture(tmp_path / f"{number}/kernel_details.csv", launches))
        apart, together = Database(tmp_path / "apart"), Database(tmp_path / "together")
        for path in paths:
            ingest(apart, path)
        ingest(together, *paths)
        for kernel_type in ("Add", "Mul"):
            shapes = {r["Input Shapes"]: profiling(r) for r in rows(apart, kernel_type)}
            assert shapes == {r["Input Shapes"]: profiling(r) for r in rows(together, kernel_type)}
            assert all(len(cells) > len(COUNTERS) for cells in shapes.values())

    def test_the_order_holds_if_the_clock_is_set_back(
        self, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ingest(database, capture(tmp_path / "a", 10))
        monkeypatch.setattr("time.time", lambda: 1e9)
        newest = ingest(database, capture(tmp_path / "b", 40), replace=True)
        last = ingest(database, capture(tmp_path / "c", 60))
        assert (row(database)[AVERAGE], row(database)[PROFILING_RUN_ID]) == ("50", f"{run_id(newest)};{run_id(last)}")


class TestOfAnotherMachine:
    ATLAS, CANN = "ATLAS_800_A3_752T_128G_DIE", Versions(cann="8.5", torch="2.9.0+cpu")

    @pytest.fixture
    def captured(self, tmp_path: Path, database: Database) -> Database:
        path = capture(tmp_path / "a", 10)
        ingest_captures(database, [path], IngestRequest(path, device=self.ATLAS, versions=self.CANN))
        return database

    @pytest.mark.parametrize(
        ("device", "versions"),
        [("ATLAS_800_A2_376T_64G", CANN), (ATLAS, Versions(cann="8.3")), (None, Versions(cann="8.3"))],
    )
    def test_is_refused_unless_it_is_to_be_mixed(
        self, tmp_path: Path, captured: Database, device: str | None, versions: Versions
    ) -> None:
        path, before = capture(tmp_path / "b", 30), everything(captured)
        for replace in (False, True):
            with pytest.raises(OpAtlasError, match="--mixed"):
                ingest_captures(captured, [path], IngestRequest(path, replace, device=device, versions=versions))
        assert everything(captured) == before
        ingest_captures(captured, [path], IngestRequest(path, mixed=True, device=device, versions=versions))
        assert row(captured)[AVERAGE] == "20"
        third = capture(tmp_path / "c", 50)
        ingest_captures(captured, [third], IngestRequest(third, device=device, versions=versions))
        assert row(captured)[AVERAGE] == "30"


class TestTheSameFileAgain:
    @pytest.mark.parametrize("place", ["a/kernel_details.csv", "b/kernel_details.csv", "b/rank3_kernel_details.csv"])
    def test_changes_no_byte(
        self, tmp_path: Path, database: Database, capsys: pytest.CaptureFixture[str], place: str
    ) -> None:
        path = capture(tmp_path / "a", 10)
        first = ingest(database, path)
        before = everything(database)
        again = tmp_path / place
        if again != path:
            again.parent.mkdir()
            shutil.copy(path, again)
        assert main(["ingest", "--profiling-path", str(again), "--database-path", str(database.path)]) == 0
        assert run_id(first) in capsys.readouterr().out
        assert everything(database) == before


class TestReplacing:
    def test_with_an_earlier_capture_again(self, tmp_path: Path, database: Database) -> None:
        ingest(database, capture(tmp_path / "a", 10))
        ingest(database, capture(tmp_path / "b", 20))
        ingest(database, tmp_path / "a/kernel_details.csv", replace=True)
        assert (row(database)[AVERAGE], row(database)[SAMPLES]) == ("10", "1")
        before = everything(database)
        assert ingest(database, tmp_path / "a/kernel_details.csv", replace=True).manifest is None
        assert everything(database) == before


class TestDurationsWithoutSamples:
    @pytest.fixture
    def old(self, tmp_path: Path, database: Database) -> Database:
        ingest(database, capture(tmp_path / "a", 10, 20), capture(tmp_path / "m", 7, type="Mul"))
        forget_samples(database)
        return database

    def test_nothing_joins_them(self, tmp_path: Path, old: Database) -> None:
        before = everything(old)
        path = write_capture(tmp_path / "b/kernel_details.csv", [launch(duration="30"), launch(type="Add")])
        with pytest.raises(OpAtlasError, match=r"\bMatMulV3\b.*--replace"):
            ingest(old, path)
        assert everything(old) == before

    def test_replaced_ones_are_kept(self, tmp_path: Path, old: Database) -> None:
        before = profiling(row(old))
        done = ingest(old, capture(tmp_path / "b", 30), replace=True)
        assert (row(old)[AVERAGE], row(old, "Mul")[AVERAGE]) == ("30", "7")
        (kept,) = [line.replaced for line in read_samples(old.runs_dir / f"{run_id(done)}.jsonl.gz") if line.replaced]
        assert kept == {name: cell for name, cell in before.items() if cell}


class TestWhatIsKept:
    @pytest.mark.parametrize("damage", ["cut off", "no gzip", "not JSON", "no durations", "no name"])
    def test_damaged_samples_are_named_and_nothing_changes(
        self, tmp_path: Path, database: Database, damage: str
    ) -> None:
        done = ingest(database, capture(tmp_path / "a", 10))
        path = database.runs_dir / f"{run_id(done)}.jsonl.gz"
        content = path.read_bytes()
        header = gzip.decompress(content).split(b"\n")[0]
        damaged = {
            "cut off": content[:-20],
            "no gzip": b"x",
            "not JSON": gzip.compress(header + b"\n{,}\n"),
            "no durations": gzip.compress(header + b'\n{"kernel_type": "MatMulV3", "cells": {}}\n'),
            "no name": gzip.compress(header + b'\n{"kernel_type": "../Add", "cells": {}, "durations_us": [1.0]}\n'),
        }
        path.write_bytes(damaged[damage])
        before = {name: text for name, text in everything(database).items() if name.suffix == ".csv"}
        with pytest.raises(OpAtlasError, match=path.name):
            ingest(database, capture(tmp_path / "b", 20))
        after = everything(database)
        assert {name: after[name] for name in before} == before


class TestRemaking:
    @pytest.fixture
    def captured(self, tmp_path: Path, database: Database) -> Database:
        """A database of four captures, one of which replaced what was there before."""
        ingest(database, capture(tmp_path / "a", 10, 20), capture(tmp_path / "m", 7, type="Mul"))
        ingest(database, capture(tmp_path / "b", 30))
        ingest(database, capture(tmp_path / "c", 50, 70), replace=True)
        ingest(database, capture(tmp_path / "d", 90), capture(tmp_path / "n", 9, type="Mul"))
        return database

    def test_brings_back_edited_cells_and_lost_tables(self, captured: Database) -> None:
        before = everything(captured)
        stored = captured.read("MatMulV3")
        stored.frame[AVERAGE] = "1"
        stored.frame[MEDIAN] = ""
        rewrite(captured, stored)
        captured.csv_path("Mul").unlink()
        with captured.lock():
            remade = rebuild_profiling(captured)
        assert (remade.outcome.new, remade.outcome.updated) == (1, 1)
        assert everything(captured) == before

    def test_an_edited_row_does_not_keep_what_was_captured_of_its_old_shape(self, captured: Database) -> None:
        (before,) = rows(captured)
        stored = captured.read("MatMulV3")
        stored.frame["Input Shapes"] = "32,32;64,32"
        stored.frame["Status"] = "measured"
        rewrite(captured, stored)
        with captured.lock():
            remade = rebuild_profiling(captured)
        edited, again = rows(captured)
        assert (edited["Input Shapes"], edited["Status"]) == ("32,32;64,32", "measured")
        assert not any(cell for name, cell in edited.items() if name.startswith("Profiling "))
        assert again == {**before, "Status": ""}
        assert [r[AVERAGE] for r in remade.edited["MatMulV3"]] == [before[AVERAGE]]

    def test_rows_that_fill_runtime_made_are_not_edited(self, captured: Database) -> None:
        stored = captured.read("Mul")
        stored.frame["Runtime num_heads"] = "8"
        rewrite(captured, stored)
        with captured.lock():
            assert not rebuild_profiling(captured).edited
        assert row(captured, "Mul")[AVERAGE] == "8"


def test_a_capture_that_is_written_while_it_is_read(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = capture(tmp_path / "a", 10)
    add_files = Aggregate.add_files

    def written_meanwhile(self: Aggregate, captures: Sequence[Path]) -> list[str]:
        errors = add_files(self, captures)
        with open(path, "a") as file:
            file.write("\n")
        return errors

    monkeypatch.setattr(Aggregate, "add_files", written_meanwhile)
    with pytest.raises(OpAtlasError, match=re.escape(str(path))):
        ingest(database, path)
    assert not database.path.exists()


#: Counters of a profiler.
AICORE_TIME, READ_BANDWIDTH = "Profiling Average aicore_time(us)", "Profiling Average aic_l0a_read_bw(GB/s)"


@pytest.fixture
def add(tmp_path, database):
    """Ingests launches, a capture of their own at each call."""

    def run(*launches, columns=KERNEL_DETAILS, replace=False):
        capture = write_capture(tmp_path / "kernel_details.csv", launches, columns)
        return ingest_captures(database, [capture], IngestRequest(capture, replace)).outcome

    return run


@pytest.fixture
def edit(database):
    """Rewrites a cell of a CSV, as another stage of the pipeline does."""

    def run(position, column, cell, kernel_type="MatMulV3"):
        stored = database.read(kernel_type)
        if column not in stored.frame.columns:
            stored.frame[column] = ""
        cells = stored.frame[column].tolist()
        cells[position] = cell
        stored.frame[column] = cells
        rewrite(database, stored)

    return run


def counts(outcome):
    return outcome.new, outcome.updated, outcome.unchanged


def test_a_new_file(database, add):
    assert counts(add(launch(duration="10"), launch(duration="11"), launch(duration="15"))) == (1, 0, 0)
    (row,) = rows(database)
    assert row["Input Shapes"] == "16,32;64,32"
    assert (row[AVERAGE], row["Profiling Median Duration(us)"], row["Profiling Std Duration(us)"], row[SAMPLES]) == (
        "12",
        "11",
        "2.645751",
        "3",
    )
    assert row[AICORE_TIME] == "8"
    assert row["Average Duration(us)"] == ""


def test_the_columns_of_a_new_file_are_the_contracts(database, add):
    add(launch({"my_counter": "1"}), columns=[*KERNEL_DETAILS, "my_counter"])
    columns = list(rows(database)[0])
    profiling = ["Profiling Average Duration(us)", "Profiling Median Duration(us)", "Profiling Std Duration(us)"]
    counters = [f"Profiling Average {name}" for name in (*PIPE_UTILIZATION, "my_counter")]
    own = ["Profiling Samples", "Profiling Run ID"]
    assert columns == [*BASE, "Average Duration(us)", *profiling, *counters, *own]


@pytest.mark.parametrize(("replace", "mean", "samples"), [(False, "25", "3"), (True, "30", "2")])
def test_a_second_ingest_changes_the_rows_that_it_has_samples_for(database, add, replace, mean, samples):
    add(launch(duration="15"), launch(shapes="1,32;64,32", duration="5"))
    second = (launch(duration="20"), launch(duration="40"), launch(shapes="2,32;64,32"))
    assert counts(add(*second, replace=replace)) == (1, 1, 0)
    assert [(row["Input Shapes"], row[AVERAGE], row[SAMPLES]) for row in rows(database)] == [
        ("16,32;64,32", mean, samples),
        ("1,32;64,32", "5", "1"),
        ("2,32;64,32", "10", "1"),
    ]


def test_theory_rows_unknown_columns_and_all_orders_survive(database, add):
    path = database.csv_path("MatMulV3")
    path.parent.mkdir()
    path.write_text(
        "Note,Output Shapes,Output Data Types,Input Shapes,Input Data Types,Input Formats,Run ID,Profiling Samples\n"
        'theory,"1,64",BF16,"1,32;64,32",BF16;BF16,ND;ND,,\n'
        'seen,"16,64",BF16,"""16,32;64,32""",DT_BF16;DT_BF16,ND;ND,r1,7\n'
        '"a ""third""","2,64",BF16,"2,32;64,32",BF16;BF16,ND;ND,,\n'
    )
    theory = path.read_text().splitlines()
    assert counts(add(launch(duration="12.5"))) == (0, 1, 0)
    after = rows(database)
    assert [row["Note"] for row in after] == ["theory", "seen", 'a "third"']
    assert after[1]["Input Shapes"] == '"16,32;64,32"'
    assert (after[1][AVERAGE], after[1][SAMPLES]) == ("12.5", "1")
    assert after[0][AVERAGE] == after[2][AVERAGE] == ""
    order = [name for name in after[0] if name in theory[0].split(",")]
    assert ",".join(order) == theory[0]


def test_two_rows_of_one_signature_are_both_brought_up_to_date(database, add):
    add(launch())
    path = database.csv_path("MatMulV3")
    header, row = path.read_text().splitlines()
    path.write_text("\n".join([header, row, row, ""]))
    add(launch(duration="77"), replace=True)
    assert [row[AVERAGE] for row in rows(database)] == ["77", "77"]


@pytest.mark.parametrize(("replace", "mean"), [(False, "8"), (True, "")])
def test_a_counter_that_was_not_recorded_this_time(database, add, replace, mean):
    add(launch())
    add(launch(dict.fromkeys(COUNTERS, "N/A")), replace=replace)
    assert rows(database)[0][AICORE_TIME] == mean


def test_a_capture_does_not_vouch_for_a_theory_row_of_one_ep_size(database, add, edit):
    add(launch(type="DispatchFFNCombine"))
    edit(0, "EP Size", "16", "DispatchFFNCombine")
    edit(0, AVERAGE, "", "DispatchFFNCombine")
    assert counts(add(launch(type="DispatchFFNCombine", duration="50"))) == (1, 0, 0)
    assert [row[AVERAGE] for row in rows(database, "DispatchFFNCombine")] == ["", "30"]


def test_a_damaged_csv_stays_as_it_is_and_the_others_go_in(database, add):
    add(launch())
    path = database.csv_path("MatMulV3")
    damaged = path.read_text() + "half a row\n"
    path.write_text(damaged)
    outcome = add(launch(duration="20"), launch(type="Add"))
    assert counts(outcome) == (1, 0, 0)
    assert outcome.kernel_types == ["Add"]
    assert len(outcome.problems) == 1
    assert "MatMulV3.csv:3: 1 fields" in outcome.problems[0]
    assert path.read_text() == damaged


def test_launches_of_two_kinds_are_told_and_no_quality_of_a_replay(database, add):
    two_kinds = [launch(duration=str(177 + 27 * (n % 2) + n % 3 / 10)) for n in range(20)]
    outcome = add(*two_kinds, *[launch(type="Mul", duration=str(100 + n % 3)) for n in range(20)])
    (row,) = rows(database)
    assert numbers_in(row["Profiling Populations"]) == (10, 177.1, 10, 204.1)
    assert not rows(database, "Mul")[0].get("Profiling Populations")
    (mixed,) = outcome.mixed
    assert (mixed.kernel_type, mixed.modes.low_count, mixed.modes.high_count) == ("MatMulV3", 10, 10)
    # Launches of a third kind in between leave one population.
    add(*[launch(duration=str(170 + n)) for n in range(40)])
    assert rows(database)[0]["Profiling Populations"] == ""
