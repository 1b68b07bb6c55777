"""Data tests of a database. A check finds rows or runs that a user should look at (docs/compare.md).

check.py                what a check is, and a database as checks see it
row_checks.py           checks of rows, files and runs
duration_checks.py      checks of durations: against peaks, other rows and their samples
op_mapping_checks.py    checks of op_mapping.yaml
results.py              what the checks found, and known_findings.yaml
"""

from __future__ import annotations

from opatlas.ask.checks.check import Check
from opatlas.ask.checks.duration_checks import BELOW_ROOFLINE, CAPTURES, MONOTONE, NOISY, SPIKES
from opatlas.ask.checks.op_mapping_checks import OP_MAPPING, OP_MAPPING_ROWS
from opatlas.ask.checks.row_checks import DUPLICATES, IMPOSSIBLE, MIXED, ORIGINS, STATUSES, UNREADABLE

#: All checks, in the order in which they run.
CHECKS: tuple[Check, ...] = (
    UNREADABLE,
    IMPOSSIBLE,
    DUPLICATES,
    STATUSES,
    ORIGINS,
    MIXED,
    BELOW_ROOFLINE,
    MONOTONE,
    SPIKES,
    NOISY,
    CAPTURES,
    OP_MAPPING,
    OP_MAPPING_ROWS,
)
