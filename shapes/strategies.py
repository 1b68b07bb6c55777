"""Theory rows as hypothesis strategies, for samples and property tests. Every draw is a legal row within the budget."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings, strategies as st
from hypothesis.internal.conjecture import providers
from hypothesis.strategies import SearchStrategy

from opatlas.theory.space import OFFSETS, TILES, Near, Space, TheoryRow

#: Is added to drawn numbers, because hypothesis draws the integer constants of loaded modules with a higher
#: probability, so that another process would draw other rows.
_OFFSET = 3**45
_BETWEEN = 20
#: Where a size may lie near one of the grid; as often on it as elsewhere.
_NEAR = (
    *[Near()] * (len(TILES) * len(OFFSETS) + _BETWEEN),
    *(Near(tile, offset) for tile in TILES for offset in OFFSETS),
    *(Near(part=step / (_BETWEEN + 1)) for step in range(1, _BETWEEN + 1)),
)
#: Rows of an example, because an example of hypothesis takes far longer than a draw in it.
_BATCH_ROWS = 32
#: Drawing ends when a smaller share of a round's draws is new: the last rows of a small space would take as many
#: draws as all others.
_LEAST_YIELD = 0.05
#: The least draws of a round: fewer draws would not show the share of new rows.
_LEAST_DRAWN = 128


def _number_below(end: int) -> SearchStrategy[int]:
    return st.integers(_OFFSET, _OFFSET + end - 1)


def space_rows(spaces: Sequence[Space]) -> SearchStrategy[TheoryRow]:
    """Returns a strategy of the rows of several spaces, each space with the same probability.

    A row is a point of the grid, with sizes on it or near it on the axes of tokens.
    """
    filled = [space for space in spaces if len(space)]
    if not filled:
        return st.nothing()

    def row(point: int, near: int) -> TheoryRow:
        number, which = divmod(point - _OFFSET, len(filled))
        space, codes, near = filled[which], [], near - _OFFSET
        for _ in space.free:
            near, code = divmod(near, len(_NEAR))
            codes.append(_NEAR[code])
        return space.row(number % len(space), codes)

    points = max(map(len, filled)) * len(filled)
    # Two numbers for each row: each draw of hypothesis takes as long as the row that is made of it.
    codes = len(_NEAR) ** max(len(space.free) for space in filled)
    return st.builds(row, _number_below(points), _number_below(codes))


def sample_rows(
    spaces: Sequence[Space], count: int, *, seed: int, exclude: Container[str] = ()
) -> dict[str, TheoryRow]:
    """Returns up to `count` distinct rows of some spaces by signature; see `draw_rows`."""
    return draw_rows(space_rows(spaces), count, seed=seed, exclude=exclude)


def draw_rows(
    strategy: SearchStrategy[TheoryRow], count: int, *, seed: int, exclude: Container[str] = ()
) -> dict[str, TheoryRow]:
    """Draws distinct rows of one kernel type.

    Args:
        count: number of rows; fewer are drawn where the strategy has no more.
        seed: the same seed draws the same rows in the same order, for a given version of hypothesis.
        exclude: signatures of rows that are not wanted.

    Returns:
        The rows by signature.
    """
    sample: dict[str, TheoryRow] = {}
    for round_number in itertools.count():
        before = len(sample)
        rows = _draws(strategy, max(count - before, _LEAST_DRAWN), f"{seed}/{round_number}")
        for row in rows:
            signature = row.signature()
            if len(sample) < count and signature not in exclude:
                sample.setdefault(signature, row)
        if len(sample) == count or len(sample) - before < _LEAST_YIELD * len(rows):
            break
    return sample


def _draws(strategy: SearchStrategy[TheoryRow], count: int, label: str) -> list[TheoryRow]:
    """Draws about `count` rows, duplicates included, without output or files of hypothesis."""
    drawn: list[TheoryRow] = []

    @seed(label)
    @settings(
        max_examples=-(-count // _BATCH_ROWS),
        phases=[Phase.generate],
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(st.tuples(*[strategy] * _BATCH_ROWS))
    def collect(rows: tuple[TheoryRow, ...]) -> None:
        drawn.extend(rows)

    with _without_constants_of_modules():
        collect()
    return drawn


@contextmanager
def _without_constants_of_modules() -> Iterator[None]:
    """Keeps hypothesis from parsing the source of each loaded module, for a second, and writing its constants to files.

    None of them lies beyond `_OFFSET`, so the rows are the same. Older versions of hypothesis have no such function.
    """
    name = "_get_local_constants"
    original = getattr(providers, name, None)
    if original is not None:
        setattr(providers, name, lambda: providers._local_constants)
    try:
        yield
    finally:
        if original is not None:
            setattr(providers, name, original)
