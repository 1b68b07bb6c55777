"""The device and software of durations: the evidence for it, and when two are the same.

The evidence, strongest first: the manifests of the runs and ingests that rows name, the path of the database
(opatlas/row/location.py), `SHIPPED.txt`. Without any the origin of a duration is unknown. One device answers for a
database; its rows may have replays of other devices, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from opatlas.data.database import Database
from opatlas.data.manifest import Ingest, Manifest, read_ingests, read_manifests
from opatlas.row import location
from opatlas.row.versions import CANN, CUDA, NCCL, TORCH, VLLM, kind_of, native_kind, same_release, version_key
from opatlas.text import pluralize

#: Software in the paths of databases, and where a manifest has its version: facts of the device, then packages.
_IN_MANIFEST: Mapping[str, tuple[Sequence[str], str]] = {
    VLLM.name: (("vllm_ascend",), "vllm-ascend"),
    TORCH.name: (("torch",), "torch"),
    CANN.name: (("cann_toolkit", "cann"), ""),
    CUDA.name: ((CUDA.field,), ""),
    NCCL.name: (("nccl",), ""),
}


@dataclass(frozen=True)
class MeasurementOrigin:
    """Device and software of durations. An unknown value is empty, and compatible with any value.

    Attributes:
        device: the name of the device, as in the path of a database.
        kind: the name of a kind of device (opatlas/run/devices/), or the kind of a device of a conftest.py.
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

    def other_versions(self, other: MeasurementOrigin) -> list[str]:
        """Returns the software of which both versions are known and differ."""
        return [
            name
            for name, version in self.versions.items()
            if name in other.versions and version_key(version) != version_key(other.versions[name])
        ]

    def is_compatible_with(self, other: MeasurementOrigin) -> bool:
        """Returns whether no known value differs: device, CPU threads, implementation, versions."""
        is_threaded_alike = not (self.threads and other.threads) or self.threads == other.threads
        return is_threaded_alike and self._is_alike(other) and not self.other_versions(other)

    def has_same_release(self, other: MeasurementOrigin) -> bool:
        """Returns whether no known device or implementation differs, and no known version in its first two numbers."""
        differ = self.other_versions(other)
        return self._is_alike(other) and all(same_release(self.versions[name], other.versions[name]) for name in differ)

    def _is_alike(self, other: MeasurementOrigin) -> bool:
        names = {self.implementation, other.implementation} - {""}
        return self.has_same_device(other) and len(names) < 2

    def has_same_device(self, other: MeasurementOrigin) -> bool:
        """Returns whether no known kind or device differs: this alone decides whether two devices are the same.

        An unnamed NPU is the same as any NPU, and a product (`ATLAS_...`) the same as any chip (`Ascend910B3`), which
        may be the chip in it.
        """
        kinds = {each.kind or (each.device and location.device_kind(each.device)) for each in (self, other)} - {""}
        if len(kinds) > 1:
            return False
        names = {self.device, other.device} - {""}
        if len(names) < 2 or location.UNNAMED_NPU in names:
            return True
        return any(map(location.is_product, names)) and any(map(location.is_chip, names))


@cache
def are_one_device(some: str, other: str) -> bool:
    """Returns whether a device is one of some, with commas, by its name; unknown ones are."""
    names = some.split(", ")
    return other in names or any(MeasurementOrigin(name).has_same_device(MeasurementOrigin(other)) for name in names)


def joined(devices: Iterable[str]) -> str:
    """Returns the known ones of some devices, each once, with commas."""
    return ", ".join(sorted(set(devices) - {""}))


def folder_origin(database: Database) -> MeasurementOrigin | None:
    """Returns the origin that the path of a database names; None if the path has another form."""
    named = location.parse_path(database.path)
    if named is None:
        return None
    device, versions = named
    return MeasurementOrigin(
        device, location.device_kind(device), versions, implementation=location.implementation_of(database.path)[0]
    )


def run_origins(manifest: Manifest) -> Iterator[MeasurementOrigin]:
    """Yields the origins of a run, one for each device; none if the run ended before its first row."""
    from_profile = manifest.options.get("prof_path") is not None
    for device in (manifest.device, *manifest.other_devices):
        if not device.get("name"):
            continue
        name, facts = str(device["name"]), device.get("facts")
        facts = facts if isinstance(facts, Mapping) else {}
        kind = str(device.get("kind") or location.device_kind(name))
        threads = facts.get("threads")
        # "" for the default.
        implementation, version = location.parse_implementation(str(manifest.options.get("implementation") or ""))
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
            found[name] = location.public_version(told[0])
    return found


def run_drivers(manifest: Manifest) -> set[str]:
    """Returns the driver versions of a run's devices; empty if unknown."""
    found = set()
    for device in (manifest.device, *manifest.other_devices):
        facts = device.get("facts")
        if isinstance(facts, Mapping) and facts.get("driver"):
            found.add(str(facts["driver"]))
    return found


class Provenance:
    """The evidence of where the durations of a database come from. Files are read when they are needed.

    Attributes:
        database: the database.
        folder: what the path of the database names; None if it has another form.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.folder = folder_origin(database)
        self._problems: list[str] = []

    @cached_property
    def manifests(self) -> Mapping[str, Manifest]:
        """The readable manifests of runs, by run id."""
        return read_manifests(self.database, self._problems)

    @cached_property
    def origins(self) -> Mapping[str, Sequence[MeasurementOrigin]]:
        """The origins of each run, one for each device; by run id."""
        return {run_id: list(run_origins(manifest)) for run_id, manifest in self.manifests.items()}

    @cached_property
    def ingests(self) -> Sequence[Ingest]:
        """The readable ingests, in the order in which they began."""
        return read_ingests(self.database, self._problems)

    @cached_property
    def shipped(self) -> str:
        """What a shipped database was measured on; "" for any other database. Raises OpAtlasError."""
        return location.shipped_note(self.database.path)

    @property
    def problems(self) -> Sequence[str]:
        """A sentence for each manifest that cannot be read. Reads all evidence.

        Raises:
            OpAtlasError: `SHIPPED.txt` cannot be read.
        """
        _ = self.manifests, self.ingests, self.shipped
        return self._problems

    @property
    def captured_on(self) -> list[str]:
        """The devices that ingests name, sorted."""
        return _named(self.ingests)

    def captured(self, run_ids: str = "") -> list[str]:
        """Returns the devices of a captured duration, sorted.

        Where no ingest names a device, it is the NPU of the path, or else an unnamed one: only NPUs are captured.

        Args:
            run_ids: the ingests, as in the column Profiling Run ID; all of them if it names none.
        """
        named = _named([each for each in self.ingests if each.manifest.run_id in run_ids] or self.ingests)
        is_npu = self.folder is not None and self.folder.kind == native_kind().name
        return named or [self.folder.device if self.folder is not None and is_npu else location.UNNAMED_NPU]

    def replayed(self, run_id: str) -> str:
        """Returns the device of a replay; several with commas, "" if unknown."""
        if run_id in self.manifests and (names := joined(self.manifests[run_id].device_names)):
            return names
        if self.folder is not None:
            return self.folder.device
        return "" if self.ingests else self.device

    @cached_property
    def device(self) -> str:
        """The device that answers for the database; "" if unknown.

        It is the one in the path `data/{device}/{stack}/{version}`, or else that of the captures, or else that of the
        replays: of several the one with the most rows.
        """
        if self.folder is not None:
            return self.folder.device
        if captured := Counter(each.manifest.device for each in self.ingests if each.manifest.device):
            return _most(captured)
        replayed: Counter[str] = Counter()
        for manifest in self.manifests.values():
            for name in manifest.device_names:
                replayed[name] += manifest.statuses.get("measured", 0)
        if self.ingests:
            npus = Counter({name: count for name, count in replayed.items() if kind_of(name).is_native})
            return _most(npus) if npus else location.UNNAMED_NPU
        return _most(replayed)

    def hosts(self, run_ids: Iterable[str]) -> list[str]:
        """Returns the known machines of some runs, sorted."""
        return sorted({origin.host for run_id in run_ids for origin in self.origins.get(run_id, ()) if origin.host})


def _named(ingests: Iterable[Ingest]) -> list[str]:
    return sorted({each.manifest.device for each in ingests if each.manifest.device})


def _most(counts: Mapping[str, int]) -> str:
    return min(counts, key=lambda name: (-counts[name], name), default="")


def database_device(folder: Path) -> str:
    """Returns the device that answers for a database (`Provenance.device`); "" if unknown."""
    return Provenance(Database(folder)).device
