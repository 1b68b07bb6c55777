"""No duration is shorter than the peaks of the device allow (opatlas/model/roofline.py).

A cold row reads its inputs from memory; a warm row or a captured one may find them in the cache, and is held against
the arithmetic alone. The tolerance is that of opatlas/model/quality.py.
"""

from __future__ import annotations

import numpy as np

from opatlas.checks.check import Check, CheckedDatabase, CheckedTable, Finding
from opatlas.model.quality import Quality, judge
from opatlas.model.roofline import bound_us, work_of
from opatlas.model.schema import BASE, CACHE_STATE
from opatlas.report.figures import microseconds_text

_COLD = "cold"


def _find(database: CheckedDatabase, table: CheckedTable) -> list[Finding]:
    peak = database.peak
    if peak is None:
        return []
    found = []
    columns = {name: table.cells(name) for name in BASE}
    cache = table.cells(CACHE_STATE)
    replayed, captured = table.replayed.us, table.captured.us
    for place in np.flatnonzero(~(np.isnan(replayed) & np.isnan(captured))).tolist():
        work = work_of(table.kernel_type, {name: cells[place] for name, cells in columns.items()})
        if work is None:
            continue
        for us, cold in ((replayed[place], cache[place].strip() == _COLD), (captured[place], False)):
            least = bound_us(work, peak, cold=cold)
            if np.isnan(us) or least is None:
                continue
            verdict = judge([us], bound_us=least)
            if verdict.quality is Quality.ABOVE_ROOFLINE:
                found.append(table.finding(place, microseconds_text(us), verdict.reason, least / us))
    return found


BELOW_ROOFLINE = Check(
    "below-roofline",
    "durations shorter than the peaks of the device allow",
    "look at what ran (opatlas history DB ...): a kernel that did less than the row asks for, or another device",
    of_table=_find,
    applies=lambda database: (
        "" if database.peak is not None else f"the peaks of {database.device or 'an unknown device'} are not known"
    ),
)
