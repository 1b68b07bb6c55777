"""Data tests of a database. A check finds rows or runs that a user should look at (docs/compare.md).

check.py                what a check is, and a database as checks see it
row_checks.py           checks of single rows and files
duration_checks.py      checks of durations: against peaks, other rows and their samples
run_checks.py           checks of runs: device, setup, code
op_mapping_checks.py    checks of op_mapping.yaml
known_findings.py       known_findings.yaml: findings that are reported and do not fail
results.py              what the checks found
overview.py             the contents of a database in numbers
"""

from __future__ import annotations

from opatlas.ask.checks.check import Check
from opatlas.ask.checks.duration_checks import BELOW_ROOFLINE, CAPTURES, MEANS, MONOTONE, NOISY, SPIKES
from opatlas.ask.checks.op_mapping_checks import OP_MAPPING, OP_MAPPING_ROWS
from opatlas.ask.checks.row_checks import DUPLICATES, IMPOSSIBLE, ORIGINS, STATUSES, UNREADABLE
from opatlas.ask.checks.run_checks import MIXED, STALE_CODE

#: All checks, in the order in which they run.
CHECKS: tuple[Check, ...] = (
    UNREADABLE,
    IMPOSSIBLE,
    DUPLICATES,
    STATUSES,
    ORIGINS,
    MIXED,
    STALE_CODE,
    BELOW_ROOFLINE,
    MONOTONE,
    SPIKES,
    NOISY,
    MEANS,
    CAPTURES,
    OP_MAPPING,
    OP_MAPPING_ROWS,
)
