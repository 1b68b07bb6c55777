"""The page of the site with the verdicts on the rows of a database, and the rows that lose the most time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from opatlas.ask.query.database import OpenDatabase
from opatlas.capture.capture_reader import TYPE
from opatlas.errors import OpAtlasError
from opatlas.row.communication import is_communication
from opatlas.show.site.pages import ReportPage
from opatlas.show.site.rows import columns_of

from .diagnosis import Diagnosis
from .kernels import LAUNCHES, KernelLines, row_lines
from .verdicts import verdict_rules

#: The rows of the ranking.
_MOST_ROWS = 1_000
_COLUMNS = ("id", "kernel_type", "implementation", "origin", "device", "verdict", "duration_us")
_TIMES = ("launches", "time_us", "roofline", "lost_us")


class DiagnosisPage(ReportPage):
    """Judges rows as `opatlas diagnose` does."""

    def row_cells(self, database: OpenDatabase, implementation: str) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Returns the verdict on each row ("" for none), and its numbers of _TIMES, the roofline in percent."""
        kernels = []
        for kernel_type in database.kernel_types():
            if not is_communication(kernel_type):
                try:
                    kernels.append(database.answers.stored_rows(kernel_type, implementation))
                except OpAtlasError:
                    # Told where the kernel type is shown.
                    continue
        lines = KernelLines(database.path, row_lines(kernels), database.answers.device)
        judged: dict[str, list[Mapping[str, Any]]] = {}
        if len(lines.frame):
            found = Diagnosis(lines)
            share = found.shares.share
            lost_us = np.where(np.isfinite(share), found.lost_us, np.nan)
            numbers = zip(lines.frame[LAUNCHES], found.duration_us, share * 100, lost_us, strict=True)
            for kernel_type, verdict, times in zip(lines.frame[TYPE], found.verdicts.first, numbers, strict=True):
                cells = {"verdict": str(verdict), **dict(zip(_TIMES, times, strict=True))}
                judged.setdefault(kernel_type, []).append(cells)
        return judged

    def content(self, tables: Sequence[pd.DataFrame], capture: Path | None) -> dict[str, Any] | None:
        """Returns the verdicts with rows, rules and advice, and the rows that lose the most time.

        A row whose roofline is not known loses at most its time.
        """
        judged = [table[[*_COLUMNS, *_TIMES]] for table in tables if "time_us" in table]
        rows = pd.concat(judged, ignore_index=True).dropna(subset="time_us") if judged else pd.DataFrame()
        if not len(rows):
            return None
        lost = rows["lost_us"].fillna(rows["time_us"])
        ranking = rows.loc[lost.sort_values(ascending=False, kind="stable").index[:_MOST_ROWS]]
        counts, times = rows["verdict"].value_counts(), rows.groupby("verdict")["time_us"].sum()
        return {
            "verdicts": [
                {
                    "verdict": str(verdict),
                    "zh": rule.zh,
                    "rows": int(counts[verdict]),
                    "duration_us": float(times[verdict]),
                    "test": rule.test,
                    "source": rule.source,
                    "what": rule.advice.what,
                    "what_zh": rule.advice.zh,
                    "apis": dict(rule.advice.apis),
                }
                for verdict, rule in verdict_rules().items()
                if verdict in counts
            ],
            "known": int(rows["lost_us"].notna().sum()),
            "ranked": len(rows),
            "time_us": float(rows["time_us"].sum()),
            "counted": int(rows["launches"].notna().sum()),
            "table": columns_of(ranking),
        }
