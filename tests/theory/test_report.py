"""The report of `pytest shapes/`: rows, models, and how long a replay will take."""

from __future__ import annotations

import pytest
from opatlas.shapes.report import coverage_page, summary_parts

from opatlas.data.manifest import Manifest, Pace, replay_pace
from opatlas.show.result import Table
from opatlas.theory.known_rows import ModelCoverage, ShapeCoverage
from opatlas.theory.plan import KernelResult


def manifest(run_id: str, seconds: float, **statuses: int) -> Manifest:
    return Manifest(run_id, 100.0, {}, "", finished_at=100.0 + seconds, statuses=statuses)


def results() -> list[KernelResult]:
    """One kernel type with everything that a report mentions, once and several times, and one without new rows."""
    shapes = [
        ShapeCoverage("up, tp 1: n 8", {"tp 1": 60}, True, 16, 16, 1024, 32768, "BF16"),
        ShapeCoverage("up, tp 2: n 4", {"tp 2": 60}, True, 1, 16, 1, 32768, "BF16"),
        ShapeCoverage("down, tp 1; tp 2: n 7", {"tp 1": 2, "tp 2": 2}, False, 0, 16, dtypes="BF16, INT8"),
        ShapeCoverage("hidden: n 5", {"": 90}, True, 20, 16, 16, 64, "BF16"),
        ShapeCoverage("experts, ep 16: n 6", {"ep 16": 9}, True, 2, 16, 1, 64, "BF16"),
    ]
    coverage = ModelCoverage("Mul", "Qwen", shapes)
    one = ModelCoverage("Neg", "Llama", [ShapeCoverage("cache: n 1", {"": 3}, True, 0, 0)])
    return [
        KernelResult("Mul", 2000, 2, 10**9, 10**12, refused=2, over_budget=3, coverage=(coverage,)),
        KernelResult("Neg", 1, 1, 8, 8, refused=1, unknown_dtypes=("FLOAT3",), coverage=(one,)),
        KernelResult("Add"),
    ]


@pytest.mark.parametrize(("read_only", "name"), [(False, "added"), (True, "to add")])
def test_the_summary_has_a_row_for_each_kernel_type_and_the_coverage_of_each_model(read_only: bool, name: str) -> None:
    parts = list(summary_parts(results(), Pace(), read_only=read_only))
    kernels, coverage, few = (part for part in parts if isinstance(part, Table))
    assert kernels.full_columns()[1].name == name
    assert [row[:3] for row in kernels.rows] == [("Add", 0, 0), ("Mul", 2000, 2), ("Neg", 1, 1), ("all", 2001, 3)]
    assert [row[:4] for row in coverage.rows] == [("Qwen", 5, 2, "76 %"), ("Llama", 1, 1, "100 %")]
    assert len(few.rows) + few.left_out == 3


def test_the_page_of_coverage_counts_the_shapes_of_each_division() -> None:
    page = coverage_page(results(), "run 1")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| Mul | Qwen | ")]
    assert [row[2:6] for row in rows[:5]] == [
        ["no", "1", "1", "1"],
        ["ep 16", "1", "1", "0"],
        ["tp 1", "2", "1", "1"],
        ["tp 2", "2", "1", "0"],
        ["up, tp 2: n 4: 1 size", "BF16"],
    ]


def test_the_newest_replay_sets_the_pace() -> None:
    ended = manifest("2", 30, measured=9, failed=1)
    others = [manifest("1", 500, measured=1), manifest("3", 7, added=1000), manifest("4", 7)]
    killed = Manifest("5", 100.0, {}, "", statuses={"measured": 3})
    assert replay_pace([*others, ended, killed]) == Pace(3.0, "2")
    assert not replay_pace(others[1:]).run_id


def test_a_run_of_a_few_rows_does_not_set_the_pace() -> None:
    assert replay_pace([manifest("1", 100, measured=1000), manifest("2", 10, measured=3)]) == Pace(0.1, "1")
