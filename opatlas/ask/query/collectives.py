"""The duration of a collective, from rows of messages; with more devices than were measured, a guess that says so."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from opatlas.ask.query.implementation_answers import ImplementationAnswers
from opatlas.ask.query.result import How, NoAnswer, QueryResult
from opatlas.errors import OpAtlasError
from opatlas.row.columns import DTYPE, MESSAGE_BYTES, NUM_DEVICES, TOPOLOGY_TIER
from opatlas.row.communication import BY_NAME, Collective
from opatlas.row.slots import known_dtype
from opatlas.text import parse_whole


def answer_collective(
    messages: ImplementationAnswers | None,
    name: str,
    message_bytes: int,
    devices: int,
    dtype: str,
    tier: int | None = None,
) -> QueryResult:
    """Returns the duration of a collective, as `OpenDatabase.collective`.

    Args:
        messages: the communication database of the device; None if there is none.

    Raises:
        NoAnswer: the database does not have these messages.
        OpAtlasError: the collective is unknown, or it has fewer than two devices.
    """
    if name not in BY_NAME:
        raise OpAtlasError(f"{name}: unknown collective: name one of {', '.join(BY_NAME)}")
    if devices < 2:
        raise OpAtlasError(f"{name} between {devices}: a collective has 2 devices or more")
    kernel_type = BY_NAME[name].kernel_type
    if messages is None or kernel_type not in messages.kernel_types:
        raise NoAnswer(f"{name}: no communication database of this device has it: measure it (opatlas collectives)")
    (label, *_) = messages.implementations
    rows = messages.stored_rows(kernel_type, label)
    counts = [count for cell in rows.cells(NUM_DEVICES) if (count := parse_whole(cell.strip()))]
    if counts and devices > max(counts):
        return _of_more_devices(messages, BY_NAME[name], message_bytes, devices, max(counts), dtype, tier)
    tiers = Counter(
        each
        for each, count in zip(rows.cells(TOPOLOGY_TIER), rows.cells(NUM_DEVICES), strict=True)
        if count.strip() == str(devices)
    )
    chosen = str(tier) if tier is not None else tiers.most_common(1)[0][0] if tiers else ""
    cells = {MESSAGE_BYTES: str(message_bytes), NUM_DEVICES: str(devices), DTYPE: dtype, TOPOLOGY_TIER: chosen}
    return messages.answer_row(label, kernel_type, cells)


def _of_more_devices(
    messages: ImplementationAnswers,
    collective: Collective,
    message_bytes: int,
    devices: int,
    measured: int,
    dtype: str,
    tier: int | None,
) -> QueryResult:
    """Returns the duration with more devices than were measured, from that with `measured` ones."""
    known = known_dtype(dtype)
    element = known.bytes if known is not None else 1
    wanted = message_bytes * collective.bus_share(devices) / collective.bus_share(measured)
    alike = collective.message_bytes(round(wanted), measured, element)
    answer = answer_collective(messages, collective.name, alike, measured, dtype, tier)
    low, high = answer.interval_us
    # A guess: latencies of more steps, other topologies and other algorithms are not in it.
    factor = 1 + math.log2(devices / measured)
    note = f"no row has {devices} devices: from {measured} with as many bytes on the busiest link ({alike})"
    return replace(answer, interval_us=(low / factor, high * factor), how=How.EXTRAPOLATED, note=note)
