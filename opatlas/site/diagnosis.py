"""Verdicts on the rows of a database, their advice, and the rows that lose the most time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from opatlas.diagnosis.advice import advice
from opatlas.diagnosis.diagnosis import Diagnosis
from opatlas.diagnosis.kernels import CAPTURED, DEVICE, LAUNCHES, kernels_of_rows, replayed_by, row_frame
from opatlas.diagnosis.rules import verdict_rules
from opatlas.errors import OpAtlasError
from opatlas.query.answering_rows import AnsweringRows
from opatlas.query.database import OpenDatabase
from opatlas.row.communication import is_communication
from opatlas.site.columns import number_column, word_column

#: The rows of the ranking.
_MOST_ROWS = 1_000
_WORDS = ("id", "kernel_type", "implementation", "origin", "device", "verdict")
_NUMBERS = ("duration_us", "launches", "time_us", "roofline", "lost_us")
#: What the column origin says.
_ORIGINS = {True: "captured", False: "replayed"}


class RowJudge:
    """Judges the rows of an implementation, one kernel type after another, as `diagnose` does all of them.

    Attributes:
        device: the device that the database is of; "" if unknown.
        durations: how many durations were captured or replayed, on which device, by what; the most frequent first.
    """

    def __init__(self, database: OpenDatabase, implementation: str) -> None:
        durations = Counter[tuple[bool, str, str]]()
        self._shortest_us = np.inf
        for kernel_type in database.kernel_types():
            try:
                stored = database.answers.stored_rows(kernel_type, implementation)
            except OpAtlasError:
                # Told where the kernel type is shown.
                continue
            durations.update(zip(stored.captured, stored.devices, replayed_by(stored), strict=True))
            durations.update((each.is_captured, each.device, "") for each in stored.left_out.values())
            if not is_communication(kernel_type):
                self._shortest_us = min([self._shortest_us, *stored.duration_us.tolist()])
        self.durations = [(_ORIGINS[captured], *others, rows) for (captured, *others), rows in durations.most_common()]
        self.device = database.answers.device

    def judge(self, stored: AnsweringRows) -> list[dict[str, Any]]:
        """Returns where each duration is from, and its verdict ("" for none) and numbers where they are known.

        Numbers are the launches that captures count, the time of all launches, the roofline in percent, and lost_us.
        """
        if not len(stored):
            return []
        frame = row_frame(stored)
        lines: list[dict[str, Any]] = [
            {"origin": _ORIGINS[captured], "device": device, "verdict": ""}
            # An implementation was not captured, but replayed.
            | ({"implementation": _ORIGINS[True]} if captured else {})
            for captured, device in zip(frame[CAPTURED], frame[DEVICE], strict=True)
        ]
        if is_communication(stored.kernel_type):
            return lines
        found = Diagnosis(kernels_of_rows(Path(), self.device, [frame], self._shortest_us))
        shares, counted = found.shares.share, found.table.frame[LAUNCHES]
        for place, line in enumerate(lines):
            line |= {
                "verdict": str(found.verdicts.first[place]),
                "launches": counted.iloc[place],
                "time_us": found.duration_us[place],
                "roofline": shares[place] * 100,
                "lost_us": found.lost_us[place] if np.isfinite(shares[place]) else np.nan,
            }
        return lines


def row_judges(database: OpenDatabase) -> dict[str, RowJudge]:
    """Returns what judges the rows of each implementation."""
    return {name: RowJudge(database, name) for name in database.implementations}


def diagnosis_page(tables: Sequence[pd.DataFrame]) -> dict[str, Any] | None:
    """Returns the verdicts with their rows, rules and advice, and the rows that lose the most time; None without any.

    A row whose roofline is not known loses at most its time.

    Args:
        tables: for each kernel type the rows with what a `RowJudge` says, and kernel_type.
    """
    judged = [table for table in tables if "time_us" in table]
    if not judged:
        return None
    rows = pd.concat([table[[*_WORDS, *_NUMBERS]] for table in judged], ignore_index=True)
    rows = rows[rows["time_us"].notna()]
    if not len(rows):
        return None
    lost = rows["lost_us"].fillna(rows["time_us"])
    ranking = rows.loc[lost.sort_values(ascending=False, kind="stable").index[:_MOST_ROWS]]
    words = {name: word_column(ranking[name].astype(str).tolist()) for name in _WORDS}
    columns = {**words, **{name: number_column(ranking[name].tolist()) for name in _NUMBERS}}
    counts = rows["verdict"].value_counts()
    times = rows.groupby("verdict")["time_us"].sum()
    return {
        "verdicts": [
            {
                "verdict": str(verdict),
                "zh": rule.zh,
                "rows": int(counts[verdict]),
                "duration_us": float(times[verdict]),
                "test": rule.test,
                "source": rule.source,
                "what": advice()[verdict].what,
                "what_zh": advice()[verdict].zh,
                "apis": dict(advice()[verdict].apis),
            }
            for verdict, rule in verdict_rules().items()
            if verdict in counts
        ],
        "known": int(rows["lost_us"].notna().sum()),
        "ranked": len(rows),
        "time_us": float(rows["time_us"].sum()),
        "counted": int(rows["launches"].notna().sum()),
        "table": {
            "rows": len(ranking),
            "columns": {name: each for name, each in columns.items() if each is not None},
        },
    }
