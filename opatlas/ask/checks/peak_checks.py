"""Checks against the peaks of the device: of kernels by the roofline, of messages by a model of their links.

opatlas/row/roofline.py has the peaks. What is not known there is not checked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from opatlas import formats
from opatlas.ask.checks.check import CheckedDatabase, Finding, finding
from opatlas.row.columns import BASE, MESSAGE_BYTES, NUM_DEVICES, TOPOLOGY_TIER
from opatlas.row.communication import ALL_REDUCE, BY_KERNEL_TYPE, Collective, is_communication
from opatlas.row.quality import ROOFLINE_SLACK, Durations, Floats, Quality, judge
from opatlas.row.roofline import Link, bound_us, row_work
from opatlas.row.table import RowTable
from opatlas.text import Word, parse_whole

_COLD = "cold"
#: The share of its bandwidth that a link carries in practice (msmodeling's comm_efficiency).
EFFICIENCY = 0.7
#: A message agrees with the model, and a captured one with a measured one, within this factor.
TOLERANCE = 2.0


def least_us(database: CheckedDatabase, table: RowTable, durations: Durations) -> Floats:
    """Returns for each row the least duration that the peaks allow; NaN where they, or its work, are not known.

    A cold row reads its inputs from memory. A warm or captured row may find them in the cache, so only its arithmetic
    bounds it. A message has to cross its links.
    """
    found = np.full(len(table), np.nan)
    peak = database.peak
    if is_communication(table.kernel_type):
        for aligned in alignments(database, table):
            found[aligned.position] = np.nan if aligned.least_us is None else aligned.least_us
    elif peak is not None:
        columns = {name: table.cells(name) for name in BASE}
        for index in np.flatnonzero(durations.of_kernel).tolist():
            work = row_work(table.kernel_type, {name: cells[index] for name, cells in columns.items()})
            if work is not None:
                least = bound_us(work, peak, cold=durations.cache[index].strip() == _COLD)
                found[index] = np.nan if least is None else least
    return found


def without_peak(database: CheckedDatabase) -> str:
    """Returns why no duration can be too short; "" if the peaks are known."""
    return "" if database.peak is not None else f"the peaks of {database.device or 'an unknown device'} are not known"


def below_roofline(database: CheckedDatabase, table: RowTable) -> Iterator[Finding]:
    """Finds durations that are shorter than the peaks of the device allow.

    opatlas/row/quality.py has the tolerance.
    """
    for durations in (table.replayed, table.captured):
        bounds = least_us(database, table, durations)
        for index in np.flatnonzero(durations.of_kernel & ~np.isnan(bounds)).tolist():
            us, least = durations.median_us[index], bounds[index]
            verdict = judge([us], bound_us=least)
            if verdict.quality is Quality.ABOVE_ROOFLINE:
                yield finding(table, index, formats.duration(us), verdict.reason, least / us)


class Verdict(Word):
    """A message against the model of its links, the worst last."""

    NOT_RUN = "not run"
    PASS = "PASS"
    WARN = "WARN"  # slower than the model, or captured and measured differ
    FAIL = "FAIL"  # faster than its links allow


class Alignment(NamedTuple):
    """A message, and what its links allow.

    Attributes:
        row: the message.
        measured_us, captured_us: the durations of a replay and of captures; None if there is none.
        model_us: the duration by the model; None if the links are not known.
        least_us: of the same bytes at the peak of the link, without latencies.
        reason: why the verdict is not PASS.
        position: of the row in its table.
    """

    verdict: Verdict
    kernel_type: str
    row: str
    measured_us: float | None
    captured_us: float | None
    model_us: float | None
    least_us: float | None
    reason: str
    position: int


def alignments(database: CheckedDatabase, table: RowTable) -> Iterator[Alignment]:
    """Yields the messages of a table that have a duration; none of a table of kernels."""
    collective, peak = BY_KERNEL_TYPE.get(table.kernel_type), database.peak
    if collective is None:
        return
    columns = (MESSAGE_BYTES, NUM_DEVICES, TOPOLOGY_TIER)
    numbers = [[parse_whole(cell.strip()) for cell in table.cells(name)] for name in columns]
    for index, (size, devices, tier) in enumerate(zip(*numbers, strict=True)):
        found = [durations[index] for durations in (table.replayed, table.captured)]
        measured, captured = (None if each is None else each.median_us for each in found)
        if measured is None and captured is None:
            continue
        link = peak.links.get(tier) if peak is not None and tier is not None else None
        model = least = None
        if link is None or not size or not devices or devices < 2:
            verdict, reason = Verdict.NOT_RUN, "the links of its tier, its bytes or its devices are not known"
        else:
            model, least = model_us(collective, size, devices, link), shortest_us(collective, size, devices, link)
            verdict, reason = _verdict([us for us in (measured, captured) if us is not None], model, least, link)
        yield Alignment(
            verdict, table.kernel_type, table.titles[index], measured, captured, model, least, reason, index
        )


def model_us(collective: Collective, message_bytes: int, devices: int, link: Link) -> float:
    """Returns the duration of a message by latency and bytes over bandwidth, of a ring or a tree, whichever is shorter.

    A ring has a step for each other device, a tree one for each doubling; all_reduce passes either twice.
    """
    passes = 2 if collective is ALL_REDUCE else 1
    share, rate = collective.bus_share(devices), link.gbps * 1e3 * EFFICIENCY
    ring = passes * (devices - 1) * link.latency_us + share * message_bytes / rate
    tree = passes * math.log2(devices) * link.latency_us + max(share, passes) * message_bytes / rate
    return link.launch_us + min(ring, tree)


def shortest_us(collective: Collective, message_bytes: int, devices: int, link: Link) -> float:
    """Returns the time in which the busiest link carries what it has to at its peak."""
    # Where switches add up, each device sends its tensor once.
    share = 1.0 if collective is ALL_REDUCE and link.adds_up else collective.bus_share(devices)
    return share * message_bytes / (link.gbps * 1e3)


def _verdict(us: Sequence[float], model: float, least: float, link: Link) -> tuple[Verdict, str]:
    if min(us) < ROOFLINE_SLACK * least:
        rate = link.gbps * least / min(us)
        return Verdict.FAIL, f"{rate:,.0f} GB/s over a link of {link.gbps:,.0f} GB/s: {formats.duration(least)} or more"
    if max(us) > TOLERANCE * model:
        return Verdict.WARN, f"{formats.ratio(max(us) / model)} the {formats.duration(model)} of the model"
    if max(us) > TOLERANCE * min(us):
        return Verdict.WARN, f"captured {formats.duration(us[1])}, measured {formats.duration(us[0])}"
    return Verdict.PASS, ""


def without_links(database: CheckedDatabase) -> str:
    """Returns why no message can be compared with its links; "" if they are known."""
    known = database.peak is not None and database.peak.links
    return "" if known else f"the links of {database.device or 'an unknown device'} are not known"


def links(database: CheckedDatabase, table: RowTable) -> Iterator[Finding]:
    """Finds messages that are faster than the links of the device allow."""
    yield from _of_verdict(database, table, Verdict.FAIL)


def link_model(database: CheckedDatabase, table: RowTable) -> Iterator[Finding]:
    """Finds messages that take more than twice what a model of their links says, or than the captured ones take."""
    yield from _of_verdict(database, table, Verdict.WARN)


def _of_verdict(database: CheckedDatabase, table: RowTable, verdict: Verdict) -> Iterator[Finding]:
    for each in alignments(database, table):
        if each.verdict is verdict and each.least_us is not None and each.model_us is not None:
            known = [us for us in (each.measured_us, each.captured_us) if us is not None]
            us, weight = min(known), each.least_us / min(known)
            if verdict is Verdict.WARN:
                us, weight = max(known), max(known) / each.model_us
            yield finding(table, each.position, formats.duration(us), each.reason, weight)
