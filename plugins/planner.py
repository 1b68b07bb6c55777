"""Decides which rows of a database are cases; reads its CSVs and writes nothing."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from opatlas.capture.time_shares import captured_time_us
from opatlas.data.cells import identity_columns
from opatlas.data.comparable import StaleRuns
from opatlas.data.csv_files import release_memory
from opatlas.data.database import Database
from opatlas.data.fold import TableFold
from opatlas.data.header import misspelt_columns
from opatlas.data.row_copy import with_captured
from opatlas.errors import OpAtlasError, describe_error
from opatlas.row.columns import RUN_ID, STATUS_REASON
from opatlas.row.quality import valid_duration
from opatlas.row.signature import digest, signature, signatures, signatures_of
from opatlas.row.table import FIRST_LINE, Row, RowTable
from opatlas.run.implementations.implementation import Implementation
from opatlas.text import printable, suggest

from .plan import CasesOfTable, KnownFailure, Plan
from .selection import GIVEN_UP_AFTER, Choice
from .where_variables import slugs


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
                table = _Rows(fold.rows.table(), table.in_file)
            planned = _plan_table(table, wanted, chosen, stale_runs, target, suffix)
            if captures is not None:
                _take_captured(planned, captures, chosen)
            planned.table = planned.table.without_derived()
            plan.tables[planned.key] = planned
        except Exception as error:
            # An error in one file does not keep the rows of other files from running.
            place = database.path / f"{name}.csv"
            plan.problems.append(describe_error(error, place, "its rows are left out; report this error with the file"))
    release_memory()
    if chosen.where is not None:
        columns = {slug for cases in plan.tables.values() for slug in slugs(cases.table)}
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
        return _Rows(table, len(table))
    # It takes 40 MB, which the rows of a database do without.
    import pandas as pd

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
) -> CasesOfTable:
    """`wanted` are the signatures of the cases, in their order; None: all rows, in the order of the file."""
    table = rows.table
    planned = CasesOfTable(table, rows.in_file, captured=table.captured.us, target=target, suffix=suffix)
    planned.captured_time_us = None if chosen.ops else captured_time_us(table)
    planned.misspelt = misspelt_columns(table.path, table.columns, table.kernel_type)
    replayed, *others = (durations.known.tolist() for durations in table.durations)
    is_selected = [True] * len(table) if chosen.where is None else chosen.where.selected(table)
    run_ids = table.cells(RUN_ID)
    places = None if wanted is None else {row_signature: place for place, row_signature in enumerate(wanted)}
    place_of: dict[int, int] = {}
    seen: set[str] = set()
    for position, row_signature in enumerate(signatures_of(table.kernel_type, table.columns, table.cells)):
        if places is not None:
            if row_signature not in places:
                continue
            place_of[position] = places[row_signature]
        row_digest = digest(table.kernel_type, row_signature)
        if chosen.shard is not None and not chosen.shard.holds(row_digest):
            planned.other_shards.append(position)
            continue
        case_id = planned.case_id(row_signature, row_digest)
        if case_id in seen:
            planned.duplicates[position] = case_id
            continue
        seen.add(case_id)
        if not is_selected[position]:
            planned.not_selected[position] = case_id
            continue
        is_replayed = replayed[position]
        staleness = None if stale_runs is None or not is_replayed else stale_runs.staleness(run_ids[position].strip())
        if staleness is not None:
            planned.staleness[case_id] = staleness
        captured = not is_replayed and any(known[position] for known in others)
        if chosen.excludes(replayed=is_replayed, captured=captured, staleness=staleness):
            planned.left_out[position] = case_id
            continue
        planned.cases[position] = case_id
    if place_of:
        ordered = sorted(planned.cases, key=place_of.__getitem__)
        planned.cases = {position: planned.cases[position] for position in ordered}
    known = ((position, _known_failure(table.row(position), chosen)) for position in planned.cases)
    planned.known_failures = {position: failure for position, failure in known if failure is not None}
    planned.invalid_durations = _invalid_durations(planned)
    return planned


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


def _invalid_durations(planned: CasesOfTable) -> list[str]:
    """Returns the cells that should hold a duration and do not; of rows of this shard without duplicates."""
    table, ids = planned.table, {**planned.cases, **planned.left_out, **planned.not_selected}
    invalid = [
        (position, f"line {position + FIRST_LINE}, {name!r} = {cell!r}")
        for name in table.kind.duration_columns
        for position, cell in enumerate(table.cells(name))
        # Other tools write 0 for a row that is not measured.
        if cell.strip("0. ") and valid_duration(cell) is None and position in ids
    ]
    return [text for _, text in sorted(invalid, key=itemgetter(0))]


def _take_captured(planned: CasesOfTable, captures: Database, chosen: Choice) -> None:
    """Takes the captured durations of a table from another database. Raises TableError."""
    others = captures.read_or_empty(planned.kernel_type)
    planned.captured_time_us = None if chosen.ops else captured_time_us(others)
    planned.captured = with_captured(planned.table, others).captured.us
