"""What a run of `pytest shapes/` tells: rows, models, and how long a replay will take."""

from __future__ import annotations

from opatlas.store.manifest import Manifest
from opatlas.theory.report import (
    AxisCoverage,
    KernelResult,
    ModelCoverage,
    Pace,
    coverage_page,
    replay_pace,
    summary_lines,
)


def manifest(run_id: str, seconds: float, **statuses: int) -> Manifest:
    return Manifest(run_id, 100.0, {}, "", finished_at=100.0 + seconds, statuses=statuses)


def test_one_of_everything() -> None:
    result = KernelResult("Mul", 1, 1, 8, 8, refused=1, coverage=(ModelCoverage("small", "Qwen", 1),))
    _, _, refused, total, time, covered = summary_lines([result], Pace(), plan_only=False)
    assert refused == "  1 row left out, which the device's kernel refuses (constraints/)"
    assert total == "1 row added to 1 kernel type, 1 was there"
    assert time == "to replay it takes about 1 s, at 1 s a row (assumed: this database has no replay yet)"
    assert covered == "Qwen: 1 of 1 shape has rows"


def test_several_of_everything() -> None:
    sizes = AxisCoverage("m", 16, 3, 1, 5, 1, 2048, ["n 8: m 1"])
    coverage = ModelCoverage("Mul", "Qwen", 3, missing={"n 7": ["BF16"]}, sizes=[sizes])
    results = [KernelResult("Mul", 2000, 2, refused=2, coverage=(coverage,)), KernelResult("Add")]
    lines = list(summary_lines(results, Pace(0.5, "last"), plan_only=True))
    # Add gets none.
    assert "2,000 rows would be added to 1 of 2 kernel types, 2 were there" in lines
    assert "to replay them takes about 16 min 40 s, at 0.5 s a row (as in run last)" in lines
    assert "Qwen: 2 of 3 shapes have rows, of 5 of 48 sizes (1 shape of one size only); missing:" in lines


def test_the_page_names_each_missing_shape_once_with_its_dtypes() -> None:
    sizes = AxisCoverage("m", 16, 3, 1, 5, 1, 2048, ["n 8: m 1"])
    coverage = ModelCoverage("Mul", "Qwen", 3, missing={"n 7": ["BF16", "INT8"]}, sizes=[sizes])
    page = coverage_page([KernelResult("Mul", coverage=(coverage,))], "run 1").splitlines()
    assert "| Mul | Qwen | 1 of 3 | m | 5 of 48 | 1 of 16 | 1 | 1 to 2,048 |" in page
    assert "- Mul, Qwen: n 7 (BF16, INT8)" in page
    assert "- Mul, Qwen: n 8: m 1" in page


def test_the_newest_replay_sets_the_pace() -> None:
    ended = manifest("2", 30, measured=9, failed=1)
    others = [manifest("1", 500, measured=1), manifest("3", 7, added=1000), manifest("4", 7)]
    killed = Manifest("5", 100.0, {}, "", statuses={"measured": 3})
    assert replay_pace([*others, ended, killed]) == Pace(3.0, "2")
    assert not replay_pace(others[1:]).run_id
