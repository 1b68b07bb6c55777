"""All checks, in the order in which they are run and told."""

from __future__ import annotations

from opatlas.checks.against import AGAINST
from opatlas.checks.below_roofline import BELOW_ROOFLINE
from opatlas.checks.captures import CAPTURES
from opatlas.checks.check import Check
from opatlas.checks.duplicates import DUPLICATES
from opatlas.checks.impossible import IMPOSSIBLE
from opatlas.checks.mixed import MIXED
from opatlas.checks.monotone import MONOTONE
from opatlas.checks.noisy import NOISY
from opatlas.checks.op_mapping import OP_MAPPING, OP_MAPPING_ROWS
from opatlas.checks.origins import ORIGINS
from opatlas.checks.spikes import SPIKES
from opatlas.checks.stale_code import STALE_CODE
from opatlas.checks.statuses import STATUSES
from opatlas.checks.unreadable import UNREADABLE

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
