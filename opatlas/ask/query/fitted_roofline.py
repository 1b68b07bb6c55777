"""A roofline whose peaks are fitted to measured durations: the mean of the model of a kernel type.

t = launch + (sum over kinds of work of (amount / rate)^q)^(1/q). A large q is the classic roofline, the maximum; q = 1
adds the costs up. Peaks of data sheets are not used: fitted ones are the largest single gain in accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opatlas.arrays import Floats

_ITERATIONS = 60
#: Residuals of the logarithm beyond this count linearly, so that few slow rows do not move the peaks.
_HUBER = 0.2
#: Bounds of q - 1 as a logarithm: between a sum and a maximum.
_SOFTEST, _SHARPEST = -6.0, 2.5
_WEAK_PRIOR = 1e-3


@dataclass(frozen=True)
class FittedRoofline:
    """A fitted roofline.

    Attributes:
        parameters: the logarithms of the launch time in microseconds, of the microseconds for each unit of each kind
            of work, and of q - 1.
    """

    parameters: Floats

    def log_us(self, work: Floats) -> Floats:
        """Returns the logarithm of the duration of each row of work."""
        return _log_us(self.parameters, np.log(work))


def fit_roofline(work: Floats, duration_us: Floats) -> FittedRoofline:
    """Fits a roofline to durations, by Levenberg and Marquardt's method with Huber's weights.

    Args:
        work: a row of amounts for each duration, all above zero.
    """
    log_work, log_us = np.log(work), np.log(duration_us)
    kinds = work.shape[1]
    launch = float(log_us.min()) - 0.2
    rates = np.quantile(log_us[:, None] - log_work, 0.1, axis=0)
    starts = [np.array([launch, *(rates - shift), q]) for q in (-1.0, 1.0) for shift in (0.0, np.log(kinds) + 0.5)]
    fits = [_descend(start, log_work, log_us) for start in starts]
    return FittedRoofline(min(fits, key=lambda found: found[1])[0])


def _log_us(parameters: Floats, log_work: Floats) -> Floats:
    q = 1 + np.exp(np.clip(parameters[-1], _SOFTEST, _SHARPEST))
    terms = q * (log_work + parameters[1:-1])
    largest = terms.max(axis=1)
    overlapped = (largest + np.log(np.exp(terms - largest[:, None]).sum(axis=1))) / q
    total: Floats = np.logaddexp(parameters[0], overlapped)
    return total


def _descend(start: Floats, log_work: Floats, log_us: Floats) -> tuple[Floats, float]:
    parameters, damping = start.copy(), 1e-2

    def loss(at: Floats) -> float:
        error = np.abs(log_us - _log_us(at, log_work))
        robust = np.where(error < _HUBER, error**2, 2 * _HUBER * error - _HUBER**2).sum()
        return float(robust + _WEAK_PRIOR * ((at - start) ** 2).sum())

    best = loss(parameters)
    step = 1e-4 * np.eye(len(parameters))
    for _ in range(_ITERATIONS):
        at = _log_us(parameters, log_work)
        jacobian = np.stack([(_log_us(parameters + each, log_work) - at) / 1e-4 for each in step], axis=1)
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
