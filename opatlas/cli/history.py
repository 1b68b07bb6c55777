"""Shows the durations of rows in each run of a database.

With --restore csvs the CSVs are made again from the histories of all runs and the samples of ingests; with --restore
pruned rows that a session moved to pruned/ come back into their CSVs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from opatlas.capture.ingest import rebuild_profiling
from opatlas.cli.arguments import add_database, add_json, add_rows, write_or_print_json
from opatlas.combine.rebuild import rebuild
from opatlas.errors import UsageError
from opatlas.model.named_databases import expect_database
from opatlas.model.record import RowName
from opatlas.model.signature import RowChoice, make_case_id
from opatlas.report.row_summary import microseconds_text, noise_text
from opatlas.store.database import Database, SessionLock, copy_for_dry_run
from opatlas.store.manifest import run_id_time
from opatlas.store.pruned import unprune
from opatlas.store.row_history import RowRun, row_histories
from opatlas.store.write_back import recover
from opatlas.text import align_numbers, percent_text, pluralize, print_problems, show, table_lines, wrap

#: What --restore restores.
_CSVS, _PRUNED = "csvs", "pruned"
_HEADER = ("  run", "status", "median", "noise", "n", "change")
#: A run has one line, however long its id is.
_ANY_WIDTH = 10_000
#: More rows are listed in a line each.
_ROWS_IN_FULL = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 done; 1 a file could not be read or written, or there is no such row; 2 wrong usage, and "
        "nothing was done"
    )
    add_database(parser)
    add_rows(parser, "required without --restore; with --restore pruned, default: all pruned rows")
    add_json(parser, "the runs, with all samples and assumptions,")
    parser.add_argument(
        "--restore",
        choices=(_CSVS, _PRUNED),
        help="csvs: make the CSVs again from the histories of their runs; pruned: bring pruned rows back into the CSVs "
        "(default: histories are shown)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="with --restore csvs: print what would change, and write nothing (default: the CSVs change)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Shows or restores rows and returns the exit status that the help explains. Raises OpAtlasError."""
    path: Path = arguments.database
    expect_database(path)
    if arguments.dry_run and arguments.restore != _CSVS:
        raise UsageError("--dry-run belongs to --restore csvs: leave it out, or add --restore csvs")
    if arguments.json is not None and arguments.restore:
        raise UsageError("--json writes histories: leave it out with --restore")
    if arguments.restore == _CSVS:
        if arguments.rows:
            raise UsageError(f"--restore csvs makes all CSVs again: leave out {' '.join(arguments.rows)}")
        return _rebuild(path, dry_run=arguments.dry_run)
    if arguments.restore == _PRUNED:
        return _unprune(Database(path), _choice(path, arguments.rows))
    if not arguments.rows:
        raise UsageError("no ROW: name a kernel type, or a row by its id or a part of it")
    return _show(path, _choice(path, arguments.rows), arguments.json)


def _choice(path: Path, names: Sequence[str]) -> RowChoice:
    database = Database(path)
    pruned = (each.stem for each in database.pruned_dir.glob("[!.]*.csv"))
    return RowChoice(names, frozenset([*database.kernel_types(), *pruned]))


def _show(path: Path, chosen: RowChoice, json_path: Path | None) -> int:
    problems = list[str]()
    found = row_histories(Database(path), chosen, problems)
    chosen.expect(len(found), str(path))
    rows = [
        {
            "kernel_type": row.kernel_type,
            "signature": row.signature,
            "id": make_case_id(row.kernel_type, row.signature),
            "runs": [asdict(run) for run in runs],
        }
        for row, runs in found.items()
    ]
    if not write_or_print_json(json_path, rows):
        show("\n".join(_list_lines(found) if len(found) > _ROWS_IN_FULL else _all_lines(found)))
    print_problems(problems)
    return 1 if problems else 0


def _all_lines(found: Mapping[RowName, Sequence[RowRun]]) -> Iterator[str]:
    for row, runs in found.items():
        yield make_case_id(row.kernel_type, row.signature)
        if runs:
            yield from _run_lines(runs)
        else:
            yield "  never run"


def _run_lines(runs: Sequence[RowRun]) -> Iterator[str]:
    """Yields a line for each run; device, versions, instrument and cache state where they change."""
    cells: list[tuple[str, ...]] = [_HEADER]
    last: dict[str, float] = {}
    for run in runs:
        conditions = _conditions(run)
        cells.append((*_cells(run), _change(last.get(conditions), run.median)))
        if run.median is not None:
            last[conditions] = run.median
    header, *lines = table_lines(cells, width=_ANY_WIDTH)
    yield header
    before = ""
    for run, line in zip(runs, lines, strict=True):
        conditions = _conditions(run)
        if conditions and conditions != before:
            yield wrap(conditions, indent=4)
            before = conditions
        yield line
        if remark := "; ".join(filter(None, [run.reason, *run.assumptions])):
            yield wrap(remark, indent=4)


def _list_lines(found: Mapping[RowName, Sequence[RowRun]]) -> Iterator[str]:
    """Yields a line for each row: what it took in the oldest and in the newest run."""
    rows: list[tuple[str, ...]] = [("", "runs", "oldest", "newest", "change")]
    for row, runs in found.items():
        known = [median for run in runs if (median := run.median) is not None]
        ends = (known[0], known[-1]) if known else (None, None)
        numbers = ("" if us is None else microseconds_text(us) for us in ends)
        change = _change(*ends) if len(known) > 1 else ""
        rows.append((make_case_id(row.kernel_type, row.signature), f"{len(runs)}", *numbers, change))
    yield from align_numbers(rows)
    yield ""
    yield f"{pluralize(len(found), 'row')}: name up to {_ROWS_IN_FULL} for all of their runs, or add --json"


def _cells(run: RowRun) -> tuple[str, ...]:
    noise = run.std_us / run.duration_us if run.std_us is not None and run.duration_us else None
    return (
        f"{'*' if run.current else ' '} {run.run_id or '(unknown run)'}",
        run.status if run.kept_in != "replaced" else f"{run.status}, replaced",
        "" if run.median is None else microseconds_text(run.median),
        noise_text(noise),
        "" if run.samples is None else str(run.samples),
    )


def _conditions(run: RowRun) -> str:
    """Returns the start if the run id does not tell it, and what the duration depends on."""
    began = ""
    if run.started_at is not None and run_id_time(run.run_id) is None:
        began = time.strftime("began %Y-%m-%d %H:%M", time.gmtime(run.started_at))
    versions = (f"{name} {version}" for name, version in (run.versions or {}).items())
    return ", ".join(filter(None, [began, *run.devices, *versions, run.instrument, run.cache_state]))


def _change(before: float | None, now: float | None) -> str:
    return "" if before is None or now is None else percent_text(now / before - 1, signed=True)


def _unprune(database: Database, chosen: RowChoice) -> int:
    with _hold_lock(database, _PRUNED):
        unpruned = unprune(database, chosen)
    if not unpruned.problems:
        chosen.expect(len(unpruned.restored) + len(unpruned.kept), str(database.pruned_dir))
    show(f"{pluralize(len(unpruned.restored), 'row')} of {database.pruned_dir} restored into the CSVs")
    if unpruned.kept:
        stay = pluralize(len(unpruned.kept), "row stays", "rows stay")
        show(f"{stay} in pruned/: the CSV has a row of the same signature")
    print_problems(unpruned.problems)
    return 1 if unpruned.problems else 0


@contextmanager
def _hold_lock(database: Database, restored: str) -> Iterator[None]:
    """Holds the lock of a session. Raises OpAtlasError while a session has the database."""
    lock = SessionLock(database, run_id=f"restore {restored}", command=f"opatlas history --restore {restored}")
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _rebuild(path: Path, *, dry_run: bool) -> int:
    if dry_run:
        # The changes are made to a copy, so that they are the ones that a rebuild makes.
        with tempfile.TemporaryDirectory(prefix="opatlas-") as folder:
            copy = copy_for_dry_run(path, Path(folder) / "copy")
            lines, problems = (
                [text.replace(str(copy.path), str(path)) for text in texts] for texts in _rebuild_lines(copy)
            )
        lines.append("dry run: nothing was written")
    else:
        with _hold_lock(Database(path), _CSVS):
            lines, problems = _rebuild_lines(Database(path))
    show("\n".join(lines))
    print_problems(problems)
    return 1 if problems else 0


def _rebuild_lines(database: Database) -> tuple[list[str], list[str]]:
    """Rebuilds the CSVs and returns the lines of the summary, and the problems. Raises OpAtlasError."""
    recovered = recover(database, own_run="") if database.journal_dir.is_dir() else []
    lines = [str(each) for each in recovered if each.statuses]
    problems = [problem for each in recovered for problem in each.problems]
    with database.lock():
        captured = rebuild_profiling(database)
    problems += captured.outcome.problems
    problems += [
        f"ingest {run_id} has no samples any more: the cells of its captures do not change"
        for run_id in captured.without_samples
    ]
    rebuilt = rebuild(database)
    problems += rebuilt.problems
    of_captures = captured.outcome.updated + captured.outcome.new
    lines.append(
        f"{database.path}: {pluralize(rebuilt.changed.total(), 'row')} changed and {rebuilt.added.total():,} added "
        f"from the histories of {pluralize(len(rebuilt.runs), 'run')}; {of_captures:,} from the samples of ingests"
    )
    edited = sum(map(len, captured.edited.values()))
    if edited:
        lines.append(
            f"  {pluralize(edited, 'row')} edited since the capture: captured durations belong to the old shape"
        )
    for kernel_type in sorted({*rebuilt.changed, *rebuilt.added}):
        lines.append(f"  {kernel_type}: {rebuilt.changed[kernel_type]:,} changed, {rebuilt.added[kernel_type]:,} added")
    return lines, problems
