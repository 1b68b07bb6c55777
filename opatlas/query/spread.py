"""Chooses rows that are spread over all that others ask for: the first rows of a database that answers questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from opatlas.arrays import Floats
from opatlas.query.features import row_features
from opatlas.query.kernel_model import default_lengths

#: Cores of a device that is not known: fills of waves hardly matter for distances.
_CORES = 128


def spread_rows(
    kernel_type: str, rows: Sequence[Mapping[str, str]], known: Sequence[Mapping[str, str]], count: int
) -> list[int]:
    """Returns the positions of up to `count` rows, each as far as possible from those before it.

    The distance is that of predictions, in octaves of sizes, tiles and blocks. Rows with the cells of no tensors come
    last.

    Args:
        rows, known: the cells of the rows to choose from, and of those that are there anyway.
    """
    found = [row_features(kernel_type, each, _CORES) for each in (*rows, *known)]
    widths = [None if each is None else (len(each.sizes), len(each.fills)) for each in found]
    usual = max(set(widths) - {None}, key=widths.count, default=None)
    alike = [i for i, width in enumerate(widths) if width is not None and width == usual]
    regimes = {each.regime: 0 for i in alike if (each := found[i]) is not None}
    regimes = {regime: number for number, regime in enumerate(regimes)}
    points = np.zeros((len(alike), sum(usual or (0, 0)) + len(regimes)))
    for line, i in enumerate(alike):
        if (each := found[i]) is not None:
            points[line, : sum(usual or (0, 0))] = *each.sizes, *each.fills
            points[line, sum(usual or (0, 0)) + regimes[each.regime]] = 1.0
    points /= default_lengths(*(usual or (0, 0)), len(regimes))
    there = np.array([i >= len(rows) for i in alike], dtype=bool)
    order = [alike[line] for line in _farthest_first(points, there, count)]
    others = [i for i in range(len(rows)) if widths[i] != usual]
    return [*order, *others][:count]


def _farthest_first(points: Floats, there: npt.NDArray[np.bool_], count: int) -> list[int]:
    """Returns positions of further points, each as far as possible from the points so far."""
    if there.all():
        return []
    away = np.full(len(points), np.inf)
    for line in np.flatnonzero(there).tolist():
        away = np.minimum(away, ((points - points[line]) ** 2).sum(axis=1))
    away[there] = -1.0
    chosen: list[int] = []
    middle = np.median(points, axis=0)
    while len(chosen) < min(count, int((~there).sum())):
        # The first one is the most ordinary row.
        first = not chosen and not there.any()
        line = int(((points - middle) ** 2).sum(axis=1).argmin() if first else away.argmax())
        chosen.append(line)
        away = np.minimum(away, ((points - points[line]) ** 2).sum(axis=1))
        away[chosen] = -1.0
    return chosen
