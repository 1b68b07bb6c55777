"""Steps and drifts of a series: change points of its level, or a straight line, found by tests of least squares.

The piece of a series is found that differs most from the rest, at an end or inside, and each part is searched again
(circular binary segmentation: Olshen and others, 2004). Its probability by chance is that of Student's t between the
piece and the rest, times the number of pieces (Bonferroni). Few runs tell little of their own spread, so the variance
is moderated (Smyth, 2004): the spread that all rows tell counts like `PRIOR_RUNS` runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Series = npt.NDArray[np.float64]
#: The least standard deviation of a run that is expected, whatever the rows of a database tell.
LEAST_SPREAD = 0.02
#: As many runs does the expected spread count for.
PRIOR_RUNS = 6
#: Shorter series are not searched.
LEAST_RUNS = 3
#: In shorter series a line is no better description than a step.
_LEAST_FOR_DRIFT = 6
_LEAST_INSIDE = 2
#: Fewer rows tell no spread.
_LEAST_FOR_SPREAD = 10
#: The median absolute deviation of a normal distribution with standard deviation 1.
_MAD_OF_NORMAL = 0.6745


@dataclass(frozen=True)
class Steps:
    """The steps of a series, or its drift.

    Attributes:
        positions: the index of the first value after each step, ascending.
        drift: the growth along a line from the first to the last value; 0 unless a line describes the series best.
    """

    positions: tuple[int, ...] = ()
    drift: float = 0.0


def spread_between_runs(gaps: Iterable[Sequence[float]]) -> float:
    """Returns the standard deviation of a run, from the differences of many rows between neighbouring runs.

    A step of all rows is the median of a gap and no spread; steps of some rows move a median of deviations little.

    Args:
        gaps: the differences of logarithms of all rows that two neighbouring runs have, for each two.
    """
    found = []
    for gap in gaps:
        if len(gap) >= _LEAST_FOR_SPREAD:
            deviations = np.abs(np.asarray(gap) - np.median(gap))
            # Of normal values; each is the difference of two runs.
            found.append(float(np.median(deviations)) / _MAD_OF_NORMAL / math.sqrt(2))
    return max(float(np.median(found)), LEAST_SPREAD) if found else LEAST_SPREAD


def probability_of_no_change(values: Sequence[float], spread: float) -> float:
    """Returns the probability that chance makes a piece or a drift as clear as the clearest of a series.

    Args:
        values: logarithms of durations, in the order of time.
        spread: the standard deviation of a value that is expected, whatever this series tells.

    Returns:
        1 for fewer than LEAST_RUNS values.
    """
    series = np.asarray(values, dtype=np.float64)
    if len(series) < LEAST_RUNS:
        return 1.0
    return min(_clearest_piece(series, spread).p, _line(series, spread)[1])


def find_steps(values: Sequence[float], spread: float, most_p: float, least_size: float) -> Steps:
    """Returns the steps of a series, or its drift.

    Args:
        values, spread: as for `probability_of_no_change`.
        most_p: what is more probable by chance is no change.
        least_size: smaller changes do not count.
    """
    series = np.asarray(values, dtype=np.float64)
    if len(series) >= _LEAST_FOR_DRIFT:
        drift, p = _line(series, spread)
        line = np.linspace(-drift / 2, drift / 2, len(series)) + series.mean()
        # Steps of any size may describe a series better than a line.
        positions = sorted(_search(series, 0, spread, most_p, 0.0))
        levels = np.concatenate([np.full(len(part), part.mean()) for part in np.split(series, positions)])
        # A step has a place and a level, a line one slope.
        by_steps = _criterion(series - levels, 2 * len(positions), spread)
        if p <= most_p and abs(drift) >= least_size and _criterion(series - line, 1, spread) < by_steps:
            return Steps(drift=drift)
    return Steps(tuple(sorted(_search(series, 0, spread, most_p, least_size))))


def _criterion(rest: Series, parameters: int, spread: float) -> float:
    """Returns the Bayesian information criterion of a description (Schwarz, 1978); the smaller the better."""
    count = len(rest)
    variance = (PRIOR_RUNS * spread**2 + float((rest**2).sum())) / (PRIOR_RUNS + count)
    return count * math.log(variance) + parameters * math.log(count)


def largest_probability(p: Iterable[float], share: float) -> float:
    """Returns the largest of some probabilities to accept, so that `share` of what is accepted is false in the mean.

    This is the procedure of Benjamini and Hochberg (1995). 0 if none can be accepted.
    """
    ordered = sorted(p)
    accepted = (each for rank, each in enumerate(ordered, start=1) if each <= share * rank / len(ordered))
    return max(accepted, default=0.0)


def _search(values: Series, start: int, spread: float, most_p: float, least_size: float) -> Iterator[int]:
    """Yields the positions of steps."""
    if len(values) < LEAST_RUNS:
        return
    found = _clearest_piece(values, spread)
    if found.p > most_p or abs(found.size) < least_size:
        return
    ends = [each for each in (found.start, found.stop) if 0 < each < len(values)]
    yield from (start + each for each in ends)
    for begin, end in pairwise([0, *ends, len(values)]):
        yield from _search(values[begin:end], start + begin, spread, most_p, least_size)


@dataclass(frozen=True)
class _Piece:
    """A piece from `start` to before `stop`, whose level is `size` above that of the rest."""

    start: int
    stop: int
    size: float
    p: float


def _clearest_piece(values: Series, spread: float) -> _Piece:
    count = len(values)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    starts, stops = _pieces(count)
    sizes = stops - starts
    inside = sums[stops] - sums[starts]
    differences = inside / sizes - (sums[-1] - inside) / (count - sizes)
    explained = sizes * (count - sizes) / count * differences**2
    best = int(explained.argmax())
    p = _probability(values, float(explained[best]), len(sizes) + 1, spread)
    return _Piece(int(starts[best]), int(stops[best]), float(differences[best]), p)


def _line(values: Series, spread: float) -> tuple[float, float]:
    """Returns the growth along the line that fits best, and its probability by chance; 1 for a short series."""
    count = len(values)
    if count < _LEAST_FOR_DRIFT:
        return 0.0, 1.0
    times = np.arange(count) - (count - 1) / 2
    squares = float((times**2).sum())
    slope = float((times * values).sum()) / squares
    return slope * (count - 1), _probability(values, slope**2 * squares, len(_pieces(count)[0]) + 1, spread)


def _probability(values: Series, explained: float, tried: int, spread: float) -> float:
    """Returns the probability that the best of `tried` descriptions explains as much of the sum of squares."""
    rest = max(float(((values - values.mean()) ** 2).sum()) - explained, 0.0)
    freedom = PRIOR_RUNS + len(values) - 2
    variance = (PRIOR_RUNS * spread**2 + rest) / freedom
    return min(1.0, tried * two_sided_p(math.sqrt(explained / variance), freedom))


@cache
def _pieces(count: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Returns the starts and stops of all pieces: those at the end of a series, and inside those of two runs or more.

    A single run that differs from both neighbours is no step.
    """
    starts, stops = np.triu_indices(count + 1, 1)
    at_end = (stops == count) & (starts > 0)
    inside = (starts > 0) & (stops < count) & (stops - starts >= _LEAST_INSIDE)
    return starts[at_end | inside], stops[at_end | inside]


def two_sided_p(t: float, freedom: int) -> float:
    """Returns the probability of a larger absolute value of Student's t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    series = 0.0
    for k in range(2 + odd, freedom + 1, 2):
        series += term
        term *= square * (k - 1) / k
    inside = (angle + math.sin(angle) * series) * 2 / math.pi if odd else math.sin(angle) * series
    return max(0.0, 1.0 - inside)
