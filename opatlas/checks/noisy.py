"""The samples of each replayed duration agree with each other.

The Quality column tells; of a row without it, its samples are noisy where their standard deviation is more than
NOISE_LIMIT of the mean (of a message, of the median).
"""

from __future__ import annotations

import numpy as np

from opatlas.checks.check import Check, CheckedDatabase, CheckedTable, Finding
from opatlas.model.quality import Quality, is_noisy
from opatlas.model.schema import QUALITY, QUALITY_REASON
from opatlas.report.figures import microseconds_text, share_text


def _find(_database: CheckedDatabase, table: CheckedTable) -> list[Finding]:
    durations, share = table.replayed, table.noise
    qualities = [Quality.of_cell(cell) for cell in table.cells(QUALITY)]
    reasons = table.cells(QUALITY_REASON)
    found = []
    for place in np.flatnonzero(~np.isnan(durations.us)).tolist():
        quality = qualities[place]
        value = microseconds_text(durations.us[place])
        # What is beyond the roofline is found by a check of its own.
        if quality is Quality.ABOVE_ROOFLINE or not is_noisy(quality, share[place]):
            continue
        if quality is not None:
            reason = f"{quality}: {reasons[place]}".removesuffix(": ")
            found.append(table.finding(place, value, reason, np.nan_to_num(share[place])))
        else:
            std = microseconds_text(durations.std_us[place])
            reason = f"the standard deviation is {share_text(share[place])} of the mean, {std}"
            found.append(table.finding(place, value, reason, share[place]))
    return found


NOISY = Check(
    "noisy",
    "durations whose samples do not agree",
    "measure the rows again on an idle machine: opatlas bench --max-noise 10% (docs/measurement.md)",
    of_table=_find,
)
