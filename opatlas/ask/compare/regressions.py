"""Steps and drifts of rows over the runs of a database, for `opatlas history`, and how a series is searched for them.

The piece of a series is found that differs most from the rest, at an end or inside, and each part is searched again
(circular binary segmentation: Olshen and others, 2004). Its probability by chance is that of Student's t between the
piece and the rest, times the number of pieces (Bonferroni). Few runs tell little of their own spread, so the variance
is moderated (Smyth, 2004): the spread that all rows tell counts like `PRIOR_RUNS` runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from statistics import fmean

import numpy as np
import numpy.typing as npt

from opatlas.ask.compare.calls import LEAST_DIFFERENCE, LEAST_SPREAD, RowCall
from opatlas.ask.compare.states import read_run
from opatlas.data import log
from opatlas.data.database import Database
from opatlas.data.manifest import Manifest, read_manifests
from opatlas.data.origin import run_drivers, run_origins
from opatlas.errors import OpAtlasError
from opatlas.row.columns import CACHE_STATE, IMPLEMENTATION, INSTRUMENT, STAND_IN
from opatlas.row.record import RowName
from opatlas.row.signature import RowChoice, make_case_id

#: The share of the listed changes that may be false, in the mean.
_FALSE_SHARE = 0.01


@dataclass(frozen=True)
class RowSeries:
    """The durations of a row in runs that compare: one device, cache state, instrument and implementation.

    Attributes:
        run_ids: the runs, the oldest first.
        durations_us: the duration in each run.
        noise: the mean standard error of a logarithm of a duration, by the spread of the samples of its run.
    """

    row: RowName
    run_ids: tuple[str, ...]
    durations_us: tuple[float, ...]
    noise: float

    @property
    def case_id(self) -> str:
        """The id of the row."""
        return make_case_id(self.row.kernel_type, self.row.signature)

    @property
    def logarithms(self) -> list[float]:
        """The logarithms of the durations."""
        return [math.log(us) for us in self.durations_us]


@dataclass(frozen=True)
class RowChange:
    """A step or drift of a row.

    Attributes:
        before_run, after_run: the last run before a step and the first after; the first and the last run of a drift.
        before_us, after_us: the geometric means of the durations before and after; the ends of the line of a drift.
        runs_before, runs_after: the numbers of runs that the means are of; all runs of a drift twice.
        is_newest: whether no later step follows.
    """

    series: RowSeries
    before_run: str
    after_run: str
    before_us: float
    after_us: float
    runs_before: int
    runs_after: int
    is_drift: bool
    is_newest: bool

    @property
    def percent(self) -> float:
        """The growth of the duration in percent."""
        return (self.after_us / self.before_us - 1) * 100


@dataclass(frozen=True)
class Regressions:
    """The steps and drifts of a database.

    Attributes:
        runs: the runs with a history, the oldest first.
        series: the rows with enough runs that compare.
        rows: the number of rows that any run measured.
        left_out: durations whose samples are bimodal, throttled or too noisy.
        spread: the standard deviation of a run's duration as a share of the duration, as the rows tell it.
        changes: steps and drifts, the largest growth first.
        facts: device, software and drivers of each run that has a manifest.
        problems: sentences about files that cannot be read.
    """

    runs: Sequence[str]
    series: Sequence[RowSeries]
    rows: int
    left_out: int
    spread: float
    changes: Sequence[RowChange]
    facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    problems: Sequence[str] = ()

    def by_runs(self) -> dict[tuple[str, str, bool], list[RowChange]]:
        """Returns the changes by the runs before and after, and whether they are drifts; the most rows first."""
        found: dict[tuple[str, str, bool], list[RowChange]] = {}
        for change in self.changes:
            found.setdefault((change.before_run, change.after_run, change.is_drift), []).append(change)
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))

    def differences(self, before: str, after: str) -> list[str]:
        """Returns what differs between two runs: `torch 2.10.0 -> 2.11.0`. What either does not tell is left out."""
        ours, theirs = self.facts.get(before, {}), self.facts.get(after, {})
        return [f"{name} {value} -> {theirs[name]}" for name, value in ours.items() if theirs.get(name, value) != value]


def find_regressions(database: Database, chosen: RowChoice) -> Regressions:
    """Returns the steps and drifts of the chosen rows. Files that cannot be read become problems.

    Raises:
        OpAtlasError: names were given, and no run has such a row.
    """
    problems: list[str] = []
    manifests = read_manifests(database, problems)
    order = log.run_order(database, manifests)
    runs = sorted(log.runs(database), key=order.age)
    calls = _calls(database, runs, problems)
    rows = [row for row in calls if chosen.holds(row.kernel_type, row.signature)]
    chosen.expect(len(rows), f"{database.runs_dir}")
    devices = {run: ", ".join(sorted(manifest.device_names)) for run, manifest in manifests.items()}
    series = [each for row, of_row in calls.items() for each in _series(row, of_row, devices)]
    # All rows tell the spread, not only those that are chosen.
    spread = _spread(series)
    of_chosen = frozenset(rows)
    searched = [each for each in series if each.row in of_chosen and len(each.run_ids) >= LEAST_RUNS]
    probabilities = [probability_of_no_change(each.logarithms, _of_row(each, spread)) for each in searched]
    most_p = largest_probability(probabilities, _FALSE_SHARE)
    changes = [change for each in searched for change in _changes(each, _of_row(each, spread), most_p)]
    return Regressions(
        runs,
        searched,
        len(rows),
        sum(bool(call.why_ambiguous) for row in rows for call in calls[row].values()),
        spread,
        sorted(changes, key=lambda change: -change.percent),
        {run: run_facts(manifest) for run, manifest in manifests.items()},
        problems,
    )


def run_facts(manifest: Manifest) -> dict[str, str]:
    """Returns what may change durations from run to run, by name: device, software, driver, system, code."""
    origins = list(run_origins(manifest))
    facts = {"device": ", ".join(sorted(manifest.device_names)), "host": manifest.host}
    for origin in origins:
        facts.update(origin.versions)
        if origin.threads:
            facts["CPU threads"] = str(origin.threads)
    facts["driver"] = ", ".join(sorted(run_drivers(manifest)))
    facts["Python"] = manifest.python
    facts["system"] = manifest.system
    disturbances = map(str, manifest.machine_at_start.get("disturbances", ()))
    facts["disturbances"] = ", ".join(disturbances) or "none"
    facts["OpAtlas"] = " ".join(filter(None, [manifest.packages.get("opatlas", ""), manifest.code[:8]]))
    return {name: value for name, value in facts.items() if value}


def _calls(database: Database, runs: Sequence[str], problems: list[str]) -> dict[RowName, dict[str, RowCall]]:
    """Returns the measured calls of each row by run, in the order of the runs."""
    found: dict[RowName, dict[str, RowCall]] = {}
    for run in runs:
        try:
            calls = read_run(database, run)
        except OpAtlasError as error:
            problems.append(str(error))
            continue
        for kernel_type, of_type in calls.items():
            for signature, call in of_type.items():
                if call.duration is not None:
                    found.setdefault(RowName(kernel_type, signature), {})[run] = call
    return found


def _series(row: RowName, calls: Mapping[str, RowCall], devices: Mapping[str, str]) -> Iterator[RowSeries]:
    """Yields the series of a row: of runs that compare, and whose samples describe one state of the device."""
    conditions: dict[tuple[str, ...], dict[str, RowCall]] = {}
    for run, call in calls.items():
        implementation = call.cell(IMPLEMENTATION).partition(" ")[0]
        key = (devices.get(run, ""), *map(call.cell, (CACHE_STATE, INSTRUMENT, STAND_IN)), implementation)
        if not call.why_ambiguous:
            conditions.setdefault(key, {})[run] = call
    for of_one in conditions.values():
        durations = tuple(us for call in of_one.values() if (us := call.duration_us) is not None)
        noise = math.sqrt(sum(call.variance_of_mean for call in of_one.values()) / len(of_one))
        yield RowSeries(row, tuple(of_one), durations, noise)


def _spread(series: Sequence[RowSeries]) -> float:
    gaps: dict[tuple[str, str], list[float]] = {}
    for each in series:
        values = each.logarithms
        for runs_of_gap, (before, after) in zip(pairwise(each.run_ids), pairwise(values), strict=True):
            gaps.setdefault(runs_of_gap, []).append(after - before)
    return spread_between_runs(gaps.values())


def _of_row(series: RowSeries, spread: float) -> float:
    """Returns the expected spread of a row: that of all rows, or what its samples tell, if that is more."""
    return max(spread, series.noise)


def _changes(series: RowSeries, spread: float, most_p: float) -> Iterator[RowChange]:
    values = series.logarithms
    found = find_steps(values, spread, most_p, LEAST_DIFFERENCE)
    if found.drift:
        middle, half = fmean(values), found.drift / 2
        count = len(values)
        yield _change(series, 0, count - 1, (middle - half, middle + half), (count, count), is_drift=True)
    ends = (0, *found.positions, len(values))
    for begin, position, end in zip(ends, ends[1:], ends[2:], strict=False):
        levels = fmean(values[begin:position]), fmean(values[position:end])
        counts = position - begin, end - position
        yield _change(series, position - 1, position, levels, counts, is_newest=end == len(values))


def _change(
    series: RowSeries,
    before: int,
    after: int,
    levels: tuple[float, float],
    counts: tuple[int, int],
    *,
    is_drift: bool = False,
    is_newest: bool = True,
) -> RowChange:
    """Returns a change; `before` and `after` are the positions of runs, and `levels` are logarithms."""
    runs = series.run_ids[before], series.run_ids[after]
    return RowChange(series, *runs, math.exp(levels[0]), math.exp(levels[1]), *counts, is_drift, is_newest)


Series = npt.NDArray[np.float64]
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
