"""Theory rows as hypothesis strategies, for samples and property tests. Every draw is a legal row within the budget."""

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

#: A power, because hypothesis draws integer constants of loaded modules with a higher probability.
_OFFSET = 3**45


def whole_number(low: int, high: int) -> SearchStrategy[int]:
    """Returns a strategy of whole numbers in low ... high that shrinks to `low`."""
    if low > high:
        raise ValueError(f"no whole number in {low} ... {high}")
    return st.integers(_OFFSET, _OFFSET + high - low).map(lambda drawn: drawn - _OFFSET + low)


BATCH_ROWS = 16
#: The number of batches: enough for distinct batches, and few enough for uniform draws by hypothesis.
_BATCHES = 1 << 24
#: The smallest memory of an NPU that serves models.
DEFAULT_BUDGET_BYTES = 32 * GB


def theory_rows(
    kernel_type: str,
    *,
    targets: Targets | None = None,
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
    catalog: Catalog | None = None,
) -> SearchStrategy[TheoryRow]:
    """Returns a strategy of a kernel type's rows with the catalog's dtypes and formats. Shrinks to the smallest row.

    Args:
        targets: models whose shapes are drawn; default: the built-in models and generic shapes.
        budget_bytes: memory for the tensors of a row and the flush buffer.

    Raises:
        OpAtlasError: the catalog lacks the kernel type, or no row fits.
    """
    targets = targets or Targets(BUILT_IN, generic=True)
    kernel = (catalog or built_in_catalog()).kernel(kernel_type)
    spaces = [Space(kernel_type, pattern, pattern.forms, targets, budget_bytes) for pattern in kernel.patterns]
    if not any(map(len, spaces)):
        raise OpAtlasError(f"no row of {kernel_type} fits {budget_bytes / GB:g} GB: raise --max-hbm-gb")
    return space_rows(spaces)


def space_rows(spaces: Sequence[Space]) -> SearchStrategy[TheoryRow]:
    """Returns a strategy of the rows of several spaces, each space with the same probability."""
    numbered = _Numbered(spaces)
    return whole_number(0, numbered.size - 1).map(numbered.row) if numbered.size else st.nothing()


def batches_of_rows(spaces: Sequence[Space]) -> SearchStrategy[list[TheoryRow]]:
    """Returns a strategy of small batches of rows, because each draw of hypothesis takes most of a millisecond.

    A draw is the number of a batch, which decides its rows. These rows do not shrink.
    """
    numbered = _Numbered(spaces)

    def rows(batch: int) -> list[TheoryRow]:
        digests = (blake2b(f"{batch}/{i}".encode(), digest_size=8).digest() for i in range(BATCH_ROWS))
        return [numbered.row(int.from_bytes(digest, "big") % numbered.size) for digest in digests]

    return whole_number(0, _BATCHES - 1).map(rows) if numbered.size else st.nothing()


class _Numbered:
    """Numbers the rows of several spaces, which take turns."""

    def __init__(self, spaces: Sequence[Space]) -> None:
        self._filled = [space for space in spaces if len(space)]
        self.size = max((space.size for space in self._filled), default=0) * len(self._filled)

    def row(self, number: int) -> TheoryRow:
        index, which = divmod(number, len(self._filled))
        return self._filled[which].row(index % self._filled[which].size)


#: Drawing ends when a smaller share of a round's draws is new: the last rows of a small space would take as many
#: draws as all others.
_LEAST_YIELD = 0.05
#: The least draws of a round: fewer draws would not show the share of new rows.
_LEAST_DRAWN = 128


def sample_rows(
    spaces: Sequence[Space], count: int, *, seed: int, exclude: Container[str] = ()
) -> dict[str, TheoryRow]:
    """Returns up to `count` distinct rows of some spaces by signature; see `draw_rows`."""
    return draw_rows(batches_of_rows(spaces), count, seed=seed, exclude=exclude)


def draw_rows(
    strategy: SearchStrategy[list[TheoryRow]], count: int, *, seed: int, exclude: Container[str] = ()
) -> dict[str, TheoryRow]:
    """Draws distinct rows of one kernel type.

    Args:
        strategy: draws batches of rows.
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


def _draws(strategy: SearchStrategy[list[TheoryRow]], count: int, label: str) -> list[TheoryRow]:
    """Draws about `count` rows, duplicates included, without output or files of hypothesis."""
    drawn: list[TheoryRow] = []

    @seed(label)
    @settings(
        max_examples=-(-count // BATCH_ROWS),
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

    # hypothesis writes the constants of loaded modules to its folder, which is the working directory by default.
    with TemporaryFolder("hypothesis") as folder:
        set_hypothesis_home_dir(str(folder))
        try:
            collect()
        finally:
            set_hypothesis_home_dir(None)
    return drawn
