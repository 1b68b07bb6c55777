"""Makes the plan of a session: locks and prepares the databases, and decides which rows of each target are run."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from opatlas.capture.profile_samples import Profile, fits, read_profile
from opatlas.data import journal
from opatlas.data.comparable import PresentSetup, StaleRuns
from opatlas.data.database import Database, SessionLock
from opatlas.data.edited import clear_edited, edited_rows
from opatlas.data.op_mapping import write_default_mapping
from opatlas.data.origin import Provenance
from opatlas.data.pruned import pruned_signatures
from opatlas.data.row_copy import add_rows, read_rows
from opatlas.data.update_mode import UpdateMode
from opatlas.data.write_back import RecoveredJournal, recover
from opatlas.errors import OpAtlasError, TableError
from opatlas.files import expect_folder
from opatlas.row.signature import signature
from opatlas.run.devices.device import kind_named
from opatlas.run.msprof.pending import recover_profiles
from opatlas.run.row_source import Rows
from opatlas.text import pluralize

from .cases import Plan, PreparedDatabase
from .choice import make_plan
from .mixing import captured_notes, origin_notes
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
    except (OpAtlasError, pytest.UsageError) as error:
        return Plan(error=str(error))
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return Plan(error=f"no plan could be made ({said}): report this error of OpAtlas\n{traceback.format_exc()}")


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
            base.requested, base.notes = settings.source.rows(Database(source))
    plan = Plan(notes=list(base.notes))
    for number in range(len(settings.targets)):
        plan.add(_plan_target(context, number, base))
    plan.problems += base.problems
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
    settings, own = context.settings, context.databases[number]
    database, target = own.database, own.target
    requested = base.of_target(target) if base.requested is not None else None
    if target.captures is not None and target.rows_from is not None:
        requested = base.not_pruned(target, database)
    notes: list[str] = []
    elsewhere: Collection[str] = context.profile.cases.keys() if context.profile is not None else ()
    may_start = target.implementation.is_default and target.rows_from is None
    starter = settings.source.starter if may_start else None
    if settings.writes:
        prepared = _prepare_for(context, own, base, starter)
    else:
        prepared = PreparedDatabase(edited=edited_rows(database))
        if target.rows_from is not None and requested is None:
            requested = base.with_own(target, database)
        elif starter is not None and not database.kernel_types() and settings.collect_only:
            told = settings.source.starter_unlisted
            if told:
                elsewhere = settings.ops
            else:
                requested = base.starter_rows()
                told = f"without --co the session first makes one of {sum(map(len, requested.values())):,} theory rows"
            notes.append(f"there is no database yet: {told}")
    if base.requested is not None:
        elsewhere = base.requested
    elif target.rows_from is not None:
        elsewhere = {*elsewhere, *Database(target.rows_from).kernel_types()}
    plan = make_plan(
        database,
        settings.choice,
        elsewhere=elsewhere,
        requested=requested,
        unmeasured=prepared.edited.positions,
        stale_runs=_stale_runs(context, own) if settings.mode is UpdateMode.STALE else None,
        target=number,
        implementation=target.implementation,
        rows_from=target.rows_from,
        captures=Database(target.captures) if target.captures is not None else None,
    )
    if len(settings.targets) > 1:
        for table in plan.tables.values():
            table.label = f"{table.kernel_type} {target.implementation.name}"
    plan.notes = [*notes, *plan.notes]
    if settings.writes and any(table.to_run for table in plan.tables.values()):
        expect_writable(database)
    if not settings.collect_only:
        provenance, notes = _read_origin(context, own)
        if target.captures is None:
            # Else the target has a note.
            notes += captured_notes(provenance, plan, settings)
        plan.notes += [*notes, *provenance.problems]
    plan.prepared = [prepared]
    plan.problems += prepared.problems
    return plan


def _read_origin(context: SessionContext, own: TargetDatabase) -> tuple[Provenance, list[str]]:
    """Raises OpAtlasError if the database is one of another device or of other software."""
    own.provenance = Provenance(own.database)
    return own.provenance, origin_notes(own.provenance, context.settings, own.target)


def _lock_database(context: SessionContext, own: TargetDatabase) -> None:
    """Raises OpAtlasError where another session has the database."""
    remedy = "wait for it to end, or name another database with --database-path"
    own.lock = SessionLock(own.database, run_id=context.run_id, command=context.command, remedy=remedy)
    own.lock.acquire()


def _prepare_for(
    context: SessionContext, own: TargetDatabase, base: _BaseRows, starter: Callable[[Database], int] | None
) -> PreparedDatabase:
    settings, target = context.settings, own.target
    prepared = prepare_database(
        own.database,
        run_id=context.run_id,
        starter=starter,
        is_npu=settings.source.needs_database and kind_named(settings.devices[0].kind).is_native,
        others=[each.path for each in settings.targets],
    )
    own.left_behind = journal.journals(own.database)
    if settings.source.is_listed and base.requested is not None:
        add_rows(own.database, base.of_target(target))
    elif target.rows_from is not None:
        added = add_rows(own.database, base.of_target(target))
        place = target.rows_from if Database(target.rows_from).kernel_types() else "the starter database"
        if added:
            told = f"{target.implementation.label}: {pluralize(added, 'row')} without durations added from {place}"
            prepared = replace(prepared, added=told)
    return replace(prepared, taken_over=str(own.lock.stale) if own.lock and own.lock.stale is not None else "")


class _BaseRows:
    """The rows that the implementations of a session are measured on; a file is read once for all implementations.

    Attributes:
        requested: the rows that options list, by kernel type; None where the rows are those of a database.
        notes: what the user should know about these rows.
        problems: files that cannot be read.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.requested: Rows | None = None
        self.notes: Sequence[str] = ()
        self.problems: list[str] = []
        #: By kernel type, for each folder.
        self._rows: dict[Path, dict[str, Sequence[Mapping[str, str]]]] = {}

    def of_target(self, target: SessionTarget) -> Rows:
        """Returns the rows of `SessionTarget.rows_from` whose kernel types the implementation has.

        The rows of a starter database are taken where there are none. A file that cannot be read has no rows, and is
        one of `problems`.

        Raises:
            OpAtlasError: the starter cannot be made.
        """
        has_kernel = target.implementation.implements
        if self.requested is not None:
            return {name: rows for name, rows in self.requested.items() if has_kernel(name)}
        assert target.rows_from is not None
        source = Database(target.rows_from)
        names, starter = source.kernel_types(), self._settings.source.starter
        if not names and self._settings.source.is_listed and starter is not None and self._settings.writes:
            starter(source)
            names = source.kernel_types()
        if target.rows_from not in self._rows:
            self._rows[target.rows_from] = {} if names else self.starter_rows()
        rows = self._rows[target.rows_from]
        for name in filter(has_kernel, names):
            if name not in rows:
                try:
                    rows[name] = read_rows(source, name)
                except TableError as error:
                    rows[name] = []
                    self.problems.append(str(error))
        return {name: rows[name] for name in filter(has_kernel, sorted(rows))}

    def not_pruned(self, target: SessionTarget, database: Database) -> Rows:
        """Returns `of_target` without the rows that the target's database has pruned. Raises what `of_target` does."""
        rows = self.of_target(target)
        pruned = {name: set(pruned_signatures(database, name)) for name in rows}
        return {name: [row for row in rows[name] if signature(name, row) not in pruned[name]] for name in rows}

    def with_own(self, target: SessionTarget, database: Database) -> Rows:
        """Returns the rows of the target's database, followed by `of_target`. Raises what `of_target` does."""
        base = self.of_target(target)
        names = {*base, *filter(target.implementation.implements, database.kernel_types())}
        return {name: [*read_rows(database, name), *base.get(name, ())] for name in sorted(names)}

    def starter_rows(self) -> dict[str, Sequence[Mapping[str, str]]]:
        """Returns the rows that an empty database is filled with. Raises OpAtlasError."""
        with TemporaryDirectory(prefix="opatlas-starter-") as folder:
            starter = Database(folder)
            assert self._settings.source.starter is not None
            self._settings.source.starter(starter)
            return {name: read_rows(starter, name) for name in starter.kernel_types()}


def _stale_runs(context: SessionContext, own: TargetDatabase) -> StaleRuns:
    provenance = own.provenance or Provenance(own.database)
    driver = kind_named(context.settings.devices[0].kind).driver_version() or ""
    return StaleRuns(provenance.manifests, PresentSetup(own.target.origin, driver, present_code()))


def prepare_database(
    database: Database,
    *,
    run_id: str,
    starter: Callable[[Database], int] | None,
    is_npu: bool = False,
    others: Container[Path] = (),
) -> PreparedDatabase:
    """Merges the records of killed sessions, and clears durations that were measured with other shapes.

    Args:
        database: locked by the caller.
        run_id: the run of this session, whose journal is not merged.
        starter: fills a database without CSVs, and returns the number of rows; None: the database stays empty.
        is_npu: whether the rows are of an NPU, where the folder does not say.
        others: folders of the databases of the session, whose records profiles in this database may hold.

    Raises:
        OpAtlasError: the database cannot be written.
    """
    problems = recover_profiles(database, others) if database.profiles_dir.is_dir() else []
    recovered: Sequence[RecoveredJournal] = ()
    if database.journal_dir.is_dir():
        recovered = recover(database, own_run=run_id)
        expect_writable(database)
    starter_rows = starter(database) if starter is not None and not database.kernel_types() else 0
    edited = clear_edited(database, run_id)
    with database.lock():
        mapping = write_default_mapping(database.path, is_npu=is_npu)
    return PreparedDatabase([*problems, *edited.problems], recovered, starter_rows, edited, mapping)


def expect_writable(database: Database) -> None:
    """Raises OpAtlasError if the database cannot be written, rather than after hours of measuring."""
    with database.lock():
        pass
