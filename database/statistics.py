"""Statistics of samples: plain numbers in, plain numbers out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from database.numbers import real


@dataclass(frozen=True)
class Summary:
    """Durations in microseconds; `std_us` is the sample standard deviation (0 for one sample)."""

    count: int
    mean_us: float
    median_us: float
    min_us: float
    std_us: float


def summarize(samples_us: Sequence[float]) -> Summary:
    """Summary of at least one sample."""
    mean = fmean(samples_us)
    return Summary(len(samples_us), mean, median(samples_us), min(samples_us), standard_deviation(samples_us, mean))


def standard_deviation(samples: Sequence[float], mean: float) -> float:
    """Sample standard deviation (n - 1), in two passes; 0 for fewer than two samples."""
    if len(samples) < 2:
        return 0.0
    return math.hypot(*[sample - mean for sample in samples]) / math.sqrt(len(samples) - 1)


def valid_duration(cell: str) -> float | None:
    """A duration cell in microseconds; None unless it is a finite number above zero."""
    value = real(cell)
    return value if value is not None and math.isfinite(value) and value > 0 else None


def cell(value: float) -> str:
    """A number as a cell: six decimals at most (a picosecond, for a duration in microseconds), none without need."""
    text = f"{value:.6f}"
    return text.rstrip("0").rstrip(".")
