"""The device of a database, and of each of its durations.

A replay is of the device that the manifest of its run names, a captured duration of that of its ingest. One device
answers for a database. Its rows may have replays of other devices, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path

from opatlas.data.database import Database
from opatlas.data.ingests import read_ingests
from opatlas.data.manifest import Manifest, read_manifests
from opatlas.errors import OpAtlasError
from opatlas.row.location import (
    UNNAMED_NPU,
    device_kind,
    implementation_of,
    is_chip,
    is_product,
    parse_implementation,
    parse_path,
    public_version,
)
from opatlas.row.versions import CANN, CUDA, NCCL, TORCH, VLLM, same_release, version_key
from opatlas.text import pluralize

#: Software in the paths of databases, and where a manifest has its version: facts of the device, then packages.
_IN_MANIFEST: Mapping[str, tuple[Sequence[str], str]] = {
    VLLM.name: (("vllm_ascend",), "vllm-ascend"),
    TORCH.name: (("torch",), "torch"),
    CANN.name: (("cann_toolkit", "cann"), ""),
    CUDA.name: (("cuda",), ""),
    NCCL.name: (("nccl",), ""),
}


@dataclass(frozen=True)
class MeasurementOrigin:
    """Device and software of durations. An unknown value is empty, and compatible with any value.

    Attributes:
        device: the name of the device, as in the path of a database.
        kind: "npu", "cuda" or "cpu", or the kind of a device of a conftest.py.
        versions: public versions by the name of the software ("torch": "2.11.0").
        threads: the CPU threads of torch; None for other devices. CPUs of one name may have different numbers: clouds
            name their CPUs `Intel_Xeon_Processor`.
        host: the name of the machine.
        implementation: the name of the implementation; "" if unknown. A run of the default records none.
    """

    device: str = ""
    kind: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    host: str = ""
    implementation: str = ""

    def __str__(self) -> str:
        """Returns `NVIDIA_H200 with torch 2.11.0, CUDA (of torch) 13.0`."""
        device = self.device or (f"an unnamed device of kind {self.kind}" if self.kind else "an unknown device")
        device += f" ({pluralize(self.threads, 'thread')})" if self.threads else ""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        text = f"{device} with {versions}" if versions else device
        is_named = not self.implementation or self.implementation in self.versions
        return text if is_named else f"{text}, implementation {self.implementation}"

    def is_compatible_with(self, other: MeasurementOrigin) -> bool:
        """Returns whether no known value differs: device, CPU threads, implementation, versions."""
        if self.threads and other.threads and self.threads != other.threads:
            return False
        if not self._has_same_implementation(other):
            return False
        return self.has_same_device(other) and not any(
            version_key(version) != version_key(other.versions[name])
            for name, version in self.versions.items()
            if name in other.versions
        )

    def has_same_release(self, other: MeasurementOrigin) -> bool:
        """Returns whether no known device or implementation differs, and no known version in its first two numbers."""
        return (
            self.has_same_device(other)
            and self._has_same_implementation(other)
            and all(
                same_release(version, other.versions[name])
                for name, version in self.versions.items()
                if name in other.versions
            )
        )

    def _has_same_implementation(self, other: MeasurementOrigin) -> bool:
        return not (self.implementation and other.implementation) or self.implementation == other.implementation

    def only_threads_differ(self, other: MeasurementOrigin) -> bool:
        """Returns whether only the number of CPU threads differs."""
        return not self.is_compatible_with(other) and self.is_compatible_with(replace(other, threads=self.threads))

    def has_same_device(self, other: MeasurementOrigin) -> bool:
        """Returns whether no known kind or device differs: this alone decides whether two devices are the same.

        An unnamed NPU is the same as any NPU, and a product (`ATLAS_...`) the same as any chip (`Ascend910B3`), which
        may be the chip in it.
        """
        kinds = {each.kind or (each.device and device_kind(each.device)) for each in (self, other)} - {""}
        if len(kinds) > 1:
            return False
        names = {self.device, other.device} - {""}
        if len(names) < 2 or UNNAMED_NPU in names:
            return True
        return any(map(is_product, names)) and any(map(is_chip, names))


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

    def origin(device: str) -> MeasurementOrigin:
        return MeasurementOrigin(device, device_kind(device) if device else "")

    return any(origin(name).has_same_device(origin(other)) for name in names)


def _most(counts: Mapping[str, int]) -> str:
    return min(counts, key=lambda name: (-counts[name], name), default="")


def joined(devices: Iterable[str]) -> str:
    """Returns the known ones of some devices, each once, with commas."""
    return ", ".join(sorted(set(devices) - {""}))


def folder_origin(database: Database) -> MeasurementOrigin | None:
    """Returns the origin that the path of a database names; None if the path has another form."""
    named = parse_path(database.path)
    if named is None:
        return None
    device, versions = named
    return MeasurementOrigin(device, device_kind(device), versions, implementation=implementation_of(database.path)[0])


def run_origins(manifest: Manifest) -> Iterator[MeasurementOrigin]:
    """Yields the origins of a run, one for each device; none if the run ended before its first row."""
    from_profile = manifest.options.get("prof_path") is not None
    for device in (manifest.device, *manifest.other_devices):
        if not device.get("name"):
            continue
        name, facts = str(device["name"]), device.get("facts")
        facts = facts if isinstance(facts, Mapping) else {}
        kind = str(device.get("kind") or device_kind(name))
        threads = facts.get("threads")
        # "" for the default.
        implementation, version = parse_implementation(str(manifest.options.get("implementation") or ""))
        implemented = {implementation: version} if version else {}
        yield MeasurementOrigin(
            device=name,
            kind=kind,
            # A profile was taken with unknown software, on another machine.
            versions={} if from_profile else {**_versions(facts, manifest.packages), **implemented},
            # The threads of a group are those of several ranks.
            threads=threads if kind == "cpu" and "ranks" not in facts and isinstance(threads, int) else None,
            # A device of a cluster says its machine.
            host=str(facts.get("host") or manifest.host),
            implementation=implementation,
        )


def _versions(facts: Mapping[str, object], packages: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, (of_facts, package) in _IN_MANIFEST.items():
        told = [str(facts[fact]) for fact in of_facts if facts.get(fact)] + [packages.get(package, "")]
        if told[0]:
            found[name] = public_version(told[0])
    return found


def run_drivers(manifest: Manifest) -> set[str]:
    """Returns the driver versions of a run's devices; empty if unknown."""
    found = set()
    for device in (manifest.device, *manifest.other_devices):
        facts = device.get("facts")
        if isinstance(facts, Mapping) and facts.get("driver"):
            found.add(str(facts["driver"]))
    return found
