"""Verdicts on the rows of a database, their advice, and the rows that lose the most time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from opatlas.ask.query.answering_rows import AnsweringRows
from opatlas.ask.query.database import OpenDatabase
from opatlas.capture.capture_reader import TYPE
from opatlas.errors import OpAtlasError
from opatlas.outer.diagnosis.advice import advice
from opatlas.outer.diagnosis.diagnosis import Diagnosis
from opatlas.outer.diagnosis.kernels import LAUNCHES, KernelLines, replayed_by, row_lines
from opatlas.outer.diagnosis.rules import verdict_rules
from opatlas.row.communication import is_communication
from opatlas.show.site.columns import number_column, word_column

#: The rows of the ranking.
_MOST_ROWS = 1_000
_WORDS = ("id", "kernel_type", "implementation", "origin", "device", "verdict")
_TIMES = ("launches", "time_us", "roofline", "lost_us")
_NUMBERS = ("duration_us", *_TIMES)
#: What the column origin says.
_ORIGINS = {True: "captured", False: "replayed"}


class RowJudge:
    """Judges the rows of an implementation, as `diagnose` does.

    Attributes:
        device: the device that the database is of; "" if unknown.
        durations: how many durations were captured or replayed, on which device, by what; the most frequent first.
    """

    def __init__(self, database: OpenDatabase, implementation: str) -> None:
        durations = Counter[tuple[bool, str, str]]()
        kernels: list[AnsweringRows] = []
        for kernel_type in database.kernel_types():
            try:
                stored = database.answers.stored_rows(kernel_type, implementation)
            except OpAtlasError:
                # Told where the kernel type is shown.
                continue
            durations.update(zip(stored.captured, stored.devices, replayed_by(stored), strict=True))
            durations.update((each.is_captured, each.device, "") for each in stored.left_out.values())
            if not is_communication(kernel_type):
                kernels.append(stored)
        self.durations = [(_ORIGINS[captured], *others, rows) for (captured, *others), rows in durations.most_common()]
        self.device = database.answers.device
        self._verdicts = _verdicts(KernelLines(database.path, row_lines(kernels), self.device))

    def judge(self, stored: AnsweringRows) -> list[dict[str, Any]]:
        """Returns where each duration is from, and its verdict ("" for none) and numbers where they are known.

        Numbers are the launches that captures count, the time of all launches, the roofline in percent, and lost_us.
        """
        verdicts = self._verdicts.get(stored.kernel_type, [{"verdict": ""}] * len(stored))
        return [
            {"origin": _ORIGINS[captured], "device": device, **verdict}
            # An implementation was not captured, but replayed.
            | ({"implementation": _ORIGINS[True]} if captured else {})
            for captured, device, verdict in zip(stored.captured, stored.devices, verdicts, strict=True)
        ]


def _verdicts(kernels: KernelLines) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Returns the verdict on each kernel and the numbers of _TIMES, by kernel type."""
    judged: dict[str, list[Mapping[str, Any]]] = {}
    if len(kernels.frame):
        found = Diagnosis(kernels)
        share = found.shares.share
        lost_us = np.where(np.isfinite(share), found.lost_us, np.nan)
        lines = zip(kernels.frame[LAUNCHES], found.duration_us, share * 100, lost_us, strict=True)
        for kernel_type, verdict, times in zip(kernels.frame[TYPE], found.verdicts.first, lines, strict=True):
            line = {"verdict": str(verdict), **dict(zip(_TIMES, times, strict=True))}
            judged.setdefault(kernel_type, []).append(line)
    return judged


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
