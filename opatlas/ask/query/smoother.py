"""A smoother: a roofline whose peaks are fitted to measured durations, times kriging of the rows' deviations from it.

The roofline: t = launch + (sum over kinds of work of (amount / rate)^q)^(1/q). A large q is the classic roofline, the
maximum; q = 1 adds the costs up. Peaks of data sheets are not used: fitted ones are the largest gain in accuracy.

Kriging: a value between known ones, with its standard deviation, from the nearest rows. The covariance of two rows is
smooth in their sizes (Matern 3/2) and rough in everything together (exponential), since a library chooses tiles and
kernels in steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from opatlas.row.quality import Floats, Mask, Positions

_ITERATIONS = 60
#: Residuals of the logarithm beyond this count linearly, so that few slow rows do not move the peaks.
_HUBER = 0.2
#: Bounds of q - 1 as a logarithm: between a sum and a maximum.
_SOFTEST, _SHARPEST = -6.0, 2.5
_WEAK_PRIOR = 1e-3


def fit_roofline(work: Floats, log_us: Floats) -> Floats:
    """Fits a roofline to the logarithms of durations, by Levenberg and Marquardt's method with Huber's weights.

    Args:
        work: a row of amounts for each duration, all above zero.

    Returns:
        The logarithms of the launch time in microseconds, of the microseconds for each unit of each kind of work, and
        of q - 1.
    """
    log_work = np.log(work)
    kinds = work.shape[1]
    launch = float(log_us.min()) - 0.2
    rates = np.quantile(log_us[:, None] - log_work, 0.1, axis=0)
    starts = [np.array([launch, *(rates - shift), q]) for q in (-1.0, 1.0) for shift in (0.0, np.log(kinds) + 0.5)]
    fits = [_descend(start, log_work, log_us) for start in starts]
    return min(fits, key=lambda found: found[1])[0]


def roofline_log_us(parameters: Floats, log_work: Floats) -> Floats:
    """Returns the logarithms of the durations of a fitted roofline."""
    q = 1 + np.exp(np.clip(parameters[-1], _SOFTEST, _SHARPEST))
    terms = q * (log_work + parameters[1:-1])
    largest = terms.max(axis=1)
    overlapped = (largest + np.log(np.exp(terms - largest[:, None]).sum(axis=1))) / q
    return np.logaddexp(parameters[0], overlapped)


def _descend(start: Floats, log_work: Floats, log_us: Floats) -> tuple[Floats, float]:
    parameters, damping = start.copy(), 1e-2

    def loss(at: Floats) -> float:
        error = np.abs(log_us - roofline_log_us(at, log_work))
        robust = np.where(error < _HUBER, error**2, 2 * _HUBER * error - _HUBER**2).sum()
        return float(robust + _WEAK_PRIOR * ((at - start) ** 2).sum())

    best = loss(parameters)
    step = 1e-4 * np.eye(len(parameters))
    for _ in range(_ITERATIONS):
        at = roofline_log_us(parameters, log_work)
        jacobian = np.stack([(roofline_log_us(parameters + each, log_work) - at) / 1e-4 for each in step], axis=1)
        error = log_us - at
        weight = np.minimum(1.0, _HUBER / np.maximum(np.abs(error), 1e-12))
        hessian = (jacobian * weight[:, None]).T @ jacobian + _WEAK_PRIOR * np.eye(len(parameters))
        gradient = jacobian.T @ (weight * error) - _WEAK_PRIOR * (parameters - start)
        candidate = parameters + np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), gradient)
        candidate[-1] = np.clip(candidate[-1], _SOFTEST, _SHARPEST)
        found = loss(candidate)
        if found < best:
            done = best - found < 1e-7 * best
            parameters, best, damping = candidate, found, max(damping / 5, 1e-9)
            if done:
                break
        else:
            damping *= 5
            if damping > 1e9:
                break
    return parameters, best


_ROOT3 = np.sqrt(3.0)
#: Questions that are answered together: their matrices fit a cache.
CHUNK = 64
#: The covariances of all rows take longer than those around a question: in larger tables too long for one question.
_MOST_TOGETHER = 512
#: A fit of the covariance uses at most as many rows: its time grows with the cube.
_MOST_FITTED = 240
_FIT_STEPS = 60


@dataclass(frozen=True)
class Covariance:
    """A covariance.

    Attributes:
        lengths: the distance at which values differ, in units of each feature.
        smooth, rough: standard deviations of the smooth and of the rough part.
        noise: standard deviation of one value.
        is_smooth: which features the smooth part has; the rough part has all.
    """

    lengths: Floats
    smooth: float
    rough: float
    noise: float
    is_smooth: Mask

    def scaled(self, features: Floats) -> Floats:
        """Returns features in units of their lengths."""
        return features / self.lengths

    def between(self, near: Floats, far: Floats) -> Floats:
        """Returns the covariances of two stacks of scaled rows, (..., a, f) and (..., b, f)."""
        which = self.is_smooth
        # In place: fresh memory for each step takes as long as the arithmetic.
        smooth, rough = squared_distances(near[..., which], far[..., which]), squared_distances(near, far)
        smooth = np.multiply(np.sqrt(smooth, out=smooth), -_ROOT3, out=smooth)
        rough = np.negative(np.sqrt(rough, out=rough), out=rough)
        total: Floats = self.smooth**2 * (1 - smooth)
        total *= np.exp(smooth, out=smooth)
        total += np.multiply(np.exp(rough, out=rough), self.rough**2, out=rough)
        return total

    def fit(self, roofline: Floats, kinds: int) -> SmootherFit:
        """Returns its numbers, with those of the mean."""
        return SmootherFit(roofline.tolist(), kinds, self.lengths.tolist(), self.smooth, self.rough, self.noise)

    @property
    def variance(self) -> float:
        """The variance of a value without a row."""
        return self.smooth**2 + self.rough**2


def squared_distances(near: Floats, far: Floats) -> Floats:
    """Returns the squared distances of two stacks of rows."""
    found: Floats = near @ np.swapaxes(far, -1, -2)
    # One after the other: fresh memory for their sum takes longer than the rest.
    found *= -2
    found += (near**2).sum(-1)[..., :, None]
    found += (far**2).sum(-1)[..., None, :]
    return np.maximum(found, 0.0, out=found)


class SmootherFit(msgspec.Struct):
    """The numbers of a smoother that were fitted, of `Covariance` and of `fit_roofline`.

    Attributes:
        kinds: the kinds of work that the roofline has, the first ones.
    """

    roofline: list[float]
    kinds: int
    lengths: list[float]
    smooth: float
    rough: float
    noise: float


@dataclass(frozen=True)
class Kriged:
    """Values at some points.

    Attributes:
        mean, deviation: the value, and its standard deviation with the noise of one value.
        nearest: the positions of the rows used, the nearest first.
        distance: their distances in units of the lengths.
    """

    mean: Floats
    deviation: Floats
    nearest: Positions
    distance: Floats


class Smoother:
    """A fitted roofline, and kriging of the deviations of rows from it."""

    def __init__(self, fit: SmootherFit, is_smooth: Mask, work: Floats, rows: Floats, log_us: Floats) -> None:
        """
        Args:
            is_smooth: as in `Covariance`.
            work, rows, log_us: of the rows: amounts of work, features, and the logarithms of durations.
        """
        self.fit, self._roofline = fit, np.array(fit.roofline)
        self.covariance = Covariance(np.array(fit.lengths), fit.smooth, fit.rough, fit.noise, is_smooth)
        self._known = self.covariance.scaled(rows)
        self._off = log_us - self._mean(work)

    def _mean(self, work: Floats) -> Floats:
        return roofline_log_us(self._roofline, np.log(work[:, : self.fit.kinds]))

    def krige(self, work: Floats, points: Floats, count: int, hidden: Mask | None) -> Kriged:
        """Returns the logarithms of durations at points, from the `count` nearest rows of each.

        Args:
            work, points: amounts of work, and features.
            hidden: which rows each point must not use (points x rows).
        """
        asked = self.covariance.scaled(points)
        chunks = [slice(first, first + CHUNK) for first in range(0, len(asked), CHUNK)]
        parts = [self._krige(asked[chunk], count, None if hidden is None else hidden[chunk]) for chunk in chunks]
        mean, *others = (np.concatenate(each) for each in zip(*parts, strict=True))
        return Kriged(self._mean(work) + mean, *others)

    @cached_property
    def _among(self) -> Floats | None:
        """The covariances of all rows, of which many questions have the same around them; None of large tables."""
        return self.covariance.between(self._known, self._known) if len(self._known) <= _MOST_TOGETHER else None

    def _krige(self, asked: Floats, count: int, hidden: Mask | None) -> tuple[Floats, Floats, Positions, Floats]:
        squares = squared_distances(asked, self._known)
        if hidden is not None:
            squares = np.where(hidden, np.inf, squares)
        count = min(count, len(self._known))
        nearest = np.argpartition(squares, count - 1, axis=1)[:, :count] if count < len(self._known) else None
        if nearest is None:
            nearest = np.broadcast_to(np.arange(count), (len(asked), count))
        order = np.argsort(np.take_along_axis(squares, nearest, axis=1), axis=1)
        nearest = np.take_along_axis(nearest, order, axis=1)
        distance = np.sqrt(np.take_along_axis(squares, nearest, axis=1))
        rows = self._known[nearest]
        if self._among is None:
            among = self.covariance.between(rows, rows)
        else:
            among = self._among[nearest[:, :, None], nearest[:, None, :]]
        among[:, np.arange(count), np.arange(count)] += self.covariance.noise**2 + 1e-10
        to_point = self.covariance.between(asked[:, None, :], rows)[:, 0, :]
        # A hidden row that is still among the nearest, because too few others are there, has no weight.
        to_point = np.where(np.isfinite(distance), to_point, 0.0)
        hidden_rows = ~np.isfinite(distance)
        if hidden_rows.any():
            both = hidden_rows[:, :, None] | hidden_rows[:, None, :]
            diagonal = np.eye(count, dtype=bool)[None]
            among = np.where(both & ~diagonal, 0.0, among)
        weights = np.linalg.solve(among, to_point[:, :, None])[:, :, 0]
        mean = (weights * self._off[nearest]).sum(axis=1)
        explained = (weights * to_point).sum(axis=1)
        deviation = np.sqrt(np.maximum(self.covariance.variance - explained, 0.0) + self.covariance.noise**2)
        return mean, deviation, nearest, distance


def posterior(covariance: Covariance, rows: Floats, points: Floats) -> Floats:
    """Returns the covariance of the values at points, given the values of rows; without the noise of a single value."""
    known, asked = covariance.scaled(rows), covariance.scaled(points)
    prior = covariance.between(asked, asked)
    if not len(known):
        return prior
    among = covariance.between(known, known) + (covariance.noise**2 + 1e-10) * np.eye(len(known))
    across = covariance.between(asked, known)
    explained: Floats = across @ np.linalg.solve(among, across.T)
    return prior - explained


def fit_covariance(start: Covariance, rows: Floats, values: Floats) -> Covariance:
    """Returns the covariance under which the values are most likely, near that of `start`.

    The lengths and standard deviations are found by Rprop on the gradient of the likelihood; each logarithm has a
    normal prior around that of `start`.
    """
    if len(rows) > _MOST_FITTED:
        chosen = np.random.default_rng(0).choice(len(rows), _MOST_FITTED, replace=False)
        rows, values = rows[chosen], values[chosen]
    one, other = pairs = np.triu_indices(len(rows), 1)
    squares = (rows[one] - rows[other]) ** 2
    begin = np.log([*start.lengths, start.smooth, start.rough, start.noise])
    at, step, before = begin.copy(), np.full(len(begin), 0.1), np.zeros(len(begin))
    best, best_at = np.inf, at.copy()
    for _ in range(_FIT_STEPS):
        loss, gradient = _likelihood(at, begin, start.is_smooth, squares, pairs, values)
        if loss < best:
            best, best_at = loss, at.copy()
        agree = np.sign(gradient) * np.sign(before)
        step = np.clip(np.where(agree > 0, step * 1.3, np.where(agree < 0, step * 0.5, step)), 1e-3, 0.5)
        before = np.where(agree < 0, 0.0, gradient)
        at = at - step * np.sign(before)
    found = np.exp(best_at)
    return Covariance(found[:-3], float(found[-3]), float(found[-2]), float(found[-1]), start.is_smooth)


#: Standard deviations of the priors of the logarithms of lengths, of the two parts, and of the noise.
_PRIOR = (1.2, 1.0, 1.0, 1.0)


def _likelihood(
    at: Floats, begin: Floats, is_smooth: Mask, squares: Floats, pairs: tuple[Positions, Positions], values: Floats
) -> tuple[float, Floats]:
    """Returns the negative logarithm of the posterior and its gradient.

    Args:
        squares: the squared differences of the features of each pair of rows.
        pairs: the positions of its rows.
    """
    weights = np.exp(-2 * at[:-3])
    smooth_variance, rough_variance, noise_variance = np.exp(2 * at[-3:])
    near = _ROOT3 * np.sqrt(squares @ (weights * is_smooth))
    far = np.sqrt(squares @ weights)
    decay = np.exp(-near)
    smooth_part, rough_part = smooth_variance * (1 + near) * decay, rough_variance * np.exp(-far)
    total = np.diag(np.full(len(values), smooth_variance + rough_variance + noise_variance + 1e-9))
    total[pairs] = total[pairs[::-1]] = smooth_part + rough_part
    sd = np.array([*(_PRIOR[0] for _ in at[:-3]), *_PRIOR[1:]])
    prior = (at - begin) / sd
    sign, determinant = np.linalg.slogdet(total)
    if not sign > 0:
        return np.inf, prior / sd
    inverse = np.linalg.inv(total)
    alpha = inverse @ values
    loss = 0.5 * (values @ alpha + determinant + prior @ prior)
    # Each pair is twice in the matrices.
    inner = 2 * (alpha[pairs[0]] * alpha[pairs[1]] - inverse[pairs])
    of_diagonal = alpha @ alpha - np.trace(inverse)
    # Of the smooth part 3 s e^(-r) d, of the rough part s e^(-r) d / r for each squared distance d.
    of_rough = (inner * rough_part / np.maximum(far, 1e-12)) @ squares
    of_smooth = (inner * 3 * smooth_variance * decay) @ squares
    gradient = weights * (of_rough + is_smooth * of_smooth)
    kinds = (smooth_part, smooth_variance), (rough_part, rough_variance), (0 * near, noise_variance)
    parts = [2 * (inner @ part + variance * of_diagonal) for part, variance in kinds]
    return float(loss), -0.5 * np.array([*gradient, *parts]) + prior / sd
