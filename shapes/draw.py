"""Drawing a sample of rows from a strategy: the same one for the same seed."""

from __future__ import annotations

import itertools
from collections.abc import Container

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.strategies import SearchStrategy

from database.temporary import TemporaryFolder
from shapes.rows import TheoryRow
from shapes.strategies import ROWS_OF_SAMPLE

#: A small space is drawn from until a round brings new rows by less than this share of its draws: the
#: last rows of a space would take as many draws as all the others.
_LEAST_YIELD = 0.05
#: A round draws at least so many rows, or its yield would say little.
_LEAST_DRAWN = 128


def draw_rows(
    strategy: SearchStrategy[list[TheoryRow]], count: int, *, seed: int, apart_from: Container[str] = ()
) -> dict[str, TheoryRow]:
    """A sample without duplicates, by signature; all rows are of one kernel type.

    Args:
        strategy: draws some rows at a time, from the seed alone if it is built on `shapes.choices`.
        count: rows in all; fewer where the strategy has no more.
        seed: the same gives the same rows in the same order, for a given version of hypothesis.
        apart_from: signatures of rows that are not wanted.
    """
    sample: dict[str, TheoryRow] = {}
    for round_number in itertools.count():
        before = len(sample)
        rows = _draws(strategy, max(count - before, _LEAST_DRAWN), f"{seed}/{round_number}")
        for row in rows:
            signature = row.signature()
            if len(sample) < count and signature not in apart_from:
                sample.setdefault(signature, row)
        if len(sample) == count or len(sample) - before < _LEAST_YIELD * len(rows):
            break
    return sample


def _draws(strategy: SearchStrategy[list[TheoryRow]], count: int, label: str) -> list[TheoryRow]:
    """Some `count` rows, duplicates included; hypothesis keeps and says nothing."""
    drawn: list[TheoryRow] = []

    @seed(label)
    @settings(
        max_examples=-(-count // ROWS_OF_SAMPLE),
        phases=[Phase.generate],
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(strategy)
    def collect(rows: list[TheoryRow]) -> None:
        drawn.extend(rows)

    # Where it would keep what it finds in the sources of loaded modules, in the working directory.
    with TemporaryFolder("hypothesis") as folder:
        set_hypothesis_home_dir(str(folder))
        try:
            collect()
        finally:
            set_hypothesis_home_dir(None)
    return drawn
