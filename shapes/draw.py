"""Drawing a sample of rows from a strategy: the same one for the same seed."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.strategies import SearchStrategy

from shapes.rows import TheoryRow

#: A small space is drawn from until so many rounds in a row brought nothing new.
_IDLE_ROUNDS = 3
#: A round draws so many more than are missing: its first draw is always the simplest row, and some
#: of the others are duplicates.
_SPARE_DRAWS = 8


def draw_rows(
    strategy: SearchStrategy[TheoryRow], count: int, *, seed: int, required: Iterable[TheoryRow] = ()
) -> list[TheoryRow]:
    """A sample without duplicates (rows of one signature are one).

    Args:
        strategy: draws from the seed alone if it is built on `shapes.choices`.
        count: rows in all; fewer where the strategy has no more.
        seed: the same gives the same rows in the same order, for a given version of hypothesis.
        required: rows that the sample begins with; all are in it, even if they are more than `count`.
    """
    sample: dict[tuple[str, str], TheoryRow] = {}
    for row in required:
        sample.setdefault((row.kernel_type, row.signature()), row)
    idle = 0
    for round_number in range(count):
        before = len(sample)
        if before >= count or idle == _IDLE_ROUNDS:
            break
        for row in _draws(strategy, count - before + _SPARE_DRAWS, f"{seed}/{round_number}"):
            if len(sample) < count:
                sample.setdefault((row.kernel_type, row.signature()), row)
        idle = idle + 1 if len(sample) == before else 0
    return list(sample.values())


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

    collect()
    return drawn
