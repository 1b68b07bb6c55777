"""Which durations were measured by other code, or with another driver or other versions, than the present ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from database.manifest import Manifest
from database.provenance import Origin, origins_of
from database.versions import version_key


class Staleness(str, Enum):
    """Why a duration is stale, or why it is not. Of several reasons the first one counts."""

    NO_MANIFEST = "without a manifest of their run"
    VERSIONS = "other versions"
    DRIVER = "other driver"
    CODE = "other code"
    OTHER_DEVICE = "of another device"
    FRESH = "measured as now"

    @property
    def is_stale(self) -> bool:
        """Whether a session is to measure the row again, which it is not for the duration of another device."""
        return self not in (Staleness.FRESH, Staleness.OTHER_DEVICE)


@dataclass(frozen=True)
class Present:
    """What a session would measure with.

    Attributes:
        origin: device and versions.
        driver: its version; "" if the device has none, or nobody tells.
        code: digest of the code (`database.manifest.code_digest`).
    """

    origin: Origin
    driver: str
    code: str


class StaleRuns:
    """Judges durations by the manifests of the runs that measured them."""

    def __init__(self, manifests: Mapping[str, Manifest], present: Present) -> None:
        self._manifests = manifests
        self._present = present
        self._judged: dict[str, Staleness] = {}

    def of(self, run_id: str) -> Staleness:
        """Judges the durations of a run. What is not known of the run or of the present does not count."""
        if run_id not in self._judged:
            manifest = self._manifests.get(run_id)
            self._judged[run_id] = Staleness.NO_MANIFEST if manifest is None else self._of(manifest)
        return self._judged[run_id]

    def _of(self, manifest: Manifest) -> Staleness:
        origins, present = list(origins_of(manifest)), self._present
        if origins and not any(origin.is_of_same_device(present.origin) for origin in origins):
            return Staleness.OTHER_DEVICE
        if any(_other_versions(origin, present.origin) for origin in origins):
            return Staleness.VERSIONS
        if present.driver and (drivers := drivers_of(manifest)) and drivers != {present.driver}:
            return Staleness.DRIVER
        return Staleness.CODE if manifest.code != present.code else Staleness.FRESH


def drivers_of(manifest: Manifest) -> set[str]:
    """Versions of the driver of the devices of a run; none where it did not tell."""
    found = set()
    for device in (manifest.device, *manifest.other_devices):
        facts = device.get("facts")
        if isinstance(facts, Mapping) and facts.get("driver"):
            found.add(str(facts["driver"]))
    return found


def _other_versions(theirs: Origin, ours: Origin) -> bool:
    return any(
        version_key(version) != version_key(ours.versions[name])
        for name, version in theirs.versions.items()
        if name in ours.versions
    )
