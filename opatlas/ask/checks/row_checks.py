"""Checks of single rows and files: readable, consistent, unique, with a valid status and a known origin."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from opatlas import formats
from opatlas.arrays import Mask
from opatlas.ask.checks.check import WHOLE_DATABASE, Check, CheckedDatabase, Finding, finding
from opatlas.data.cells import duration_columns
from opatlas.row.columns import (
    AVERAGE,
    DURATION,
    MICROBENCH_MEDIAN,
    MICROBENCH_MIN,
    MICROBENCH_SAMPLES,
    MICROBENCH_STD,
    PROFILING_AVERAGE,
    PROFILING_MEDIAN,
    PROFILING_RUN_ID,
    PROFILING_SAMPLES,
    PROFILING_STD,
    QUALITY_REASON,
    RUN_ID,
    STATUS,
    STATUS_REASON,
)
from opatlas.row.communication import is_communication
from opatlas.row.durations import Durations
from opatlas.row.quality import LONGEST_US, names_outliers
from opatlas.row.status import Status
from opatlas.row.table import FIRST_LINE, RowTable


def _unreadable_files(database: CheckedDatabase) -> list[Finding]:
    """Finds CSVs and manifests that cannot be read."""
    tables = [
        Finding(str(error.path), error.line, kernel_type, kernel_type, "", str(error))
        for kernel_type, error in database.unreadable.items()
    ]
    runs = str(database.database.runs_dir)
    return [*tables, *(Finding(runs, None, "", WHOLE_DATABASE, "", problem) for problem in database.problems)]


UNREADABLE = Check(
    "unreadable",
    "files that cannot be read",
    "restore them, or move them out of the database",
    check_database=_unreadable_files,
)


#: Tolerances for rounding: to three decimals, and to six digits.
_ROUNDING_US, _ROUNDING = 0.002, 1e-5
_MAY_BE_ZERO = (MICROBENCH_STD, PROFILING_STD)
_NUMBERS = (
    *(MICROBENCH_MEDIAN, MICROBENCH_MIN, MICROBENCH_STD, MICROBENCH_SAMPLES),
    *(PROFILING_AVERAGE, PROFILING_MEDIAN, PROFILING_STD, PROFILING_SAMPLES),
)
_COUNTS = (MICROBENCH_SAMPLES, PROFILING_SAMPLES)
_CELL_SHOWN = 40


def _impossible_numbers(_database: CheckedDatabase, table: RowTable) -> list[Finding]:
    """Finds rows whose numbers contradict each other.

    For the samples of any row: min <= median, min <= mean, |mean - median| <= std, and
    mean - min <= std (n - 1) / sqrt(n), where std is the sample standard deviation of n samples; one sample has none.
    A mean without the outliers, which are at most half of the samples, is at most one std from the mean of all.
    """
    found = [
        finding(table, index, f"{column} {cell}", "is no number above zero, or a duration of more than an hour")
        for column in dict.fromkeys((*duration_columns(table.kernel_type), *_NUMBERS))
        for index, cell in _no_numbers(table, column)
    ]
    for std, samples, mean, median, least in _statistics(table):
        deviation, count = table.numbers(std), table.numbers(samples)
        none = np.full(len(table), np.nan)
        means, medians, leasts = (table.numbers(column) if column else none for column in (mean, median, least))
        slack = _ROUNDING_US + _ROUNDING * np.fmax(means, medians)
        without = [mean == AVERAGE and names_outliers(reason) for reason in table.cells(QUALITY_REASON)]
        off = slack + np.where(without, deviation, 0.0)
        reach = deviation * (count - 1) / np.sqrt(np.maximum(count, 1))
        wrong: list[tuple[Mask, str, str, str]] = [
            ((deviation > 0) & (count < 2), std, samples, "one sample has no standard deviation"),
            (leasts > medians + slack, least, median, "the minimum is longer than the median"),
            (leasts > means + slack, least, mean, "the minimum is longer than the mean"),
            (
                np.abs(means - medians) > deviation + off,
                median,
                std,
                f"farther from {mean} than the standard deviation",
            ),
            (
                (count >= 2) & (means - leasts > reach + off),
                least,
                std,
                f"farther from {mean} than this standard deviation allows",
            ),
        ]
        for where, value, other, reason in wrong:
            for index in np.flatnonzero(where).tolist():
                cells = f"{value} {table.cells(value)[index]}, {other} {table.cells(other)[index]}"
                found.append(finding(table, index, cells, reason))
    return found


def _statistics(table: RowTable) -> Iterator[tuple[str, str, str, str, str]]:
    """Yields the columns of each population: std, samples, mean, median, minimum; "" for a column that is missing."""
    if is_communication(table.kernel_type):
        yield MICROBENCH_STD, MICROBENCH_SAMPLES, "", DURATION, MICROBENCH_MIN
    else:
        yield MICROBENCH_STD, MICROBENCH_SAMPLES, AVERAGE, MICROBENCH_MEDIAN, MICROBENCH_MIN
        yield PROFILING_STD, PROFILING_SAMPLES, PROFILING_AVERAGE, PROFILING_MEDIAN, ""


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


IMPOSSIBLE = Check(
    "impossible",
    "cells that are not numbers, or numbers that contradict each other",
    "measure the rows again: the cells were edited, or written by another tool",
    check_table=_impossible_numbers,
)


def _repeated_rows(_database: CheckedDatabase, table: RowTable) -> list[Finding]:
    """Finds rows whose signature an earlier row of the table has."""
    found = []
    for index, signature in enumerate(table.signatures):
        earlier = table.by_signature[signature]
        if earlier == index:
            continue
        ours, theirs = table.replayed[index], table.replayed[earlier]
        if ours is None and theirs is None:
            ours, theirs = table.captured[index], table.captured[earlier]
        durations, ratio = "", 1.0
        if ours is not None and theirs is not None:
            ratio = max(ours.median_us / theirs.median_us, theirs.median_us / ours.median_us)
            durations = f", which took {formats.duration(theirs.median_us)}"
        value = "no duration" if ours is None else formats.duration(ours.median_us)
        reason = f"the same case as line {earlier + FIRST_LINE}{durations}"
        found.append(finding(table, index, value, reason, ratio))
    return found


DUPLICATES = Check(
    "duplicates",
    "rows that are in the table twice",
    "remove one of the two; a replay fills the first one only",
    check_table=_repeated_rows,
)


def _wrong_statuses(_database: CheckedDatabase, table: RowTable) -> list[Finding]:
    """Finds statuses that are unknown, lack a reason, or contradict the duration of the row."""
    found = []
    cells = zip(table.cells(STATUS), table.cells(STATUS_REASON), table.replayed.known.tolist(), strict=True)
    for index, (cell, reason, has_duration) in enumerate(cells):
        status = table.statuses[index]
        problem = ""
        if cell.strip() and status is None:
            problem = "not a status of OpAtlas"
        elif status is Status.MEASURED and not has_duration:
            problem = "the row has no replayed duration"
        elif status not in (None, Status.MEASURED) and not reason.strip():
            problem = "without a Status Reason"
        if problem:
            found.append(finding(table, index, cell.strip(), problem))
    return found


STATUSES = Check(
    "statuses",
    "statuses that are unknown, lack a reason or contradict their row",
    "replay the rows again (opatlas bench --database-path DB --runxfail)",
    check_table=_wrong_statuses,
)


_SEPARATOR = ";"


def _unknown_origins(database: CheckedDatabase, table: RowTable) -> list[Finding]:
    """Finds durations whose run or ingest has no manifest in `runs/`."""
    return [
        *_without_manifest(table, table.replayed, RUN_ID, frozenset(database.manifests)),
        *_without_manifest(table, table.captured, PROFILING_RUN_ID, database.ingests),
    ]


def _without_manifest(table: RowTable, durations: Durations, column: str, known: frozenset[str]) -> list[Finding]:
    found = []
    for index in np.flatnonzero(durations.known).tolist():
        ids = [each.strip() for each in durations.run_id[index].split(_SEPARATOR) if each.strip()]
        missing = [each for each in ids if each not in known]
        if missing:
            reason = f"runs/ has no manifest of {column} {missing[0]}, so device and software are unknown"
        elif not ids:
            reason = f"its {column} is empty, so device and software are unknown"
        else:
            continue
        found.append(finding(table, index, formats.duration(durations.median_us[index]), reason))
    return found


ORIGINS = Check(
    "origins",
    "durations without a manifest of their run",
    "copy runs/ from where the database was measured, or measure the rows again",
    check_table=_unknown_origins,
)
