"""No two rows of a kernel type have one signature."""

from __future__ import annotations

import numpy as np

from opatlas.checks.check import Check, CheckedDatabase, CheckedTable, Finding
from opatlas.report.figures import microseconds_text


def _find(_database: CheckedDatabase, table: CheckedTable) -> list[Finding]:
    found = []
    for place, signature in enumerate(table.signatures):
        earlier = table.first_places[signature]
        if earlier == place:
            continue
        ours, theirs = table.replayed.us[place], table.replayed.us[earlier]
        if np.isnan(ours) and np.isnan(theirs):
            ours, theirs = table.captured.us[place], table.captured.us[earlier]
        if np.isnan(ours) or np.isnan(theirs):
            durations, ratio = "", 1.0
        else:
            durations, ratio = f", which took {microseconds_text(theirs)}", max(ours / theirs, theirs / ours)
        value = "no duration" if np.isnan(ours) else microseconds_text(ours)
        found.append(table.finding(place, value, f"the same case as line {earlier + 2}{durations}", ratio))
    return found


DUPLICATES = Check(
    "duplicates",
    "rows that stand twice",
    "remove one of them; a replay fills the first one only",
    of_table=_find,
)
