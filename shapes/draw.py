"""Drawing a sample of rows from a strategy: the same one for the same seed."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Container

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.strategies import SearchStrategy

from shapes.rows import TheoryRow

#: A small space is drawn from until a round brings new rows by less than this share of its draws: the
#: last rows of a space would take as many draws as all the others.
_LEAST_YIELD = 0.2
#: A round draws so many more than are missing: its first draw is always the simplest row, and some
#: of the others are duplicates.
_SPARE_DRAWS = 8


def draw_rows(
    strategy: SearchStrategy[TheoryRow], count: int, *, seed: int, apart_from: Container[str] = ()
) -> dict[str, TheoryRow]:
    """A sample without duplicates, by signature; all rows are of one kernel type.

    Args:
        strategy: draws from the seed alone if it is built on `shapes.choices`.
        count: rows in all; fewer where the strategy has no more.
        seed: the same gives the same rows in the same order, for a given version of hypothesis.
        apart_from: signatures of rows that are not wanted.
    """
    sample: dict[str, TheoryRow] = {}
    for round_number in itertools.count():
        before = len(sample)
        draws = _draws(strategy, count - before + _SPARE_DRAWS, f"{seed}/{round_number}")
        for row in draws:
            signature = row.signature()
            if len(sample) < count and signature not in apart_from:
                sample.setdefault(signature, row)
        if len(sample) == count or len(sample) - before < _LEAST_YIELD * len(draws):
            break
    return sample


def _draws(strategy: SearchStrategy[TheoryRow], count: int, label: str) -> list[TheoryRow]:
    """Some `count` draws, duplicates included; hypothesis keeps nothing and says nothing."""
    drawn: list[TheoryRow] = []

    @seed(label)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(strategy)
    def collect(row: TheoryRow) -> None:
        drawn.append(row)

    # Where it would keep what it finds in the sources of loaded modules, in the working directory.
    with tempfile.TemporaryDirectory(prefix="opatlas-hypothesis-") as folder:
        set_hypothesis_home_dir(folder)
        try:
            collect()
        finally:
            set_hypothesis_home_dir(None)
    return drawn
