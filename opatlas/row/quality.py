"""Durations and how good they are: quiet, noisy, drifting, bimodal, throttled, shorter than possible, of a composition.

The verdict depends only on the samples and on the reports of the device meanwhile. docs/measurement.md has the rules.

A row may have a duration of a replay and one of captures. The stored duration of a replay is the mean of a kernel's
samples without the outliers, or the median of a message's samples; that of captures is the mean of the launches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from opatlas.formats import duration, percent
from opatlas.text import Word, parse_real

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
#: Positions of rows in a table.
Positions = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Summary:
    """Statistics of durations in microseconds; `std_us` is the sample standard deviation (0 for one sample)."""

    count: int
    mean_us: float
    median_us: float
    min_us: float
    std_us: float


def summarize(samples_us: Sequence[float]) -> Summary:
    """Returns the statistics of at least one sample."""
    mean = fmean(samples_us)
    return Summary(len(samples_us), mean, median(samples_us), min(samples_us), standard_deviation(samples_us, mean))


def standard_deviation(samples: Sequence[float], mean: float) -> float:
    """Returns the sample standard deviation (n - 1); 0 for fewer than two samples."""
    if len(samples) < 2:
        return 0.0
    return math.hypot(*[sample - mean for sample in samples]) / math.sqrt(len(samples) - 1)


#: No launch takes longer than an hour: a longer duration is the difference of two times that wrapped below zero.
LONGEST_US = 3.6e9


def valid_duration(cell: str) -> float | None:
    """Returns the duration in a cell, in microseconds; None unless it is above zero and at most LONGEST_US."""
    value = parse_real(cell)
    return value if value is not None and 0 < value <= LONGEST_US else None


def number_cell(value: float) -> str:
    """Returns a number as a cell, with at most six decimals (a picosecond for a duration in microseconds)."""
    text = f"{value:.6f}"
    return text.rstrip("0").rstrip(".")


#: Samples with a larger relative standard deviation are noisy. A spread that is not known counts as this one.
NOISE_LIMIT = 0.10
#: Samples with a larger relative standard deviation describe no single duration: nothing is faster or slower than they.
AMBIGUOUS_LIMIT = 0.20
#: Durations that differ by less than so many standard deviations of their samples may be equal.
NOISE_WIDTHS = 2.0
#: A call with a longer span, as a multiple of the sum of its kernels, waits for the host.
HOST_BOUND = 1.2
#: Noise is computed from at least this many samples; a mode has as many.
LEAST_FOR_NOISE = 3
#: Fewer samples say nothing about drift or two modes.
_LEAST_FOR_SHAPE = 10
#: Smaller relative differences of two medians are not reported.
_TELLING = 0.05
#: Two-sided 1 % quantile of the normal distribution, for the rank-sum statistic of the halves.
_DRIFT_Z = 2.58
#: The least share of the samples in a mode.
_LEAST_MODE = 0.2
#: Ashman's D (1994) of the two modes, after the best split. A split through one normal population has D = 2.7, through
#: a uniform one 3.5; of ten normal samples 1 in 100 exceeds 6 by accident.
_MODES_D = 6.0
#: Outliers are more median absolute deviations from the median. Of normal samples Tukey's "far out" values are as far,
#: but quartiles describe the disturbance where another program takes more than a quarter of the samples.
_FAR_OUT = 7.0
#: A duration below this share of the roofline's bound is wrong; the rest is rounding of clocks and data sheets.
ROOFLINE_SLACK = 0.95


class Quality(Word):
    """The quality of a duration; an empty cell means that the samples are unknown."""

    UNKNOWN = "unknown"  # fewer than three samples
    QUIET = "quiet"
    NOISY = "noisy"  # relative standard deviation over NOISE_LIMIT
    DRIFTING = "drifting"  # the later half of the samples is slower, or faster, than the earlier half
    BIMODAL = "bimodal"  # two populations
    THROTTLED = "throttled"  # the device ran below its clock
    ABOVE_ROOFLINE = "above roofline"  # shorter than the device's peaks allow
    COMPOSITION = "composition"  # of several operators of torch in place of the kernel

    @property
    def is_warning(self) -> bool:
        """Whether reports count the samples as not quiet: there are enough samples, and no composition was timed."""
        return self not in (Quality.QUIET, Quality.UNKNOWN, Quality.COMPOSITION)


@dataclass(frozen=True)
class QualityVerdict:
    """The quality of one row's samples.

    Attributes:
        reason: why, with numbers; for a quiet row the outliers, or "".
        outliers: the number of samples that `without_outliers` leaves out.
    """

    quality: Quality
    reason: str = ""
    outliers: int = 0


def typical_mean(samples_us: Sequence[float]) -> float:
    """Returns the mean of the samples that are not outliers: the stored duration of a kernel."""
    return fmean(without_outliers(samples_us))


def without_outliers(samples_us: Sequence[float]) -> Sequence[float]:
    """Returns the samples without the outliers, in their order.

    An outlier is more than seven median absolute deviations from the median, and more than 10 % of the median. Fewer
    than ten samples have no outliers.
    """
    if len(samples_us) < _LEAST_FOR_SHAPE:
        return samples_us
    middle = median(samples_us)
    reach = max(_FAR_OUT * median([abs(sample - middle) for sample in samples_us]), NOISE_LIMIT * middle)
    return [sample for sample in samples_us if abs(sample - middle) <= reach]


def relative_noise(samples_us: Sequence[float]) -> float | None:
    """Returns the standard deviation of all samples as a share of the stored mean, which is without the outliers.

    Returns:
        None for fewer than two samples.
    """
    if len(samples_us) < 2:
        return None
    return standard_deviation(samples_us, fmean(samples_us)) / typical_mean(samples_us)


def is_noisy(quality: Quality | None, noise: float | None) -> bool:
    """Returns whether the samples of a row need a warning.

    Args:
        quality: the quality of the row; None for a row without it, for which the noise decides.
        noise: standard deviation of the samples as a share of their mean; None or NaN if unknown.
    """
    if quality is not None:
        return quality.is_warning
    return noise is not None and noise > NOISE_LIMIT


def is_composition(quality: str, stand_in: str) -> bool:
    """Returns whether a replayed duration is that of a composition, and no estimate of the kernel's own.

    Args:
        quality, stand_in: the cells of Quality and Stand-In. A row with neither is undecided.
    """
    return bool(stand_in.strip()) or Quality.from_cell(quality) is Quality.COMPOSITION


def judge_composition(verdict: QualityVerdict) -> QualityVerdict:
    """Returns the verdict on a composition, whose reason is the verdict on its samples."""
    samples = "" if verdict.quality is Quality.QUIET else verdict.quality.value
    reason = ": ".join(filter(None, (samples, verdict.reason)))
    return QualityVerdict(Quality.COMPOSITION, reason, verdict.outliers)


def judge(samples_us: Sequence[float], *, throttled: str = "", bound_us: float | None = None) -> QualityVerdict:
    """Judges samples.

    Args:
        samples_us: durations in microseconds, all above zero, in the order in which they were taken; at least one.
        throttled: why the device ran below its clock meanwhile; "" if it did not.
        bound_us: the least time that the peaks of the device allow (opatlas/row/roofline.py); None if unknown.

    Returns:
        The first of these that holds: above roofline, throttled, unknown, bimodal, drifting, noisy, quiet.
    """
    middle = median(samples_us)
    outliers = len(samples_us) - len(without_outliers(samples_us))
    quality, reason = _quality(samples_us, middle, throttled, bound_us)
    named = ""
    if outliers:
        verb = "is an outlier" if outliers == 1 else "are outliers"
        farthest = max(samples_us, key=lambda sample: abs(sample - middle))
        named = f"{outliers} of {len(samples_us)} samples {verb}, the farthest {duration(farthest)}"
    return QualityVerdict(quality, "; ".join(filter(None, (reason, named))), outliers)


def _quality(samples_us: Sequence[float], middle: float, throttled: str, bound_us: float | None) -> tuple[Quality, str]:
    """Returns the quality, and the reason without the outliers."""
    if bound_us is not None and middle < bound_us * ROOFLINE_SLACK:
        text = (
            f"the median of {duration(middle)} is below {duration(bound_us)}, the least that the device's peaks allow"
        )
        return Quality.ABOVE_ROOFLINE, text
    if throttled:
        return Quality.THROTTLED, throttled
    if len(samples_us) < LEAST_FOR_NOISE:
        return Quality.UNKNOWN, f"too few samples to judge noise: {len(samples_us)}"
    if modes := find_modes(samples_us):
        return Quality.BIMODAL, f"two modes: {modes.text('samples')}"
    if drift := _drift(samples_us, middle):
        return Quality.DRIFTING, drift
    noise = relative_noise(samples_us) or 0.0
    if noise > NOISE_LIMIT:
        return Quality.NOISY, f"standard deviation {percent(noise, 0)} of the mean, median {duration(middle)}"
    return Quality.QUIET, ""


def _drift(samples_us: Sequence[float], middle: float) -> str:
    """Compares the halves by the rank-sum test (Mann and Whitney, 1947); returns "" if they do not differ."""
    if len(samples_us) < _LEAST_FOR_SHAPE:
        return ""
    half = len(samples_us) // 2
    first, last = samples_us[:half], samples_us[-half:]
    before, after = median(first), median(last)
    if abs(after - before) <= _TELLING * middle:
        return ""
    # Equal values share the mean of their ranks.
    _, order, counts = np.unique([*first, *last], return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    expected = half * (2 * half + 1) / 2
    deviation = math.sqrt(half * half * (2 * half + 1) / 12)
    if abs(float(ranks[order[:half]].sum()) - expected) < _DRIFT_Z * deviation:
        return ""
    return f"the samples drift: median {duration(before)} of the first half, {duration(after)} of the last"


@dataclass(frozen=True)
class Modes:
    """Two populations of samples: the sizes, and the medians in microseconds."""

    low_count: int
    low_us: float
    high_count: int
    high_us: float

    def text(self, sample: str) -> str:
        """Returns a phrase with sizes and medians; `sample` is the plural noun for the samples."""
        low, high = duration(self.low_us), duration(self.high_us)
        return f"{self.low_count} {sample} around {low} and {self.high_count} around {high}"


def find_modes(samples_us: Sequence[float]) -> Modes | None:
    """Splits samples in two with the least variance within (Otsu, 1979); None if they are one population."""
    count = len(samples_us)
    least = max(LEAST_FOR_NOISE, math.ceil(count * _LEAST_MODE))
    if count < _LEAST_FOR_SHAPE:
        return None
    ranked = sorted(samples_us)
    telling = _TELLING * median(ranked)
    if ranked[-1] - ranked[0] <= telling:
        # No two modes are farther apart. This is so for most rows, and found in a tenth of the time.
        return None
    ordered = np.asarray(ranked, dtype=np.float64)
    sums = np.cumsum(ordered)
    sizes = np.arange(least, count - least + 1)
    below, total = sums[sizes - 1], sums[-1]
    between = sizes * (count - sizes) * (below / sizes - (total - below) / (count - sizes)) ** 2
    split = int(sizes[between.argmax()])
    low, high = ordered[:split], ordered[split:]
    distance = float(high.mean() - low.mean())
    if distance <= telling:
        return None
    # The rounding of a coarse clock hides variance, which is added to each mode (Sheppard, 1898).
    steps = np.diff(ordered)
    rounding = float(steps[steps > 0].min()) / math.sqrt(12)
    width = math.hypot(float(low.std(ddof=1)), float(high.std(ddof=1)), rounding, rounding)
    if width * _MODES_D > distance * math.sqrt(2):
        return None
    return Modes(len(low), float(np.median(low)), len(high), float(np.median(high)))


class Source(Word):
    """The source of a duration."""

    REPLAYED = "replayed"
    CAPTURED = "captured"


class Duration(NamedTuple):
    """A duration of a row.

    Attributes:
        us: the stored duration in microseconds.
        median_us: the median of the samples; the stored duration if the row has no median.
        least_us, std_us, samples: minimum, standard deviation and number of the samples; NaN if unknown.
        quality: of the samples; of captures BIMODAL if the launches have two populations, else None.
        noise: the standard deviation as a share of the stored duration; NaN if unknown.
        noisy: whether the samples are noisy, drifting, bimodal or throttled.
        composed: whether several operators of torch were timed in place of the kernel; None if the row does not say.
        run_id: the run that measured it, or the ingests, with semicolons; "" if unknown.
        cache, instrument: as in the columns Cache State and Instrument; "" for captures.
    """

    source: Source
    us: float
    median_us: float
    least_us: float
    std_us: float
    samples: float
    quality: Quality | None
    noise: float
    noisy: bool
    composed: bool | None
    run_id: str
    cache: str
    instrument: str

    @property
    def error(self) -> float:
        """The standard error as a share of the duration; of a noisy one that of a sample, and not of the mean.

        An unknown standard deviation counts as NOISE_LIMIT, and an unknown number of samples as one.
        """
        noise = NOISE_LIMIT if math.isnan(self.noise) else self.noise
        return noise if self.noisy or math.isnan(self.samples) else noise / math.sqrt(max(self.samples, 1))

    @property
    def conditions(self) -> str:
        """Cache state and instrument, `cold, cupti`; "captured" or "replayed" if neither is known."""
        return ", ".join(filter(None, (self.cache, self.instrument))) or str(self.source)


@dataclass(frozen=True)
class Durations:
    """The durations of all rows of a table from one source, as columns; see `Duration`.

    Attributes:
        us: NaN for a row without a valid duration.
        middle_us: the median, NaN where the row has none.
    """

    source: Source
    us: Floats
    middle_us: Floats
    least_us: Floats
    std_us: Floats
    samples: Floats
    quality: Sequence[Quality | None]
    composed: Sequence[bool | None]
    run_id: Sequence[str]
    cache: Sequence[str]
    instrument: Sequence[str]

    def __len__(self) -> int:
        return len(self.us)

    @cached_property
    def known(self) -> Mask:
        """Which rows have a duration."""
        return ~np.isnan(self.us)

    @cached_property
    def of_kernel(self) -> Mask:
        """Which rows have a duration that is not that of a composition."""
        composed: Mask = np.array([bool(each) for each in self.composed], dtype=bool)
        return self.known & ~composed

    @cached_property
    def median_us(self) -> Floats:
        """The median of the samples; where a row has none, the stored duration."""
        return np.where(np.isnan(self.middle_us), self.us, self.middle_us)

    @cached_property
    def noise(self) -> Floats:
        """The standard deviation of the samples as a share of the stored duration; NaN if unknown."""
        return self.std_us / self.us

    @cached_property
    def noisy(self) -> Mask:
        """Whether the samples of each row are noisy, drifting, bimodal or throttled.

        The launches of a capture are of different places of a step: their spread is no noise.
        """
        noise = np.full(len(self), np.nan) if self.source is Source.CAPTURED else self.noise
        return np.array([is_noisy(*each) for each in zip(self.quality, noise.tolist(), strict=True)], dtype=bool)

    def __getitem__(self, position: int) -> Duration | None:
        """Returns the duration of the row at a position; None if it has none from this source."""
        if not self.known[position]:
            return None
        columns = (self.us, self.median_us, self.least_us, self.std_us, self.samples, self.noise)
        us, median_us, least_us, std_us, samples, noise = (float(column[position]) for column in columns)
        return Duration(
            *(self.source, us, median_us, least_us, std_us, samples, self.quality[position], noise),
            *(bool(self.noisy[position]), self.composed[position], self.run_id[position]),
            *(self.cache[position], self.instrument[position]),
        )


def run_medians(cell: str) -> dict[str, float]:
    """Returns the medians in a cell of Pooled Run Durations, in microseconds, by run id."""
    parts = (part.rpartition(" ") for part in cell.split("; "))
    return {run_id: us for run_id, _, text in parts if (us := valid_duration(text)) is not None}
