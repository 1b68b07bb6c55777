"""Checks of durations: against rows with another M, and within their samples.

Durations of compositions of torch operators are left out. Rows that differ in M alone are a family. M is the leading
dimension of the first input, or the bytes of a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from opatlas import formats
from opatlas.ask.checks.check import CheckedDatabase, Finding, finding
from opatlas.ask.checks.peak_checks import least_us
from opatlas.row.columns import (
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
from opatlas.row.quality import NOISE_LIMIT, NOISE_WIDTHS, ROOFLINE_SLACK, Durations, Floats, Quality
from opatlas.row.roofline import PRODUCTS
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


def families(database: CheckedDatabase, table: RowTable) -> Iterator[Family]:
    """Yields the families of two rows or more, first of replayed durations, then of captured ones.

    Durations that are shorter than the peaks of the device allow are left out: no other row is at fault for them.
    """
    keyed = list(_message_keys(table) if is_communication(table.kernel_type) else _tensor_keys(table))
    for durations in (table.replayed, table.captured):
        of_key: dict[tuple[object, ...], dict[int, int]] = {}
        possible = ~(durations.median_us < ROOFLINE_SLACK * least_us(database, table, durations))
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
