"""Makes the plan of a session: prepares the database, reads it, and decides which rows are cases."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pytest

from opatlas.capture.profile_samples import read_profile
from opatlas.capture.summary import captured_time_us
from opatlas.combine.provenance import PresentSetup, Provenance, StaleRuns
from opatlas.devices.discovery import driver_version
from opatlas.errors import OpAtlasError, describe_error
from opatlas.files import expect_folder
from opatlas.implementations.implementation import Implementation
from opatlas.isolation.msprof.pending import recover_profiles
from opatlas.isolation.task_rows import task_rows
from opatlas.model.quality import valid_duration
from opatlas.model.schema import (
    BASE,
    CACHE_STATE,
    CRASHES_IN_A_ROW,
    EP_SIZE,
    IMPLEMENTATION,
    INSTRUMENT,
    LEGACY_AVG_SEQ_LEN,
    MESSAGE,
    MICROBENCH_SAMPLES,
    PROFILING_AVERAGE,
    RUN_ID,
    RUNTIME,
    STATUS,
    STATUS_REASON,
    SUITE,
    TASK,
)
from opatlas.model.signature import digest, signature, signatures
from opatlas.store.cells import duration_columns, identity_columns
from opatlas.store.csv_files import release_memory
from opatlas.store.database import Database, SessionLock, Table
from opatlas.store.header import misspelt_columns
from opatlas.store.history import clear_edited, edited_rows, without_measurement
from opatlas.store.op_mapping import write_default_mapping
from opatlas.store.row_copy import add_rows, read_rows
from opatlas.store.update_mode import UpdateMode
from opatlas.store.write_back import RecoveredJournal, has_duration, recover
from opatlas.text import printable, suggest

from .mixing import captured_notes, origin_notes
from .plan import KnownFailure, Plan, PreparedDatabase, TablePlan
from .run_manifest import present_code
from .selection import GIVEN_UP_AFTER, Choice
from .session_context import SessionContext
from .settings import Settings
from .target import SessionTarget, TargetDatabase
from .where_variables import TableVariables

#: Columns that a replay may need.
_CELLS = (*BASE, EP_SIZE, *RUNTIME, LEGACY_AVG_SEQ_LEN, *MESSAGE, *SUITE, *TASK)
_STATE = (
    *(STATUS, STATUS_REASON, CRASHES_IN_A_ROW, CACHE_STATE, INSTRUMENT, MICROBENCH_SAMPLES, RUN_ID),
    IMPLEMENTATION,
)


def plan_session(context: SessionContext) -> Plan:
    """Makes the plan of a session, and takes the database for the session if the session writes.

    An error becomes `Plan.error`: raised during collection, pytest would show the error once for each module.
    """
    try:
        return _plan_session(context)
    except (OpAtlasError, pytest.UsageError) as error:
        return Plan(error=str(error))
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return Plan(error=f"no plan could be made ({said}): report this error of OpAtlas\n{traceback.format_exc()}")


def _plan_session(context: SessionContext) -> Plan:
    settings = context.settings
    if settings.named:
        expect_folder(
            settings.targets[0].rows_from or settings.database,
            "name one that holds {KernelType}.csv files, or an empty one for a starter database",
            option="--database-path",
        )
    if settings.prof_path is not None:
        with context.past_capture():
            context.profile = read_profile(settings.prof_path)
    if settings.writes:
        # Refuse before anything is written. Checked again with each plan, when no other session writes.
        for own in context.databases:
            _read_origin(context, own)
        # In the order of their paths: two sessions never wait for each other.
        for own in sorted(context.databases, key=lambda each: each.database.path):
            _lock_database(context, own)
    base = _BaseRows(settings, *_task_rows(context))
    plan = Plan(notes=list(base.notes))
    for number in range(len(settings.targets)):
        plan.add(_plan_target(context, number, base))
    plan.problems += context.profile.problems if context.profile is not None else ()
    return plan


def _plan_target(context: SessionContext, number: int, base: _BaseRows) -> Plan:
    """Makes the plan of a target, whose database the session has if the session writes."""
    settings, own = context.settings, context.databases[number]
    database, target = own.database, own.target
    requested = base.of_target(target) if settings.workload.tasks else settings.workload.rows
    if settings.writes:
        prepared = _prepare_for(context, own, base)
    else:
        prepared = PreparedDatabase(edited=edited_rows(database))
        if target.rows_from is not None and not settings.workload.tasks:
            requested = base.with_own(target, database)
    elsewhere: Container[str] = context.profile.cases.keys() if context.profile is not None else ()
    if base.requested is not None:
        elsewhere = base.requested
    elif target.rows_from is not None:
        elsewhere = Database(target.rows_from).kernel_types()
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
    )
    if settings.writes and any(table.cases for table in plan.tables.values()):
        expect_writable(database)
    if not settings.collect_only:
        provenance, notes = _read_origin(context, own)
        plan.notes += [*notes, *captured_notes(provenance, plan, settings), *provenance.problems]
    plan.prepared = [prepared]
    plan.problems += prepared.problems
    return plan


def _read_origin(context: SessionContext, own: TargetDatabase) -> tuple[Provenance, list[str]]:
    """Raises OpAtlasError if the database is one of another device or of other software."""
    own.provenance = Provenance(own.database)
    return own.provenance, origin_notes(own.provenance, context.settings, own.target)


def _lock_database(context: SessionContext, own: TargetDatabase) -> None:
    """Raises OpAtlasError where another session has the database."""
    remedy = "wait for it to end (--wait SECONDS does so), or name another database with --database-path"
    own.lock = SessionLock(own.database, run_id=context.run_id, command=context.command, remedy=remedy)
    own.lock.acquire(context.settings.wait_s, context.tell)


def _prepare_for(context: SessionContext, own: TargetDatabase, base: _BaseRows) -> PreparedDatabase:
    settings, target = context.settings, own.target
    has_starter = settings.workload.has_starter and target.implementation.is_default
    prepared = prepare_database(
        own.database,
        run_id=context.run_id,
        starter=settings.workload.write_starter if has_starter else None,
        is_npu=settings.workload.has_op_mapping and settings.devices[0].kind == "npu",
        others=[each.path for each in settings.targets],
    )
    if settings.workload.tasks:
        add_rows(own.database, base.of_target(target))
        return prepared
    if target.rows_from is not None:
        added = add_rows(own.database, base.of_target(target))
        rows_from = target.rows_from if Database(target.rows_from).kernel_types() else None
        prepared = replace(prepared, rows_for=target.implementation.label, rows_added=added, rows_from=rows_from)
    return replace(prepared, taken_over=str(own.lock.stale) if own.lock and own.lock.stale is not None else "")


def _task_rows(context: SessionContext) -> tuple[Mapping[str, list[Mapping[str, str]]] | None, Sequence[str]]:
    """Returns the rows of the tasks of a session, and notes on tasks without rows; (None, ()) without tasks."""
    settings = context.settings
    if not settings.workload.tasks:
        return None, ()
    target, tasks = settings.targets[0], settings.workload.tasks
    if unknown := sorted(settings.ops - tasks.keys()):
        meant = "".join(suggest(name, tasks) for name in unknown) or f": the first one is {next(iter(tasks))}"
        raise OpAtlasError(f"--ops {','.join(unknown)}: --tasks names no such task{meant}")
    chosen = [task for name, task in tasks.items() if not settings.ops or name in settings.ops]
    with context.past_capture():
        found = task_rows(chosen, Database(target.rows_from or target.path))
    return found.rows, found.notes


class _BaseRows:
    """The rows that the implementations of a session are measured on; a file is read once for all implementations.

    Attributes:
        requested: the rows of tasks, by kernel type; None where the rows are those of a database.
        notes: what the user should know about these rows.
    """

    def __init__(
        self, settings: Settings, requested: Mapping[str, list[Mapping[str, str]]] | None, notes: Sequence[str]
    ) -> None:
        self._settings = settings
        self.requested = requested
        self.notes = notes
        #: By kernel type, for each folder.
        self._rows: dict[Path, dict[str, list[Mapping[str, str]]]] = {}

    def of_target(self, target: SessionTarget) -> Mapping[str, list[Mapping[str, str]]]:
        """Returns the rows of `SessionTarget.rows_from` whose kernel types the implementation has.

        The rows of a starter database are taken where there are none.

        Raises:
            OpAtlasError: a file cannot be read, or the starter cannot be made.
        """
        if self.requested is not None:
            return {name: rows for name, rows in self.requested.items() if target.implementation.implements(name)}
        assert target.rows_from is not None
        source = Database(target.rows_from)
        names, workload = source.kernel_types(), self._settings.workload
        if not names and workload.keeps_starter and self._settings.writes:
            workload.write_starter(source)
            names = source.kernel_types()
        if target.rows_from not in self._rows:
            self._rows[target.rows_from] = {} if names else self._starter_rows()
        rows = self._rows[target.rows_from]
        for name in filter(target.implementation.implements, names):
            if name not in rows:
                rows[name] = read_rows(source, name)
        return {name: rows[name] for name in sorted(rows) if target.implementation.implements(name)}

    def with_own(self, target: SessionTarget, database: Database) -> Mapping[str, list[Mapping[str, str]]]:
        """Returns the rows of the target's database, and then those of `of_target`. Raises what `of_target` does."""
        base = self.of_target(target)
        names = {*base, *filter(target.implementation.implements, database.kernel_types())}
        return {name: [*read_rows(database, name), *base.get(name, ())] for name in sorted(names)}

    def _starter_rows(self) -> dict[str, list[Mapping[str, str]]]:
        with TemporaryDirectory(prefix="opatlas-starter-") as folder:
            starter = Database(folder)
            self._settings.workload.write_starter(starter)
            return {name: read_rows(starter, name) for name in starter.kernel_types()}


def _stale_runs(context: SessionContext, own: TargetDatabase) -> StaleRuns:
    provenance = own.provenance or Provenance(own.database)
    driver = driver_version(context.settings.devices[0].kind) or ""
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


def make_plan(
    database: Database,
    chosen: Choice,
    *,
    elsewhere: Container[str] = (),
    requested: Mapping[str, Sequence[Mapping[str, str]]] | None = None,
    unmeasured: Mapping[str, Sequence[int]] | None = None,
    stale_runs: StaleRuns | None = None,
    target: int = 0,
    implementation: Implementation | None = None,
    rows_from: Path | None = None,
) -> Plan:
    """Reads a database and decides which of its rows are cases; writes nothing.

    Args:
        database: holds the rows, and gets their durations.
        chosen: the rows that the user chose.
        elsewhere: kernel types that may be chosen although the database has no rows of them: those with samples in a
            profile, those of the database whose rows an implementation measures, and the tasks of the session.
        requested: cells of the rows that options name, by kernel type. They are the cases, in this order, whether or
            not the database has them; None: the rows of the database.
        unmeasured: positions of rows whose durations and statuses do not count, by kernel type.
        stale_runs: the runs whose durations are stale; None unless only stale durations are measured.
        target: number of the target in the session.
        implementation: what is measured; kernel types that it lacks are no cases. None: the default.
        rows_from: the database whose rows an implementation measures, for messages; None: `database`.

    Raises:
        OpAtlasError: the database lacks a chosen kernel type, or no row has a variable of --where.
    """
    plan = Plan()
    names = database.kernel_types() if requested is None else list(requested)
    unknown = sorted(name for name in chosen.ops.difference(names) if name not in elsewhere)
    if unknown:
        asked = ",".join(unknown)
        place, meant = rows_from or database.path, "".join(suggest(name, names) for name in unknown)
        if rows_from is not None and implementation is not None and all(map(implementation.implements, unknown)):
            meant = f"; `pytest shapes/ --ops {asked}` adds theory rows"
        there = "" if meant else f"; it has {', '.join(names) or 'none'}"
        raise OpAtlasError(f"--ops {asked}: no such kernel type in {place}{meant}{there}")
    suffix = implementation.suffix if implementation is not None else ""
    plan.suffixes = [suffix]
    lacking = [
        name
        for name in dict.fromkeys((*names, *(sorted(chosen.ops) if requested is None else ())))
        if implementation is not None and not implementation.implements(name)
    ]
    if lacking and implementation is not None:
        plan.notes.append(f"{implementation.name} has no function for {', '.join(lacking)}")
    for name in names:
        if (chosen.ops and name not in chosen.ops) or name in lacking:
            continue
        try:
            table = _table(database, name, requested)
            wanted = None if requested is None else [signature(name, row) for row in requested[name]]
            if unmeasured and name in unmeasured:
                table.table.frame = without_measurement(name, table.table.frame, unmeasured[name])
            planned = _plan_table(table, wanted, chosen, stale_runs, target, suffix)
            plan.tables[planned.key] = planned
        except Exception as error:
            # An error in one file does not keep the rows of other files from running.
            place = database.path / f"{name}.csv"
            plan.problems.append(describe_error(error, place, "its rows are left out; report this error with the file"))
    release_memory()
    if chosen.where is not None:
        columns = frozenset().union(*(table.columns_by_slug for table in plan.tables.values()))
        if problem := chosen.where.unknown(columns):
            raise OpAtlasError(f"--where {str(chosen.where)!r}: {problem}")
    return plan


@dataclass(frozen=True)
class _Rows:
    """A table, whose first `in_file` rows are in its file."""

    table: Table
    in_file: int


def _table(database: Database, name: str, requested: Mapping[str, Sequence[Mapping[str, str]]] | None) -> _Rows:
    """Returns the rows in the file of a kernel type, followed by the requested rows that the file lacks."""
    if requested is None:
        table = database.read(name)
        return _Rows(table, len(table.frame))
    path = database.csv_path(name)
    frame = (
        database.read(name).frame if path.exists() else pd.DataFrame({column: [] for column in identity_columns(name)})
    )
    there = set(signatures(name, frame))
    missing = [row for row in requested[name] if signature(name, row) not in there]
    together = pd.concat([frame, pd.DataFrame(missing)], ignore_index=True).fillna("") if missing else frame
    return _Rows(Table(name, path, together), len(frame))


def _plan_table(
    rows: _Rows,
    wanted: Sequence[str] | None,
    chosen: Choice,
    stale_runs: StaleRuns | None,
    target: int,
    suffix: str,
) -> TablePlan:
    """`wanted` are the signatures of the cases, in their order; None: all rows, in the order of the file."""
    table = rows.table
    frame, kernel_type = table.frame, table.kernel_type
    columns, state = (
        {name: _shared(frame[name].tolist()) for name in names if name in frame.columns} for names in (_CELLS, _STATE)
    )
    own_duration, *_ = names = duration_columns(kernel_type)
    durations = {name: frame[name].tolist() for name in names if name in frame.columns}
    planned = TablePlan(kernel_type, table.path, rows.in_file, columns, state, target=target, suffix=suffix)
    planned.captured_time_us = None if chosen.ops else captured_time_us(frame)
    variables = TableVariables(kernel_type, frame)
    planned.columns_by_slug = frozenset(variables.slugs)
    planned.misspelt = misspelt_columns(table.path, list(frame.columns), kernel_type)
    places = None if wanted is None else {row_signature: place for place, row_signature in enumerate(wanted)}
    place_of: dict[int, int] = {}
    seen: set[str] = set()
    for position, row_signature in enumerate(signatures(kernel_type, frame)):
        if places is not None:
            if row_signature not in places:
                continue
            place_of[position] = places[row_signature]
        row_digest = digest(kernel_type, row_signature)
        if chosen.shard is not None and not chosen.shard.holds(row_digest):
            planned.other_shards.append(position)
            continue
        case_id = planned.case_id(row_signature, row_digest)
        if case_id in seen:
            planned.duplicates.append(position)
            if own_duration in durations and valid_duration(durations[own_duration][position]) is not None:
                planned.measured_duplicates.setdefault(case_id, []).append(position)
            continue
        seen.add(case_id)
        row = {name: cells[position] for name, cells in durations.items()}
        for name in durations:
            # Other tools write 0 for a row that is not measured.
            if row[name].strip("0. ") and valid_duration(row[name]) is None:
                planned.invalid_durations.append(f"line {position + 2}, {name!r} = {row[name]!r}")
        status = planned.status(position)
        measured_us = valid_duration(row.get(own_duration, ""))
        if measured_us is not None:
            planned.measured[position] = measured_us
        elif has_duration(kernel_type, row):
            planned.captured_only.add(case_id)
        fails = status is not None and status.expected_to_fail
        if fails:
            planned.unresolved[case_id] = str(status)
        if not chosen.selects(variables.row(position)):
            planned.not_selected.append(case_id)
            continue
        staleness = (
            None if stale_runs is None or measured_us is None else stale_runs.staleness(planned.run_id(position))
        )
        if staleness is not None:
            planned.staleness[case_id] = staleness
        captured = case_id in planned.captured_only
        if chosen.excludes(replayed=measured_us is not None, captured=captured, staleness=staleness):
            planned.left_out.append(case_id)
            continue
        planned.cases[position] = case_id
        captured_us = valid_duration(row.get(PROFILING_AVERAGE, ""))
        if captured_us is not None:
            planned.captured[position] = captured_us
        if fails:
            before = f"{status} before: {state[STATUS_REASON][position] if STATUS_REASON in state else ''}"
            given_up = planned.crashes(position) >= GIVEN_UP_AFTER and not chosen.retry_failed
            if given_up:
                before += f" ({planned.crashes(position)} sessions in a row; --runxfail runs it again)"
            if given_up or not chosen.strict:
                planned.known_failures[position] = KnownFailure(
                    printable(before), run=not given_up, strict=chosen.strict
                )
    if place_of:
        ordered = sorted(planned.cases, key=place_of.__getitem__)
        planned.cases = {position: planned.cases[position] for position in ordered}
    return planned


def _shared(cells: list[str]) -> list[str]:
    """Returns the cells with one object for equal cells: most columns repeat a few words."""
    known: dict[str, str] = {}
    return [known.setdefault(cell, cell) for cell in cells]
