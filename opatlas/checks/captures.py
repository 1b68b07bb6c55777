"""The launches of a captured signature are one population.

Two populations are two cases that the columns do not tell apart, such as two sets of lengths of an attention kernel:
their median and mean are of neither. The samples are those that ingests keep, pooled as the columns have them
(opatlas/capture/pool.py); the test is that of opatlas/model/quality.py: Ashman's D of the best split.
"""

from __future__ import annotations

from opatlas.checks.check import Check, CheckedDatabase, CheckedTable, Finding
from opatlas.model.quality import Quality, judge, relative_noise
from opatlas.report.figures import microseconds_text


def _find(database: CheckedDatabase, table: CheckedTable) -> list[Finding]:
    pooled = database.pooled.get(table.kernel_type)
    if pooled is None:
        return []
    found = []
    for case in pooled:
        place = table.first_places.get(case.signature)
        verdict = judge(case.durations_us)
        if place is not None and verdict.quality is Quality.BIMODAL:
            value = microseconds_text(case.durations.median_us)
            found.append(table.finding(place, value, verdict.reason, relative_noise(case.durations_us) or 0.0))
    return found


CAPTURES = Check(
    "captures",
    "captured signatures with two populations",
    "find out what tells them apart (fill-runtime for attention), or use the replayed duration",
    of_table=_find,
    applies=lambda database: "" if database.pooled else "no samples of captures are kept",
)
