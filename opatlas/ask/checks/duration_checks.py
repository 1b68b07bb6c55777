"""Checks of durations: against the peaks of the device, against rows with another M, and within their samples.

Durations of compositions of torch operators are left out. Rows that differ in M alone are a family. M is the leading
dimension of the first input, or the bytes of a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from opatlas import formats
from opatlas.ask.checks.check import CheckedDatabase, Finding, finding
from opatlas.row.columns import (
    BASE,
    DTYPE,
    EP_SIZE,
    INPUT_SLOTS,
    LENGTHS_IN_SIGNATURE,
    MESSAGE_BYTES,
    NUM_DEVICES,
    OUTPUT_SLOTS,
    PROFILING_POPULATIONS,
    QUALITY_REASON,
    RUNTIME_IN_SIGNATURE,
    TOPOLOGY_TIER,
)
from opatlas.row.communication import is_communication
from opatlas.row.quality import NOISE_LIMIT, NOISE_WIDTHS, Durations, Floats, Quality, judge
from opatlas.row.roofline import PRODUCTS, bound_us, row_work
from opatlas.row.slots import base_type, optional_inputs, optional_outputs, slot_words
from opatlas.row.table import FIRST_LINE, RowTable
from opatlas.text import parse_whole

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


def families(table: RowTable, *, least: int) -> Iterator[Family]:
    """Yields the families of at least `least` rows, first of replayed durations, then of captured ones."""
    keyed = list(_message_keys(table) if is_communication(table.kernel_type) else _tensor_keys(table))
    for durations in (table.replayed, table.captured):
        of_key: dict[tuple[object, ...], dict[int, int]] = {}
        for index in np.flatnonzero(durations.of_kernel).tolist():
            key, m = keyed[index]
            if m is not None:
                conditions = durations.cache[index], durations.instrument[index]
                of_key.setdefault((*conditions, *key), {}).setdefault(m, index)
        for rows in of_key.values():
            if len(rows) >= least:
                yield _family(rows, durations)


def _family(rows: dict[int, int], durations: Durations) -> Family:
    m = sorted(rows)
    places = [rows[each] for each in m]
    us, std = durations.median_us[places], durations.std_us[places]
    noise = np.where(np.isnan(std), NOISE_LIMIT * us, NOISE_WIDTHS * std)
    return Family(places, np.array(m, dtype=float), us, np.maximum(us - noise, 0.0), us + noise)


def _message_keys(table: RowTable) -> Iterator[tuple[tuple[object, ...], int | None]]:
    others = zip(*(table.cells(column) for column in (NUM_DEVICES, DTYPE, TOPOLOGY_TIER)), strict=True)
    for key, cell in zip(others, table.cells(MESSAGE_BYTES), strict=True):
        yield key, parse_whole(cell.strip()) or None


def _tensor_keys(table: RowTable) -> Iterator[tuple[tuple[object, ...], int | None]]:
    """Yields the shapes without M, and M, of each row.

    Each leading dimension that equals M counts as M. The right operand of a matrix product keeps its own.
    """
    is_product = base_type(table.kernel_type) in PRODUCTS
    extra = zip(
        *(table.cells(column) for column in (*RUNTIME_IN_SIGNATURE, *LENGTHS_IN_SIGNATURE, EP_SIZE)), strict=True
    )
    slots = zip(*(table.cells(column) for column in (*INPUT_SLOTS, *OUTPUT_SLOTS)), strict=True)
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


_COLD = "cold"


def without_peak(database: CheckedDatabase) -> str:
    """Returns why no duration can be too short; "" if the peaks are known."""
    return "" if database.peak is not None else f"the peaks of {database.device or 'an unknown device'} are not known"


def below_roofline(database: CheckedDatabase, table: RowTable) -> Iterator[Finding]:
    """Finds durations that are shorter than the peaks of the device allow.

    A cold row reads its inputs from memory. A warm or captured row may find them in the cache, so only its arithmetic
    bounds it. opatlas/row/roofline.py has the peaks, opatlas/row/quality.py the tolerance.
    """
    peak = database.peak
    if peak is None:
        return
    columns = {name: table.cells(name) for name in BASE}
    cold = [cell.strip() == _COLD for cell in table.replayed.cache]
    replayed, captured = table.replayed, table.captured
    for index in np.flatnonzero(replayed.of_kernel | captured.known).tolist():
        work = row_work(table.kernel_type, {name: cells[index] for name, cells in columns.items()})
        if work is None:
            continue
        for durations, is_cold in ((replayed, cold[index]), (captured, False)):
            least = bound_us(work, peak, cold=is_cold)
            if not durations.of_kernel[index] or least is None:
                continue
            us = durations.median_us[index]
            verdict = judge([us], bound_us=least)
            if verdict.quality is Quality.ABOVE_ROOFLINE:
                yield finding(table, index, formats.duration(us), verdict.reason, least / us)


ALLOWED_RATIO = 1.25


def monotone(_database: CheckedDatabase, table: RowTable) -> Iterator[Finding]:
    """Finds rows that take clearly longer than a row with a larger M.

    "Clearly" means: the duration minus two standard deviations is more than ALLOWED_RATIO times the other duration
    plus two standard deviations.
    """
    for family in families(table, least=2):
        fastest_later = np.minimum.accumulate(family.high_us[::-1])[::-1]
        for i in np.flatnonzero(family.low_us[:-1] > ALLOWED_RATIO * fastest_later[1:]).tolist():
            fastest = i + 1 + int(np.argmin(family.high_us[i + 1 :]))
            ratio = family.us[i] / family.us[fastest]
            reason = (
                f"{ratio:.2f} times the {formats.duration(family.us[fastest])} of M {family.m[fastest]:,.0f} "
                f"(line {family.places[fastest] + FIRST_LINE}), which is more work than M {family.m[i]:,.0f}"
            )
            yield finding(table, family.places[i], formats.duration(family.us[i]), reason, ratio)


def spikes(_database: CheckedDatabase, table: RowTable) -> Iterator[Finding]:
    """Finds rows that take clearly longer than both neighbours in M.

    "Clearly" means: the duration minus two standard deviations is more than ALLOWED_RATIO times the longer neighbour
    plus two standard deviations. The first row of a step, as tiles cause it, exceeds one neighbour only.
    """
    for family in families(table, least=3):
        allowed = np.maximum(family.high_us[:-2], family.high_us[2:])
        for i in (np.flatnonzero(family.low_us[1:-1] > ALLOWED_RATIO * allowed) + 1).tolist():
            # The neighbours are joined by a straight line on logarithmic axes.
            fraction = np.log(family.m[i] / family.m[i - 1]) / np.log(family.m[i + 1] / family.m[i - 1])
            between = family.us[i - 1] ** (1 - fraction) * family.us[i + 1] ** fraction
            ratio = family.us[i] / between
            before, after = (
                f"{formats.duration(family.us[near])} at M {family.m[near]:,.0f}" for near in (i - 1, i + 1)
            )
            likely = formats.duration(between)
            reason = f"{ratio:.2f} times the {likely} between its neighbours: {before}, {after}"
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
            continue  # the check below-roofline finds these
        if quality is not None:
            reason = f"{quality}: {table.cells(QUALITY_REASON)[index]}".removesuffix(": ")
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
    populations = table.cells(PROFILING_POPULATIONS)
    for index in np.flatnonzero(durations.known).tolist():
        if durations.quality[index] is Quality.BIMODAL:
            value, share = formats.duration(durations.median_us[index]), np.nan_to_num(durations.noise[index])
            yield finding(table, index, value, f"two modes: {populations[index].strip()}", share)
