"""The plan of a session: prepares its databases, and decides which rows are run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from opatlas.capture.profile_samples import Profile, fits, read_profile
from opatlas.data import journal
from opatlas.data.comparable import PresentSetup, StaleRuns
from opatlas.data.csv_files import release_memory
from opatlas.data.database import Database, SessionLock
from opatlas.data.fold import TableFold, add_rows
from opatlas.data.op_mapping import write_default_mapping
from opatlas.data.origin import Provenance
from opatlas.data.restore import clear_edited, edited_rows
from opatlas.data.write_back import recover
from opatlas.errors import OpAtlasError, TableError, described, noted
from opatlas.files import expect_folder
from opatlas.row.columns import RUN_ID, STATUS, STATUS_REASON
from opatlas.row.record import RAN_AS
from opatlas.row.signature import digest, kernel_types_meant, make_case_id, signature
from opatlas.row.status import Status, UpdateMode
from opatlas.row.table import Row, RowTable
from opatlas.run.devices.device import kind_named
from opatlas.run.registry import Rows
from opatlas.text import pluralize, printable, suggest

from .cases import CaseTable, Fate, KnownFailure, Plan, SessionCase
from .choice import Choice, slugs
from .target import SessionTarget, TargetDatabase, captured_note, read_origin

if TYPE_CHECKING:
    from .session_context import SessionContext
    from .settings import Settings

#: A row that crashed or timed out in so many sessions in a row is not run again without --runxfail, because each
#: try costs a device process and perhaps a whole deadline.
GIVEN_UP_AFTER = 2


def plan_session(context: SessionContext) -> Plan:
    """Makes the plan of a session, and takes the database for the session if the session writes.

    An error becomes `Plan.error`: raised during collection, pytest would show it once for each module.
    """
    try:
        return _plan_session(context)
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
            read_origin(context, own)
        # In the order of their paths: two sessions never wait for each other.
        for own in sorted(context.databases, key=lambda each: each.database.path):
            remedy = "wait for it to end, or name another database with --database-path"
            own.lock = SessionLock(own.database, run_id=context.run_id, command=context.command, remedy=remedy)
            own.lock.acquire()
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


def _expect_fitting(profile: Profile, database: Database) -> None:
    """Raises OpAtlasError where a profile fits no row of a database that has rows."""
    if not fits(profile, database):
        found = pluralize(sum(map(len, profile.cases.values())), "signature")
        lines = [
            f"{profile.root} has {found}, and none is that of a row of {database.path}: nothing was written",
            "Name the database of the profiled program with --database-path, or an empty folder for a new one",
            *profile.problems,
        ]
        raise OpAtlasError("\n".join(lines))


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
        read = _prepare_for(context, own, base, starter, plan)
    else:
        read = edited_rows(database).tables
        if target.rows_from is not None and requested is None:
            requested = base.with_own(target, database)
        elif starter is not None and settings.collect_only and not database.kernel_types():
            requested = base.starter_rows()
            told = f"without --co the session first makes one of {sum(map(len, requested.values())):,} theory rows"
            plan.notes.append(f"there is no database yet: {told}")
    if base.requested is not None:
        elsewhere |= base.requested.keys()
    elif target.rows_from is not None:
        elsewhere.update(Database(target.rows_from).kernel_types())
    stale_runs = None
    if settings.mode is UpdateMode.STALE:
        driver = kind_named(settings.devices[0].kind).driver_version() or ""
        present = PresentSetup(target.origin, driver, context.code)
        stale_runs = StaleRuns((own.provenance or Provenance(database)).manifests, present)
    chosen = make_plan(
        target, settings, number, elsewhere=elsewhere, requested=requested, read=read, stale_runs=stale_runs
    )
    if len(settings.targets) > 1:
        for table in chosen.tables.values():
            table.label = f"{table.kernel_type} {target.implementation.name}"
    plan.add(chosen)
    if settings.writes and any(table.to_run for table in plan.tables.values()):
        # It can be written: otherwise this raises, rather than the end after hours of measuring.
        with database.lock():
            pass
    if not settings.collect_only:
        provenance, mixed = read_origin(context, own)
        # Else the target has a note.
        captured = captured_note(provenance, plan, settings) if target.captures is None else ""
        plan.notes += [*filter(None, [mixed, captured]), *provenance.problems]
    return plan


def _prepare_for(
    context: SessionContext, own: TargetDatabase, base: _BaseRows, starter: Callable[[Database], int] | None, plan: Plan
) -> Mapping[str, RowTable]:
    """Prepares the database of a target, and adds the rows that other databases or options name.

    The records of killed sessions are merged, and durations cleared that were measured with other shapes.

    Args:
        starter: fills a database without CSVs, and returns the number of rows; None: the database stays empty.
        plan: gets the lines and problems of what was done.

    Returns:
        Tables that need not be read again, by kernel type.

    Raises:
        OpAtlasError: the database cannot be written.
    """
    settings, target, database = context.settings, own.target, own.database
    if database.journal_dir.is_dir():
        for each in recover(database, own_run=context.run_id):
            plan.is_incomplete |= each.incomplete
            plan.prepared += [str(each), *each.problems]
    if starter is not None and not database.kernel_types():
        rows = pluralize(starter(database), "theory row")
        plan.prepared.append(f"there was no database yet; made a starter of {rows}")
    edited = clear_edited(database, context.run_id)
    if edited.example is not None:
        rows = pluralize(edited.count, "row was", "rows were")
        example = make_case_id(edited.example.kernel_type, edited.example.signature)
        told = f"{rows} measured with other shapes than now ({example}): measured again (`opatlas history`)"
        plan.prepared.append(told)
    plan.problems += edited.problems
    # Where the folder does not say it.
    is_npu = settings.source.needs_database and kind_named(settings.devices[0].kind).is_native
    with database.lock():
        mapping = write_default_mapping(database.path, is_npu=is_npu)
    plan.prepared += [str(mapping)] if mapping is not None else []
    own.left_behind = journal.journals(database)
    if settings.source.is_listed and base.requested is not None:
        add_rows(database, base.of_target(target))
    elif target.rows_from is not None and (added := add_rows(database, base.of_target(target))):
        place = target.rows_from if Database(target.rows_from).kernel_types() else "the starter database"
        told = f"{target.implementation.label}: {pluralize(added, 'row')} without durations added from {place}"
        plan.prepared.append(told)
    if settings.source.is_listed or target.rows_from is not None:
        # Rows were added.
        edited.tables.clear()
    if own.lock is not None and own.lock.stale is not None:
        plan.prepared.append(f"{own.lock.stale} was killed; took the database over from it")
    return edited.tables


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
        source = Database(target.rows_from)
        names = source.kernel_types()
        if target.rows_from not in self._rows:
            self._rows[target.rows_from] = {} if names else self.starter_rows()
        rows = self._rows[target.rows_from]
        for name in filter(has_kernel, names):
            if name not in rows:
                rows[name] = []
                with noted(self.plan.problems, TableError):
                    rows[name] = source.read_or_empty(name).identities()
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


def make_plan(
    target: SessionTarget,
    chosen: Choice,
    number: int = 0,
    *,
    elsewhere: Collection[str] = (),
    requested: Rows | None = None,
    read: Mapping[str, RowTable] | None = None,
    stale_runs: StaleRuns | None = None,
) -> Plan:
    """Reads the database of a target and decides which of its rows are run; writes nothing.

    Args:
        chosen: the rows that the user chose.
        number: number of the target in the session.
        elsewhere: kernel types that may be chosen although the database has no rows of them: those of a profile, of the
            database whose rows an implementation measures, and of the tasks of the session.
        requested: cells of the rows that options name, by kernel type. They are the cases, in this order, whether or
            not the database has them; None: the rows of the database.
        read: tables that need not be read again, by kernel type.
        stale_runs: the runs whose durations are stale; None unless only stale durations are measured.

    Raises:
        OpAtlasError: the database lacks a chosen kernel type, or no row has a variable of --where.
    """
    database, implementation, known = Database(target.path), target.implementation, read or {}
    names = database.kernel_types() if requested is None else list(requested)
    ops = {meant for word in chosen.ops for meant in kernel_types_meant(word, {*names, *elsewhere})}
    plan = Plan(ops=frozenset(ops))
    if unknown := sorted(ops.difference(names, elsewhere)):
        raise _unknown_types(unknown, names, target)
    types = sorted(ops) if ops and requested is None else names
    if lacking := [name for name in types if not implementation.implements(name)]:
        plan.notes.append(f"{implementation.name} has no function for {', '.join(lacking)}")
    for name in (name for name in names if (not ops or name in ops) and name not in lacking):
        # An error in one file does not keep the rows of other files from running.
        remedy = "its rows are left out; report this error with the file"
        with described(plan.problems, database.path / f"{name}.csv", remedy):
            rows = None if requested is None else requested[name]
            in_file = known.get(name) or database.read_or_empty(name)
            whole = in_file if rows is None else _with_rows(in_file, rows)
            table = CaseTable(whole, len(in_file), number, implementation.suffix, label=name)
            _choose(table, None if rows is None else [signature(name, row) for row in rows], chosen, stale_runs)
            others = whole if target.captures is None else Database(target.captures).read_or_empty(name)
            table.captured_time_us = None if ops else others.captured_time_us
            table.captured = (whole if target.captures is None else whole.with_captured(others)).captured.us
            table.table = whole.without_derived()
            plan.tables[table.key] = table
    release_memory()
    _expect_variables(chosen, plan)
    return plan


def _unknown_types(unknown: Sequence[str], names: Sequence[str], target: SessionTarget) -> OpAtlasError:
    """Returns the error about chosen kernel types that the rows of a target lack."""
    asked, meant = ",".join(unknown), "".join(suggest(name, names) for name in unknown)
    if target.rows_from is not None and all(map(target.implementation.implements, unknown)):
        meant = f"; `opatlas shapes --ops {asked}` adds theory rows"
    there = "" if meant else f"; it has {', '.join(names) or 'none'}"
    return OpAtlasError(f"--ops {asked}: no such kernel type in {target.rows_from or target.path}{meant}{there}")


def _expect_variables(chosen: Choice, plan: Plan) -> None:
    """Raises OpAtlasError where no row has a variable of --where."""
    if chosen.where is not None:
        columns = {slug for table in plan.tables.values() for slug in slugs(table.table)}
        if problem := chosen.where.unknown(columns):
            raise OpAtlasError(f"--where {str(chosen.where)!r}: {problem}")


def _with_rows(table: RowTable, rows: Sequence[Mapping[str, str]]) -> RowTable:
    """Returns a table with further rows."""
    fold = TableFold(table)
    fold.append_missing(rows)
    return fold.rows.table()


def _choose(rows: CaseTable, wanted: Sequence[str] | None, chosen: Choice, stale_runs: StaleRuns | None) -> None:
    """Makes the cases of a table; `wanted` are their signatures, in their order; None: all rows, as in the file."""
    table, name = rows.table, rows.kernel_type
    replayed, *others = (durations.known.tolist() for durations in table.durations)
    is_selected = [True] * len(table) if chosen.where is None else chosen.where.selected(table)
    run_ids, statuses, reasons = map(table.cells, (RUN_ID, STATUS, STATUS_REASON))
    places = None if wanted is None else {row_signature: place for place, row_signature in enumerate(wanted)}
    seen: set[str] = set()
    cases: list[tuple[int, SessionCase]] = []
    for position, row_signature in enumerate(table.signatures):
        place = position if places is None else places.get(row_signature)
        if place is None:
            continue
        row_digest = digest(name, row_signature)
        case = SessionCase(rows, position, f"{make_case_id(name, row_signature, row_digest)}{rows.suffix}", Fate.TO_RUN)
        cases.append((place, case))
        if chosen.shard is not None and not chosen.shard.holds(row_digest):
            case.fate = Fate.OTHER_SHARD
        elif case.id in seen:
            case.fate = Fate.REPEATED
        elif not is_selected[position]:
            case.fate = Fate.NOT_SELECTED
        else:
            is_replayed = replayed[position]
            if stale_runs is not None and is_replayed:
                case.staleness = stale_runs.staleness(run_ids[position].strip())
            captured = not is_replayed and any(known[position] for known in others)
            # What ran as another kernel type has its duration in that one's CSV.
            has_ran = statuses[position] == Status.UNSUPPORTED and reasons[position].startswith(RAN_AS)
            if chosen.excludes(replayed=is_replayed or has_ran, captured=captured, staleness=case.staleness):
                case.fate = Fate.LEFT_OUT
            else:
                case.known_failure = _known_failure(table.row(position), chosen)
        seen.add(case.id)
    rows.cases = [case for _, case in sorted(cases, key=itemgetter(0))]


def _known_failure(row: Row, chosen: Choice) -> KnownFailure | None:
    """Returns the known failure of a case; None for a case that is run as if nothing were known."""
    status = row.status
    if status is None or not status.expected_to_fail:
        return None
    before, crashes = f"{status} before: {row.cell(STATUS_REASON)}", row.crashes
    given_up = crashes >= GIVEN_UP_AFTER and not chosen.retry_failed
    if given_up:
        before += f" ({crashes} sessions in a row; --runxfail runs it again)"
    if not given_up and chosen.strict:
        return None
    return KnownFailure(printable(before), run=not given_up, strict=chosen.strict)
