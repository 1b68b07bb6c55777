"""Checks of a database as a whole: its runs and its captures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from captures import launched, write_capture
from checked import findings, product, write_database, write_manifest
from sessions import row

from opatlas.ask.checks.check import CheckedDatabase
from opatlas.cli.main import main
from opatlas.row.columns import CACHE_STATE, INSTRUMENT, RUN_ID

OTHER_RUN = "20261122T010000-bbbbbb"


def two_runs(folder: Path, **of_the_other: str) -> CheckedDatabase:
    """Three rows of one run, and one of another with other facts."""
    rows = [product(m, 9.0) for m in (1, 2, 3)] + [{**product(4, 9.0), RUN_ID: OTHER_RUN}]
    write_database(folder, {"MatMulV2": rows}, driver="580.1", name="NVIDIA_H200")
    write_manifest(folder, OTHER_RUN, **{"driver": "580.1", **of_the_other})
    return CheckedDatabase(folder)


@pytest.mark.parametrize(
    ("facts", "value"),
    [
        ({"name": "NVIDIA_H100_80GB_HBM3"}, "device NVIDIA_H100_80GB_HBM3"),
        ({"driver": "570.9"}, "driver 570.9"),
        ({"cuda": "12.8"}, "cuda 12.8"),
    ],
)
def test_a_run_on_another_device_or_software_is_found(tmp_path: Path, facts: dict[str, str], value: str) -> None:
    (finding,) = findings("mixed", two_runs(tmp_path, **facts))
    assert (finding.row, finding.value) == (OTHER_RUN, value)
    assert finding.file == str(tmp_path / "runs" / f"{OTHER_RUN}.json")


def test_threads_of_the_ranks_of_a_group_are_no_other_threads(tmp_path: Path) -> None:
    rows = [product(m, 9.0) for m in (1, 2, 3)] + [{**product(4, 9.0), RUN_ID: OTHER_RUN}]
    write_database(tmp_path, {"MatMulV2": rows}, threads=2)
    write_manifest(tmp_path, OTHER_RUN, threads=2)
    path = tmp_path / "runs" / f"{OTHER_RUN}.json"
    manifest = json.loads(path.read_text())
    group = {**manifest["device"], "facts": {**manifest["device"]["facts"], "threads": 1, "ranks": 2}}
    path.write_text(json.dumps({**manifest, "other_devices": [group]}))
    assert not findings("mixed", CheckedDatabase(tmp_path))
    write_manifest(tmp_path, OTHER_RUN, threads=1)
    assert [finding.value for finding in findings("mixed", CheckedDatabase(tmp_path))] == ["threads 1"]


def test_runs_alike_pass(tmp_path: Path) -> None:
    assert not findings("mixed", two_runs(tmp_path))


@pytest.mark.parametrize(("column", "cell"), [(CACHE_STATE, "warm"), (INSTRUMENT, "kineto")])
def test_rows_taken_in_another_way_are_found(tmp_path: Path, column: str, cell: str) -> None:
    rows = [product(1, 9.0), product(2, 9.0), {**product(3, 9.0), column: cell}]
    (finding,) = findings("mixed", CheckedDatabase(write_database(tmp_path, {"MatMulV2": rows})))
    assert (finding.line, finding.value) == (4, f"{column} {cell}")


def test_files_that_cannot_be_read_are_found_and_the_others_are_checked(tmp_path: Path) -> None:
    write_database(tmp_path, {"MatMulV2": [product(1, 9.0)]})
    (tmp_path / "Add.csv").write_text("no,such,header\n1,2\n")
    (tmp_path / "runs" / "damaged.json").write_text("{")
    database = CheckedDatabase(tmp_path)
    assert sorted(finding.file for finding in findings("unreadable", database)) == [
        str(tmp_path / "Add.csv"),
        str(tmp_path / "runs"),
    ]
    assert database.kernel_types == ["MatMulV2"]


def capture(folder: Path, durations: list[float]) -> CheckedDatabase:
    """A database with the launches of one signature."""
    path = write_capture(folder / "kernel_details.csv", [launched("Add", us, row(4)) for us in durations])
    assert main(["ingest", "--profiling-path", str(path), "--database-path", str(folder / "DB")]) == 0
    return CheckedDatabase(folder / "DB")


def test_a_captured_signature_with_two_populations_is_found(tmp_path: Path) -> None:
    short = [10.0, 10.1, 9.9, 10.05, 9.95, 10.2]
    (finding,) = findings("captures", capture(tmp_path, [us + shift for us in short for shift in (0.0, 20.0)]))
    assert finding.kernel_type == "Add"
    assert finding.place == "Add.csv:2"


def test_a_captured_signature_with_one_population_passes(tmp_path: Path) -> None:
    assert not findings("captures", capture(tmp_path, [10.0 + 0.1 * (i % 5) for i in range(20)]))
