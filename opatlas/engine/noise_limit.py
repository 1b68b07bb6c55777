"""What --max-noise does: rows whose samples scatter more are measured again, and fail if they still do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from opatlas.engine.job import Outcome
from opatlas.model.quality import relative_noise
from opatlas.model.schema import Status

#: How often a row is measured in all, each time within its time limit.
ATTEMPTS = 3


#: Fewer samples tell nothing of their noise.
LEAST_SAMPLES = 3


@dataclass(frozen=True)
class Attempt:
    """Samples that were taken one after the other.

    Attributes:
        noise: relative standard deviation; in a group that of the noisiest rank; None where it is not known.
        median_us: of this rank's samples.
        samples: how many.
    """

    noise: float | None
    median_us: float
    samples: int

    def is_within(self, limit: float) -> bool:
        """Whether the samples are known to scatter no more than the limit, a share of the mean, allows."""
        return self.noise is not None and self.noise <= limit

    def __str__(self) -> str:
        return f"{percent(self.noise)} in {self.samples} samples, median {self.median_us:.4g} us"


def noise_of(samples_us: Sequence[float]) -> float | None:
    """The relative standard deviation of samples; None for too few."""
    return relative_noise(samples_us) if len(samples_us) >= LEAST_SAMPLES else None


def attempt_of(samples_us: Sequence[float]) -> Attempt:
    """The attempt of a process that is in no group."""
    return Attempt(noise_of(samples_us), median(samples_us), len(samples_us))


def limited(outcome: Outcome, limit: float | None, attempts: Sequence[Attempt]) -> Outcome:
    """The outcome of a measured row, NOISY where the last attempt is over the limit.

    Args:
        limit: as a share of the mean; None: there is none.
        attempts: at least one, where there is a limit.
    """
    if limit is None or outcome.status is not Status.MEASURED or attempts[-1].is_within(limit):
        return outcome
    tried = f"{len(attempts)} attempts" if len(attempts) > 1 else "one attempt"
    reason = f"noise over --max-noise {percent(limit)} in {tried}: {'; '.join(map(str, attempts))}"
    return Outcome(Status.NOISY, reason, changed=outcome.changed)


def dropped(attempts: Sequence[Attempt]) -> list[str]:
    """What a reader of a duration should know of the attempts before the last one."""
    return [f"measured again for its noise, after {'; '.join(map(str, attempts[:-1]))}"] if attempts[1:] else []


def percent(share: float | None) -> str:
    """`2.1 %`."""
    return "unknown noise" if share is None else f"{100 * share:.3g} %"
