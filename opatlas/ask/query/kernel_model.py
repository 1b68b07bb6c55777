"""The models of a kernel type in one implementation: a fitted roofline, times the deviation of nearby rows.

A regime with many rows has a model of its own, since it is often another kernel: the steps of a decode and a prompt,
blocks of scales and one scale. Questions of other regimes have the model of all rows.

Of large tables it is the mean of several models that err differently: the covariances of two are fitted, which suits
questions near rows, and that of the other is not.

The interval of a prediction is its deviation, times how far off predictions of the rows around it are, times a quantile
that was found by hiding rows: itself, its site, the sizes around it, or all larger ones. Those hidden rows count most
that have as many tokens, and whose next rows are as far away (localised, weighted conformal prediction; Guan 2023).
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
    CHUNK,
    Covariance,
    Kriged,
    Smoother,
    SmootherFit,
    fit_covariance,
    fit_roofline,
    posterior,
    roofline_log_us,
    squared_distances,
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
#: The rows that give the local scale, and how many average ones are added, against accidents.
_LOCAL, _LOCAL_PRIOR = 24, 6.0
#: The rows that are left out at once; bounds the memory.
_TOGETHER = 256
#: The rows that are hidden in turn, in each way, to find a quantile, and the one of fewer than two times LEAST_ROWS.
_CALIBRATED = 400
_LEVEL, _QUANTILE_OF_FEW = 0.9, 2.0
#: The lengths by which a hidden row counts less: octaves of how far its next rows are, and of tokens; the distance, in
#: units of lengths, below which no row is nearer.
_LIKE_DISTANCE, _LIKE_TOKENS, _LEAST_DISTANCE = 0.35, 1.0, 0.05
#: The rows from which the correlation of predictions is estimated: the time grows with the cube.
_MOST_JOINT = 1000
#: Octaves beyond the sizes of all rows, and between a question and the rows of its site, that change its class.
_BEYOND, _GAP = 0.5, 0.5
#: The octaves beyond all rows that hidden rows tell of: the interval grows with those farther out.
_TESTED = 3
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
        scales: how many deviations each row is off, predicted with itself hidden, against the average of all rows.
        hidden: of rows hidden in all ways where they are (`_places`), and how many scaled deviations they are off, the
            smallest first.
    """

    smoothers: list[SmootherFit]
    scales: list[float]
    hidden: list[list[float]]


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
        self._regimes = list(dict.fromkeys(row.regime for row in features))
        self._of_site = _of_site(features)
        self._sizes, fills = len(features[0].sizes), len(features[0].fills)
        self._is_smooth = np.array([True] * self._sizes + [False] * fills + [True] * len(self._regimes))
        self._work, self._matrix = self._columns(features)
        self._tokens = _tokens(features)
        self._sites: dict[object, int] = {}
        self._site = np.array([self._sites.setdefault(self._site_of(row), len(self._sites)) for row in features])
        self._count = _NEAREST if len(features) >= _FEW_ROWS else _NEAREST_OF_FEW
        sizes = self._matrix[:, : self._sizes]
        self._range = sizes.min(axis=0), sizes.max(axis=0)
        self._log_us = np.log(duration_us)
        fits = list(self._fitted()) if fit is None else fit.smoothers
        self._smoothers = [Smoother(each, self._is_smooth, self._work, self._matrix, self._log_us) for each in fits]
        if fit is not None:
            self._scales, self._calibrated = np.array(fit.scales), np.reshape(fit.hidden, (-1, 3))
            return
        self._scales = np.ones(len(features))
        off = self._left_out(np.arange(len(features)), Asked.NEAR)[:, -1]
        known = np.isfinite(off)
        if known.any():
            self._scales[known] = off[known] / off[known].mean()
        found = np.concatenate([self._left_out(self._some(asked), asked) for asked in Asked])
        self._calibrated = found[np.argsort(found[:, -1])][: np.isfinite(found[:, -1]).sum()]

    @property
    def fit(self) -> Fit:
        """All numbers that were fitted."""
        return Fit([each.fit for each in self._smoothers], self._scales.tolist(), self._calibrated.tolist())

    def _fitted(self) -> Iterator[SmootherFit]:
        """Fits the smoothers."""
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
            yield covariance.fit(roofline, work.shape[1])

    def _columns(self, features: Sequence[RowFeatures]) -> tuple[Floats, Floats]:
        """Returns the work and the features of rows as matrices."""
        work = np.array([row.work for row in features], dtype=np.float64)
        regimes = np.array([[row.regime == each for each in self._regimes] for row in features], dtype=np.float64)
        numbers = np.array([(*row.sizes, *row.fills) for row in features], dtype=np.float64)
        return np.maximum(work, 1.0), np.hstack([numbers, regimes])

    def _site_of(self, row: RowFeatures) -> object:
        of_site = self._of_site.get(row.regime)
        return row.regime, None if of_site is None else tuple(compress(row.dims, of_site))

    def _covariance(self, residual: Floats) -> Covariance:
        """Returns a covariance that is not fitted but for the spread of the values."""
        regimes = len(self._regimes)
        lengths = [_OCTAVES] * self._sizes + [_SHARE] * int((~self._is_smooth).sum()) + [_REGIME] * regimes
        spread = max(float(np.quantile(np.abs(residual), 0.8)), 0.02)
        return Covariance(np.array(lengths), spread, spread, _NOISE, self._is_smooth)

    def _some(self, asked: Asked) -> Positions:
        """Returns rows to be hidden in turn: as many as it takes, those beyond of the quarter with most tokens."""
        rows = np.arange(len(self._log_us))
        if asked is Asked.BEYOND:
            rows = rows[self._tokens >= np.quantile(self._tokens, 0.75)]
        return np.random.default_rng(int(asked)).permutation(rows)[:_CALIBRATED]

    def _hidden(self, rows: Positions, asked: Asked) -> Mask:
        """Returns for each of some rows the rows to hide, so that a question for this row has the class `asked`."""
        site = self._site[rows, None] == self._site[None, :]
        octaves = self._tokens[None, :] - self._tokens[rows, None]
        by_class: dict[Asked, Mask] = {
            Asked.NEAR: site & (octaves == 0),
            Asked.NEW_SITE: site,
            Asked.GAP: np.abs(octaves) <= 1,
            Asked.BEYOND: octaves > -1.0 - rows[:, None] % _TESTED,
        }
        return by_class[asked]

    def _left_out(self, rows: Positions, asked: Asked) -> Floats:
        """Returns where rows are with others hidden, and how many deviations off; NaN where too few are left."""
        found = np.full((len(rows), 3), np.nan)
        for first in range(0, len(rows), _TOGETHER):
            part = slice(first, first + _TOGETHER)
            hidden = self._hidden(rows[part], asked)
            where = first + np.flatnonzero((~hidden).sum(axis=1) >= max(LEAST_ROWS, len(self._log_us) // 4))
            if not len(where):
                continue
            these = rows[where]
            kriged = self._krige(self._work[these], self._matrix[these], hidden[where - first])
            scores = np.abs(kriged.mean - self._log_us[these]) / kriged.deviation / self._local_scale(kriged)
            found[where] = np.column_stack([self._places(kriged, self._tokens[these]), scores])
        return found

    def _places(self, kriged: Kriged, tokens: Floats) -> Floats:
        """Returns how far the next rows of points are, and the tokens, in lengths by which hidden rows count less."""
        distance = np.log2(kriged.distance[:, :LEAST_ROWS].mean(axis=1) + _LEAST_DISTANCE)
        return np.column_stack([distance / _LIKE_DISTANCE, tokens / _LIKE_TOKENS])

    def _krige(self, work: Floats, matrix: Floats, hidden: Mask | None = None) -> Kriged:
        """Returns the logarithms of durations: the mean of all smoothers, and the rows near the last one's points."""
        found = [each.krige(work, matrix, self._count, hidden) for each in self._smoothers]
        means = np.stack([each.mean for each in found])
        # Where the smoothers disagree, neither may be right.
        variance = np.mean([each.deviation**2 for each in found], axis=0) + means.var(axis=0)
        return Kriged(means.mean(axis=0), np.sqrt(variance), found[-1].nearest, found[-1].distance)

    def _local_scale(self, kriged: Kriged) -> Floats:
        """Returns how far off the rows around each point are, in deviations, against the average of all rows."""
        seen = np.isfinite(kriged.distance[:, :_LOCAL])
        scales = np.where(seen, self._scales[kriged.nearest[:, :_LOCAL]], 1.0)
        return (scales.sum(axis=1) + _LOCAL_PRIOR) / (scales.shape[1] + _LOCAL_PRIOR)

    def _quantile(self, places: Floats) -> Floats:
        """Returns the quantile of the scores of the rows that were hidden where each point is."""
        if len(self._calibrated) < 2 * LEAST_ROWS:
            return np.full(len(places), _QUANTILE_OF_FEW)
        known, scores = self._calibrated[:, :-1], self._calibrated[:, -1]
        inside, found = np.clip(places, known.min(axis=0), known.max(axis=0)), np.empty(len(places))
        for first in range(0, len(places), CHUNK):
            part = slice(first, first + CHUNK)
            # Student's t with six degrees of freedom: an exponential function takes three times as long.
            weights = squared_distances(inside[part], known) / 6 + 1
            weights *= weights
            weights *= weights
            np.cumsum(np.reciprocal(weights, out=weights), axis=1, out=weights)
            # The point itself counts as one more row, whose score may be the largest.
            below = (weights < _LEVEL * (weights[:, -1:] + 1)).sum(axis=1)
            found[part] = scores[np.minimum(below, len(scores) - 1)]
        return found

    def predict(self, features: Sequence[RowFeatures]) -> Predictions:
        """Returns the durations of rows, with intervals."""
        work, matrix = self._columns(features)
        kriged = self._krige(work, matrix)
        sizes, (low, high) = matrix[:, : self._sizes], self._range
        # How far the outermost size of each question lies beyond the sizes of all rows.
        octaves = np.maximum(low - sizes, sizes - high).max(axis=1)
        asked = self._classes(features, kriged, octaves)
        quantile = self._quantile(self._places(kriged, _tokens(features)))
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
