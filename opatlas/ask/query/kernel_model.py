"""The models of a kernel type in one implementation: a fitted roofline, times the deviation of nearby rows.

A regime with many rows has a model of its own, since it is often another kernel: the steps of a decode and a prompt,
blocks of scales and one scale. Questions of other regimes have the model of all rows.

Of large tables it is the mean of several models that err differently: the covariances of two are fitted, which suits
questions near rows, and that of the other is not.

The interval of a prediction is its deviation, times how far off predictions of the rows around it are, times a quantile
that was found by hiding rows: itself, its site, the sizes around it, or all larger ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from itertools import compress

import msgspec
import numpy as np
import numpy.typing as npt

from opatlas.ask.query.features import RowFeatures
from opatlas.ask.query.smoother import (
    Covariance,
    Kriged,
    Smoother,
    SmootherFit,
    fit_covariance,
    fit_roofline,
    posterior,
    roofline_log_us,
)
from opatlas.grouping import grouped
from opatlas.row.quality import Floats, Mask, Positions

#: Fewer rows fit no model.
LEAST_ROWS = 8
#: A regime with as many rows has a model of its own.
OWN_ROWS = 64
#: The name of the model of all rows.
_ALL = ""
#: The predictions of a table with fewer rows use more of them, and a covariance that is fitted to them.
_FEW_ROWS = 400
#: The rows that a prediction uses, in large and in small tables.
_NEAREST, _NEAREST_OF_FEW = 32, 64
#: The rows whose scores give the local scale, and how many average scores are added, against accidents.
_LOCAL, _LOCAL_PRIOR = 24, 6.0
#: The rows that are left out at once; bounds the memory.
_TOGETHER = 256
#: The rows that are hidden in turn to find a quantile.
_CALIBRATED = 300
_LEVEL = 0.9
#: The rows from which the correlation of predictions is estimated: the time grows with the cube.
_MOST_JOINT = 1000
#: Octaves beyond the sizes of all rows, and between a question and the rows of its site, that change its class.
_BEYOND, _GAP = 0.5, 0.5
#: The octaves beyond all rows that hidden rows tell of: the interval grows with those farther out.
_TESTED = 2.0
#: Lengths of the default covariance: octaves, shares of a tile or wave, and of a regime.
_OCTAVES, _SHARE, _REGIME = 3.0, 1.0, 0.7
#: The kinds of work that every roofline of a large table has; two of them have all.
_KINDS = 2
_NOISE = 0.01


class Asked(IntEnum):
    """The class of a question, by the rows that it has around it."""

    NEAR = 0  # rows of its site, and of others with nearly as many tokens
    NEW_SITE = 1  # no row has its weight
    GAP = 2  # rows with fewer and with more tokens only, whatever their weight
    BEYOND = 3  # a size is outside of all rows


@dataclass(frozen=True)
class Predictions:
    """Predictions.

    Attributes:
        log_us: the logarithm of the duration in microseconds.
        half_width: of the 90 % interval, of the logarithm.
        asked: the class of each question.
        nearest, distance: the rows used, the nearest first; at most LEAST_ROWS for each question.
    """

    log_us: Floats
    half_width: Floats
    asked: npt.NDArray[np.int64]
    nearest: Positions
    distance: Floats


class Fit(msgspec.Struct):
    """All numbers that were fitted.

    Attributes:
        scores: how many deviations each row is off, predicted with itself hidden; NaN where too few are left.
        quantiles: of the scores, by class.
    """

    smoothers: list[SmootherFit]
    scores: list[float]
    quantiles: list[float]


class KernelModel:
    """The models of the durations of a kernel type.

    Attributes:
        fits: the numbers of the models that were fitted so far, by regime.
    """

    def __init__(
        self, features: Sequence[RowFeatures], duration_us: Floats, fits: dict[str, Fit] | None = None
    ) -> None:
        """Takes at least LEAST_ROWS rows. `fits` is the attribute of a model of the same rows; others are fitted."""
        self._features, self._duration_us = features, duration_us
        self.fits = {} if fits is None else fits
        self._regimes = np.array([row.regime for row in features])
        self._own = {regime for regime, rows in Counter(self._regimes.tolist()).items() if rows >= OWN_ROWS}
        self._model = cache(self._make_model)

    def predict(self, features: Sequence[RowFeatures]) -> Predictions:
        """Returns the durations of rows, with intervals."""
        groups = list(self._grouped(features))
        order = np.argsort(np.concatenate([where for where, _, _ in groups]))
        parts = []
        for where, positions, model in groups:
            found = model.predict([features[i] for i in where.tolist()])
            nearest, distance = found.nearest[:, :LEAST_ROWS], found.distance[:, :LEAST_ROWS]
            parts.append((found.log_us, found.half_width, found.asked, positions[nearest], distance))
        return Predictions(*(np.concatenate(each)[order] for each in zip(*parts, strict=True)))

    def correlations(self, features: Sequence[RowFeatures]) -> Floats:
        """Returns how the errors of predictions are correlated, each with the noise of one value; not across models."""
        correlated = np.eye(len(features))
        for where, _, model in self._grouped(features):
            correlated[np.ix_(where, where)] = model.correlations([features[i] for i in where.tolist()])
        return correlated

    def _grouped(self, features: Sequence[RowFeatures]) -> Iterator[tuple[Positions, Positions, RegimeModel]]:
        """Yields the positions of the questions of each model, those of its rows, and the model."""
        names = np.array([row.regime if row.regime in self._own else _ALL for row in features])
        for name in dict.fromkeys(names.tolist()):
            yield np.flatnonzero(names == name), *self._model(name)

    def _make_model(self, name: str) -> tuple[Positions, RegimeModel]:
        rows = np.flatnonzero((self._regimes == name) | (name == _ALL))
        model = RegimeModel([self._features[i] for i in rows.tolist()], self._duration_us[rows], self.fits.get(name))
        self.fits.setdefault(name, model.fit)
        return rows, model


class RegimeModel:
    """A model of the durations of rows of a regime, or of all."""

    def __init__(self, features: Sequence[RowFeatures], duration_us: Floats, fit: Fit | None = None) -> None:
        """Fits the model to at least LEAST_ROWS rows; `fit` is the property of a model of the same rows."""
        self._regimes = {regime: i for i, regime in enumerate(dict.fromkeys(row.regime for row in features))}
        self._of_site = _of_site(features)
        self._width = len(features[0].sizes), len(features[0].fills), len(features[0].work)
        self._work, self._matrix = self._columns(features)
        self._tokens = _tokens(features)
        self._sites: dict[object, int] = {}
        self._site = np.array([self._sites.setdefault(self._site_of(row), len(self._sites)) for row in features])
        self._count = _NEAREST if len(features) >= _FEW_ROWS else _NEAREST_OF_FEW
        self._range = self._sized(self._matrix).min(axis=0), self._sized(self._matrix).max(axis=0)
        self._log_us = np.log(duration_us)
        self._smoothers: list[Smoother] = []
        if fit is not None:
            for each in fit.smoothers:
                self._add(each)
            self._scores, self._quantiles = np.array(fit.scores), fit.quantiles
            return
        self._fit_smoothers()
        self._scores = np.ones(len(features))
        self._scores = self._left_out(np.arange(len(features)), Asked.NEAR)
        self._quantiles = [self._calibrate(asked) for asked in Asked]

    @property
    def fit(self) -> Fit:
        """All numbers that were fitted."""
        smoothers = [each.fit for each in self._smoothers]
        return Fit(smoothers, self._scores.tolist(), self._quantiles)

    def _fit_smoothers(self) -> None:
        every = self._work.shape[1]
        # Fitting large tables flatters questions near their rows, at the cost of new weights and models.
        of_large = [(_KINDS, True), (every, True), (every, False)]
        models = of_large if len(self._work) >= _FEW_ROWS else [(every, True)]
        for kinds, fitted in models:
            work = self._work[:, :kinds]
            roofline = fit_roofline(work, self._log_us)
            residual = self._log_us - roofline_log_us(roofline, np.log(work))
            covariance = self._covariance(residual)
            if fitted:
                covariance = fit_covariance(covariance, self._matrix, residual)
            self._add(covariance.fit(roofline, work.shape[1]))

    def _add(self, fit: SmootherFit) -> None:
        self._smoothers.append(Smoother(fit, self._is_smooth(), self._work, self._matrix, self._log_us))

    def _columns(self, features: Sequence[RowFeatures]) -> tuple[Floats, Floats]:
        """Returns the work and the features of rows as matrices."""
        work = np.array([row.work for row in features], dtype=np.float64)
        regimes = np.zeros((len(features), len(self._regimes)))
        for i, row in enumerate(features):
            if row.regime in self._regimes:
                regimes[i, self._regimes[row.regime]] = 1.0
        numbers = np.array([(*row.sizes, *row.fills) for row in features], dtype=np.float64)
        return np.maximum(work, 1.0), np.hstack([numbers, regimes])

    def _sized(self, matrix: Floats) -> Floats:
        return matrix[:, : self._width[0]]

    def _site_of(self, row: RowFeatures) -> object:
        of_site = self._of_site.get(row.regime)
        return row.regime, None if of_site is None else tuple(compress(row.dims, of_site))

    def _covariance(self, residual: Floats) -> Covariance:
        """Returns a covariance that is not fitted but for the spread of the values."""
        sizes, fills, _ = self._width
        lengths = [_OCTAVES] * sizes + [_SHARE] * fills + [_REGIME] * len(self._regimes)
        spread = max(float(np.quantile(np.abs(residual), 0.8)), 0.02)
        return Covariance(np.array(lengths), spread, spread, _NOISE, self._is_smooth())

    def _some(self, seed: int) -> Positions:
        """Returns rows to be hidden in turn: all, or as many as it takes."""
        rows = np.arange(len(self._log_us))
        if len(rows) <= _CALIBRATED:
            return rows
        return np.random.default_rng(seed).choice(rows, _CALIBRATED, replace=False)

    def _enough(self, hidden: Mask) -> Mask:
        """Returns for which questions enough rows are not hidden."""
        return (~hidden).sum(axis=1) >= max(LEAST_ROWS, len(self._log_us) // 4)

    def _is_smooth(self) -> Mask:
        sizes, fills, _ = self._width
        return np.array([True] * sizes + [False] * fills + [True] * len(self._regimes))

    def _hidden(self, rows: Positions, asked: Asked) -> Mask:
        """Returns for each of some rows the rows to hide, so that a question for this row has the class `asked`."""
        site = self._site[rows, None] == self._site[None, :]
        octaves = self._tokens[None, :] - self._tokens[rows, None]
        hidden: Mask
        if asked is Asked.NEAR:
            hidden = site & (octaves == 0)
        elif asked is Asked.NEW_SITE:
            hidden = site
        elif asked is Asked.GAP:
            hidden = np.abs(octaves) <= 1
        else:
            hidden = octaves > -1
        return hidden

    def _left_out(self, rows: Positions, asked: Asked) -> Floats:
        """Returns how many deviations predictions of rows are off with others hidden; NaN where too few are left."""
        scores = np.full(len(rows), np.nan)
        for first in range(0, len(rows), _TOGETHER):
            part = slice(first, first + _TOGETHER)
            hidden = self._hidden(rows[part], asked)
            where = first + np.flatnonzero(self._enough(hidden))
            if not len(where):
                continue
            these = rows[where]
            kriged = self._krige(self._work[these], self._matrix[these], hidden[where - first])
            off = np.abs(kriged.mean - self._log_us[these])
            scores[where] = off / kriged.deviation / self._local_scale(kriged)
        return scores

    def _krige(self, work: Floats, matrix: Floats, hidden: Mask | None = None) -> Kriged:
        """Returns the logarithms of durations: the mean of all smoothers, and the rows near the last one's points."""
        found = [each.krige(work, matrix, self._count, hidden) for each in self._smoothers]
        means = np.stack([each.mean for each in found])
        # Where the smoothers disagree, neither may be right.
        variance = np.mean([each.deviation**2 for each in found], axis=0) + means.var(axis=0)
        return Kriged(means.mean(axis=0), np.sqrt(variance), found[-1].nearest, found[-1].distance)

    def _local_scale(self, kriged: Kriged) -> Floats:
        """Returns how far off the rows around each point are, in deviations, against the average of all rows."""
        nearest = kriged.nearest[:, :_LOCAL]
        seen = np.isfinite(kriged.distance[:, :_LOCAL])
        known_scores = self._scores[np.isfinite(self._scores)]
        average = float(known_scores.mean()) if len(known_scores) else 1.0
        known = np.where(seen & np.isfinite(self._scores[nearest]), self._scores[nearest], average)
        return (known.sum(axis=1) + _LOCAL_PRIOR * average) / (known.shape[1] + _LOCAL_PRIOR) / average

    def _calibrate(self, asked: Asked) -> float:
        """Returns the quantile of the scores of a class."""
        scores = self._left_out(self._some(int(asked)), asked)
        scores = np.sort(scores[np.isfinite(scores)])
        if len(scores) < 2 * LEAST_ROWS:
            return np.nan if asked is not Asked.NEAR else 2.0
        return float(scores[min(int(np.ceil((len(scores) + 1) * _LEVEL)), len(scores)) - 1])

    def predict(self, features: Sequence[RowFeatures]) -> Predictions:
        """Returns the durations of rows, with intervals."""
        work, matrix = self._columns(features)
        kriged = self._krige(work, matrix)
        octaves = self._octaves_beyond(matrix)
        asked = self._classes(features, kriged, octaves)
        largest = np.nanmax(self._quantiles)
        quantile = np.array([each if np.isfinite(each) else largest for each in self._quantiles])[asked]
        half = quantile * kriged.deviation * self._local_scale(kriged) * np.maximum(octaves / _TESTED, 1.0)
        return Predictions(kriged.mean, half, asked, kriged.nearest, kriged.distance)

    def correlations(self, features: Sequence[RowFeatures]) -> Floats:
        """Returns how the errors of predictions are correlated, each with the noise of one value."""
        work, matrix = self._columns(features)
        nearest, times = np.unique(self._krige(work, matrix).nearest, return_counts=True)
        used = nearest[np.argsort(-times, kind="stable")[:_MOST_JOINT]]
        covariance = self._smoothers[-1].covariance
        joint = posterior(covariance, self._matrix[used], matrix)
        joint[np.diag_indices(len(joint))] += covariance.noise**2
        deviation = np.sqrt(np.maximum(np.diag(joint), 1e-12))
        return joint / np.outer(deviation, deviation)

    def _classes(self, features: Sequence[RowFeatures], kriged: Kriged, octaves: Floats) -> npt.NDArray[np.int64]:
        away = np.abs(self._tokens[kriged.nearest[:, :LEAST_ROWS]] - _tokens(features)[:, None]).min(axis=1)
        known = np.array([self._site_of(row) in self._sites for row in features])
        classes = (Asked.BEYOND, Asked.GAP, Asked.NEW_SITE)
        return np.select([octaves > _BEYOND, away > _GAP, ~known], classes, Asked.NEAR)

    def _octaves_beyond(self, matrix: Floats) -> Floats:
        """Returns for each question how far its outermost size lies beyond the sizes of all rows."""
        low, high = self._range
        sizes = self._sized(matrix)
        return np.maximum(low - sizes, sizes - high).max(axis=1)


def _tokens(features: Sequence[RowFeatures]) -> Floats:
    return np.log2([max(row.dims[0], 1) for row in features])


def _of_site(features: Sequence[RowFeatures]) -> dict[str, list[bool]]:
    """Returns for each regime which dimensions are those of a site: not multiples of the first, which counts tokens."""
    by_regime = grouped((row.regime, row.dims) for row in features)
    found = {}
    for regime, rows in by_regime.items():
        dims = np.array(rows, dtype=np.int64)
        tokens = np.maximum(dims[:, :1], 1)
        of_tokens = (dims % tokens == 0).all(axis=0) & (dims >= tokens).all(axis=0) & (tokens.max() > 1)
        of_tokens[0] = True
        found[regime] = (~of_tokens).tolist()
    return found
