"""Checks of rows, files and runs: readable, consistent, unique, with valid statuses, of known origin and one setup."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from opatlas import formats
from opatlas.ask.checks.check import WHOLE_DATABASE, CheckedDatabase, Finding, finding
from opatlas.capture.cases import pool_cases
from opatlas.data.origin import run_drivers
from opatlas.errors import noted
from opatlas.row import columns as col
from opatlas.row.communication import is_communication, row_kind
from opatlas.row.quality import LONGEST_US, Mask
from opatlas.row.status import Status
from opatlas.row.table import FIRST_LINE, RowTable
from opatlas.text import pluralize


def unreadable(database: CheckedDatabase) -> Iterator[Finding]:
    """Finds files that cannot be read."""
    for kernel_type, error in database.unreadable.items():
        yield Finding(str(error.path), error.line, kernel_type, kernel_type, "", str(error))
    provenance = database.provenance
    problems = list(provenance.problems)
    with noted(problems):
        pool_cases(provenance.ingests)
    for problem in dict.fromkeys(problems):
        yield Finding(str(provenance.database.runs_dir), None, "", WHOLE_DATABASE, "", problem)


#: Tolerances for rounding: to three decimals, and to six digits.
_ROUNDING_US, _ROUNDING = 0.002, 1e-5
_MAY_BE_ZERO = (col.MICROBENCH_STD, col.PROFILING_STD)
_NUMBERS = (
    *(col.MICROBENCH_MEDIAN, col.MICROBENCH_MIN, col.MICROBENCH_STD, col.MICROBENCH_SAMPLES),
    *(col.PROFILING_AVERAGE, col.PROFILING_MEDIAN, col.PROFILING_STD, col.PROFILING_SAMPLES),
)
_COUNTS = (col.MICROBENCH_SAMPLES, col.PROFILING_SAMPLES)
_CELL_SHOWN = 40


def impossible(_database: CheckedDatabase, table: RowTable) -> Iterator[Finding]:
    """Finds cells that are not numbers, or numbers that contradict each other.

    For the samples of any row: min <= median, min <= mean, |mean - median| <= std, and
    mean - min <= std (n - 1) / sqrt(n), where std is the sample standard deviation of n samples; one sample has none.
    A mean without the outliers, which are at most half of the samples, is at most one std from the mean of all.
    """
    for column in dict.fromkeys((*row_kind(table.kernel_type).duration_columns, *_NUMBERS)):
        for index, cell in _no_numbers(table, column):
            reason = "is no number above zero, or a duration of more than an hour"
            yield finding(table, index, f"{column} {cell}", reason)
    for std, samples, mean, median, least in _statistics(table):
        deviation, count = table.numbers(std), table.numbers(samples)
        none = np.full(len(table), np.nan)
        means, medians, leasts = (table.numbers(column) if column else none for column in (mean, median, least))
        slack = _ROUNDING_US + _ROUNDING * np.fmax(means, medians)
        # The stored mean leaves out the outliers that the reason names.
        without = [mean == col.AVERAGE and "outlier" in reason for reason in table.cells(col.QUALITY_REASON)]
        off = slack + np.where(without, deviation, 0.0)
        reach = deviation * (count - 1) / np.sqrt(np.maximum(count, 1))
        far, farther = np.abs(means - medians) > deviation + off, (count >= 2) & (means - leasts > reach + off)
        wrong: list[tuple[Mask, str, str, str]] = [
            ((deviation > 0) & (count < 2), std, samples, "one sample has no standard deviation"),
            (leasts > medians + slack, least, median, "the minimum is longer than the median"),
            (leasts > means + slack, least, mean, "the minimum is longer than the mean"),
            (far, median, std, f"farther from {mean} than the standard deviation"),
            (farther, least, std, f"farther from {mean} than this standard deviation allows"),
        ]
        for where, value, other, reason in wrong:
            for index in np.flatnonzero(where).tolist():
                cells = f"{value} {table.cells(value)[index]}, {other} {table.cells(other)[index]}"
                yield finding(table, index, cells, reason)


def _statistics(table: RowTable) -> Iterator[tuple[str, str, str, str, str]]:
    """Yields the columns of each population: std, samples, mean, median, minimum; "" for a column that is missing."""
    if is_communication(table.kernel_type):
        yield col.MICROBENCH_STD, col.MICROBENCH_SAMPLES, "", col.DURATION, col.MICROBENCH_MIN
    else:
        yield col.MICROBENCH_STD, col.MICROBENCH_SAMPLES, col.AVERAGE, col.MICROBENCH_MEDIAN, col.MICROBENCH_MIN
        yield col.PROFILING_STD, col.PROFILING_SAMPLES, col.PROFILING_AVERAGE, col.PROFILING_MEDIAN, ""


def _no_numbers(table: RowTable, column: str) -> Iterator[tuple[int, str]]:
    """Yields position and text of each cell that is not a positive number, or a longer duration than a launch takes.

    A standard deviation may be 0.
    """
    numbers = table.numbers(column)
    good = np.isfinite(numbers) & ((numbers >= 0) if column in _MAY_BE_ZERO else (numbers > 0))
    if column not in _COUNTS:
        good &= numbers <= LONGEST_US
    cells = table.cells(column)
    for index in np.flatnonzero(~good).tolist():
        if cells[index].strip():
            yield index, cells[index].strip()[:_CELL_SHOWN]


def duplicates(_database: CheckedDatabase, table: RowTable) -> Iterator[Finding]:
    """Finds rows that are in the table twice, by their signature."""
    for index, signature in enumerate(table.signatures):
        if (earlier := table.by_signature[signature]) == index:
            continue
        pairs = ((durations[index], durations[earlier]) for durations in (table.replayed, table.captured))
        ours, theirs = next((pair for pair in pairs if any(pair)), (None, None))
        value = "no duration" if ours is None else formats.duration(ours.median_us)
        reason, ratio = f"the same case as line {earlier + FIRST_LINE}", 1.0
        if ours is not None and theirs is not None:
            ratio = max(ours.median_us / theirs.median_us, theirs.median_us / ours.median_us)
            reason += f", which took {formats.duration(theirs.median_us)}"
        yield finding(table, index, value, reason, ratio)


def statuses(_database: CheckedDatabase, table: RowTable) -> Iterator[Finding]:
    """Finds statuses that are unknown, lack a reason, or contradict the duration of their row."""
    cells = zip(table.cells(col.STATUS), table.cells(col.STATUS_REASON), table.replayed.known.tolist(), strict=True)
    for index, (cell, reason, has_duration) in enumerate(cells):
        status = table.statuses[index]
        if cell.strip() and status is None:
            yield finding(table, index, cell.strip(), "not a status of OpAtlas")
        elif status is Status.MEASURED and not has_duration:
            yield finding(table, index, cell.strip(), "the row has no replayed duration")
        elif status not in (None, Status.MEASURED) and not reason.strip():
            yield finding(table, index, cell.strip(), "without a Status Reason")


def origins(database: CheckedDatabase, table: RowTable) -> Iterator[Finding]:
    """Finds durations without a manifest of their run or ingest."""
    provenance = database.provenance
    ingests = {ingest.manifest.run_id for ingest in provenance.ingests}
    sources = (table.replayed, col.RUN_ID, set(provenance.manifests)), (table.captured, col.PROFILING_RUN_ID, ingests)
    for durations, column, known in sources:
        for index in np.flatnonzero(durations.known).tolist():
            ids = [each.strip() for each in durations.run_id[index].split(";") if each.strip()]
            missing = [each for each in ids if each not in known]
            told = f"runs/ has no manifest of {column} {missing[0]}" if missing else f"its {column} is empty"
            if missing or not ids:
                value = formats.duration(durations.median_us[index])
                yield finding(table, index, value, f"{told}, so device and software are unknown")


def mixed(database: CheckedDatabase) -> Iterator[Finding]:
    """Finds runs that differ from the run of the most rows in device, software, driver or threads of a CPU.

    What a manifest does not state differs from nothing.
    """
    rows, provenance = database.rows_by_run, database.provenance
    known = sorted((run_id for run_id in rows if provenance.origins.get(run_id)), key=lambda run_id: -rows[run_id])
    for run_id in known[1:]:
        usual, drivers = provenance.origins[known[0]], run_drivers(provenance.manifests[known[0]])
        others = [each for each in provenance.origins[run_id] if not any(map(each.is_compatible_with, usual))]
        own = run_drivers(provenance.manifests[run_id])
        differs = [str(each) for each in others] + [f"driver {driver}" for driver in sorted(own - drivers) if drivers]
        if differs:
            path = str(provenance.database.runs_dir / f"{run_id}.json")
            told = [str(usual[0]), *(f"driver {driver}" for driver in sorted(drivers))]
            reason = f"{pluralize(rows[run_id], 'row')}, where {rows[known[0]]:,} rows have {', '.join(told)}"
            yield Finding(path, None, "", run_id, ", ".join(differs), reason, rows[run_id])
