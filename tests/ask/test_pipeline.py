"""`opatlas compare` in a pipeline: rows that are slower."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from compared import call, lost, measured, write_tables

from opatlas.ask.compare.calls import SPREAD_ON_DEVICE
from opatlas.ask.compare.comparison import DatabaseComparison, compare_row
from opatlas.ask.compare.databases import ComparedDatabase
from opatlas.cli.main import main
from opatlas.row.rounds import PairVerdict


@pytest.fixture
def two(tmp_path: Path) -> list[str]:
    """Two databases; of the second a row is 20 % slower, one is faster and one is lost."""
    one = {"Sort": [measured(1, 100), measured(2, 100), measured(3, 100)], "Abs": [measured(1, 10), measured(2, 10)]}
    other = {"Sort": [measured(1, 120), measured(2, 50), lost(3, "failed")], "Abs": [measured(1, 10, cache="warm")]}
    return [str(write_tables(tmp_path / name, tables)) for name, tables in (("old", one), ("new", other))]


@pytest.mark.parametrize(("percent", "status"), [("5%", 1), ("5", 1), ("7.5 %", 1), ("15%", 0), ("0", 1)])
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
            {
                name: call(us, noise=noise, samples=samples, instrument="cupti")
                for name, us in zip("ab", pair, strict=True)
            },
            "a",
        )
        for number, pair in enumerate(pairs)
    ]
    return DatabaseComparison(ComparedDatabase("a", Path("a")), [ComparedDatabase("b", Path("b"))], rows)


def test_chance_among_thousands_of_rows_fails_nothing() -> None:
    """Equal databases: the spreads of samples and runs make some rows SLOW, and the test of a pipeline finds none."""
    drawn = random.Random(7)
    noise, samples = 0.15, 10
    error = math.hypot(noise / samples**0.5, SPREAD_ON_DEVICE)
    found = comparison([(drawn.gauss(1, error), drawn.gauss(1, error)) for _ in range(4000)], noise, samples)
    slow = sum(row.pairs["b"].verdict is PairVerdict.SLOW for row in found.rows)
    assert 1 < slow < 25
    assert found.slower_rows("b", 5) == []


def test_a_planted_row_is_found_among_thousands() -> None:
    found = comparison([(1.0, 1.0)] * 1000 + [(1.0, 1.5), (1.0, 2.0)] + [(1.0, 1.0)] * 1000, 0.15, 10)
    assert [row.signature.split(",")[0] for row, _ in found.slower_rows("b", 5)] == ["1001", "1000"]
    assert found.slower_rows("b", 90) == []
