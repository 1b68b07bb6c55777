"""All durations of a database were taken on one device, with one software, cache state and instrument.

The rows of each run count for what its manifest names; what most rows have is what the others differ from.
docs/mixing.md tells which of these matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from opatlas.checks.check import Check, CheckedDatabase, Finding
from opatlas.model.schema import CACHE_STATE, INSTRUMENT
from opatlas.store.manifest import Manifest
from opatlas.text import counted

#: Facts of a device that bear on durations.
_FACTS = ("driver", "cuda", "cudnn", "nccl", "cann_toolkit", "cann", "firmware", "torch_npu", "vllm_ascend", "threads")
_PACKAGES = ("torch_npu", "vllm-ascend")


def _find(database: CheckedDatabase) -> list[Finding]:
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
    of_database=_find,
)
