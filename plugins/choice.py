"""The rows that a user chose: by shard, update mode, --where, named files and -k; and the plan of a database."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from opatlas.capture.time_shares import captured_time_us
from opatlas.data.comparable import Staleness, StaleRuns
from opatlas.data.csv_files import release_memory
from opatlas.data.database import Database
from opatlas.data.fold import TableFold
from opatlas.data.header import misspelt_columns
from opatlas.errors import OpAtlasError, describe_error
from opatlas.row.columns import RUN_ID, STATUS_REASON
from opatlas.row.signature import digest, make_case_id, signature
from opatlas.row.status import UpdateMode
from opatlas.row.table import Row
from opatlas.run.implementation import Implementation
from opatlas.run.registry import Rows
from opatlas.text import printable, suggest

from .cases import CaseTable, Fate, KnownFailure, Plan, SessionCase
from .reports import Expression
from .where import Where, slugs

#: A row that crashed or timed out in so many sessions in a row is not run again without --runxfail, because each
#: try costs a device process and perhaps a whole deadline.
GIVEN_UP_AFTER = 2


@dataclass(frozen=True)
class Shard:
    """Part `index` of `count` of a collection, from 1."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def holds(self, row_digest: str) -> bool:
        """Returns whether a row belongs to this part, by the row alone."""
        return int(row_digest, 16) % self.count == self.index - 1


@dataclass(frozen=True)
class Choice:
    """The rows of a database that the options choose.

    Attributes:
        mode: the rows to run, by the durations that they have.
        ops: the kernel types to run; empty: all.
        shard: the part of the rows to run; None: all rows.
        retry_failed: run rows that were given up.
        where: a condition on the cells of a row; None: no condition.
        strict: rows that failed before fail again, instead of being xfail.
    """

    mode: UpdateMode = UpdateMode.ALL
    ops: frozenset[str] = frozenset()
    shard: Shard | None = None
    retry_failed: bool = False
    where: Where | None = None
    strict: bool = False

    def excludes(self, *, replayed: bool, captured: bool, staleness: Staleness | None) -> bool:
        """Returns whether the update mode leaves out a row.

        Args:
            replayed: the row has a replayed duration.
            captured: the row has a captured duration and no replayed one.
            staleness: of the replayed duration, in the mode STALE.
        """
        if self.mode is UpdateMode.MISSING_ONLY:
            return replayed or captured
        if self.mode is UpdateMode.STALE:
            return staleness is None or not staleness.is_stale
        return self.mode is UpdateMode.UNREPLAYED and replayed


def keyword_filter(expression: str) -> Callable[[str], bool]:
    """Returns the test of a text by -k. Raises pytest.UsageError for an expression that pytest refuses, too."""
    if not expression:
        return lambda text: True
    try:
        compiled = Expression.compile(expression)
    except Exception as error:  # SyntaxError; before pytest 9 an error of pytest's own
        said = getattr(error, "msg", None) or str(error)
        raise pytest.UsageError(
            f"-k {expression!r} is not an expression ({said}): join parts of names by 'and', 'or', 'not'"
        ) from None

    def selected(text: str) -> bool:
        def contains(word: str, /, **_: str | int | bool | None) -> bool:
            return word.lower() in text.lower()

        return compiled.evaluate(contains)

    return selected


def named_paths(config: pytest.Config) -> list[Path]:
    """Returns the files and folders that a user named; none if a name is neither, such as that of a package."""
    named = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    return [path.resolve() for path in named] if all(path.exists() for path in named) else []


def requested_rows(config: pytest.Config, replays: Mapping[str, Any]) -> Callable[[str, str], bool]:
    """Returns whether the user requested a row, by kernel type and id, for rows that never become items of pytest.

    A row is requested if a named file replays its kernel type, and -k selects it.

    Args:
        replays: the replay functions by kernel type.
    """
    is_selected, paths = keyword_filter(config.option.keyword), named_paths(config)

    @cache
    def words_of(kernel_type: str) -> str | None:
        """Returns the words that -k searches for a kernel type; None where no named file holds its replay."""
        function = replays.get(kernel_type)
        if function is None:
            return None if any(path.is_file() for path in paths) else ""
        file = Path(inspect.getfile(function)).resolve()
        if paths and not any(path in (file, *file.parents) for path in paths):
            return None
        return f"{function.__module__} {function.__name__}"

    def is_requested(kernel_type: str, case_id: str) -> bool:
        words = words_of(kernel_type)
        return words is not None and is_selected(f"{case_id} {words}")

    return is_requested


def make_plan(
    database: Database,
    chosen: Choice,
    *,
    elsewhere: Container[str] = (),
    requested: Rows | None = None,
    unmeasured: Mapping[str, Sequence[int]] | None = None,
    stale_runs: StaleRuns | None = None,
    target: int = 0,
    implementation: Implementation | None = None,
    rows_from: Path | None = None,
    captures: Database | None = None,
) -> Plan:
    """Reads a database and decides which of its rows are run; writes nothing.

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
    types = sorted(chosen.ops) if chosen.ops and requested is None else names
    lacking = [name for name in types if implementation is not None and not implementation.implements(name)]
    if lacking and implementation is not None:
        plan.notes.append(f"{implementation.name} has no function for {', '.join(lacking)}")
    for name in names:
        if (chosen.ops and name not in chosen.ops) or name in lacking:
            continue
        try:
            table = _case_table(database, name, None if requested is None else requested[name])
            table.target, table.suffix = target, implementation.suffix if implementation is not None else ""
            if unmeasured and name in unmeasured:
                fold = TableFold(table.table)
                for position in unmeasured[name]:
                    fold.clear(position)
                table.table = fold.rows.table()
            wanted = None if requested is None else [signature(name, row) for row in requested[name]]
            _choose(table, wanted, chosen, stale_runs)
            others = table.table if captures is None else captures.read_or_empty(name)
            table.captured_time_us = None if chosen.ops else captured_time_us(others)
            table.captured = (table.table if captures is None else table.table.with_captured(others)).captured.us
            table.table = table.table.without_derived()
            plan.tables[table.key] = table
        except Exception as error:
            # An error in one file does not keep the rows of other files from running.
            place = database.path / f"{name}.csv"
            plan.problems.append(describe_error(error, place, "its rows are left out; report this error with the file"))
    release_memory()
    if chosen.where is not None:
        columns = {slug for table in plan.tables.values() for slug in slugs(table.table)}
        if problem := chosen.where.unknown(columns):
            raise OpAtlasError(f"--where {str(chosen.where)!r}: {problem}")
    return plan


def _case_table(database: Database, name: str, requested: Sequence[Mapping[str, str]] | None) -> CaseTable:
    """Returns the rows in the file of a kernel type, followed by the requested rows that the file lacks."""
    table = database.read_or_empty(name)
    if requested is None:
        return CaseTable(table, len(table), label=name)
    fold = TableFold(table)
    fold.append_missing(requested)
    return CaseTable(fold.rows.table(), len(table), label=name)


def _choose(rows: CaseTable, wanted: Sequence[str] | None, chosen: Choice, stale_runs: StaleRuns | None) -> None:
    """Makes the cases of a table; `wanted` are their signatures, in their order; None: all rows, as in the file."""
    table, name = rows.table, rows.kernel_type
    replayed, *others = (durations.known.tolist() for durations in table.durations)
    is_selected = [True] * len(table) if chosen.where is None else chosen.where.selected(table)
    run_ids = table.cells(RUN_ID)
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
            if chosen.excludes(replayed=is_replayed, captured=captured, staleness=case.staleness):
                case.fate = Fate.LEFT_OUT
            else:
                case.known_failure = _known_failure(table.row(position), chosen)
        seen.add(case.id)
    rows.cases = [case for _, case in sorted(cases, key=itemgetter(0))]
    rows.notes = misspelt_columns(table.path, table.columns, name)


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
