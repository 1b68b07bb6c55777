"""The durations of rows: which cells are one, how well it is known, and whether its samples are noisy.

A row may have a duration of a replay and one of captures. The stored duration of a replay is the mean of a kernel's
samples without the outliers, or the median of a message's samples; that of captures is the mean of the launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from opatlas.arrays import Floats, Mask
from opatlas.row.quality import Quality, is_noisy, valid_duration


class Source(str, Enum):
    """The source of a duration."""

    REPLAYED = "replayed"
    CAPTURED = "captured"

    def __str__(self) -> str:
        return self.value


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
        return Duration(
            source=self.source,
            us=float(self.us[position]),
            median_us=float(self.median_us[position]),
            least_us=float(self.least_us[position]),
            std_us=float(self.std_us[position]),
            samples=float(self.samples[position]),
            quality=self.quality[position],
            noise=float(self.noise[position]),
            noisy=bool(self.noisy[position]),
            composed=self.composed[position],
            run_id=self.run_id[position],
            cache=self.cache[position],
            instrument=self.instrument[position],
        )


def run_medians(cell: str) -> dict[str, float]:
    """Returns the medians in a cell of Pooled Run Durations, in microseconds, by run id."""
    parts = (part.rpartition(" ") for part in cell.split("; "))
    return {run_id: us for run_id, _, text in parts if (us := valid_duration(text)) is not None}
