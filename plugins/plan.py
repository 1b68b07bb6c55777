"""The plan of a session: prepares its databases, decides which rows are run, and which durations may not mix."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from opatlas.capture.profile_samples import CACHE_UNKNOWN, Profile, fits, read_profile
from opatlas.data import journal
from opatlas.data.comparable import (
    MixedDatabase,
    PlannedDuration,
    PresentSetup,
    StaleRuns,
    StoredDuration,
    check_origin,
    find_mismatches,
    folder_note,
)
from opatlas.data.database import Database, SessionLock
from opatlas.data.fold import add_rows
from opatlas.data.op_mapping import write_default_mapping
from opatlas.data.origin import MeasurementOrigin, Provenance
from opatlas.data.restore import EditedRows, clear_edited, edited_rows
from opatlas.data.write_back import recover
from opatlas.errors import OpAtlasError, TableError
from opatlas.files import expect_folder
from opatlas.row.signature import make_case_id, signature
from opatlas.row.status import UpdateMode
from opatlas.run.devices.device import device_kinds, kind_named
from opatlas.run.msprof_output import recover_profiles
from opatlas.run.registry import Rows
from opatlas.text import pluralize, printable

from .cases import Plan
from .choice import make_plan
from .session_context import SessionContext, present_code
from .settings import Settings
from .target import SessionTarget, TargetDatabase


def plan_session(context: SessionContext) -> Plan:
    """Makes the plan of a session, and takes the database for the session if the session writes.

    An error becomes `Plan.error`: raised during collection, pytest would show the error once for each module.
    """
    try:
        return _plan_session(context)
    except _ForeignProfile as error:
        return Plan(error=str(error), error_status=pytest.ExitCode.TESTS_FAILED)
    except (OpAtlasError, pytest.UsageError, OSError) as error:
        return Plan(error=str(error))


def _plan_session(context: SessionContext) -> Plan:
    settings = context.settings
    source = settings.targets[0].rows_from or settings.database
    if settings.named:
        expect_folder(
            source,
            "name one that holds {KernelType}.csv files, or an empty one for a starter database",
            option="--database-path",
        )
    if settings.prof_path is not None:
        with context.past_capture():
            context.profile = read_profile(settings.prof_path)
        _expect_fitting(context.profile, Database(source))
    if settings.writes:
        # Refuse before anything is written. Checked again with each plan, when no other session writes.
        for own in context.databases:
            _read_origin(context, own)
        # In the order of their paths: two sessions never wait for each other.
        for own in sorted(context.databases, key=lambda each: each.database.path):
            _lock_database(context, own)
    base = _BaseRows(settings)
    if settings.source.rows is not None:
        with context.past_capture():
            base.requested, notes = settings.source.rows(Database(source))
        base.plan.notes += notes
    plans = [_plan_target(context, number, base) for number in range(len(settings.targets))]
    plan = base.plan
    for each in plans:
        plan.add(each)
    plan.problems += context.profile.problems if context.profile is not None else ()
    return plan


class _ForeignProfile(OpAtlasError):
    """A profile has no launch of any row of the database."""


def _expect_fitting(profile: Profile, database: Database) -> None:
    """Raises _ForeignProfile where a profile fits no row of a database that has rows."""
    if not fits(profile, database):
        found = pluralize(sum(map(len, profile.cases.values())), "signature")
        lines = [
            f"{profile.root} has {found}, and none is that of a row of {database.path}: nothing was written",
            "Name the database of the profiled program with --database-path, or an empty folder for a new one",
            *profile.problems,
        ]
        raise _ForeignProfile("\n".join(lines))


def _plan_target(context: SessionContext, number: int, base: _BaseRows) -> Plan:
    """Makes the plan of a target, whose database the session has if the session writes."""
    settings, own, plan = context.settings, context.databases[number], Plan()
    database, target, source = own.database, own.target, settings.source
    starter = source.starter if target.implementation.is_default and target.rows_from is None else None
    requested = base.of_target(target) if base.requested is not None else None
    if target.captures is not None and target.rows_from is not None:
        requested = base.not_pruned(target, database)
    elsewhere = set(context.profile.cases) if context.profile is not None else set()
    if settings.writes:
        edited = _prepare_for(context, own, base, starter, plan)
    else:
        edited = edited_rows(database)
        if target.rows_from is not None and requested is None:
            requested = base.with_own(target, database)
        elif starter is not None and settings.collect_only and not database.kernel_types():
            told = source.starter_unlisted
            if told:
                elsewhere |= settings.ops
            else:
                requested = base.starter_rows()
                told = f"without --co the session first makes one of {sum(map(len, requested.values())):,} theory rows"
            plan.notes.append(f"there is no database yet: {told}")
    if base.requested is not None:
        elsewhere |= base.requested.keys()
    elif target.rows_from is not None:
        elsewhere.update(Database(target.rows_from).kernel_types())
    chosen = make_plan(
        database,
        settings.choice,
        elsewhere=elsewhere,
        requested=requested,
        unmeasured=edited.positions,
        stale_runs=_stale_runs(context, own) if settings.mode is UpdateMode.STALE else None,
        target=number,
        implementation=target.implementation,
        rows_from=target.rows_from,
        captures=Database(target.captures) if target.captures is not None else None,
    )
    if len(settings.targets) > 1:
        for table in chosen.tables.values():
            table.label = f"{table.kernel_type} {target.implementation.name}"
    plan.add(chosen)
    if settings.writes and any(table.to_run for table in plan.tables.values()):
        expect_writable(database)
    if not settings.collect_only:
        provenance, notes = _read_origin(context, own)
        # Else the target has a note.
        captured = _captured_note(provenance, plan, settings) if target.captures is None else ""
        plan.notes += [*notes, *filter(None, [captured]), *provenance.problems]
    return plan


def _read_origin(context: SessionContext, own: TargetDatabase) -> tuple[Provenance, list[str]]:
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


def _lock_database(context: SessionContext, own: TargetDatabase) -> None:
    """Raises OpAtlasError where another session has the database."""
    remedy = "wait for it to end, or name another database with --database-path"
    own.lock = SessionLock(own.database, run_id=context.run_id, command=context.command, remedy=remedy)
    own.lock.acquire()


def _prepare_for(
    context: SessionContext,
    own: TargetDatabase,
    base: _BaseRows,
    starter: Callable[[Database], int] | None,
    plan: Plan,
) -> EditedRows:
    """Prepares the database of a target, and adds the rows that other databases or options name."""
    settings, target = context.settings, own.target
    edited = prepare_database(
        own.database,
        plan,
        run_id=context.run_id,
        starter=starter,
        is_npu=settings.source.needs_database and kind_named(settings.devices[0].kind).is_native,
        others=[each.path for each in settings.targets],
    )
    own.left_behind = journal.journals(own.database)
    if settings.source.is_listed and base.requested is not None:
        add_rows(own.database, base.of_target(target))
    elif target.rows_from is not None and (added := add_rows(own.database, base.of_target(target))):
        place = target.rows_from if Database(target.rows_from).kernel_types() else "the starter database"
        told = f"{target.implementation.label}: {pluralize(added, 'row')} without durations added from {place}"
        plan.prepared.append(told)
    if own.lock is not None and own.lock.stale is not None:
        plan.prepared.append(f"{own.lock.stale} was killed; took the database over from it")
    return edited


class _BaseRows:
    """The rows that the implementations of a session are measured on; a file is read once for all implementations.

    Attributes:
        requested: the rows that options list, by kernel type; None where the rows are those of a database.
        plan: a plan without tables, with notes on these rows, and the files that cannot be read.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.requested: Rows | None = None
        self.plan = Plan()
        #: By kernel type, for each folder.
        self._rows: dict[Path, dict[str, Sequence[Mapping[str, str]]]] = {}

    def of_target(self, target: SessionTarget) -> Rows:
        """Returns the rows of `SessionTarget.rows_from` whose kernel types the implementation has.

        The rows of a starter database are taken where there are none. A file that cannot be read has no rows, and is
        a problem of the plan.

        Raises:
            OpAtlasError: the starter cannot be made.
        """
        has_kernel = target.implementation.implements
        if self.requested is not None:
            return {name: rows for name, rows in self.requested.items() if has_kernel(name)}
        assert target.rows_from is not None
        source, starter = Database(target.rows_from), self._settings.source.starter
        if self._settings.source.is_listed and self._settings.writes and starter and not source.kernel_types():
            starter(source)
        names = source.kernel_types()
        if target.rows_from not in self._rows:
            self._rows[target.rows_from] = {} if names else self.starter_rows()
        rows = self._rows[target.rows_from]
        for name in filter(has_kernel, names):
            if name not in rows:
                try:
                    rows[name] = source.read_or_empty(name).identities()
                except TableError as error:
                    rows[name] = []
                    self.plan.problems.append(str(error))
        return {name: rows[name] for name in filter(has_kernel, sorted(rows))}

    def not_pruned(self, target: SessionTarget, database: Database) -> Rows:
        """Returns `of_target` without the rows that the target's database has pruned. Raises what `of_target` does."""
        rows = self.of_target(target)
        pruned = {name: set(database.pruned(name).signatures) for name in rows}
        return {name: [row for row in rows[name] if signature(name, row) not in pruned[name]] for name in rows}

    def with_own(self, target: SessionTarget, database: Database) -> Rows:
        """Returns the rows of the target's database, followed by `of_target`. Raises what `of_target` does."""
        base = self.of_target(target)
        names = {*base, *filter(target.implementation.implements, database.kernel_types())}
        return {name: [*database.read_or_empty(name).identities(), *base.get(name, ())] for name in sorted(names)}

    def starter_rows(self) -> dict[str, Sequence[Mapping[str, str]]]:
        """Returns the rows that an empty database is filled with. Raises OpAtlasError."""
        with TemporaryDirectory(prefix="opatlas-starter-") as folder:
            starter = Database(folder)
            assert self._settings.source.starter is not None
            self._settings.source.starter(starter)
            return {name: starter.read_or_empty(name).identities() for name in starter.kernel_types()}


def _stale_runs(context: SessionContext, own: TargetDatabase) -> StaleRuns:
    provenance = own.provenance or Provenance(own.database)
    driver = kind_named(context.settings.devices[0].kind).driver_version() or ""
    return StaleRuns(provenance.manifests, PresentSetup(own.target.origin, driver, present_code()))


def prepare_database(
    database: Database,
    plan: Plan,
    *,
    run_id: str,
    starter: Callable[[Database], int] | None,
    is_npu: bool = False,
    others: Container[Path] = (),
) -> EditedRows:
    """Merges the records of killed sessions, and clears durations that were measured with other shapes.

    Args:
        database: locked by the caller.
        plan: gets the lines and problems of what was done.
        run_id: the run of this session, whose journal is not merged.
        starter: fills a database without CSVs, and returns the number of rows; None: the database stays empty.
        is_npu: whether the rows are of an NPU, where the folder does not say.
        others: folders of the databases of the session, whose records profiles in this database may hold.

    Returns:
        The rows that hold the duration or the status of another shape.

    Raises:
        OpAtlasError: the database cannot be written.
    """
    if database.profiles_dir.is_dir():
        plan.problems += recover_profiles(database, others)
    if database.journal_dir.is_dir():
        for each in recover(database, own_run=run_id):
            plan.is_incomplete |= each.incomplete
            plan.prepared += [str(each), *each.problems]
        expect_writable(database)
    if starter is not None and not database.kernel_types():
        rows = pluralize(starter(database), "theory row")
        plan.prepared.append(f"there was no database yet; made a starter of {rows}")
    edited = clear_edited(database, run_id)
    if edited.example is not None:
        rows = pluralize(edited.count, "row was", "rows were")
        example = make_case_id(edited.example.kernel_type, edited.example.signature)
        told = f"{rows} measured with other shapes than now ({example}): measured again (`opatlas history`)"
        plan.prepared.append(told)
    with database.lock():
        mapping = write_default_mapping(database.path, is_npu=is_npu)
    plan.prepared += [str(mapping)] if mapping is not None else []
    plan.problems += edited.problems
    return edited


def expect_writable(database: Database) -> None:
    """Raises OpAtlasError if the database cannot be written, rather than after hours of measuring."""
    with database.lock():
        pass


def _captured_note(provenance: Provenance, plan: Plan, settings: Settings) -> str:
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
