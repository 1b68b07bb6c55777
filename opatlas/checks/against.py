"""Rows of the same signature took the same in another database.

Rows are compared that were replayed on the same device, with the same versions, cache state and instrument, as far as
both tell. They disagree where their medians differ by more than NOISE_LIMIT of the smaller one, and by more than two
standard deviations of their difference.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from opatlas.checks.check import Check, CheckedDatabase, CheckedTable, Finding
from opatlas.model.quality import NOISE_LIMIT
from opatlas.model.schema import RUN_ID
from opatlas.report.figures import microseconds_text


def comparable(database: CheckedDatabase, other: CheckedDatabase, kernel_type: str) -> Iterator[tuple[int, int]]:
    """Goes through the rows of a kernel type that compare, by their places in either table."""
    if kernel_type not in other.kernel_types:
        return
    ours, theirs = database.table(kernel_type), other.table(kernel_type)
    our_runs, their_runs = ours.cells(RUN_ID), theirs.cells(RUN_ID)
    for signature, place in ours.first_places.items():
        twin = theirs.first_places.get(signature)
        if twin is None or np.isnan(ours.replayed.us[place]) or np.isnan(theirs.replayed.us[twin]):
            continue
        same_origin = database.origin(our_runs[place]).agrees_with(other.origin(their_runs[twin]))
        if same_origin and ours.replayed.how[place] == theirs.replayed.how[twin]:
            yield place, twin


def compared_rows(database: CheckedDatabase, other: CheckedDatabase) -> int:
    """Returns the number of rows that compare."""
    return sum(1 for kernel_type in database.kernel_types for _ in comparable(database, other, kernel_type))


def _find(database: CheckedDatabase, table: CheckedTable) -> list[Finding]:
    other = database.against
    if other is None:
        return []
    found = []
    for place, twin in comparable(database, other, table.kernel_type):
        theirs = other.table(table.kernel_type)
        us, twin_us = table.replayed.us[place], theirs.replayed.us[twin]
        noise = float(np.hypot(table.replayed.noise_us[place], theirs.replayed.noise_us[twin]))
        difference = abs(us - twin_us)
        if difference > NOISE_LIMIT * min(us, twin_us) and difference > noise:
            ratio = us / twin_us
            other_us, width = microseconds_text(twin_us), microseconds_text(noise)
            reason = f"{ratio:.2f} times the {other_us} of {theirs.path}:{twin + 2}, noise {width}"
            found.append(table.finding(place, microseconds_text(us), reason, max(ratio, 1 / ratio)))
    return found


AGAINST = Check(
    "against",
    "rows that took another time in the other database",
    "measure both again; opatlas history tells what each run took",
    of_table=_find,
    applies=lambda database: "" if database.against is not None else "--against names no other database",
)
