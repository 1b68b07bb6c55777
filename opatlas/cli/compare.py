"""`opatlas compare`: databases row by row: implementations, devices, git revisions, runs, captures against replays.

`opatlas history`: which rows changed from some run on, and what a row took in each run; restores rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from opatlas.ask.compare.calls import CallPair, RowCall
from opatlas.ask.compare.comparison import DatabaseComparison, Evidence, RowComparison, compare_databases
from opatlas.ask.compare.databases import ComparedDatabase, implementations_of
from opatlas.ask.compare.regressions import Regressions, find_regressions
from opatlas.ask.compare.states import compared_states
from opatlas.ask.compare.steps import LEAST_RUNS, LEAST_SIDE
from opatlas.cli.app import held
from opatlas.data.database import Database
from opatlas.data.manifest import run_id_time
from opatlas.data.row_history import RowRun, row_histories
from opatlas.errors import UsageError, usage_errors
from opatlas.formats import change, microseconds, percent
from opatlas.row import columns as col
from opatlas.row.location import expect_database, named_folder
from opatlas.row.signature import RowChoice, kernel_types_meant, make_case_id
from opatlas.run.devices.device import available_devices, database_name
from opatlas.show import Column, Fields, Result, Table
from opatlas.show.compared import parts
from opatlas.show.parameters import DatabaseFolder, Names, Percent
from opatlas.show.result import Part

#: Cells that are known of a replayed call, by their names in the JSON.
_CELLS = {
    "cache_state": col.CACHE_STATE,
    "instrument": col.INSTRUMENT,
    "stand_in": col.STAND_IN,
    "implementation": col.IMPLEMENTATION,
    "kernel_names": col.KERNEL_NAMES,
    "outputs_missing": col.OUTPUTS_MISSING,
    "conversions": col.CONVERSIONS,
}

_OF_CALL = (
    *("status", "reason", "sum_us", "span_us", "kernels", "noise", "samples", "is_captured", "run_medians_us"),
    "duration_us",
)


def compare(
    *databases: Annotated[str, Parameter(name="DB[@STATE]")],
    baseline: str = "",
    ops: Names = (),
    fail_slower: Percent | None = None,
) -> Result:
    """Which implementation or database is faster, row by row.

    One database: its own rows against those of each implementation that was measured on them, the newest version of
    each. Several: each against the first, or against --baseline. Rows are the same where kernel type and signature
    are.

    Exit status: 0 done; 1 a row is slower (--fail-slower), or a file could not be read; 2 wrong usage.

    Args:
        databases: folders of {KernelType}.csv files, or devices such as NVIDIA_H200; STATE is a
            git revision (DB@main), the Run ID of a run, or `captures` (default: the database of this machine).
        baseline: implementation, or database, that speed-ups refer to (default: torch, or torch_npu on an NPU, else
            the first).
        ops: compare only these kernel types, as in opatlas query, or these collectives, such as all_reduce.
        fail_slower: exit with 1 if a rival is SLOW in a row, and its whole interval lies beyond this, such as 5%; or
            if no row compares.
    """
    with usage_errors(), _databases(databases) as opened:
        comparison = compare_databases(opened, baseline=baseline, kernel_types=ops)
    problems = [*comparison.problems, *(_slower(comparison, fail_slower) if fail_slower is not None else ())]
    return Result(list(parts(comparison)), _content(comparison), problems)


def _databases(places: Sequence[str]) -> AbstractContextManager[list[ComparedDatabase]]:
    """Returns a context with the databases to compare. Raises OpAtlasError, also when it is entered."""
    if len(places) > 1:
        return compared_states(places)
    base = named_folder(places[0] if places else database_name(available_devices(None)))
    if "@" in base.name and not base.exists():
        raise UsageError(f"{base}: alone: name a second database, such as {str(base).rpartition('@')[0]}")
    return nullcontext(implementations_of(base))


def _slower(comparison: DatabaseComparison, least: float) -> Iterator[str]:
    """Yields a line for each rival that is `least` percent slower in a row, or has no row that compares."""
    for rival in comparison.rivals:
        found = comparison.slower_rows(rival.name, least)
        if found:
            row, pair = found[0]
            us = f"{microseconds(pair.baseline_us)} us against {microseconds(pair.rival_us)} us"
            yield f"--fail-slower {least:g}%: {rival.label}: {len(found):,} rows slower, most {row.case_id}: {us}"
        elif not any(row.pairs[rival.name].is_comparable for row in comparison.rows if rival.name in row.pairs):
            yield f"--fail-slower {least:g}%: {rival.label} has no row that compares"


def _content(comparison: DatabaseComparison) -> Mapping[str, object]:
    """Returns databases, figures of each rival by kernel type and in all, and all rows."""
    return {
        "baseline": _database(comparison.baseline),
        "rivals": [
            {
                **_database(rival),
                "evidence": _evidence(comparison.evidence(rival.name)),
                "all": comparison.total(rival.name).told(),
                "kernel_types": [each.told() for each in comparison.figures(rival.name)],
            }
            for rival in comparison.rivals
        ],
        "fastest": dict(comparison.fastest),
        "without_common_rows": [rival.name for rival in comparison.without_common_rows],
        "problems": comparison.problems,
        "rows": [_row(row) for row in comparison.rows],
    }


def _database(database: ComparedDatabase) -> Mapping[str, object]:
    return {name: getattr(database, name) for name in ("name", "version", "path", "state")}


def _evidence(evidence: Evidence) -> Mapping[str, object]:
    return {
        "pairs": {str(basis): count for basis, count in evidence.pairs.items()},
        "controls": [{**asdict(each), "threshold": each.threshold} for each in evidence.controls],
        "default_spreads": evidence.spreads,
    }


def _row(row: RowComparison) -> Mapping[str, object]:
    return {
        "kernel_type": row.kernel_type,
        "signature": row.signature,
        "id": row.case_id,
        "fastest": row.fastest,
        "composition_baseline": row.is_composition,
        "calls": {name: _call(call) for name, call in row.calls.items()},
        "pairs": {name: _pair(pair) for name, pair in row.pairs.items()},
    }


def _pair(pair: CallPair) -> Mapping[str, object]:
    content = asdict(pair)
    ratios = content.pop("ratios")
    ends = {"speed_up": ratios["ratio"], "speed_up_low": ratios["low"], "speed_up_high": ratios["high"]}
    return {**content, **ends, "rounds": ratios["rounds"]}


def _call(call: RowCall) -> Mapping[str, object]:
    quality = call.duration and call.duration.quality
    return {
        **{name: getattr(call, name) for name in _OF_CALL},
        "quality": quality.value if quality else "",
        **{name: call.cell(column) for name, column in _CELLS.items()},
    }


def history(
    database: DatabaseFolder,
    /,
    *rows: Annotated[str, Parameter(name="ROW")],
    fail_slower: Percent | None = None,
    restore: Literal["csvs"] | None = None,
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
        restore: csvs makes the CSVs again from the histories of their runs and the samples of ingests.
    """
    expect_database(database)
    if fail_slower is not None and restore:
        raise UsageError("--fail-slower tests durations: leave it out with --restore")
    if restore:
        if rows:
            raise UsageError(f"--restore csvs makes all CSVs again: leave out {' '.join(rows)}")
        return _rebuild(Database(database))
    chosen = _choice(Database(database), rows)
    changed = find_regressions(Database(database), chosen) if fail_slower is not None or not rows else None
    shown = _runs(Database(database), chosen) if rows else _changes(database, changed)
    problems = [*shown.problems, *(_slower_since(changed, fail_slower) if changed and fail_slower is not None else ())]
    return Result(shown.parts, shown.json, problems)


def _choice(database: Database, names: Sequence[str]) -> RowChoice:
    pruned = (each.stem for each in database.pruned_dir.glob("[!.]*.csv"))
    known = dict.fromkeys([*database.kernel_types(), *pruned])
    return RowChoice([each for name in names for each in kernel_types_meant(name, known)], frozenset(known))


def _slower_since(found: Regressions, least: float) -> Iterator[str]:
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


def _rebuild(database: Database) -> Result:
    """Makes the CSVs again. Raises OpAtlasError."""
    # They take 100 ms to import.
    from opatlas.capture.ingest import rebuild_profiling
    from opatlas.data.restore import rebuild

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
