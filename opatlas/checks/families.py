"""Rows that differ in M alone: the leading dimension of the first input, or the bytes of a message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from opatlas.checks.check import CheckedTable, Durations, Floats
from opatlas.model.communication import is_communication
from opatlas.model.roofline import PRODUCTS
from opatlas.model.schema import (
    DTYPE,
    EP_SIZE,
    INPUT_SLOTS,
    LENGTHS_IN_SIGNATURE,
    MESSAGE_BYTES,
    NUM_DEVICES,
    OUTPUT_SLOTS,
    RUNTIME_IN_SIGNATURE,
    TOPOLOGY_TIER,
)
from opatlas.model.siblings import plain_type
from opatlas.model.slots import slot_words
from opatlas.text import whole

_M = "M"


@dataclass(frozen=True)
class Family:
    """Rows with durations that differ in M alone, in the order of M; of equal M the first row only.

    Attributes:
        places: of the rows in the table, counted from 0.
        m: their M, strictly increasing.
        us: their durations.
        low_us, high_us: the durations less and plus their noise; `low_us` is 0 at least.
    """

    places: Sequence[int]
    m: Floats
    us: Floats
    low_us: Floats
    high_us: Floats


def families(table: CheckedTable, *, least: int) -> Iterator[Family]:
    """Goes through the families of at least `least` rows, of replayed and of captured durations."""
    keyed = list(_of_messages(table) if is_communication(table.kernel_type) else _of_tensors(table))
    for durations in (table.replayed, table.captured):
        of_key: dict[tuple[object, ...], dict[int, int]] = {}
        for place in np.flatnonzero(~np.isnan(durations.us)).tolist():
            key, m = keyed[place]
            if m is not None:
                of_key.setdefault((durations.how[place], *key), {}).setdefault(m, place)
        for rows in of_key.values():
            if len(rows) >= least:
                yield _family(rows, durations)


def _family(rows: dict[int, int], durations: Durations) -> Family:
    m = sorted(rows)
    places = [rows[each] for each in m]
    us = durations.us[places]
    noise = durations.noise_us[places]
    return Family(places, np.array(m, dtype=float), us, np.maximum(us - noise, 0.0), us + noise)


def _of_messages(table: CheckedTable) -> Iterator[tuple[tuple[object, ...], int | None]]:
    others = zip(*(table.cells(column) for column in (NUM_DEVICES, DTYPE, TOPOLOGY_TIER)), strict=True)
    for key, cell in zip(others, table.cells(MESSAGE_BYTES), strict=True):
        yield key, whole(cell.strip()) or None


def _of_tensors(table: CheckedTable) -> Iterator[tuple[tuple[object, ...], int | None]]:
    """The shapes without M: a leading dimension that equals M is M too, but for the right operand of a product."""
    is_product = plain_type(table.kernel_type) in PRODUCTS
    extra = zip(
        *(table.cells(column) for column in (*RUNTIME_IN_SIGNATURE, *LENGTHS_IN_SIGNATURE, EP_SIZE)), strict=True
    )
    slots = zip(*(table.cells(column) for column in (*INPUT_SLOTS, *OUTPUT_SLOTS)), strict=True)
    for cells, more in zip(slots, extra, strict=True):
        inputs, outputs = slot_words(*cells[:3]), slot_words(*cells[3:])
        leading, _, others = inputs[0][0].partition(",") if inputs else ("", "", "")
        fixed = inputs[1:2] if is_product else ()
        scaled = (*inputs[:1], *inputs[1 + len(fixed) :], *outputs)
        key = (len(inputs), fixed, tuple(_without_m(slot, leading) for slot in scaled), more)
        yield key, (whole(leading) or None) if others else None


def _without_m(slot: tuple[str, str, str], m: str) -> tuple[str, str, str]:
    leading, _, others = slot[0].partition(",")
    return (f"{_M},{others}", slot[1], slot[2]) if leading == m else slot
