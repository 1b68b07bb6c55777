"""Samples: reproducible, without duplicates, with what is required."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import strategies as st

from shapes import patterns, strategies
from shapes.draw import draw_rows
from shapes.rows import TheoryRow

REPOSITORY = Path(__file__).parents[2]
ADDS = strategies.elementwise("Add", [1024, 2048], ["BF16", "FLOAT"])


def signatures(rows: list[TheoryRow]) -> list[str]:
    return [row.signature() for row in rows]


@pytest.mark.parametrize(("seed", "count"), [(0, 1), (0, 60), (7, 25), (2**32, 25), (-1, 25)])
def test_the_same_seed_gives_the_same_rows(seed: int, count: int) -> None:
    sample = draw_rows(ADDS, count, seed=seed)
    assert sample == draw_rows(ADDS, count, seed=seed)
    assert len(set(signatures(sample))) == len(sample) == count


def test_another_seed_gives_other_rows() -> None:
    assert set(draw_rows(ADDS, 40, seed=1)) != set(draw_rows(ADDS, 40, seed=2))


def test_another_process_gives_the_same_rows() -> None:
    """Whatever modules it has loaded: hypothesis mixes constants of loaded modules into some draws."""
    script = (
        "from shapes.starter import starter_rows; import hashlib; "
        "print(hashlib.sha256(repr(starter_rows(seed=3)).encode()).hexdigest())"
    )
    more = "import bench.stop_rule, database.journal, database.ingest.command; " + script
    digests = {
        subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
        for code in (script, more)
    }
    assert len(digests) == 1


def test_a_larger_sample_takes_in_the_required_rows_first() -> None:
    required = [patterns.elementwise("Add", (m, 1024), (m, 1024), "BF16") for m in (1, 4096)]
    sample = draw_rows(ADDS, 10, seed=0, required=[*required, required[0]])
    assert sample[:2] == required
    assert len(sample) == 10


def test_required_rows_are_there_even_where_they_are_more_than_asked_for() -> None:
    required = [patterns.elementwise("Add", (m, 1024), (m, 1024), "BF16") for m in (1, 2, 3)]
    assert draw_rows(ADDS, 2, seed=0, required=required) == required


def test_a_small_space_is_drawn_empty() -> None:
    three = st.sampled_from([patterns.swiglu(m, 8, "BF16") for m in (1, 2, 3)])
    assert len(draw_rows(three, 100, seed=0)) == 3


def test_hypothesis_leaves_nothing_behind(tmp_path: Path) -> None:
    script = "from shapes.starter import starter_rows; starter_rows()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert list(tmp_path.iterdir()) == []
