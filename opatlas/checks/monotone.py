"""More rows of M do not take clearly less time.

A row is found where its duration less two standard deviations is more than FACTOR times the duration plus two
standard deviations of a row of the same family with a larger M.
"""

from __future__ import annotations

import numpy as np

from opatlas.checks.check import Check, CheckedDatabase, CheckedTable, Finding
from opatlas.checks.families import families
from opatlas.report.figures import microseconds_text

FACTOR = 1.25


def _find(_database: CheckedDatabase, table: CheckedTable) -> list[Finding]:
    found = []
    for family in families(table, least=2):
        fastest_later = np.minimum.accumulate(family.high_us[::-1])[::-1]
        for i in np.flatnonzero(family.low_us[:-1] > FACTOR * fastest_later[1:]).tolist():
            fastest = i + 1 + int(np.argmin(family.high_us[i + 1 :]))
            ratio = family.us[i] / family.us[fastest]
            reason = (
                f"{ratio:.2f} times the {microseconds_text(family.us[fastest])} of M {family.m[fastest]:,.0f} "
                f"(line {family.places[fastest] + 2}), which is more work than M {family.m[i]:,.0f}"
            )
            found.append(table.finding(family.places[i], microseconds_text(family.us[i]), reason, ratio))
    return found


MONOTONE = Check(
    "monotone",
    "rows that take longer than a row with a larger M",
    "measure both again; if it stays, enter the row with its cause into known_findings.yaml",
    of_table=_find,
)
