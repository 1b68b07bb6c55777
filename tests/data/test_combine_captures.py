"""Combining databases that have captured durations: their launches count together, each capture once."""

from __future__ import annotations

from pathlib import Path

import pytest
from captures import cells, launched, table, write_capture

from opatlas.cli.main import main

TYPE = "MatMulV2"


def ingest(database: Path, capture: Path) -> None:
    assert main(["ingest", "--profiling-path", str(capture), "--database-path", str(database)]) == 0


def statistics(database: Path) -> list[tuple[str, ...]]:
    names = ("Input Shapes", "Profiling Average Duration(us)", "Profiling Median Duration(us)", "Profiling Samples")
    return sorted(tuple(row[name] for name in names) for row in table(database / f"{TYPE}.csv"))


@pytest.fixture
def captures(tmp_path: Path) -> tuple[Path, Path]:
    first = [launched(TYPE, us) for us in (1.0, 2.0, 30.0)]
    second = [launched(TYPE, us) for us in (4.0, 3.0)] + [launched(TYPE, 7.0, cells("8,32;64,32", "8,64"))]
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
    assert not list((one / "reports").glob("combine_conflicts*")), "what is pooled is no conflict"
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
