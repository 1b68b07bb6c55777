"""Steps of many rows over runs, and the shifts of all rows together.

What all rows of a run have in common is the machine's, and is taken out first. Then the piece of a series is found that
differs most from the rest, at an end or inside, and each part is searched again (circular binary segmentation: Olshen
and others, 2004). Its probability by chance is that of Student's t between the piece and the rest, times the number of
pieces (Bonferroni). Few runs tell little of their own spread, so the variance is moderated (Smyth, 2004): the spread
that all rows tell counts like `PRIOR_RUNS` runs. A piece inside whose neighbours are alike is a disturbance of those
runs. A step has to stand out of what all rows did between the same runs, since machines do not change all rows alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

from opatlas.ask.compare.calls import LEAST_SPREAD, MAD_OF_NORMAL
from opatlas.row.quality import Floats, Mask, Positions
from opatlas.row.rounds import LEAST_DIFFERENCE, two_sided_p, two_sided_t

#: As many runs does the expected spread count for.
PRIOR_RUNS = 6
#: A step has so many runs on both sides.
LEAST_SIDE = 3
#: Shorter series are not searched.
LEAST_RUNS = 2 * LEAST_SIDE
#: Fewer rows have nothing in common.
LEAST_COMMON = 5
#: The share of the listed changes that may be false, in the mean.
_FALSE_SHARE = 0.03
#: A piece is a disturbance if chance makes one as clear with this probability, or less.
_DISTURBANCE_P = 0.01
#: A step stands out of all rows if chance makes one of 250 rows differ so much.
_STANDS_OUT_P = 0.004
#: Where the machine changed: rows differ by so many times their spread, and some by far more than most.
_CALM, _STANDS_OUT_OF_CHANGE_P = 2.0, 1e-5
_LEAST_INSIDE = 2
#: Fewer rows tell no spread.
_LEAST_FOR_SPREAD = 10
#: The median of rows and runs settles in a few turns.
_TURNS = 10


@dataclass(frozen=True)
class Change:
    """A step of a row.

    Attributes:
        row: its position.
        before, after: positions of the last run before the step and of the first after.
        levels: the mean logarithms before and after, on the machine of the newest run.
        runs: the numbers of runs that the levels are of.
        is_newest: whether no later step follows.
    """

    row: int
    before: int
    after: int
    levels: tuple[float, float]
    runs: tuple[int, int]
    is_newest: bool = True


@dataclass(frozen=True)
class Found:
    """The changes of rows.

    Attributes:
        changes: by row and run.
        common: what all rows have in common, by run: logarithms, 0 for the newest run.
        spread: the standard deviation of a run's duration as a share of the duration, as the rows tell it.
    """

    changes: Sequence[Change]
    common: Floats
    spread: float


def search(values: Floats, noise: Sequence[float] = (), chosen: Sequence[bool] = ()) -> Found:
    """Returns the changes of rows.

    Args:
        values: logarithms of durations by row and run, the oldest run first; NaN where a run has none.
        noise: the least spread of each row; none if empty.
        chosen: whether each row is searched; all are if empty. All rows tell the spread and what they have in common.
    """
    common = common_levels(values)
    own = values - common
    spread = spread_between_runs(
        [gap[~np.isnan(gap)].tolist() for gap in np.diff(own, axis=1).T] if values.size else []
    )
    rows = []
    for row, series in enumerate(own):
        known = np.flatnonzero(~np.isnan(series))
        if len(known) < LEAST_RUNS or (chosen and not chosen[row]):
            continue
        expected = max(spread, noise[row]) if noise else spread
        runs = known[undisturbed(series[known], expected)]
        rows.append((row, runs, expected))
    found = []
    most_p = largest_probability(
        (probability_of_no_change(own[row, runs], expected) for row, runs, expected in rows), _FALSE_SHARE
    )
    for row, runs, expected in rows:
        steps = find_steps(own[row, runs], expected, most_p, LEAST_DIFFERENCE)
        found += [each for each in _changes(row, own[row, runs], runs, steps) if _stands_out(own, each, runs, spread)]
    return Found(found, common, spread)


def common_levels(values: Floats) -> Floats:
    """Returns what all rows of each run have in common: logarithms, 0 for the newest run.

    These are medians of rows and runs in turn (Tukey's median polish). A run of fewer than LEAST_COMMON rows has the
    level of the run before.
    """
    known = ~np.isnan(values)
    telling = np.flatnonzero(known.sum(axis=0) >= LEAST_COMMON)
    if len(telling) < 2:
        return np.zeros(values.shape[1])
    # Rows without any value among these runs tell nothing.
    rows = values[known[:, telling].any(axis=1)][:, telling]
    of_runs = np.zeros(len(telling))
    for _ in range(_TURNS):
        of_rows = np.nanmedian(rows - of_runs, axis=1, keepdims=True)
        of_runs = np.nanmedian(rows - of_rows, axis=0)
    places = np.searchsorted(telling, np.arange(values.shape[1]), side="right") - 1
    found: Floats = of_runs[np.maximum(places, 0)]
    found -= found[-1]
    return found


def _changes(row: int, values: Floats, runs: Positions, steps: Sequence[int]) -> Iterator[Change]:
    """Yields the steps of a row; `values` are of its undisturbed runs."""
    ends = (0, *steps, len(runs))
    for begin, position, end in zip(ends, ends[1:], ends[2:], strict=False):
        levels = float(values[begin:position].mean()), float(values[position:end].mean())
        places = int(runs[position - 1]), int(runs[position])
        yield Change(row, *places, levels, (position - begin, end - position), is_newest=end == len(runs))


def _stands_out(own: Floats, change: Change, runs: Positions, spread: float) -> bool:
    """Returns whether a row differs from what all rows did between the runs before and after a change.

    Machines that become slower do so for some rows more than for others: rows then differ by more than their spread.
    """
    at = int(np.searchsorted(runs, change.after))
    before, after = change.runs
    first, second = own[:, runs[at - before : at]], own[:, runs[at : at + after]]
    both: Mask = np.logical_and(np.isfinite(first).any(axis=1), np.isfinite(second).any(axis=1))
    if both.sum() < LEAST_COMMON:
        return True
    differences = np.nanmean(second[both], axis=1) - np.nanmean(first[both], axis=1)
    middle = float(np.median(differences))
    deviation = float(np.median(np.abs(differences - middle))) / MAD_OF_NORMAL
    is_calm = deviation < _CALM * spread * math.sqrt(1 / before + 1 / after)
    # A median of deviations is about as sure as a standard deviation of half of the rows.
    freedom = max(2, min(len(differences) // 2, 1000))
    least = two_sided_t(_STANDS_OUT_P if is_calm else _STANDS_OUT_OF_CHANGE_P, freedom) * deviation
    size = float(differences[int(both[: change.row].sum())])
    return abs(size - middle) > least


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
            found.append(float(np.median(deviations)) / MAD_OF_NORMAL / math.sqrt(2))
    return max(float(np.median(found)), LEAST_SPREAD) if found else LEAST_SPREAD


def undisturbed(values: Sequence[float] | Floats, spread: float) -> Positions:
    """Returns the positions of a series without the pieces that are up, or down, and back again."""
    series = np.asarray(values, dtype=np.float64)
    at = np.arange(len(series))
    while len(at) >= LEAST_RUNS:
        piece = _clearest_piece(series[at], spread)
        if piece.p > _DISTURBANCE_P or not _is_disturbance(series[at], piece):
            break
        at = np.concatenate([at[: piece.start], at[piece.stop :]])
    return at


def probability_of_no_change(values: Sequence[float] | Floats, spread: float) -> float:
    """Returns the probability that chance makes a piece as clear as the clearest of a series.

    Args:
        values: logarithms of durations of undisturbed runs, in the order of time.
        spread: the standard deviation of a value that is expected, whatever this series tells.

    Returns:
        1 for fewer than LEAST_RUNS values.
    """
    series = np.asarray(values, dtype=np.float64)
    return _clearest_piece(series, spread).p if len(series) >= LEAST_RUNS else 1.0


def find_steps(values: Sequence[float] | Floats, spread: float, most_p: float, least_size: float) -> tuple[int, ...]:
    """Returns the index of the first value after each step of a series, ascending.

    Args:
        values, spread: as for `probability_of_no_change`.
        most_p: what is more probable by chance is no change.
        least_size: smaller changes do not count.
    """
    series = np.asarray(values, dtype=np.float64)
    return tuple(sorted(_search(series, np.arange(len(series)), spread, most_p, least_size)))


def largest_probability(p: Iterable[float], share: float) -> float:
    """Returns the largest of some probabilities to accept, so that `share` of what is accepted is false in the mean.

    This is the procedure of Benjamini and Hochberg (1995). 0 if none can be accepted.
    """
    ordered = sorted(p)
    accepted = (each for rank, each in enumerate(ordered, start=1) if each <= share * rank / len(ordered))
    return max(accepted, default=0.0)


def _search(values: Floats, at: Positions, spread: float, most_p: float, least_size: float) -> Iterator[int]:
    """Yields the positions of steps among some positions of a series."""
    if len(at) < LEAST_RUNS:
        return
    found = _clearest_piece(values[at], spread)
    if found.p > most_p or abs(found.size) < least_size:
        return
    if _is_disturbance(values[at], found):
        rest = np.concatenate([at[: found.start], at[found.stop :]])
        yield from _search(values, rest, spread, most_p, least_size)
        return
    ends = [each for each in (found.start, found.stop) if LEAST_SIDE <= each <= len(at) - LEAST_SIDE]
    yield from (int(at[each]) for each in ends)
    for begin, end in pairwise([0, *ends, len(at)]) if ends else ():
        yield from _search(values, at[begin:end], spread, most_p, least_size)


@dataclass(frozen=True)
class _Piece:
    """A piece from `start` to before `stop`, whose level is `size` above that of the rest."""

    start: int
    stop: int
    size: float
    p: float


def _is_disturbance(values: Floats, piece: _Piece) -> bool:
    """Returns whether a piece lies inside, and its neighbours differ less from each other than half as much as it.

    A piece of fewer runs than a step has on both sides is none either.
    """
    if piece.start == 0 or piece.stop == len(values):
        return False
    change = float(values[piece.stop :].mean() - values[: piece.start].mean())
    return piece.stop - piece.start < LEAST_SIDE or abs(change) < abs(piece.size) / 2


def _clearest_piece(values: Floats, spread: float) -> _Piece:
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


def _probability(values: Floats, explained: float, tried: int, spread: float) -> float:
    """Returns the probability that the best of `tried` descriptions explains as much of the sum of squares."""
    rest = max(float(((values - values.mean()) ** 2).sum()) - explained, 0.0)
    freedom = PRIOR_RUNS + len(values) - 2
    variance = (PRIOR_RUNS * spread**2 + rest) / freedom
    return min(1.0, tried * two_sided_p(math.sqrt(explained / variance), freedom))


@cache
def _pieces(count: int) -> tuple[Positions, Positions]:
    """Returns the starts and stops of all pieces: at the end with LEAST_SIDE runs and as many before, and inside.

    A single run that differs from both neighbours is no piece.
    """
    starts, stops = np.triu_indices(count + 1, 1)
    at_end = (stops == count) & (starts >= LEAST_SIDE) & (stops - starts >= LEAST_SIDE)
    inside = (starts > 0) & (stops < count) & (stops - starts >= _LEAST_INSIDE)
    return starts[at_end | inside], stops[at_end | inside]
