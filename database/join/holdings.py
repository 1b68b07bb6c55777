"""How many rows there are, and how many of them have a duration."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from database.schema import AVERAGE, PROFILING_AVERAGE
from database.statistics import valid_duration


@dataclass
class Holdings:
    """Of a table, or of many: `replayed` and `captured` are the rows that have a duration of that kind."""

    rows: int = 0
    replayed: int = 0
    captured: int = 0

    @property
    def durations(self) -> str:
        """`106 replayed, 108 captured`."""
        return f"{self.replayed:,} replayed, {self.captured:,} captured"


def holdings_of(frame: pd.DataFrame) -> Holdings:
    """Those of text cells."""
    replayed, captured = (
        sum(valid_duration(cell) is not None for cell in frame[name].tolist()) if name in frame.columns else 0
        for name in (AVERAGE, PROFILING_AVERAGE)
    )
    return Holdings(len(frame), replayed, captured)
