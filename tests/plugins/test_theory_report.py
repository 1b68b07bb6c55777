"""What a run of `pytest shapes/` tells: one is no plural."""

from __future__ import annotations

from plugins.theory_report import summary_lines
from shapes.results import KernelResult, ModelCoverage


def test_one_of_everything() -> None:
    result = KernelResult("Mul", 1, 1, 8, 8, refused=1, coverage=(ModelCoverage("small", "Qwen", 1),))
    _, _, refused, total, covered = summary_lines([result], plan_only=False)
    assert refused == "  1 row left out, which the device's kernel refuses (constraints/)"
    assert total == "1 row added to 1 kernel type, 1 was there"
    assert covered == "Qwen: 1 of 1 shape is in the database"


def test_several_of_everything() -> None:
    coverage = ModelCoverage("Mul", "Qwen", 3, missing=["n 7"])
    results = [KernelResult("Mul", 2000, 2, refused=2, coverage=(coverage,)), KernelResult("Add")]
    lines = list(summary_lines(results, plan_only=True))
    assert "2,000 rows would be added to 2 kernel types, 2 were there" in lines
    assert "Qwen: 2 of 3 shapes are in the database, missing:" in lines
