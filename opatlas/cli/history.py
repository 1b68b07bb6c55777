"""`opatlas history`: which rows changed from some run on, and what a row took in each run; restores rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from opatlas.ask.compare.regressions import Regressions, find_regressions
from opatlas.ask.compare.steps import LEAST_RUNS, LEAST_SIDE
from opatlas.capture.ingest import rebuild_profiling
from opatlas.cli.app import held
from opatlas.data.database import Database
from opatlas.data.manifest import run_id_time
from opatlas.data.restore import rebuild, unprune
from opatlas.data.row_history import RowRun, row_histories
from opatlas.errors import UsageError
from opatlas.formats import change, percent
from opatlas.row.location import expect_database
from opatlas.row.signature import RowChoice, kernel_types_meant, make_case_id
from opatlas.show import Column, Fields, Result, Table
from opatlas.show.parameters import DatabaseFolder, Percent
from opatlas.show.result import Part


def history(
    database: DatabaseFolder,
    /,
    *rows: Annotated[str, Parameter(name="ROW")],
    fail_slower: Percent | None = None,
    restore: Literal["csvs", "pruned"] | None = None,
) -> Result:
    """The rows that became slower or faster from some run on; with ROW what it took in each run.

    A step needs three runs on both sides that compare: of one device, cache state, instrument and implementation.
    Runs with disturbances in their manifests do not decide, and a change of all rows together is told as the machine's.

    Exit status: 0 done; 1 a row is slower (--fail-slower), a file could not be read or written, or there is no such
    row; 2 wrong usage, and nothing was done.

    Args:
        database: folder of {KernelType}.csv files, or a device such as NVIDIA_H200.
        rows: a kernel type, as in opatlas query, or a row as pytest names it: its id, the digest at the end of the id,
            or a part of the id.
        fail_slower: exit with 1 if a row is slower by more than this, such as 5%, after its newest change.
        restore: csvs makes the CSVs again from the histories of their runs and the samples of ingests; pruned brings
            pruned rows back into the CSVs, all or those that are named.
    """
    expect_database(database)
    if fail_slower is not None and restore:
        raise UsageError("--fail-slower tests durations: leave it out with --restore")
    if restore == "csvs":
        if rows:
            raise UsageError(f"--restore csvs makes all CSVs again: leave out {' '.join(rows)}")
        return _rebuild(Database(database))
    chosen = _choice(Database(database), rows)
    if restore == "pruned":
        return _unprune(Database(database), chosen)
    changed = find_regressions(Database(database), chosen) if fail_slower is not None or not rows else None
    shown = _runs(Database(database), chosen) if rows else _changes(database, changed)
    problems = [*shown.problems, *(_slower(changed, fail_slower) if changed and fail_slower is not None else ())]
    return Result(shown.parts, shown.json, problems)


def _choice(database: Database, names: Sequence[str]) -> RowChoice:
    pruned = (each.stem for each in database.pruned_dir.glob("[!.]*.csv"))
    known = dict.fromkeys([*database.kernel_types(), *pruned])
    return RowChoice([each for name in names for each in kernel_types_meant(name, known)], frozenset(known))


def _slower(found: Regressions, least: float) -> Iterator[str]:
    slower = [each for each in found.changes if each.is_newest and each.percent > least]
    if slower:
        worst = f"{slower[0].series.case_id} by {slower[0].percent:.1f} %"
        yield f"--fail-slower {least:g}%: {len(slower):,} slower, most {worst}"


def _changes(path: Path, found: Regressions | None) -> Result:
    assert found is not None
    content = {
        "runs": found.runs,
        "disturbed": found.disturbed,
        "facts": found.facts,
        "rows": found.rows,
        "searched": len(found.series),
        "left_out": found.left_out,
        "spread": found.spread,
        "shifts": [
            {**asdict(each), "differences": found.differences(each.before_run, each.after_run)} for each in found.shifts
        ],
        "changes": [
            {
                **asdict(each),
                "id": each.series.case_id,
                "percent": each.percent,
                "differences": found.differences(each.before_run, each.after_run),
            }
            for each in found.changes
        ],
    }
    return Result(list(_change_parts(path, found)), content, found.problems)


def _change_parts(path: Path, found: Regressions) -> Iterator[Part]:
    runs, disturbed = len(found.runs), len(found.disturbed)
    few = runs - disturbed < LEAST_RUNS
    told = f"{LEAST_RUNS} are needed, {LEAST_SIDE} on both sides of a step" if few else ""
    yield Fields(
        {
            "runs": (runs, told),
            "disturbed": (disturbed or None, "runs left out: their manifests have disturbances"),
            "rows": (found.rows, f"{len(found.series):,} with {LEAST_RUNS} runs that compare"),
            "left out": (found.left_out or None, "durations of bimodal, throttled or noisy samples"),
            "changed": (len(found.changes), f"spread between runs {percent(found.spread)}") if found.series else None,
        },
        title=str(path),
    )
    if not found.series and runs > 1:
        yield "next: opatlas compare DB@RUN DB compares two runs"
    shifts = [
        (before, after, each.percent / 100, each.rows, "; ".join(found.differences(before, after)))
        for each in found.shifts
        for before, after in [(each.before_run, each.after_run)]
    ]
    of_shifts = ("from run", "to run", Column("all rows", change), "rows", "what differs")
    yield Table(of_shifts, shifts, "changes of the machine, left out below")
    by_runs = found.by_runs()
    numbers = {runs: number for number, runs in enumerate(by_runs, 1)}
    steps = [
        (
            numbers[before, after],
            *(before, after),
            sum(each.percent > 0 for each in changes) or None,
            sum(each.percent < 0 for each in changes) or None,
            "; ".join(found.differences(before, after)),
        )
        for (before, after), changes in by_runs.items()
    ]
    yield Table(("no.", "from run", "to run", "slower", "faster", "what differs"), steps)
    rows = [
        (
            numbers[each.before_run, each.after_run],
            *(each.before_us, each.after_us, each.percent / 100),
            *(f"{each.runs_before}+{each.runs_after}", each.series.case_id),
        )
        for each in sorted(found.changes, key=lambda each: -each.percent)
    ]
    columns = ("no.", "before(us)", "after(us)", Column("change", change), "runs", "row")
    yield Table(columns, rows, weight=lambda row: abs(row[3]))


def _runs(database: Database, chosen: RowChoice) -> Result:
    problems = list[str]()
    found = row_histories(database, chosen, problems)
    chosen.expect(len(found), str(database.path))
    content = [
        {
            "kernel_type": row.kernel_type,
            "signature": row.signature,
            "id": make_case_id(row.kernel_type, row.signature),
            "runs": [asdict(run) for run in runs],
        }
        for row, runs in found.items()
    ]
    runs = {make_case_id(row.kernel_type, row.signature): runs for row, runs in found.items()}
    cells = [(*each, name) for name, of_row in runs.items() for each in _run_rows(of_row)]
    # The name of a single row is the title; what all runs have in common is told once.
    title = next(iter(runs)) if len(runs) == 1 else ""
    conditions = list(dict.fromkeys(row[7] for row in cells))
    common = conditions[0] if len(conditions) == 1 and len(cells) > 1 else None
    columns = (
        *("current", "run", "status", "median(us)", Column("noise", percent), "samples", Column("change", change)),
        *(Column("conditions", wide=bool(common)), "remark", Column("row", wide=bool(title))),
    )
    # The newest runs matter most.
    table = Table(columns, cells, weight=lambda row: row[1])
    facts = Fields({"runs": len(cells), "conditions": common}, title)
    return Result([facts, table], content, problems)


def _run_rows(runs: Sequence[RowRun]) -> list[tuple[Any, ...]]:
    """Returns the cells of each run; the change is that to the last run in the same conditions."""
    last: dict[str, float] = {}
    rows = []
    for run in runs:
        conditions = _conditions(run)
        rows.append(
            (
                "*" if run.current else None,
                run.run_id or "(unknown)",
                run.status if run.kept_in != "replaced" else f"{run.status}, replaced",
                run.median,
                run.std_us / run.duration_us if run.std_us is not None and run.duration_us else None,
                run.samples,
                _growth(last.get(conditions), run.median),
                conditions,
                "; ".join(filter(None, [run.reason, *run.assumptions])),
            )
        )
        if run.median is not None:
            last[conditions] = run.median
    return rows


def _conditions(run: RowRun) -> str:
    """Returns the start if the run id does not tell it, and what the duration depends on."""
    began = ""
    if run.started_at is not None and run_id_time(run.run_id) is None:
        began = time.strftime("began %Y-%m-%d %H:%M", time.gmtime(run.started_at))
    versions = (f"{name} {version}" for name, version in (run.versions or {}).items())
    return ", ".join(filter(None, [began, *run.devices, *versions, run.instrument, run.cache_state]))


def _growth(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else now / before - 1


def _unprune(database: Database, chosen: RowChoice) -> Result:
    with held(database, "history --restore pruned") as problems:
        done = unprune(database, chosen)
    problems += done.problems
    if not problems:
        chosen.expect(len(done.restored) + len(done.kept), str(database.pruned_dir))
    counts = {
        "restored": len(done.restored),
        "still pruned": (len(done.kept) or None, "the CSV has a row of the same signature"),
    }
    return Result([Fields(counts, str(database.path))], problems=problems)


def _rebuild(database: Database) -> Result:
    """Makes the CSVs again. Raises OpAtlasError."""
    with held(database, "history --restore csvs") as problems:
        with database.lock():
            captured = rebuild_profiling(database)
        problems += captured.outcome.problems
        problems += [
            f"ingest {run_id} has no samples any more: the cells of its captures do not change"
            for run_id in captured.without_samples
        ]
        rebuilt = rebuild(database)
    problems += rebuilt.problems
    edited = sum(map(len, captured.edited.values()))
    counts = Fields(
        {
            "runs with a history": len(rebuilt.runs),
            "rows changed": rebuilt.changed.total(),
            "rows added": rebuilt.added.total(),
            "captured rows": captured.outcome.updated + captured.outcome.new,
            "edited rows": (edited or None, "captured durations belong to the old shape"),
        },
        title=str(database.path),
    )
    names = sorted({*+rebuilt.changed, *+rebuilt.added})
    rows = [(name, rebuilt.changed[name], rebuilt.added[name]) for name in names]
    return Result([counts, Table(("kernel type", "changed", "added"), rows)], problems=problems)
