"""The noise limit of --max-noise: the attempts to measure a row within the limit, and the verdict. Imports no torch.

A row is measured in at most `ATTEMPTS` attempts, and is NOISY if the last one exceeds the limit. Under msprof there is
one attempt, because durations are known when the profile is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from opatlas.engine.job import RowOutcome
from opatlas.model.quality import LEAST_FOR_NOISE, relative_noise
from opatlas.model.schema import Status
from opatlas.show.formats import microseconds

#: Maximum number of attempts to measure a row within the noise limit; each has the row's time limit.
ATTEMPTS = 3


@dataclass(frozen=True)
class Attempt:
    """An attempt to measure a row within the noise limit.

    Attributes:
        noise: relative standard deviation, in a group that of the noisiest rank; None if it is not known.
        median_us: median of this rank's samples in microseconds.
        samples: number of samples.
    """

    noise: float | None
    median_us: float
    samples: int

    def is_within(self, limit: float) -> bool:
        """Returns whether the noise is known and at most the limit, a share of the mean."""
        return self.noise is not None and self.noise <= limit

    def __str__(self) -> str:
        return f"{format_noise(self.noise)} in {self.samples} samples, median {microseconds(self.median_us)} us"


def sample_noise(samples_us: Sequence[float]) -> float | None:
    """Returns the relative standard deviation of samples; None for fewer than `LEAST_FOR_NOISE`."""
    return relative_noise(samples_us) if len(samples_us) >= LEAST_FOR_NOISE else None


def make_attempt(samples_us: Sequence[float]) -> Attempt:
    """Returns the attempt of a single process."""
    return Attempt(sample_noise(samples_us), median(samples_us), len(samples_us))


def apply_noise_limit(outcome: RowOutcome, limit: float | None, attempts: Sequence[Attempt]) -> RowOutcome:
    """Returns the outcome, or a NOISY one if the row was measured and its last attempt exceeds the limit.

    Args:
        outcome: the outcome of a row.
        limit: largest noise as a share of the mean; None: no limit.
        attempts: all attempts; at least one if there is a limit.
    """
    if limit is None or outcome.status is not Status.MEASURED or attempts[-1].is_within(limit):
        return outcome
    tried = f"{len(attempts)} attempts" if len(attempts) > 1 else "one attempt"
    reason = f"noise over --max-noise {format_noise(limit)} in {tried}: {'; '.join(map(str, attempts))}"
    return RowOutcome(Status.NOISY, reason, changed=outcome.changed)


def describe_discarded(attempts: Sequence[Attempt]) -> list[str]:
    """Returns a remark on the attempts before the last one; [] if there were none."""
    return [f"measured again for its noise, after {'; '.join(map(str, attempts[:-1]))}"] if attempts[1:] else []


def format_noise(share: float | None) -> str:
    """Formats a share as `2.1 %`."""
    return "unknown noise" if share is None else f"{100 * share:.3g} %"
