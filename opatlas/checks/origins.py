"""Each duration names the run or the ingest that it comes from, and the manifest of that is there."""

from __future__ import annotations

import numpy as np

from opatlas.checks.check import Check, CheckedDatabase, CheckedTable, Durations, Finding
from opatlas.model.schema import PROFILING_RUN_ID, RUN_ID
from opatlas.report.figures import microseconds_text

_SEPARATOR = ";"


def _find(database: CheckedDatabase, table: CheckedTable) -> list[Finding]:
    return [
        *_without(table, table.replayed, RUN_ID, frozenset(database.manifests)),
        *_without(table, table.captured, PROFILING_RUN_ID, database.ingests),
    ]


def _without(table: CheckedTable, durations: Durations, column: str, known: frozenset[str]) -> list[Finding]:
    cells = table.cells(column)
    found = []
    for place in np.flatnonzero(~np.isnan(durations.us)).tolist():
        ids = [each.strip() for each in cells[place].split(_SEPARATOR) if each.strip()]
        missing = [each for each in ids if each not in known]
        if missing:
            reason = f"no manifest of {column} {missing[0]} in runs/ tells what it was measured on"
        elif not ids:
            reason = f"its {column} is empty: nothing tells what it was measured on"
        else:
            continue
        found.append(table.finding(place, microseconds_text(durations.us[place]), reason))
    return found


ORIGINS = Check(
    "origins",
    "durations of which no manifest tells where they come from",
    "restore runs/ from where the database was measured, or measure the rows again",
    of_table=_find,
)
