"""Checks of runs: measured on one device with one setup, by the present code, and equal to another database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from opatlas.checks.check import Check, CheckedDatabase, CheckedTable, Finding
from opatlas.model.quality import NOISE_LIMIT
from opatlas.model.schema import CACHE_STATE, INSTRUMENT, RUN_ID
from opatlas.report.row_summary import microseconds_text
from opatlas.store.manifest import Manifest
from opatlas.text import pluralize

#: Facts of a device that affect durations.
_FACTS = ("driver", "cuda", "cudnn", "nccl", "cann_toolkit", "cann", "firmware", "torch_npu", "vllm_ascend", "threads")
_PACKAGES = ("torch_npu", "vllm-ascend")


def _mixed_runs(database: CheckedDatabase) -> list[Finding]:
    """Finds runs, and rows, that differ from most rows in device, software, cache state or instrument.

    The rows of a run count for the values that its manifest states. docs/compare.md says which of these matter.
    """
    rows = database.rows_by_run
    told = {run_id: _manifest_facts(database.manifests[run_id]) for run_id in rows if run_id in database.manifests}
    return [*_unlike_runs(database, rows, told), *_unlike_cells(database)]


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
                path = str(database.database.runs_dir / f"{run_id}.json")
                reason = f"{name} {value} of {pluralize(rows[run_id], 'row')}, where {most:,} rows have {usual}"
                yield Finding(path, None, "", run_id, f"{name} {value}", reason, count)


def _unlike_cells(database: CheckedDatabase) -> Iterator[Finding]:
    for column in (CACHE_STATE, INSTRUMENT):
        indices: dict[str, dict[str, list[int]]] = {}
        for table in database.tables():
            cells = table.cells(column)
            for index in np.flatnonzero(~np.isnan(table.replayed.us)).tolist():
                if word := cells[index].strip():
                    indices.setdefault(word, {}).setdefault(table.kernel_type, []).append(index)
        counts = Counter({word: sum(map(len, of_type.values())) for word, of_type in indices.items()})
        for word, _ in counts.most_common()[1:]:
            (usual, most), *_ = counts.most_common()
            for kernel_type, of_type in indices[word].items():
                reason = f"{column} {word} of {pluralize(len(of_type), 'row')}, where {most:,} rows have {usual}"
                yield database.table(kernel_type).finding(of_type[0], f"{column} {word}", reason, len(of_type))


MIXED = Check(
    "mixed",
    "durations that are not comparable with the others",
    "keep them in a separate database (docs/compare.md)",
    check_database=_mixed_runs,
)


_DIGITS = 12


def _stale_runs(database: CheckedDatabase) -> list[Finding]:
    """Finds runs whose manifest has another digest of the code than the present one (opatlas/store/manifest.py).

    Advisory: any change of the code changes the digest, and most changes affect no duration.
    """
    rows = database.rows_by_run
    code = database.code[:_DIGITS]
    found = []
    for run_id, manifest in database.manifests.items():
        if rows[run_id] and manifest.code != database.code:
            reason = f"{pluralize(rows[run_id], 'row')} of code {manifest.code[:_DIGITS]}, the code is {code} now"
            path = str(database.database.runs_dir / f"{run_id}.json")
            found.append(Finding(path, None, "", run_id, manifest.code[:_DIGITS], reason, rows[run_id]))
    return found


STALE_CODE = Check(
    "stale-code",
    "runs that other code measured",
    "measure again where the changes affect durations (git log)",
    check_database=_stale_runs,
    advisory=True,
    why_skipped=lambda database: "" if database.code else "the digest of the code is not known",
)


def comparable(database: CheckedDatabase, other: CheckedDatabase, kernel_type: str) -> Iterator[tuple[int, int]]:
    """Yields the comparable rows of a kernel type, as positions in both tables."""
    if kernel_type not in other.kernel_types:
        return
    ours, theirs = database.table(kernel_type), other.table(kernel_type)
    our_runs, their_runs = ours.cells(RUN_ID), theirs.cells(RUN_ID)
    for signature, index in ours.first_indices.items():
        twin = theirs.first_indices.get(signature)
        if twin is None or np.isnan(ours.replayed.us[index]) or np.isnan(theirs.replayed.us[twin]):
            continue
        same_origin = database.origin(our_runs[index]).is_compatible_with(other.origin(their_runs[twin]))
        if same_origin and ours.replayed.conditions[index] == theirs.replayed.conditions[twin]:
            yield index, twin


def compared_rows(database: CheckedDatabase, other: CheckedDatabase) -> int:
    """Returns the number of comparable rows."""
    return sum(1 for kernel_type in database.kernel_types for _ in comparable(database, other, kernel_type))


def _disagreeing_rows(database: CheckedDatabase, table: CheckedTable) -> list[Finding]:
    """Finds rows that took a different time in the other database.

    Rows are comparable that were replayed on the same device, with the same versions, cache state and instrument, as
    far as both databases state them. They disagree if their medians differ by more than NOISE_LIMIT of the smaller one
    and by more than two standard deviations of the difference.
    """
    other = database.against
    if other is None:
        return []
    found = []
    for index, twin in comparable(database, other, table.kernel_type):
        theirs = other.table(table.kernel_type)
        us, twin_us = table.replayed.us[index], theirs.replayed.us[twin]
        noise = float(np.hypot(table.replayed.noise_us[index], theirs.replayed.noise_us[twin]))
        difference = abs(us - twin_us)
        if difference > NOISE_LIMIT * min(us, twin_us) and difference > noise:
            ratio = us / twin_us
            other_us, width = microseconds_text(twin_us), microseconds_text(noise)
            reason = f"{ratio:.2f} times the {other_us} of {theirs.path}:{twin + 2}, noise {width}"
            found.append(table.finding(index, microseconds_text(us), reason, max(ratio, 1 / ratio)))
    return found


AGAINST = Check(
    "against",
    "rows with a different duration in the other database",
    "measure both again; opatlas history shows the duration of each run",
    check_table=_disagreeing_rows,
    why_skipped=lambda database: "" if database.against is not None else "--against names no other database",
)
