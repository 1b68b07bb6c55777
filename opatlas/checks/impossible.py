"""No numbers of a row contradict each other.

Of the samples of a row, whatever they are: min <= median, min <= mean, |mean - median| <= std, and
mean - min <= std (n - 1) / sqrt(n), with the sample standard deviation std of n samples; one sample has none.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from opatlas.checks.check import Check, CheckedDatabase, CheckedTable, Finding
from opatlas.model.communication import is_communication
from opatlas.model.schema import (
    AVERAGE,
    DURATION,
    MICROBENCH_MEDIAN,
    MICROBENCH_MIN,
    MICROBENCH_SAMPLES,
    MICROBENCH_STD,
    PROFILING_AVERAGE,
    PROFILING_MEDIAN,
    PROFILING_SAMPLES,
    PROFILING_STD,
)
from opatlas.store.merge_rule import duration_columns

#: What rounding to three decimals leaves open, and what six digits do.
_ROUNDING_US, _ROUNDING = 0.002, 1e-5
_MAY_BE_ZERO = (MICROBENCH_STD, PROFILING_STD)
_NUMBERS = (
    *(MICROBENCH_MEDIAN, MICROBENCH_MIN, MICROBENCH_STD, MICROBENCH_SAMPLES),
    *(PROFILING_AVERAGE, PROFILING_MEDIAN, PROFILING_STD, PROFILING_SAMPLES),
)
_CELL_SHOWN = 40


def _find(_database: CheckedDatabase, table: CheckedTable) -> list[Finding]:
    found = [
        table.finding(place, f"{column} {cell}", "is no number above zero")
        for column in dict.fromkeys((*duration_columns(table.kernel_type), *_NUMBERS))
        for place, cell in _no_numbers(table, column)
    ]
    for std, samples, mean, median, least in _statistics(table):
        deviation, count = table.numbers(std), table.numbers(samples)
        none = np.full(len(table), np.nan)
        means, medians, leasts = (table.numbers(column) if column else none for column in (mean, median, least))
        slack = _ROUNDING_US + _ROUNDING * np.fmax(means, medians)
        reach = deviation * (count - 1) / np.sqrt(np.maximum(count, 1))
        wrong: list[tuple[npt.NDArray[np.bool_], str, str, str]] = [
            ((deviation > 0) & (count < 2), std, samples, "one sample has no standard deviation"),
            (leasts > medians + slack, least, median, "the least sample is longer than the median"),
            (leasts > means + slack, least, mean, "the least sample is longer than the mean"),
            (np.abs(means - medians) > deviation + slack, median, std, f"further than that from {mean}"),
            ((count >= 2) & (means - leasts > reach + slack), least, std, f"too far from {mean} for that"),
        ]
        for where, value, other, reason in wrong:
            for place in np.flatnonzero(where).tolist():
                cells = f"{value} {table.cells(value)[place]}, {other} {table.cells(other)[place]}"
                found.append(table.finding(place, cells, reason))
    return found


def _statistics(table: CheckedTable) -> Iterator[tuple[str, str, str, str, str]]:
    """Columns of one population: standard deviation, samples, mean, median, least; "" where there is no such column."""
    if is_communication(table.kernel_type):
        yield MICROBENCH_STD, MICROBENCH_SAMPLES, "", DURATION, MICROBENCH_MIN
    else:
        yield MICROBENCH_STD, MICROBENCH_SAMPLES, AVERAGE, MICROBENCH_MEDIAN, MICROBENCH_MIN
        yield PROFILING_STD, PROFILING_SAMPLES, PROFILING_AVERAGE, PROFILING_MEDIAN, ""


def _no_numbers(table: CheckedTable, column: str) -> Iterator[tuple[int, str]]:
    """Places and cells that hold something else than a positive number; 0 is a standard deviation."""
    numbers = table.numbers(column)
    good = np.isfinite(numbers) & ((numbers >= 0) if column in _MAY_BE_ZERO else (numbers > 0))
    cells = table.cells(column)
    for place in np.flatnonzero(~good).tolist():
        if cells[place].strip():
            yield place, cells[place].strip()[:_CELL_SHOWN]


IMPOSSIBLE = Check(
    "impossible",
    "numbers that contradict each other, or are none",
    "measure the rows again: such cells were edited, or written by another tool",
    of_table=_find,
)
