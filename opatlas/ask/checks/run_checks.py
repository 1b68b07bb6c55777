"""Checks of runs: measured on one device with one setup, by the present code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from opatlas.ask.checks.check import Check, CheckedDatabase, Finding, finding
from opatlas.data.manifest import Manifest
from opatlas.row.columns import CACHE_STATE, INSTRUMENT
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
            for index in np.flatnonzero(table.replayed.known).tolist():
                if word := cells[index].strip():
                    indices.setdefault(word, {}).setdefault(table.kernel_type, []).append(index)
        counts = Counter({word: sum(map(len, of_type.values())) for word, of_type in indices.items()})
        for word, _ in counts.most_common()[1:]:
            (usual, most), *_ = counts.most_common()
            for kernel_type, of_type in indices[word].items():
                reason = f"{column} {word} of {pluralize(len(of_type), 'row')}, where {most:,} rows have {usual}"
                table = database.table(kernel_type)
                yield finding(table, of_type[0], f"{column} {word}", reason, len(of_type))


MIXED = Check(
    "mixed",
    "durations that are not comparable with the others",
    "keep them in a separate database (docs/compare.md)",
    check_database=_mixed_runs,
)


_DIGITS = 12


def _stale_runs(database: CheckedDatabase) -> list[Finding]:
    """Finds runs whose manifest has another digest of the code than the present one (opatlas/data/manifest.py).

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
