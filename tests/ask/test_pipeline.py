"""`opatlas compare` in a pipeline: rows that are slower, and durations weighted by the calls of a model's step."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from compared import call, lost, measured, shape, write_tables

from opatlas.ask.compare.comparison import DatabaseComparison, compare_row
from opatlas.ask.compare.databases import ComparedDatabase
from opatlas.ask.compare.verdict import PairVerdict
from opatlas.cli.main import main
from opatlas.row.signature import signature


@pytest.fixture
def two(tmp_path: Path) -> list[str]:
    """Two databases; of the second a row is 8 % slower, one is faster and one is lost."""
    one = {"Sort": [measured(1, 100), measured(2, 100), measured(3, 100)], "Abs": [measured(1, 10), measured(2, 10)]}
    other = {"Sort": [measured(1, 108), measured(2, 50), lost(3, "failed")], "Abs": [measured(1, 10, cache="warm")]}
    return [str(write_tables(tmp_path / name, tables)) for name, tables in (("old", one), ("new", other))]


@pytest.mark.parametrize(("percent", "status"), [("5%", 1), ("5", 1), ("7.5 %", 1), ("9%", 0), ("0", 1)])
def test_a_row_that_is_slower_fails(
    two: list[str], percent: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *two, "--fail-slower", percent]) == status
    out, err = capsys.readouterr()
    assert "Sort-1x64" in out
    assert ("Sort-1x64" in err) == bool(status)


def test_rows_that_do_not_compare_fail(two: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *two, "--fail-slower", "5%", "--ops", "Abs"]) == 1
    assert "new" in capsys.readouterr().err


def comparison(pairs: list[tuple[float, float]], noise: float, samples: int) -> DatabaseComparison:
    rows = [
        compare_row(
            "Sort",
            f"{number},1|BF16||{number},1|BF16",
            {name: call(us, noise=noise, samples=samples) for name, us in zip("ab", pair, strict=True)},
            "a",
        )
        for number, pair in enumerate(pairs)
    ]
    return DatabaseComparison(ComparedDatabase("a", Path("a")), [ComparedDatabase("b", Path("b"))], rows)


def test_chance_among_thousands_of_rows_fails_nothing() -> None:
    """Equal databases: three standard errors find rows, the test of a pipeline none."""
    drawn = random.Random(7)
    noise, samples = 0.15, 10
    error = noise / samples**0.5
    found = comparison([(drawn.gauss(1, error), drawn.gauss(1, error)) for _ in range(8000)], noise, samples)
    slow = sum(row.pairs["b"].verdict is PairVerdict.SLOW for row in found.rows)
    assert 1 < slow < 40
    assert found.slower_rows("b", 5) == []


def test_a_planted_row_is_found_among_thousands() -> None:
    found = comparison([(1.0, 1.0)] * 4000 + [(1.0, 1.5), (1.0, 2.0)] + [(1.0, 1.0)] * 4000, 0.15, 10)
    assert [row.signature.split(",")[0] for row, _ in found.slower_rows("b", 5)] == ["4001", "4000"]
    assert found.slower_rows("b", 120) == []


def write_step(path: Path, calls: dict[tuple[str, int], int]) -> Path:
    parts = [
        {"part": "x", "kernel_type": name, "signature": signature(name, shape(size)), "calls": count, "us": 1.0}
        for (name, size), count in calls.items()
    ]
    path.write_text(json.dumps({"model": "Qwen/Qwen3-32B", "database": "somewhere", "parts": parts}))
    return path


def test_durations_are_weighted_by_the_calls_of_a_step(
    two: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_step(
        tmp_path / "step.json", {("Sort", 1): 30, ("Sort", 2): 2, ("Sort", 3): 5, ("Abs", 1): 7, ("Neg", 1): 4}
    )
    assert main(["compare", *two, "--calls", str(file), "--json"]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    step = {each["kernel_type"]: each for each in content["rivals"][0]["step"]}
    sort = step["Sort"]
    assert (sort["calls"], sort["compared_calls"], sort["baseline_us"], sort["rival_us"]) == (37, 32, 3200, 3340)
    assert sort["speed_up"] == pytest.approx(3200 / 3340)
    # Warm against cold, and a kernel type that nobody has.
    assert [(step[name]["compared_calls"], step[name]["speed_up"]) for name in ("Abs", "Neg")] == [(0, None)] * 2
    assert main(["compare", *two, "--calls", str(file)]) == 0
    words = next(line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("the step"))
    assert words[2:4] == ["48", "32"]


def test_a_step_without_a_row_that_compares(two: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_step(tmp_path / "step.json", {("Neg", 1): 4})
    assert main(["compare", *two, "--calls", str(file), "--json"]) == 0
    (rival,) = json.loads(capsys.readouterr().out)["rivals"]
    assert [(each["calls"], each["compared_calls"], each["speed_up"]) for each in rival["step"]] == [(4, 0, None)]
    assert main(["compare", *two, "--calls", str(file)]) == 0


@pytest.mark.parametrize("text", ["", "[]", '{"model": "x"}', '{"model": "x", "parts": []}', '{"parts": 1}'])
def test_a_file_that_is_no_step_is_refused(
    two: list[str], tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "step.json"
    file.write_text(text)
    assert main(["compare", *two, "--calls", str(file)]) == 2
    assert str(file) in capsys.readouterr().err
