"""The devices of stored durations: which one timed each row, and which one a database is of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from opatlas.capture.cases import read_ingests
from opatlas.combine.provenance import MeasurementOrigin
from opatlas.errors import OpAtlasError
from opatlas.model.location import IMPLEMENTATIONS, UNNAMED_NPU, device_kind, parse_path
from opatlas.model.schema import PROFILING_RUN_ID
from opatlas.query.stored_rows import StoredRows
from opatlas.store.database import Database
from opatlas.store.manifest import read_manifests


class RowDevices:
    """The devices of the durations of a database: by the manifests of ingests and runs, else by its path."""

    def __init__(self, folder: Path) -> None:
        self._database = Database(folder)
        named = parse_path(folder.parents[1] if folder.parent.name == IMPLEMENTATIONS else folder)
        self._folder = "" if named is None else named[0]

    @cached_property
    def _runs(self) -> dict[str, str]:
        # Sessions, combine and check report manifests that cannot be read.
        manifests = read_manifests(self._database, problems=[])
        return {run_id: ", ".join(sorted(each.device_names)) for run_id, each in manifests.items()}

    @cached_property
    def _ingests(self) -> dict[str, str]:
        try:
            ingests = read_ingests(self._database)
        except OpAtlasError:
            return {}
        return {each.manifest.run_id: each.manifest.device or "" for each in ingests}

    def of(self, rows: StoredRows) -> list[str]:
        """Returns the device of each duration; "" where nothing tells. A capture has no device of a replay."""
        ids = zip(rows.captured, rows.cells(PROFILING_RUN_ID), rows.run_id, strict=True)
        return [
            (self._ingests.get(ingest.strip()) or self._folder or UNNAMED_NPU)
            if captured
            else (self._runs.get(run.strip()) or self._folder)
            for captured, ingest, run in ids
        ]


def main_device(rows: Iterable[tuple[str, bool]]) -> str:
    """Returns the device that a database is of: that of most captured durations, or else of most; "" if unknown.

    Args:
        rows: for each duration its device, and whether it was captured.
    """
    counts = Counter(row for row in rows if row[0])
    return max(counts, key=lambda row: (row[1], counts[row]))[0] if counts else ""


def is_same_device(one: str, other: str) -> bool:
    """Returns whether two names may be those of one device."""
    return _origin(one).has_same_device(_origin(other))


def _origin(device: str) -> MeasurementOrigin:
    kind = "npu" if device == UNNAMED_NPU else device_kind(device) if device else ""
    return MeasurementOrigin(device, kind)
