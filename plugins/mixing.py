"""Which durations may not mix: those of another device, other software, another cache state or instrument."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

import numpy as np

from opatlas.capture.profile_samples import CACHE_UNKNOWN
from opatlas.data.comparable import (
    MixedDatabase,
    PlannedDuration,
    StoredDuration,
    check_origin,
    find_mismatches,
    folder_note,
)
from opatlas.data.origin import MeasurementOrigin, Provenance
from opatlas.errors import OpAtlasError
from opatlas.row.status import UpdateMode
from opatlas.run.devices.device import device_kinds, kind_named
from opatlas.text import pluralize, printable

from .cases import Plan

if TYPE_CHECKING:
    from .session_context import SessionContext
    from .settings import Settings
    from .target import SessionTarget, TargetDatabase


def read_origin(context: SessionContext, own: TargetDatabase) -> tuple[Provenance, list[str]]:
    """Reads what a database was measured on. Returns also what the user should know of it.

    Raises:
        OpAtlasError: the durations would be mixed, without --mixed; with --read-only only a profile's would be.
    """
    settings = context.settings
    own.provenance = provenance = Provenance(own.database)
    try:
        check_origin(provenance, own.target.origin)
    except MixedDatabase as error:
        if settings.read_only and not settings.rehearses:
            return provenance, [printable(f"{error}: the two do not compare")]
        if settings.mixed:
            return provenance, [printable(f"--mixed: {error}")]
        raise OpAtlasError(f"{printable(str(error))}: the two do not compare.\n{_remedy(settings)}") from None
    note = folder_note(provenance, own.target.origin)
    return provenance, [printable(note)] if note else []


def captured_note(provenance: Provenance, plan: Plan, settings: Settings) -> str:
    """Returns a note if captured durations of rows to run are of another device than the session's; "" if not."""
    tables = plan.tables.values()
    if all(np.isnan(table.captured[[case.position for case in table.to_run]]).all() for table in tables):
        return ""
    return captured_mismatch(provenance, settings)


def captured_mismatch(provenance: Provenance, settings: Settings) -> str:
    """Returns why captured durations do not compare with those of a session; "" where they do."""
    captured = provenance.captured()
    others = [name for name in captured if not MeasurementOrigin(name).has_same_device(settings.origin)]
    if not others:
        return ""
    here = settings.origin.device or settings.origin.kind
    return printable(f"captured on {', '.join(others)}, replayed on {here}: the two do not compare")


def check_replaced(
    provenance: Provenance,
    settings: Settings,
    plan: Plan,
    in_groups: Container[str],
    number: int = 0,
) -> list[str]:
    """Compares the stored durations of the collected rows of a target with those that the session will measure.

    Args:
        number: number of the target.
        in_groups: kernel types whose rows need several devices at once.

    Returns:
        What the user should know about the durations that are replaced.

    Raises:
        OpAtlasError: the session may not replace them.
    """
    rows: list[tuple[StoredDuration, PlannedDuration]] = []
    target = settings.targets[number]
    for table in plan.tables.values():
        if table.target == number:
            planned = _planned_duration(settings, target, in_group=table.kernel_type in in_groups)
            known = table.table.replayed.known
            # Rows of one signature get one duration.
            ids = {case.id for case in table.cases if case.account and case.will_run}
            rows += [(case.stored, planned) for case in table.cases if case.id in ids and known[case.position]]
    mismatches = find_mismatches(provenance, rows)
    if mismatches and not settings.mixed:
        # The durations of a row may differ in several ways.
        lines = "".join(f"\n  {printable(str(each))}" for each in mismatches)
        refused = f"{target.path}: these durations would be replaced by durations that do not compare:{lines}"
        raise OpAtlasError(f"{refused}\n{_remedy(settings)}")
    notes = [f"--mixed replaces durations of {pluralize(each.count, settings.unit)}: {each}" for each in mismatches]
    notes += _other_machine(provenance, settings, [stored for stored, _ in rows])
    return [printable(note) for note in notes]


def _planned_duration(settings: Settings, target: SessionTarget, *, in_group: bool) -> PlannedDuration:
    """Returns how a session will measure a row of a target."""
    if settings.prof_path is not None:
        return PlannedDuration(target.origin, CACHE_UNKNOWN, "msprof")
    kind, name = kind_named(settings.devices[0].kind), settings.measure.instrument
    preferred = kind.group_instrument if in_group else kind.preferred_instrument
    chosen = preferred(name) if kind.instruments else ""
    # An NPU's rows name its calls, and a device of a conftest.py may run something else than torch.
    is_unknown = target.implementation.is_default and (kind.name not in device_kinds() or kind.is_native)
    implementation = "" if is_unknown else target.implementation.name
    return PlannedDuration(target.origin, settings.measure.cache, chosen, implementation)


def _other_machine(provenance: Provenance, settings: Settings, rows: Sequence[StoredDuration]) -> list[str]:
    """Returns a note if durations of another machine of the same kind are replaced or joined."""
    own = "--database-path names a folder of your own"
    if provenance.shipped:
        fate = "join them" if settings.mode in (UpdateMode.MISSING_ONLY, UpdateMode.UNREPLAYED) else "take their place"
        theirs = f"this database ships with OpAtlas, with durations of {provenance.shipped}"
        return [f"{theirs}: those of this machine {fate}; {own}"]
    others = [host for host in provenance.hosts(row.run_id for row in rows) if host != settings.origin.host]
    if others and settings.origin.host:
        return [f"durations of {', '.join(others)} are replaced by durations of {settings.origin.host}; {own}"]
    return []


def _remedy(settings: Settings) -> str:
    again = "measure as they were measured (--cache, --instrument, or taskset for the number of threads), "
    again += "compare without writing (--read-only), "
    again = "" if settings.prof_path is not None else again
    return f"Name a folder of your own with --database-path, {again}or let them be mixed (--mixed)"
