"""No row is far above both of its neighbours in M.

A duration that grows with M lies between those of its neighbours. A row is found where its duration less two standard
deviations is more than FACTOR times the larger of its neighbours' durations plus two standard deviations. A step, as
tiles make it, is above one neighbour only.
"""

from __future__ import annotations

import numpy as np

from opatlas.checks.check import Check, CheckedDatabase, CheckedTable, Finding
from opatlas.checks.families import families
from opatlas.report.figures import microseconds_text

FACTOR = 1.25


def _find(_database: CheckedDatabase, table: CheckedTable) -> list[Finding]:
    found = []
    for family in families(table, least=3):
        allowed = np.maximum(family.high_us[:-2], family.high_us[2:])
        for i in (np.flatnonzero(family.low_us[1:-1] > FACTOR * allowed) + 1).tolist():
            # On a straight line in log-log scales.
            place = np.log(family.m[i] / family.m[i - 1]) / np.log(family.m[i + 1] / family.m[i - 1])
            between = family.us[i - 1] ** (1 - place) * family.us[i + 1] ** place
            ratio = family.us[i] / between
            before, after = (
                f"{microseconds_text(family.us[near])} at M {family.m[near]:,.0f}" for near in (i - 1, i + 1)
            )
            likely = microseconds_text(between)
            reason = f"{ratio:.2f} times the {likely} that its neighbours make likely: {before}, {after}"
            found.append(table.finding(family.places[i], microseconds_text(family.us[i]), reason, ratio))
    return found


SPIKES = Check(
    "spikes",
    "rows far above both of their neighbours in M",
    "measure the row again; if it stays, enter it with its cause into known_findings.yaml",
    of_table=_find,
)
