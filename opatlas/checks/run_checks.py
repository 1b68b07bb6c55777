"""All durations of a database were taken on one device, with one software, cache state and instrument.

The rows of each run count for what its manifest names; what most rows have is what the others differ from.
docs/mixing.md tells which of these matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from opatlas.checks.check import Check, CheckedDatabase, CheckedTable, Finding
from opatlas.model.quality import NOISE_LIMIT
from opatlas.model.schema import CACHE_STATE, INSTRUMENT, RUN_ID
from opatlas.report.row_summary import microseconds_text
from opatlas.store.manifest import Manifest
from opatlas.text import counted

#: Facts of a device that bear on durations.
_FACTS = ("driver", "cuda", "cudnn", "nccl", "cann_toolkit", "cann", "firmware", "torch_npu", "vllm_ascend", "threads")
_PACKAGES = ("torch_npu", "vllm-ascend")


def _mixed_runs(database: CheckedDatabase) -> list[Finding]:
    rows = database.rows_of_runs
    told = {run_id: _told(database.manifests[run_id]) for run_id in rows if run_id in database.manifests}
    return [*_unlike_runs(database, rows, told), *_unlike_cells(database)]


def _told(manifest: Manifest) -> dict[str, str]:
    """What a manifest says of device and software, by what it is; values of several devices are joined."""
    facts = [device.get("facts") for device in (manifest.device, *manifest.other_devices)]
    known = [each for each in facts if isinstance(each, Mapping)]
    told = {"device": " and ".join(sorted(manifest.device_names)), "torch": manifest.torch}
    told |= {name: manifest.packages.get(name, "") for name in _PACKAGES}
    for name in _FACTS:
        told[name] = " and ".join(sorted({str(each[name]) for each in known if each.get(name)})) or told.get(name, "")
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
                reason = f"{name} {value} of {counted(rows[run_id], 'row')}, where {most:,} rows have {usual}"
                yield Finding(path, None, "", run_id, f"{name} {value}", reason, count)


def _unlike_cells(database: CheckedDatabase) -> Iterator[Finding]:
    for column in (CACHE_STATE, INSTRUMENT):
        places: dict[str, dict[str, list[int]]] = {}
        for table in database.tables():
            cells = table.cells(column)
            for place in np.flatnonzero(~np.isnan(table.replayed.us)).tolist():
                if word := cells[place].strip():
                    places.setdefault(word, {}).setdefault(table.kernel_type, []).append(place)
        counts = Counter({word: sum(map(len, of_type.values())) for word, of_type in places.items()})
        for word, _ in counts.most_common()[1:]:
            (usual, most), *_ = counts.most_common()
            for kernel_type, of_type in places[word].items():
                reason = f"{column} {word} of {counted(len(of_type), 'row')}, where {most:,} rows have {usual}"
                yield database.table(kernel_type).finding(of_type[0], f"{column} {word}", reason, len(of_type))


MIXED = Check(
    "mixed",
    "durations that do not compare with the others",
    "keep them in a database of their own (docs/mixing.md)",
    of_database=_mixed_runs,
)


_DIGITS = 12


def _stale_runs(database: CheckedDatabase) -> list[Finding]:
    rows = database.rows_of_runs
    code = database.code[:_DIGITS]
    found = []
    for run_id, manifest in database.manifests.items():
        if rows[run_id] and manifest.code != database.code:
            reason = f"{counted(rows[run_id], 'row')} of code {manifest.code[:_DIGITS]}, the code is {code} now"
            path = str(database.database.runs_dir / f"{run_id}.json")
            found.append(Finding(path, None, "", run_id, manifest.code[:_DIGITS], reason, rows[run_id]))
    return found


STALE_CODE = Check(
    "stale-code",
    "runs that other code measured",
    "measure again where what changed bears on durations (git log)",
    of_database=_stale_runs,
    advisory=True,
    applies=lambda database: "" if database.code else "the digest of the code is not known",
)


def comparable(database: CheckedDatabase, other: CheckedDatabase, kernel_type: str) -> Iterator[tuple[int, int]]:
    """Goes through the rows of a kernel type that compare, by their places in either table."""
    if kernel_type not in other.kernel_types:
        return
    ours, theirs = database.table(kernel_type), other.table(kernel_type)
    our_runs, their_runs = ours.cells(RUN_ID), theirs.cells(RUN_ID)
    for signature, place in ours.first_places.items():
        twin = theirs.first_places.get(signature)
        if twin is None or np.isnan(ours.replayed.us[place]) or np.isnan(theirs.replayed.us[twin]):
            continue
        same_origin = database.origin(our_runs[place]).is_compatible_with(other.origin(their_runs[twin]))
        if same_origin and ours.replayed.how[place] == theirs.replayed.how[twin]:
            yield place, twin


def compared_rows(database: CheckedDatabase, other: CheckedDatabase) -> int:
    """Returns the number of rows that compare."""
    return sum(1 for kernel_type in database.kernel_types for _ in comparable(database, other, kernel_type))


def _disagreeing_rows(database: CheckedDatabase, table: CheckedTable) -> list[Finding]:
    other = database.against
    if other is None:
        return []
    found = []
    for place, twin in comparable(database, other, table.kernel_type):
        theirs = other.table(table.kernel_type)
        us, twin_us = table.replayed.us[place], theirs.replayed.us[twin]
        noise = float(np.hypot(table.replayed.noise_us[place], theirs.replayed.noise_us[twin]))
        difference = abs(us - twin_us)
        if difference > NOISE_LIMIT * min(us, twin_us) and difference > noise:
            ratio = us / twin_us
            other_us, width = microseconds_text(twin_us), microseconds_text(noise)
            reason = f"{ratio:.2f} times the {other_us} of {theirs.path}:{twin + 2}, noise {width}"
            found.append(table.finding(place, microseconds_text(us), reason, max(ratio, 1 / ratio)))
    return found


AGAINST = Check(
    "against",
    "rows that took another time in the other database",
    "measure both again; opatlas history tells what each run took",
    of_table=_disagreeing_rows,
    applies=lambda database: "" if database.against is not None else "--against names no other database",
)
