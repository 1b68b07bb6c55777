"""Pooling the runs of a row: median over runs, spread between machines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from abs_rows import cells, read, record, write
from folding import imported, session

from opatlas.cli.main import main
from opatlas.data.database import Database
from opatlas.data.manifest import Manifest
from opatlas.data.pool import pool
from opatlas.row import columns as col

RUNS = tuple(f"2025112{day}T120000-aaaaaa" for day in range(1, 6))


@pytest.fixture
def database(tmp_path: Path) -> Database:
    database = Database(tmp_path / "db")
    write(database, [cells(1), cells(2)])
    return database


def run(
    database: Database, run_id: str, samples_us: float | list[float], *devices: str, torch: str = "2.9.0", **other: Any
) -> None:
    """A session that measured row 1 on devices with serial numbers; `host/serial` are those of a cluster's hosts.

    Args:
        other: further fields of the measurement, or the host of the record.
    """
    samples = samples_us if isinstance(samples_us, list) else [samples_us]
    one = replace(record(1, *samples, run=run_id), host=other.pop("host", ""))
    assert one.measurement is not None
    session(database, replace(one, measurement=replace(one.measurement, **other)))
    parts = [each.rpartition("/") for each in devices]
    first, *others = [{"name": "H200", "facts": {"host": name, "uuid": serial}} for name, _, serial in parts]
    packages = {"torch": torch}
    Manifest(run_id, 1.7e9, device=first, other_devices=others, packages=packages, host="vm").write(database)


def pooled_cells(database: Database) -> list[tuple[str, ...]]:
    columns = (col.POOLED_MEDIAN, col.POOLED_RUNS, col.POOLED_MACHINES, col.POOLED_SPREAD)
    return [tuple(row.get(name, "") for name in columns) for row in read(database)]


def duration(database: Database) -> tuple[str, str]:
    """The duration of the first row, and its run."""
    row = read(database)[0]
    return row["Average Duration(us)"], row["Run ID"]


def pooled(database: Database) -> list[tuple[str, ...]]:
    problems: list[str] = []
    pool(database, problems)
    assert not problems
    return pooled_cells(database)


def test_the_median_over_runs_and_the_spread_between_machines(database: Database) -> None:
    for run_id, duration_us, machine in zip(RUNS, (10.0, 12.0, 11.0), ("GPU-1", "GPU-1", "GPU-2"), strict=False):
        run(database, run_id, duration_us, machine)
    assert pooled(database) == [("11.0000", "3", "2", "0.00"), ("", "", "", "")]
    run(database, RUNS[3], 13.2, "GPU-3")
    # Medians of the machines: 11, 11 and 13.2; of the runs: 10, 11, 12 and 13.2.
    assert pooled(database)[0] == ("11.5000", "4", "3", "19.13")


@pytest.mark.parametrize("first_us", [10.0, 267.923, 600.0003])
def test_of_two_runs_the_newer_has_the_duration(database: Database, first_us: float) -> None:
    """Half of the time a rounding error had decided which of two runs is nearer to their median."""
    for run_id, us in zip(RUNS, (first_us, 31034.904), strict=False):
        run(database, run_id, us, "GPU-1")
    pooled(database)
    assert duration(database) == ("31034.9040", RUNS[1])


def test_the_hosts_of_a_cluster_are_machines(database: Database) -> None:
    run(database, RUNS[0], 10.0, "a/GPU-1", "b/GPU-2", host="a")
    run(database, RUNS[1], 12.0, "a/GPU-1", "b/GPU-2", host="b")
    assert pooled(database)[0] == ("11.0000", "2", "2", "18.18")
    # Without a cluster, on the machine that is the host a; on other devices of b; and on a host without serial numbers.
    run(database, RUNS[2], 11.0, "GPU-1")
    run(database, RUNS[3], 12.0, "a/GPU-1", "b/GPU-2", "b/GPU-3", host="b")
    assert pooled(database)[0][1:3] == ("4", "2")
    run(database, RUNS[4], 11.0, "a/GPU-1", "b/GPU-2", "c/", host="c")
    assert pooled(database)[0][1:3] == ("5", "3")


@pytest.mark.parametrize(
    "other",
    [
        {"torch": "2.8.0"},
        {"cache_state": "warm"},
        {"instrument": "cupti"},
        {"stand_in": "composition of 2 torch operators (abs, mul)"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_runs_that_measured_otherwise_are_not_pooled(database: Database, other: dict[str, str]) -> None:
    run(database, RUNS[0], 10.0, "GPU-1", **other)
    run(database, RUNS[1], 20.0, "GPU-2")
    assert pooled(database)[0] == ("20.0000", "1", "1", "")


def test_rows_that_were_replaced_and_have_no_history_count(database: Database) -> None:
    write(database, [{**cells(1), "Average Duration(us)": "30.0", "Cache State": "cold", "Instrument": "wall-clock"}])
    run(database, RUNS[0], 10.0, "GPU-1")
    cold = {**read(database)[0]}
    assert (cold["Cache State"], cold["Instrument"]) == ("cold", "wall-clock")
    # A run that nothing tells of is a machine of its own.
    assert pooled(database)[0] == ("20.0000", "2", "2", "100.00")


def test_databases_of_several_machines_are_pooled_by_the_command(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [Database(tmp_path / name) for name in ("two", "three")]
    run(database, RUNS[0], 10.0, "GPU-1")
    for other, run_id, duration_us in zip(others, RUNS[1:], (11.0, 15.0), strict=False):
        write(other, [cells(1)])
        run(other, run_id, duration_us, run_id)
    assert main(["combine", str(database.path), *(str(other.path) for other in others), "--pool", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["pooled"]
    assert (row["median_us"], row["machines"], row["spread"]) == (11.0, 3, pytest.approx(0.4545, abs=1e-4))
    assert pooled_cells(database)[0] == ("11.0000", "3", "3", "45.45")
    assert duration(database) == ("11.0000", RUNS[1])
    before = database.csv_path("Abs").read_bytes()
    assert main(["combine", str(database.path), "--pool"]) == 0
    assert database.csv_path("Abs").read_bytes() == before


def test_a_row_that_was_edited_brings_no_duration_of_its_old_shape(database: Database, tmp_path: Path) -> None:
    target = Database(tmp_path / "target")
    write(target, [cells(1)])
    run(target, RUNS[0], 10.0, "GPU-1")
    run(database, RUNS[1], 20.0, "GPU-2")
    for edited in (database, target):
        write(edited, [{**read(edited)[0], **{name: cell for name, cell in cells(7).items() if cell}}])
    assert main(["combine", str(target.path), str(database.path), "--pool"]) == 0
    (row,) = read(target)
    assert (row["Input Shapes"], row["Average Duration(us)"]) == (cells(7)["Input Shapes"], "")
    assert pooled_cells(target)[0] == ("", "", "", "")


def test_a_row_gets_the_duration_of_the_median_run_whole(database: Database) -> None:
    for run_id, samples_us in zip(RUNS, ([30.0, 34.0], [21.0, 21.5], [10.0]), strict=False):
        run(database, run_id, samples_us, run_id)
    pooled(database)
    (row, _) = read(database)
    assert row["Run ID"] == RUNS[1]
    assert (row["Average Duration(us)"], row["MicroBench Samples"], row["MicroBench Min Duration(us)"]) == (
        *("21.2500", "2"),
        "21.0000",
    )
    assert row[col.POOLED_RUN_DURATIONS] == f"{RUNS[0]} 32.0000; {RUNS[1]} 21.2500; {RUNS[2]} 10.0000"
    before = database.csv_path("Abs").stat()
    pooled(database)
    assert database.csv_path("Abs").stat() == before, "the file is written again"


def test_a_noisy_run_does_not_represent_quiet_ones(database: Database) -> None:
    for run_id, samples_us in zip(RUNS, ([10.0] * 4, [1.0, 11.0, 11.0, 21.0], [15.0] * 4), strict=False):
        run(database, run_id, samples_us, run_id)
    assert pooled(database)[0] == ("11.0000", "3", "3", "45.45")
    assert duration(database) == ("10.0000", RUNS[0])


def test_a_database_without_histories_keeps_what_was_pooled_and_adds_to_it(database: Database) -> None:
    for run_id, duration_us in zip(RUNS, (10.0, 11.0, 15.0), strict=False):
        run(database, run_id, duration_us, run_id)
    shipped = pooled(database)[0]
    for path in database.runs_dir.glob("*.gz"):
        path.unlink()
    assert pooled(database)[0] == shipped == ("11.0000", "3", "3", "45.45")
    # A session replaces the duration: its row is saved with the runs that it was pooled with.
    run(database, RUNS[3], 20.0, "GPU-9")
    assert pooled(database)[0] == ("13.0000", "4", "4", "76.92")
    assert duration(database)[0] in ("11.0000", "15.0000")


def test_a_duration_that_no_history_has_is_saved_before_the_median_run_replaces_it(database: Database) -> None:
    run(database, RUNS[0], 10.0, "GPU-1")
    run(database, RUNS[1], 11.0, "GPU-2")
    row = {**read(database)[0], "Average Duration(us)": "99.0", "Run ID": RUNS[4]}
    write(database, [{**row, "MicroBench Median Duration(us)": "99.0"}])
    manifest = (database.runs_dir / f"{RUNS[0]}.json").read_text().replace("GPU-1", "GPU-3")
    (database.runs_dir / f"{RUNS[4]}.json").write_text(manifest)
    assert pooled(database)[0] == ("11.0000", "3", "3", "809.09")
    assert duration(database) == ("11.0000", RUNS[1])
    pooled(database)
    assert [row[col.AVERAGE] for row in imported(database)] == ["99.0"]
    assert pooled_cells(database)[0] == ("11.0000", "3", "3", "809.09")
