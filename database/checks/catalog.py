"""All checks, in the order in which they are run and told."""

from __future__ import annotations

from database.checks.against import AGAINST
from database.checks.below_roofline import BELOW_ROOFLINE
from database.checks.captures import CAPTURES
from database.checks.check import Check
from database.checks.duplicates import DUPLICATES
from database.checks.impossible import IMPOSSIBLE
from database.checks.mixed import MIXED
from database.checks.monotone import MONOTONE
from database.checks.noisy import NOISY
from database.checks.op_mapping import OP_MAPPING, OP_MAPPING_ROWS
from database.checks.origins import ORIGINS
from database.checks.spikes import SPIKES
from database.checks.stale_code import STALE_CODE
from database.checks.statuses import STATUSES
from database.checks.unreadable import UNREADABLE

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
    CAPTURES,
    OP_MAPPING,
    OP_MAPPING_ROWS,
    AGAINST,
)
