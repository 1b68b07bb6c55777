"""Verdicts on the rows of a database, their advice, and the rows that lose the most time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from opatlas.diagnosis.advice import advice
from opatlas.diagnosis.diagnosis import Diagnosis
from opatlas.diagnosis.kernels import kernels_of_rows, row_frame
from opatlas.diagnosis.rules import verdict_rules
from opatlas.model.communication import is_communication
from opatlas.query.stored_rows import StoredRows
from opatlas.site.columns import number_column, word_column

#: The rows of the ranking.
_MOST_ROWS = 1_000
_WORDS, _NUMBERS = ("id", "kernel_type", "implementation", "verdict"), ("duration_us", "roofline", "lost_us")


def row_verdicts(stored: StoredRows, device: str) -> list[dict[str, Any]]:
    """Returns verdict ("" for none), roofline in percent and lost_us of each stored row; the numbers where known."""
    if is_communication(stored.kernel_type) or not len(stored):
        return [{"verdict": ""} for _ in range(len(stored))]
    found = Diagnosis(kernels_of_rows(Path(), device, [row_frame(stored)], []))
    shares = found.shares.share
    lost = np.where(np.isfinite(shares), found.lost_us, np.nan)
    return [
        {"verdict": str(verdict), "roofline": share * 100, "lost_us": us}
        for verdict, share, us in zip(found.verdicts.first, shares.tolist(), lost.tolist(), strict=True)
    ]


def diagnosis_page(tables: Sequence[pd.DataFrame]) -> dict[str, Any] | None:
    """Returns the verdicts with their rows, rules and advice, and the rows that lose the most time; None without any.

    Args:
        tables: for each kernel type the rows with `row_verdicts`, and kernel_type.
    """
    judged = [table for table in tables if "lost_us" in table]
    if not judged:
        return None
    rows = pd.concat([table[[*_WORDS, *_NUMBERS]] for table in judged], ignore_index=True)
    rows = rows[rows["verdict"].fillna("") != ""]
    if not len(rows):
        return None
    ranking = rows[rows["lost_us"].notna()].sort_values("lost_us", ascending=False, kind="stable").head(_MOST_ROWS)
    words = {name: word_column(ranking[name].astype(str).tolist()) for name in _WORDS}
    columns = {**words, **{name: number_column(ranking[name].tolist()) for name in _NUMBERS}}
    counts = rows["verdict"].value_counts()
    times = rows.groupby("verdict")["duration_us"].sum()
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
        "table": {
            "rows": len(ranking),
            "columns": {name: each for name, each in columns.items() if each is not None},
        },
    }
