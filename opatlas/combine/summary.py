"""The summary of a combination, in lines of at most 80 columns, and the CSV of its conflicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from opatlas.combine.apply import CombineResult
from opatlas.combine.pool import SPREAD_LIMIT, PooledRow, pooled_cells
from opatlas.combine.sources import CombineSources
from opatlas.combine.table import Conflict
from opatlas.model.schema import AVERAGE, INPUT_SHAPES, POOLED, PROFILING_AVERAGE, RUN_ID
from opatlas.store.csv_files import write_rows
from opatlas.store.database import Database
from opatlas.store.write_back import RecoveredJournal
from opatlas.text import (
    count_lines,
    percent_text,
    pluralize,
    shorten,
    unknown_dtype_lines,
    wrap,
)

CONFLICTS_SHOWN = 10
#: Kernel types with rows that disagree.
DISAGREEING_SHOWN = 10
_DISAGREEMENT_HEADER = ("Kernel Type", INPUT_SHAPES, *POOLED, RUN_ID)
_HEADER = (
    *("Kernel Type", "Signature", INPUT_SHAPES),
    *("What", "Kept", "Kept Run", "Dropped", "Dropped Run", "Ratio", "Source"),
)


def summary(
    target: Path,
    recovered: Sequence[RecoveredJournal],
    opened: CombineSources,
    result: CombineResult,
    pooled: Sequence[PooledRow] | None,
    reports: Mapping[str, Path],
    *,
    dry_run: bool,
) -> str:
    """Returns the text for the user.

    Args:
        recovered: journals of the target that were written back first.
        pooled: the rows whose runs were pooled; None without --pool.
        reports: the files of further lists, by what they list.
        dry_run: whether nothing was written.
    """
    statuses = ", ".join(f"{count:,} {status}" for status, count in result.statuses.most_common() if status)
    conflicts = _first_by_cell(result.conflicts)
    lines = [str(found) for found in recovered if found]
    counts = [
        ("sources", opened.databases + opened.journals, _sources(opened)),
        ("kernel types", len(result.kernel_types), f"{len(result.new):,} new"),
        ("rows added", result.added.rows, result.added.durations if result.added.rows else ""),
        ("durations", result.taken + result.kept, f"existing rows: {result.taken:,} taken, {result.kept:,} kept"),
        ("statuses", result.statuses.total(), statuses),
        ("conflicts", len(conflicts), _kinds(conflicts)),
        (
            "TARGET then" if dry_run else "TARGET now",
            result.target_rows.rows,
            f"rows of these kernel types: {result.target_rows.durations}",
        ),
    ]
    # Rare counts are shown only if they are not 0.
    rarer = [
        ("profiling", result.profiled, "rows whose captured durations were filled in"),
        ("other cells", result.filled, "filled in"),
        ("pruned rows", result.pruned, "added to pruned/"),
        ("edited rows", result.edited, "durations ignored, because the row was edited later"),
        ("manifests", result.manifests, "copied to runs/"),
        ("ingests", result.ingests, "copied to runs/"),
        ("captures", result.captures_pooled, "rows with added launches of other captures"),
    ]
    counts[-2:-2] = [line for line in rarer if line[1]]
    lines += count_lines(counts)
    lines += unknown_dtype_lines(result.unknown_dtypes)
    lines += _largest_conflicts(conflicts)
    lines += _pool_lines(pooled) if pooled is not None else []
    if result.clocks_ahead:
        lines += ["", "clock ahead (the time in the run id lies in the future, so every other run counts as newer):"]
        lines += [f"  {run_id}" for run_id in result.clocks_ahead]
    if opened.ignored:
        lines += ["", "ignored (communication has another schema):"]
        lines += [f"  {path}" for path in opened.ignored]
    for what, path in reports.items():
        lines += ["", f"{what} would be in:" if dry_run else f"{what}:", f"  {path}"]
    lines += ["", "database:", f"  {target}"]
    lines += [wrap(str(result.mapping), indent=2)] if result.mapping is not None else []
    return "\n".join(lines)


def write_conflicts(database: Database, conflicts: Sequence[Conflict], at: float) -> Path | None:
    """Writes the list of conflicts to `reports/`; returns its path, or None without conflicts.

    Raises:
        OpAtlasError: the file cannot be written.
    """
    if not conflicts:
        return None
    path = database.new_report_path("combine_conflicts", at)
    write_rows(path, _HEADER, map(_cells, conflicts))
    return path


def _cells(conflict: Conflict) -> tuple[str, ...]:
    ratio = conflict.ratio
    return (
        *(conflict.kernel_type, conflict.signature, conflict.input_shapes, conflict.what),
        *(conflict.kept, conflict.kept_run, conflict.dropped, conflict.dropped_run),
        *("" if ratio is None else f"{ratio:.4f}", conflict.source),
    )


def _sources(opened: CombineSources) -> str:
    kinds = (("database", opened.databases), ("journal", opened.journals))
    return ", ".join(pluralize(count, kind) for kind, count in kinds if count)


def _first_by_cell(conflicts: Iterable[Conflict]) -> list[Conflict]:
    """Returns the first conflict of each cell."""
    first: dict[tuple[str, str, str], Conflict] = {}
    for conflict in conflicts:
        first.setdefault(conflict.cell, conflict)
    return list(first.values())


def _kinds(conflicts: Sequence[Conflict]) -> str:
    measured = sum(conflict.what == AVERAGE for conflict in conflicts)
    captured = sum(conflict.what == PROFILING_AVERAGE for conflict in conflicts)
    others = len(conflicts) - measured - captured
    return f"{measured:,} durations, {captured:,} captured durations, {others:,} other cells" if conflicts else ""


def _largest_conflicts(conflicts: Sequence[Conflict]) -> list[str]:
    """Returns lines with the first conflicts of durations."""
    durations = [(conflict, ratio) for conflict in conflicts if (ratio := conflict.ratio) is not None]
    if not durations:
        return []
    which = f"the {CONFLICTS_SHOWN} largest" if len(durations) > CONFLICTS_SHOWN else "the largest first"
    lines = ["", f"durations that disagree: {len(durations):,} ({which}; kept, dropped, microseconds)"]
    for conflict, ratio in durations[:CONFLICTS_SHOWN]:
        lines.append(
            f"  {shorten(conflict.kernel_type, 18):18} {shorten(conflict.input_shapes, 24):24} "
            f"{float(conflict.kept):>10.2f} {float(conflict.dropped):>10.2f} {_ratio(ratio):>7} x"
        )
    return lines


def write_disagreements(database: Database, pooled: Sequence[PooledRow], at: float) -> Path | None:
    """Writes the rows whose machines disagree to `reports/`, the worst first; returns the path, or None without any.

    Raises:
        OpAtlasError: the file cannot be written.
    """
    rows = _disagreeing(pooled)
    if not rows:
        return None
    path = database.new_report_path("pool_disagreements", at)
    write_rows(path, _DISAGREEMENT_HEADER, map(_disagreement_cells, rows))
    return path


def _disagreement_cells(row: PooledRow) -> tuple[str, ...]:
    cells = pooled_cells(row)
    return (row.kernel_type, row.input_shapes, *(cells[name] for name in POOLED), row.representative)


def _disagreeing(pooled: Sequence[PooledRow]) -> list[PooledRow]:
    """Returns the rows whose machines differ by more than SPREAD_LIMIT, the worst first."""
    found = [row for row in pooled if row.spread is not None and row.spread > SPREAD_LIMIT]
    return sorted(found, key=lambda row: -(row.spread or 0))


def _pool_lines(pooled: Sequence[PooledRow]) -> list[str]:
    """Returns lines with the runs and machines of rows, the spread, and the kernel types whose machines disagree."""
    lines = ["", "runs of each row, pooled:"]
    kinds = Counter((row.runs, row.machines) for row in pooled)
    lines += [
        f"  {pluralize(count, 'row')}: {pluralize(runs, 'run')} on {pluralize(machines, 'machine')}"
        for (runs, machines), count in sorted(kinds.items(), reverse=True)
    ]
    spreads = [row.spread for row in pooled if row.spread is not None]
    if not spreads:
        return lines
    low, high = (percent_text(each) for each in np.quantile(spreads, (0.5, 0.9)))
    lines.append(f"  spread between machines: {low} in the median, {high} at p90, {percent_text(max(spreads))} at most")
    worst: dict[str, list[PooledRow]] = {}
    for row in _disagreeing(pooled):
        worst.setdefault(row.kernel_type, []).append(row)
    of_type = Counter(row.kernel_type for row in pooled)
    count = sum(map(len, worst.values()))
    if count:
        lines.append(
            f"  over {percent_text(SPREAD_LIMIT, 0)}: {pluralize(count, 'row')}; by kernel type, with the widest row:"
        )
    for kernel_type, (row, *others) in list(worst.items())[:DISAGREEING_SHOWN]:
        lines.append(
            f"  {shorten(kernel_type, 18):18} {len(others) + 1:>5,} of {of_type[kernel_type]:<6,} "
            f"{shorten(row.input_shapes, 22):22} {row.median_us:>9.2f} us {percent_text(row.spread or 0.0):>8}"
        )
    if len(worst) > DISAGREEING_SHOWN:
        lines.append(f"  and {pluralize(len(worst) - DISAGREEING_SHOWN, 'kernel type')}")
    return lines


def _ratio(ratio: float) -> str:
    """Returns a ratio with useful decimals: `56.01`, `0.0028`."""
    return f"{ratio:.2f}" if ratio >= 1 else f"{ratio:#.2g}"
