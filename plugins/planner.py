"""Decides which rows of a database are cases; reads its CSVs and writes nothing."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from opatlas.capture.time_shares import captured_time_us
from opatlas.combine.provenance import StaleRuns
from opatlas.data.cells import duration_columns, identity_columns
from opatlas.data.csv_files import release_memory
from opatlas.data.database import Database
from opatlas.data.fold import TableFold
from opatlas.data.header import misspelt_columns
from opatlas.data.row_copy import with_captured
from opatlas.errors import OpAtlasError, describe_error
from opatlas.implementations.implementation import Implementation
from opatlas.row.columns import (
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
from opatlas.row.quality import valid_duration
from opatlas.row.signature import column_cells, digest, signature, signatures
from opatlas.row.table import RowTable
from opatlas.text import printable, suggest

from .plan import KnownFailure, Plan, TablePlan
from .selection import GIVEN_UP_AFTER, Choice
from .where_variables import TableVariables

#: Columns that a replay may need.
_CELLS = (*BASE, EP_SIZE, *RUNTIME, LEGACY_AVG_SEQ_LEN, *MESSAGE, *SUITE, *TASK)
_STATE = (
    *(STATUS, STATUS_REASON, CRASHES_IN_A_ROW, CACHE_STATE, INSTRUMENT, MICROBENCH_SAMPLES, RUN_ID),
    IMPLEMENTATION,
)


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
    captures: Database | None = None,
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
        captures: the database with the captured durations of the rows; None: `database`.

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
            meant = f"; `opatlas shapes --ops {asked}` adds theory rows"
        there = "" if meant else f"; it has {', '.join(names) or 'none'}"
        raise OpAtlasError(f"--ops {asked}: no such kernel type in {place}{meant}{there}")
    suffix = implementation.suffix if implementation is not None else ""
    plan.suffixes = [suffix]
    types = sorted(chosen.ops) if chosen.ops and requested is None else names
    lacking = [name for name in types if implementation is not None and not implementation.implements(name)]
    if lacking and implementation is not None:
        plan.notes.append(f"{implementation.name} has no function for {', '.join(lacking)}")
    for name in names:
        if (chosen.ops and name not in chosen.ops) or name in lacking:
            continue
        try:
            table = _table(database, name, requested)
            wanted = None if requested is None else [signature(name, row) for row in requested[name]]
            if unmeasured and name in unmeasured:
                fold = TableFold(table.table)
                for position in unmeasured[name]:
                    fold.clear(position)
                table = _Rows(RowTable(name, table.table.path, fold.rows.frame()), table.in_file)
            planned = _plan_table(table, wanted, chosen, stale_runs, target, suffix)
            if captures is not None:
                _take_captured(planned, captures, chosen)
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

    table: RowTable
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
    return _Rows(RowTable(name, path, together), len(frame))


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
    valid_us = {name: list(map(valid_duration, cells)) for name, cells in durations.items()}
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
            if own_duration in durations and valid_us[own_duration][position] is not None:
                planned.measured_duplicates.setdefault(case_id, []).append(position)
            continue
        seen.add(case_id)
        for name, cells in durations.items():
            # Other tools write 0 for a row that is not measured.
            if valid_us[name][position] is None and cells[position].strip("0. "):
                planned.invalid_durations.append(f"line {position + 2}, {name!r} = {cells[position]!r}")
        status = planned.status(position)
        us = {name: values[position] for name, values in valid_us.items() if values[position] is not None}
        measured_us = us.get(own_duration)
        if measured_us is not None:
            planned.measured[position] = measured_us
        elif us:
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
            planned.left_out[position] = case_id
            continue
        planned.cases[position] = case_id
        captured_us = us.get(PROFILING_AVERAGE)
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


def _take_captured(planned: TablePlan, captures: Database, chosen: Choice) -> None:
    """Takes the captured durations of a table from another database. Raises TableError."""
    frame = captures.read_or_empty(planned.kernel_type).frame
    planned.captured_time_us = None if chosen.ops else captured_time_us(frame)
    joined = with_captured(planned.kernel_type, pd.DataFrame(planned.columns, dtype=str), frame)
    captured_us = list(map(valid_duration, column_cells(joined, PROFILING_AVERAGE)))
    planned.captured = {at: us for at in planned.cases if (us := captured_us[at]) is not None}


def _shared(cells: list[str]) -> list[str]:
    """Returns the cells with one object for equal cells: most columns repeat a few words."""
    known: dict[str, str] = {}
    return [known.setdefault(cell, cell) for cell in cells]
