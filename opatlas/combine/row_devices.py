"""The device of a database, and of each of its durations.

A replay is of the device that the manifest of its run names, a captured duration of that of its ingest. One device
answers for a database. Its rows may have replays of other devices, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from pathlib import Path

from opatlas.data.database import Database
from opatlas.data.manifest import Manifest, read_manifests
from opatlas.errors import OpAtlasError
from opatlas.row.location import UNNAMED_NPU, device_kind


class RowDevices:
    """The devices of the durations of a database. The manifests are read when they are needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def device(self) -> str:
        """The device that answers for the database; "" if unknown.

        It is the one in the path `data/{device}/{stack}/{version}`, or else that of the captures, or else that of the
        replays: of several the one with the most rows.
        """
        if self._of_path:
            return self._of_path
        captured = Counter(device for device in self._ingests.values() if device)
        if captured:
            return _most(captured)
        replayed: Counter[str] = Counter()
        for manifest in self._runs.values():
            for name in manifest.device_names:
                replayed[name] += manifest.statuses.get("measured", 0)
        if self._ingests:
            npus = Counter({name: count for name, count in replayed.items() if device_kind(name) == "npu"})
            return _most(npus) if npus else UNNAMED_NPU
        return _most(replayed)

    def replayed(self, run_id: str) -> str:
        """Returns the device of a replay; several with commas, "" if unknown."""
        run = self._runs.get(run_id)
        if run is not None and run.device_names:
            return ", ".join(sorted(run.device_names))
        return self._of_path or ("" if self._ingests else self.device)

    def captured(self, run_ids: str) -> str:
        """Returns the device of a captured duration.

        Args:
            run_ids: the ingests, as in the column Profiling Run ID; all of them if it names none.
        """
        own = [device for run_id, device in self._ingests.items() if run_id in run_ids] or self._ingests.values()
        return joined(device or "" for device in own) or self._of_path or UNNAMED_NPU

    @cached_property
    def _of_path(self) -> str:
        parts = self._folder.resolve().parts
        return parts[-3] if parts[-4:-3] == ("data",) else ""

    @cached_property
    def _runs(self) -> Mapping[str, Manifest]:
        # Sessions and combine report manifests that cannot be read.
        return read_manifests(Database(self._folder), problems=[])

    @cached_property
    def _ingests(self) -> Mapping[str, str | None]:
        """The devices of captures by the ids of their ingests; None for captures that name none."""
        from opatlas.capture.cases import read_ingests

        try:
            return {each.manifest.run_id: each.manifest.device for each in read_ingests(Database(self._folder))}
        except OpAtlasError:
            return {}

    @property
    def captured_on(self) -> frozenset[str]:
        """The devices that captures name."""
        return frozenset(device for device in self._ingests.values() if device)


def database_device(folder: Path) -> str:
    """Returns the device that answers for a database (`RowDevices.device`); "" if unknown."""
    return RowDevices(folder).device


@cache
def are_one_device(some: str, other: str) -> bool:
    """Returns whether two names are of one device, such as those of a product and of its chip; unknown ones are."""
    names = some.split(", ")
    if other in names:
        return True
    # A short query does without what this imports.
    from opatlas.combine.provenance import MeasurementOrigin

    def origin(device: str) -> MeasurementOrigin:
        return MeasurementOrigin(device, device_kind(device) if device else "")

    return any(origin(name).has_same_device(origin(other)) for name in names)


def _most(counts: Mapping[str, int]) -> str:
    return min(counts, key=lambda name: (-counts[name], name), default="")


def joined(devices: Iterable[str]) -> str:
    """Returns the known ones of some devices, each once, with commas."""
    return ", ".join(sorted(set(devices) - {""}))
