"""Checks of rows, files and runs: readable, consistent, unique, with valid statuses, of known origin and one setup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from opatlas import formats
from opatlas.ask.checks.check import WHOLE_DATABASE, CheckedDatabase, Finding, finding
from opatlas.capture.cases import pool_cases
from opatlas.data.manifest import Manifest
from opatlas.errors import OpAtlasError
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
    try:
        pool_cases(provenance.ingests)
    except OpAtlasError as error:
        problems.append(str(error))
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


#: Facts of a device that affect durations.
_FACTS = ("driver", "cuda", "cudnn", "nccl", "cann_toolkit", "cann", "firmware", "torch_npu", "vllm_ascend", "threads")
_PACKAGES = ("torch_npu", "vllm-ascend")


def mixed(database: CheckedDatabase) -> Iterator[Finding]:
    """Finds runs, and rows, that differ from most rows in device, software, cache state or instrument.

    The rows of a run count for the values that its manifest states. docs/compare.md says which of these matter.
    """
    rows, manifests = database.rows_by_run, database.provenance.manifests
    told = {run_id: _manifest_facts(manifests[run_id]) for run_id in rows if run_id in manifests}
    yield from _unlike_runs(database, rows, told)
    yield from _unlike_cells(database)


def _manifest_facts(manifest: Manifest) -> dict[str, str]:
    """Returns the facts of device and software that a manifest states; values of several devices are joined."""
    facts = [device.get("facts") for device in (manifest.device, *manifest.other_devices)]
    known = [each for each in facts if isinstance(each, Mapping)]
    told = {"device": " and ".join(sorted(manifest.device_names)), "torch": manifest.torch}
    told |= {name: manifest.packages.get(name, "") for name in _PACKAGES}
    for name in _FACTS:
        # The ranks of a group share the threads of a CPU.
        values = {str(each[name]) for each in known if each.get(name) and (name != "threads" or "ranks" not in each)}
        told[name] = " and ".join(sorted(values)) or told.get(name, "")
    return {name: value for name, value in told.items() if value}


def _unlike_runs(
    database: CheckedDatabase, rows: Mapping[str, int], told: Mapping[str, Mapping[str, str]]
) -> Iterator[Finding]:
    for name in dict.fromkeys(name for facts in told.values() for name in facts):
        of_value: Counter[str] = Counter()
        for run_id, facts in told.items():
            if name in facts:
                of_value[facts[name]] += rows[run_id]
        (usual, most), *others = of_value.most_common()
        for value, count in others:
            for run_id in sorted(run_id for run_id, facts in told.items() if facts.get(name) == value):
                path = str(database.provenance.database.runs_dir / f"{run_id}.json")
                reason = f"{name} {value} of {pluralize(rows[run_id], 'row')}, where {most:,} rows have {usual}"
                yield Finding(path, None, "", run_id, f"{name} {value}", reason, count)


def _unlike_cells(database: CheckedDatabase) -> Iterator[Finding]:
    for column in (col.CACHE_STATE, col.INSTRUMENT):
        indices: dict[str, dict[str, list[int]]] = {}
        for table in database.tables.values():
            cells = table.cells(column)
            for index in np.flatnonzero(table.replayed.known).tolist():
                if word := cells[index].strip():
                    indices.setdefault(word, {}).setdefault(table.kernel_type, []).append(index)
        counts = Counter({word: sum(map(len, of_type.values())) for word, of_type in indices.items()})
        for word, _ in counts.most_common()[1:]:
            (usual, most), *_ = counts.most_common()
            for kernel_type, of_type in indices[word].items():
                reason = f"{column} {word} of {pluralize(len(of_type), 'row')}, where {most:,} rows have {usual}"
                table = database.tables[kernel_type]
                yield finding(table, of_type[0], f"{column} {word}", reason, len(of_type))
