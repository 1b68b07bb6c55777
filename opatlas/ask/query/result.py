"""The answer to a question: a duration with its interval, and the rows that it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from opatlas.arrays import Floats
from opatlas.errors import OpAtlasError
from opatlas.row.quality import NOISE_LIMIT

#: Two-sided 90 % quantile of the normal distribution.
NORMAL_90 = 1.645
#: The 90 % quantile of the relative difference of equal rows in one session, and on two devices of one type.
SAME_MACHINE_FLOOR, OTHER_MACHINE_FLOOR = 0.021, 0.053
#: How far another machine lies from the median of some machines in nine of ten cases, as a multiple of the difference
#: between the largest and the smallest of them, by their number: of normally distributed machines, by simulation.
_OF_SPREAD = {3: 1.80, 4: 1.20, 5: 0.98, 6: 0.84, 7: 0.76, 8: 0.70}
#: The lower end of an interval stays above zero.
LARGEST_HALF_WIDTH = 0.99


class NoAnswer(OpAtlasError):
    """A question without an answer. The message names the missing data, and the data that the database has instead."""


class How(str, Enum):
    """How a duration is known, from the best to the worst."""

    MEASURED = "measured"  # the row is stored
    INTERPOLATED = "interpolated"  # from rows around it
    EXTRAPOLATED = "extrapolated"  # from rows that are all smaller, or all larger
    ANALYTIC = "analytic"  # from bytes and operations

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class UsedRow:
    """A stored row that an answer comes from.

    Attributes:
        case_id: the id of the row, as pytest shows it.
        run_id: the run that measured it; "" for a captured duration.
        duration_us: its duration.
        distance: how far the row is from the question; 0 for the row itself.
    """

    case_id: str
    run_id: str
    duration_us: float
    distance: float = 0.0


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The answer to a question.

    Attributes:
        duration_us: the duration in microseconds.
        interval_us: the lower and the upper end of the 90 % interval.
        how: whether the row is stored, or the duration is derived from others.
        kernel_type: the kernel type of the question.
        implementation: name and version of the software that ran ("torch", "flashinfer 0.5.3").
        source: "replayed", or "captured" by a profiler; "captured, replayed" of rows of both.
        rows: the stored rows that the answer comes from, the nearest first.
        device: the device that measured the rows; "" if unknown.
        cache: the cache state of the rows ("cold", "warm"), several with commas; "" if unknown.
        instrument: the instrument that measured the rows ("cupti"), several with commas; "capture" for a captured
            duration; "" if unknown.
        machines: the number of machines that measured the row; None unless the row is stored and has it.
        quality: the quality of the row's samples; "" unless the row is stored and its quality is known.
        note: the assumptions, or why the row is not stored; "" if there is nothing to say.
        composed: whether a composition of torch operators ran in place of the one kernel of an NPU; None if the rows do
            not say.
        other_dtypes: whether no row that the duration comes from has the dtypes of the question.
        rivals: the other answers: those of the other implementations, the fastest first, then the capture of a row
            that was also replayed, and durations of the row on other devices.
    """

    duration_us: float
    interval_us: tuple[float, float]
    how: How
    kernel_type: str
    implementation: str
    rows: tuple[UsedRow, ...]
    device: str = ""
    cache: str = ""
    instrument: str = ""
    machines: int | None = None
    quality: str = ""
    note: str = ""
    composed: bool | None = False
    source: str = ""
    other_dtypes: bool = False
    rivals: tuple[QueryResult, ...] = ()

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs that measured the rows, each once."""
        return tuple(dict.fromkeys(row.run_id for row in self.rows if row.run_id))


def leads(how: How, interval_us: tuple[float, float], row_us: float) -> bool:
    """Returns whether a prediction goes before a stored row of another implementation.

    Args:
        how, interval_us: of the prediction. An analytic one has no interval that was found by hiding rows.
        row_us: the duration of the row; NaN if no row is stored, and the prediction has nothing to go before.
    """
    return bool(np.isnan(row_us)) or (how is not How.ANALYTIC and interval_us[1] < row_us)


def machine_floor(machines: int | None, spread: float | None) -> float:
    """Returns the relative difference of a row on another machine of the same type in nine of ten cases.

    Args:
        machines: the number of machines that measured the row; None if unknown.
        spread: the largest minus the smallest median of these machines, as a share of the row's; None if unknown.

    Returns:
        OTHER_MACHINE_FLOOR, or more, for fewer than three machines: the difference of two says little.
    """
    if machines is None or spread is None:
        return OTHER_MACHINE_FLOOR
    if machines < min(_OF_SPREAD):
        return max(spread, OTHER_MACHINE_FLOOR)
    return max(_OF_SPREAD[min(machines, max(_OF_SPREAD))] * spread, SAME_MACHINE_FLOOR)


def measured_half_widths(
    std_us: Floats | float,
    samples: Floats | float,
    duration_us: Floats | float,
    floors: Floats | float,
    noisy: npt.NDArray[np.bool_] | bool,
) -> Floats:
    """Returns the half widths, as shares of the durations, of the intervals of stored rows, or of one row.

    Args:
        std_us, samples: standard deviation and number of the samples; NaN if unknown, which counts as NOISE_LIMIT, and
            as one sample.
        noisy: rows whose samples drift, have two modes or differ much: their interval is that of a sample, and not of
            the mean.
        floors: the relative differences between equal rows (SAME_MACHINE_FLOOR, `machine_floor`).
    """
    noise = np.nan_to_num(std_us / duration_us, nan=NOISE_LIMIT)
    error = NORMAL_90 * noise / np.where(noisy, 1.0, np.sqrt(np.fmax(samples, 1)))
    widths: Floats = np.hypot(error, floors)
    return widths


def interval_of(duration_us: Floats | float, half_widths: Floats) -> tuple[Floats, Floats]:
    """Returns the lower and the upper ends of intervals by their half widths as shares of the durations."""
    return duration_us * (1 - np.minimum(half_widths, LARGEST_HALF_WIDTH)), duration_us * (1 + half_widths)
