"""Checks of durations: against the peaks of the device, against rows with another M, and within their samples.

Kernels are compared with the roofline, messages with a model of their links. opatlas/row/roofline.py has the peaks;
what it lacks is not checked.

Durations of compositions of torch operators are left out. Rows that differ in M alone are a family. M is the leading
dimension of the first input, or the bytes of a message.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from opatlas import formats
from opatlas.ask.checks.check import CheckedDatabase, Finding, finding
from opatlas.row import columns as col
from opatlas.row.communication import ALL_REDUCE, BY_KERNEL_TYPE, Collective, is_communication
from opatlas.row.quality import NOISE_LIMIT, NOISE_WIDTHS, ROOFLINE_SLACK, Durations, Floats, Quality, Source, judge
from opatlas.row.roofline import PRODUCTS, Link, bound_us, row_work
from opatlas.row.slots import base_type, optional_inputs, optional_outputs, slot_words
from opatlas.row.table import FIRST_LINE, RowTable
from opatlas.text import Word, parse_whole

_COLD = "cold"
#: What several checks need of a table is kept for so many tables.
_KEPT = 256
#: The share of its bandwidth that a link carries in practice (msmodeling's comm_efficiency).
EFFICIENCY = 0.7
#: A message agrees with the model, and a captured one with a measured one, within this factor.
TOLERANCE = 2.0


@lru_cache(_KEPT)
def least_us(database: CheckedDatabase, table: RowTable, source: Source) -> Floats:
    """Returns for each row the least duration that the peaks allow; NaN where they, or its work, are not known.

    A cold row reads its inputs from memory. A warm or captured row may find them in the cache, so only its arithmetic
    bounds it. A message has to cross its links.
    """
    durations = table.captured if source is Source.CAPTURED else table.replayed
    found = np.full(len(table), np.nan)
    peak = database.peak
    if is_communication(table.kernel_type):
        for aligned in alignments(database, table):
            found[aligned.position] = np.nan if aligned.least_us is None else aligned.least_us
    elif peak is not None:
        columns = {name: table.cells(name) for name in col.BASE}
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
        bounds = least_us(database, table, durations.source)
        for index in np.flatnonzero(durations.of_kernel & ~np.isnan(bounds)).tolist():
            us, least = durations.median_us[index], bounds[index]
            verdict = judge([us], bound_us=least)
            if verdict.quality is Quality.ABOVE_ROOFLINE:
                yield finding(table, index, formats.duration(us), verdict.reason, least / us)


class AlignmentVerdict(Word):
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
        quality, noise: of the samples of the replay, and their standard deviation as a share; None if unknown.
        model_us: the duration by the model; None if the links are not known.
        least_us: of the same bytes at the peak of the link, without latencies.
        reason: why the verdict is not PASS.
        position: of the row in its table.
    """

    verdict: AlignmentVerdict
    kernel_type: str
    row: str
    measured_us: float | None
    captured_us: float | None
    quality: Quality | None
    noise: float | None
    model_us: float | None
    least_us: float | None
    reason: str
    position: int


@lru_cache(_KEPT)
def alignments(database: CheckedDatabase, table: RowTable) -> Sequence[Alignment]:
    """Returns the messages of a table that have a duration; none of a table of kernels."""
    collective, peak = BY_KERNEL_TYPE.get(table.kernel_type), database.peak
    if collective is None:
        return ()
    aligned = list[Alignment]()
    columns = (col.MESSAGE_BYTES, col.NUM_DEVICES, col.TOPOLOGY_TIER)
    numbers = [[parse_whole(cell.strip()) for cell in table.cells(name)] for name in columns]
    for index, (size, devices, tier) in enumerate(zip(*numbers, strict=True)):
        found = [durations[index] for durations in (table.replayed, table.captured)]
        measured, captured = (None if each is None else each.median_us for each in found)
        if measured is None and captured is None:
            continue
        link = peak.links.get(tier) if peak is not None and tier is not None else None
        model = least = None
        if link is None or not size or not devices or devices < 2:
            verdict, reason = AlignmentVerdict.NOT_RUN, "the links of its tier, its bytes or its devices are not known"
        else:
            model, least = model_us(collective, size, devices, link), shortest_us(collective, size, devices, link)
            verdict, reason = _verdict([us for us in (measured, captured) if us is not None], model, least, link)
        replayed = found[0]
        noise = None if replayed is None or math.isnan(replayed.noise) else replayed.noise
        name, quality = table.titles[index], None if replayed is None else replayed.quality
        times = measured, captured, quality, noise, model, least
        aligned.append(Alignment(verdict, table.kernel_type, name, *times, reason, index))
    return aligned


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


def _verdict(us: Sequence[float], model: float, least: float, link: Link) -> tuple[AlignmentVerdict, str]:
    if min(us) < ROOFLINE_SLACK * least:
        rates = f"{link.gbps * least / min(us):,.0f} GB/s over a link of {link.gbps:,.0f} GB/s"
        return AlignmentVerdict.FAIL, f"{rates}: {formats.duration(least)} or more"
    if max(us) > TOLERANCE * model:
        return AlignmentVerdict.WARN, f"{formats.ratio(max(us) / model)} the {formats.duration(model)} of the model"
    if max(us) > TOLERANCE * min(us):
        return AlignmentVerdict.WARN, f"captured {formats.duration(us[1])}, measured {formats.duration(us[0])}"
    return AlignmentVerdict.PASS, ""


def without_links(database: CheckedDatabase) -> str:
    """Returns why no message can be compared with its links; "" if they are known."""
    known = database.peak is not None and database.peak.links
    return "" if known else f"the links of {database.device or 'an unknown device'} are not known"


def links(database: CheckedDatabase, table: RowTable) -> Iterator[Finding]:
    """Finds messages that are faster than the links of the device allow."""
    yield from _of_verdict(database, table, AlignmentVerdict.FAIL)


def link_model(database: CheckedDatabase, table: RowTable) -> Iterator[Finding]:
    """Finds messages that take more than twice what a model of their links says, or than the captured ones take."""
    yield from _of_verdict(database, table, AlignmentVerdict.WARN)


def _of_verdict(database: CheckedDatabase, table: RowTable, verdict: AlignmentVerdict) -> Iterator[Finding]:
    for each in alignments(database, table):
        if each.verdict is verdict and each.least_us is not None and each.model_us is not None:
            known = [us for us in (each.measured_us, each.captured_us) if us is not None]
            us, weight = min(known), each.least_us / min(known)
            if verdict is AlignmentVerdict.WARN:
                us, weight = max(known), max(known) / each.model_us
            yield finding(table, each.position, formats.duration(us), each.reason, weight)


_M = "M"


@dataclass(frozen=True)
class Family:
    """Rows with durations that differ in M alone, in the order of M; the first row where several have one M.

    Attributes:
        places: the positions of the rows in the table, from 0.
        m: M of each row, strictly increasing.
        us: the durations in microseconds.
        low_us, high_us: the durations minus and plus their noise; `low_us` is at least 0.
    """

    places: Sequence[int]
    m: Floats
    us: Floats
    low_us: Floats
    high_us: Floats


def families(database: CheckedDatabase, table: RowTable) -> Iterator[Family]:
    """Yields the families of two rows or more, first of replayed durations, then of captured ones.

    Durations that are shorter than the peaks of the device allow are left out: no other row is at fault for them.
    """
    keyed = list(_message_keys(table) if is_communication(table.kernel_type) else _tensor_keys(table))
    for durations in (table.replayed, table.captured):
        of_key: dict[tuple[object, ...], dict[int, int]] = {}
        possible = ~(durations.median_us < ROOFLINE_SLACK * least_us(database, table, durations.source))
        for index in np.flatnonzero(durations.of_kernel & possible).tolist():
            key, m = keyed[index]
            if m is not None:
                conditions = durations.cache[index], durations.instrument[index]
                of_key.setdefault((*conditions, *key), {}).setdefault(m, index)
        for rows in of_key.values():
            if len(rows) >= 2:
                yield _family(rows, durations)


def _family(rows: dict[int, int], durations: Durations) -> Family:
    m = sorted(rows)
    places = [rows[each] for each in m]
    us, std = durations.median_us[places], durations.std_us[places]
    noise = np.where(np.isnan(std), NOISE_LIMIT * us, NOISE_WIDTHS * std)
    return Family(places, np.array(m, dtype=float), us, np.maximum(us - noise, 0.0), us + noise)


def _message_keys(table: RowTable) -> Iterator[tuple[tuple[object, ...], int | None]]:
    others = zip(*(table.cells(column) for column in (col.NUM_DEVICES, col.DTYPE, col.TOPOLOGY_TIER)), strict=True)
    for key, cell in zip(others, table.cells(col.MESSAGE_BYTES), strict=True):
        yield key, parse_whole(cell.strip()) or None


def _tensor_keys(table: RowTable) -> Iterator[tuple[tuple[object, ...], int | None]]:
    """Yields the shapes without M, and M, of each row.

    Each leading dimension that equals M counts as M. The right operand of a matrix product keeps its own.
    """
    is_product = base_type(table.kernel_type) in PRODUCTS
    extra = zip(*(table.cells(column) for column in (*col.EXTRA_IN_SIGNATURE, *col.STEP_COLUMNS)), strict=True)
    slots = zip(*(table.cells(column) for column in (*col.INPUT_SLOTS, *col.OUTPUT_SLOTS)), strict=True)
    for cells, more in zip(slots, extra, strict=True):
        inputs = slot_words(*cells[:3], optional_inputs(table.kernel_type))
        outputs = slot_words(*cells[3:], optional_outputs(table.kernel_type))
        leading, _, others = inputs[0][0].partition(",") if inputs else ("", "", "")
        fixed = inputs[1:2] if is_product else ()
        scaled = (*inputs[:1], *inputs[1 + len(fixed) :], *outputs)
        key = (len(inputs), fixed, tuple(_without_m(slot, leading) for slot in scaled), more)
        yield key, (parse_whole(leading) or None) if others else None


def _without_m(slot: tuple[str, str, str], m: str) -> tuple[str, str, str]:
    leading, _, others = slot[0].partition(",")
    return (f"{_M},{others}", slot[1], slot[2]) if leading == m else slot


ALLOWED_RATIO = 1.25


def monotone(database: CheckedDatabase, table: RowTable) -> Iterator[Finding]:
    """Finds rows that take clearly longer than a row with a larger M.

    "Clearly" means: the duration minus two standard deviations is more than ALLOWED_RATIO times the other duration
    plus two standard deviations.
    """
    for family in families(database, table):
        fastest_later = np.minimum.accumulate(family.high_us[::-1])[::-1]
        for i in np.flatnonzero(family.low_us[:-1] > ALLOWED_RATIO * fastest_later[1:]).tolist():
            fastest = i + 1 + int(np.argmin(family.high_us[i + 1 :]))
            ratio = family.us[i] / family.us[fastest]
            reason = (
                f"{ratio:.2f} times the {formats.duration(family.us[fastest])} of M {family.m[fastest]:,.0f} "
                f"(line {family.places[fastest] + FIRST_LINE}), which is more work than M {family.m[i]:,.0f}"
            )
            yield finding(table, family.places[i], formats.duration(family.us[i]), reason, ratio)


def noisy(_database: CheckedDatabase, table: RowTable) -> Iterator[Finding]:
    """Finds replayed durations whose samples do not agree, by the Quality column.

    A row without a Quality is noisy if the standard deviation exceeds NOISE_LIMIT of the mean (for a message, of the
    median).
    """
    durations = table.replayed
    for index in np.flatnonzero(durations.of_kernel & durations.noisy).tolist():
        quality, share = durations.quality[index], durations.noise[index]
        if quality is Quality.ABOVE_ROOFLINE:
            continue  # the checks below-roofline and links find these
        if quality is not None:
            reason = f"{quality}: {table.cells(col.QUALITY_REASON)[index]}".removesuffix(": ")
        else:
            std = formats.duration(durations.std_us[index])
            reason = f"the standard deviation is {formats.percent(share)} of the mean, {std}"
        yield finding(table, index, formats.duration(durations.median_us[index]), reason, np.nan_to_num(share))


def captures(_database: CheckedDatabase, table: RowTable) -> Iterator[Finding]:
    """Finds captured signatures whose launches are two populations.

    Two populations are two cases that the columns do not tell apart, for example two sets of sequence lengths: their
    median and mean describe neither.
    """
    durations = table.captured
    populations = table.cells(col.PROFILING_POPULATIONS)
    for index in np.flatnonzero(durations.known).tolist():
        if durations.quality[index] is Quality.BIMODAL:
            value, share = formats.duration(durations.median_us[index]), np.nan_to_num(durations.noise[index])
            yield finding(table, index, value, f"two modes: {populations[index].strip()}", share)
