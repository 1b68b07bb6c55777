"""Theory rows as hypothesis strategies: what the sampling draws from, and the project's own property tests.

Every draw is a legal row within the memory budget; none is ever rejected.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence
from hashlib import blake2b

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.strategies import SearchStrategy

from opatlas.errors import OpAtlasError
from opatlas.files import TemporaryFolder
from opatlas.theory.catalog import Catalog, built_in_catalog
from opatlas.theory.rows import TheoryRow
from opatlas.theory.sources import Targets
from opatlas.theory.space import GB, Space

from .models import BUILT_IN

#: Written as a power, because a constant here would be one of those that hypothesis finds.
_OFFSET = 3**45


def whole_number(low: int, high: int) -> SearchStrategy[int]:
    """A whole number in low ... high; shrinks to `low`."""
    if low > high:
        raise ValueError(f"no whole number in {low} ... {high}")
    return st.integers(_OFFSET, _OFFSET + high - low).map(lambda drawn: drawn - _OFFSET + low)


ROWS_OF_SAMPLE = 16
#: Enough for no two to be alike, and few enough for hypothesis to draw all of them alike.
_SAMPLES = 1 << 24
#: Where nobody says otherwise: the smallest memory of an NPU that serves.
DEFAULT_BUDGET_BYTES = 32 * GB


def theory_rows(
    kernel_type: str,
    *,
    targets: Targets | None = None,
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
    catalog: Catalog | None = None,
) -> SearchStrategy[TheoryRow]:
    """Rows of a kernel type in the catalog's dtypes and formats; shrinks to the smallest of the first pattern.

    Args:
        targets: whose shapes; default: those of the built-in models, and of none in particular.
        budget_bytes: of all tensors of a row and the flush buffer.

    Raises:
        OpAtlasError: the catalog has no such kernel type, or nothing of it fits.
    """
    targets = targets or Targets(BUILT_IN, generic=True)
    kernel = (catalog or built_in_catalog()).kernel(kernel_type)
    spaces = [Space(kernel_type, pattern, pattern.forms, targets, budget_bytes) for pattern in kernel.patterns]
    if not any(map(len, spaces)):
        raise OpAtlasError(f"no row of {kernel_type} fits {budget_bytes / GB:g} GB: raise --max-hbm-gb")
    return space_rows(spaces)


def space_rows(spaces: Sequence[Space]) -> SearchStrategy[TheoryRow]:
    """Rows of several spaces, each of these as likely as another; nothing where all are empty."""
    numbered = _Numbered(spaces)
    return whole_number(0, numbered.size - 1).map(numbered.row) if numbered.size else st.nothing()


def batches_of_rows(spaces: Sequence[Space]) -> SearchStrategy[list[TheoryRow]]:
    """A few rows at a time, for large samples: hypothesis takes most of a millisecond for whatever it draws.

    What is drawn is the number of a sample, from which those of its rows follow. So these do not shrink.
    """
    numbered = _Numbered(spaces)

    def rows(sample: int) -> list[TheoryRow]:
        digests = (blake2b(f"{sample}/{i}".encode(), digest_size=8).digest() for i in range(ROWS_OF_SAMPLE))
        return [numbered.row(int.from_bytes(digest, "big") % numbered.size) for digest in digests]

    return whole_number(0, _SAMPLES - 1).map(rows) if numbered.size else st.nothing()


class _Numbered:
    """The rows of several spaces by number, those of each in turn."""

    def __init__(self, spaces: Sequence[Space]) -> None:
        self._filled = [space for space in spaces if len(space)]
        self.size = max((space.size for space in self._filled), default=0) * len(self._filled)

    def row(self, number: int) -> TheoryRow:
        place, which = divmod(number, len(self._filled))
        return self._filled[which].row(place % self._filled[which].size)


#: A small space is drawn from until a round brings new rows by less than this share of its draws: the
#: last rows of a space would take as many draws as all the others.
_LEAST_YIELD = 0.05
#: A round draws at least so many rows, or its yield would say little.
_LEAST_DRAWN = 128


def sample_rows(
    spaces: Sequence[Space], count: int, *, seed: int, apart_from: Container[str] = ()
) -> dict[str, TheoryRow]:
    """Returns up to `count` distinct rows of some spaces by signature; see `draw_rows`."""
    return draw_rows(batches_of_rows(spaces), count, seed=seed, apart_from=apart_from)


def draw_rows(
    strategy: SearchStrategy[list[TheoryRow]], count: int, *, seed: int, apart_from: Container[str] = ()
) -> dict[str, TheoryRow]:
    """A sample without duplicates, by signature; all rows are of one kernel type.

    Args:
        strategy: draws some rows at a time, from the seed alone if it is built on `opatlas.shapes.strategies`.
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
