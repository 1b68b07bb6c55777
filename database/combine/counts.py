"""Counts the rows of a database that have a duration."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from database.schema import AVERAGE, PROFILING_AVERAGE
from database.statistics import valid_duration


@dataclass
class DurationCounts:
    """How many rows a table has, and how many of them have a replayed and a captured duration."""

    rows: int = 0
    replayed: int = 0
    captured: int = 0

    @property
    def durations(self) -> str:
        """`106 replayed, 108 captured`."""
        return f"{self.replayed:,} replayed, {self.captured:,} captured"


def duration_counts(frame: pd.DataFrame) -> DurationCounts:
    """Counts the rows of a table of text cells."""
    replayed, captured = (
        sum(valid_duration(cell) is not None for cell in frame[name].tolist()) if name in frame.columns else 0
        for name in (AVERAGE, PROFILING_AVERAGE)
    )
    return DurationCounts(len(frame), replayed, captured)
