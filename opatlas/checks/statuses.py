"""Each status is one that OpAtlas knows, says why where it is no success, and goes with what the row holds."""

from __future__ import annotations

import numpy as np

from opatlas.checks.check import Check, CheckedDatabase, CheckedTable, Finding
from opatlas.model.schema import STATUS, STATUS_REASON, Status


def _find(_database: CheckedDatabase, table: CheckedTable) -> list[Finding]:
    found = []
    without_duration = np.isnan(table.replayed.us)
    cells = zip(table.cells(STATUS), table.cells(STATUS_REASON), without_duration.tolist(), strict=True)
    for place, (cell, reason, empty) in enumerate(cells):
        status = Status.of_cell(cell)
        problem = ""
        if cell.strip() and status is None:
            problem = "no status of OpAtlas"
        elif status is Status.MEASURED and empty:
            problem = "the row has no replayed duration"
        elif status not in (None, Status.MEASURED) and not reason.strip():
            problem = "without a Status Reason"
        if problem:
            found.append(table.finding(place, cell.strip(), problem))
    return found


STATUSES = Check(
    "statuses",
    "statuses without a reason, or that do not go with their rows",
    "replay the rows again (opatlas bench --database-path DB --retry-failed)",
    of_table=_find,
)
