"""The device and software of durations, and whether new durations may be added to a database.

Durations are comparable only with the same device, software, cache state and instrument. The evidence, strongest first:
the manifests of the runs that rows name, the path of the database (opatlas/row/location.py), `SHIPPED.txt`. Without
such evidence the origin of a replayed duration is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from opatlas.data import journal
from opatlas.data.cells import duration_columns
from opatlas.data.csv_files import read_frame
from opatlas.data.database import Database
from opatlas.data.header import read_header
from opatlas.data.ingests import ingest_paths, read_manifest
from opatlas.data.manifest import Manifest, read_manifests
from opatlas.data.origin import MeasurementOrigin, folder_origin, run_drivers, run_origins
from opatlas.errors import OpAtlasError, TableError
from opatlas.row.columns import PROFILING_AVERAGE, RUN_ID
from opatlas.row.location import (
    UNNAMED_NPU,
    parse_implementation,
    shipped_note,
)
from opatlas.row.quality import valid_duration
from opatlas.row.versions import (
    TORCH,
    version_key,
)

#: Values of `Mismatch.what`.
ORIGIN, CACHE, INSTRUMENT, IMPLEMENTATION = "origin", "cache state", "instrument", "implementation"
_RUNS_SHOWN = 2


@dataclass(frozen=True)
class StoredDuration:
    """A replayed duration that a session is about to replace.

    Attributes:
        place: file and line.
        run_id, cache, instrument, implementation: as in the row.
        samples: the number of samples; None if unknown.
    """

    place: str
    run_id: str
    cache: str
    instrument: str
    samples: int | None
    implementation: str = ""


@dataclass(frozen=True)
class PlannedDuration:
    """A duration that a session is about to measure.

    Attributes:
        origin: device and software.
        cache, instrument: as the row will have them; "" if not known yet.
        samples: the number of samples; None if the stop rule decides.
        implementation: the name of the implementation, without version; "" if the row will name the call of an NPU.
    """

    origin: MeasurementOrigin
    cache: str
    instrument: str
    samples: int | None
    implementation: str = ""


@dataclass
class Mismatch:
    """Stored durations that are not comparable with the session's.

    Attributes:
        what: ORIGIN, CACHE, INSTRUMENT or IMPLEMENTATION.
        stored, taken: the values of the stored durations, and of the session.
        count: the number of stored durations.
        example: the place of the first.
    """

    what: str
    stored: str
    taken: str
    count: int
    example: str

    def __str__(self) -> str:
        return f"{self.count:,} with {self.what} {self.stored} (such as {self.example}), this session: {self.taken}"


class MixedDatabase(OpAtlasError):
    """A database has durations of another device or software than the session.

    Attributes:
        theirs: the origin of the database.
        ours: the origin of the session.
        evidence: the evidence for `theirs`.
    """

    def __init__(self, place: str, theirs: MeasurementOrigin, ours: MeasurementOrigin, evidence: str) -> None:
        self.theirs = theirs
        self.ours = ours
        self.evidence = evidence
        super().__init__(f"{place} is of {theirs} ({evidence}), and this session is on {ours}")


class Provenance:
    """The evidence of where the durations of a database come from.

    Attributes:
        problems: a sentence for each manifest that cannot be read.
        manifests: the manifests of runs, by run id.
        shipped: what a shipped database was measured on; "" for any other database.
        captured_on: the devices of captures that ingests name, sorted.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.problems: list[str] = []
        self.manifests = read_manifests(database, self.problems)
        self._runs = {run_id: list(run_origins(manifest)) for run_id, manifest in self.manifests.items()}
        self._folder = folder_origin(database)
        self.shipped = shipped_note(database.path)
        self._captures = _captures(database, self.problems)
        self.captured_on = sorted({device for device in self._captures.values() if device})

    @property
    def captured(self) -> list[MeasurementOrigin]:
        """The devices of captured durations; an unnamed NPU where neither an ingest nor the folder names them."""
        return _captured_origins(self.captured_on, self._folder)

    def check_origin(self, ours: MeasurementOrigin) -> None:
        """Raises MixedDatabase if durations, or the path, of the database are of another device or software."""
        foreign = {
            run_id: next(origin for origin in origins if not origin.is_compatible_with(ours))
            for run_id, origins in self._runs.items()
            if not all(origin.is_compatible_with(ours) for origin in origins)
        }
        is_foreign_folder = self._folder is not None and not self._folder.has_same_release(ours)
        if not foreign and not is_foreign_folder:
            return
        # Reads all tables, so only if some run differs.
        held = _runs_with_durations(self._database)
        if runs := sorted(held.intersection(foreign)):
            more = f" and {len(runs) - _RUNS_SHOWN} more" if len(runs) > _RUNS_SHOWN else ""
            evidence = f"run{'s' * (len(runs) > 1)} {', '.join(runs[:_RUNS_SHOWN])}{more} in its runs/"
            raise MixedDatabase(str(self._database.path), foreign[runs[0]], ours, evidence)
        if is_foreign_folder and not held.intersection(self._runs):
            assert self._folder is not None
            raise MixedDatabase(str(self._database.path), self._folder, ours, "its folder is named for that")

    def folder_note(self, ours: MeasurementOrigin) -> str:
        """Returns a note on versions that differ between the path and a session; "" if none differs.

        A path may name a release (`cann8.3`) or a version (`cann8.3.RC1`).
        """
        named = self._folder.versions if self._folder is not None else {}
        other = [
            f"{name} {version}, and {ours.versions[name]} is installed"
            for name, version in named.items()
            if name in ours.versions and version_key(version) != version_key(ours.versions[name])
        ]
        return f"the folder is named for {'; '.join(other)}" if other else ""

    def mismatches(self, rows: Iterable[tuple[StoredDuration, PlannedDuration]]) -> list[Mismatch]:
        """Returns the differences between stored durations and the session's, the most frequent first."""
        found: dict[tuple[str, str, str], Mismatch] = {}
        for stored, planned in rows:
            for what, theirs, ours in self._differences(stored, planned):
                mismatch = found.setdefault((what, theirs, ours), Mismatch(what, theirs, ours, 0, stored.place))
                mismatch.count += 1
        return sorted(found.values(), key=lambda mismatch: -mismatch.count)

    def hosts(self, run_ids: Iterable[str]) -> list[str]:
        """Returns the known machines of some runs, sorted."""
        return sorted({origin.host for run_id in run_ids for origin in self._runs.get(run_id, ()) if origin.host})

    def _differences(self, stored: StoredDuration, planned: PlannedDuration) -> Iterator[tuple[str, str, str]]:
        if stored.run_id not in self._runs and self._folder is None:
            run = f"without a manifest of run {stored.run_id}" if stored.run_id else "without a Run ID"
            yield ORIGIN, f"unknown: {self.shipped or run}", str(planned.origin)
        for what, theirs, ours in (
            (CACHE, stored.cache, planned.cache),
            (INSTRUMENT, stored.instrument, planned.instrument),
            # A row that names none is torch's.
            (IMPLEMENTATION, parse_implementation(stored.implementation)[0] or TORCH.name, planned.implementation),
        ):
            if theirs and ours and theirs != ours:
                yield what, theirs, ours


def captured_elsewhere(database: Database, ours: MeasurementOrigin) -> list[MeasurementOrigin]:
    """Returns the devices of the captured durations of a database, none of which is the device of a session.

    Returns:
        [] if the database has no captured duration, or one of the device of `ours`.
    """
    named = sorted({device for device in _captures(database, []).values() if device})
    captured = _captured_origins(named, folder_origin(database))
    is_elsewhere = not any(origin.has_same_device(ours) for origin in captured)
    return captured if is_elsewhere and _has_captured_durations(database) else []


def _captures(database: Database, problems: list[str]) -> dict[str, str]:
    """Returns the device of each ingest, by its id; "" where the ingest does not name the device."""
    devices = {}
    for path in ingest_paths(database):
        try:
            devices[path.stem] = read_manifest(path).device or ""
        except (OpAtlasError, OSError) as error:
            problems.append(str(error))
    return devices


def _captured_origins(named: Sequence[str], folder: MeasurementOrigin | None) -> list[MeasurementOrigin]:
    # Only NPUs are captured.
    by_folder = [folder.device] if folder is not None and folder.kind == "npu" else [UNNAMED_NPU]
    return [MeasurementOrigin(device, kind="npu") for device in named or by_folder]


def _has_captured_durations(database: Database) -> bool:
    for path in database.path.glob("[!.]*.csv"):
        # A file that cannot be read is reported where its rows are read.
        with suppress(TableError):
            if PROFILING_AVERAGE in read_header(path).names and any(
                valid_duration(cell) is not None for cell in read_frame(path)[PROFILING_AVERAGE]
            ):
                return True
    return False


def _runs_with_durations(database: Database) -> set[str]:
    """Returns the runs of durations in rows, and of journals that are not written back yet."""
    runs = set()
    for path in sorted(database.path.glob("[!.]*.csv")):
        # A file that cannot be read is reported where its rows are read.
        with suppress(TableError):
            frame = read_frame(path)
            durations = [name for name in _own_durations(path.stem) if name in frame.columns]
            if RUN_ID in frame.columns and durations:
                for run_id, *cells in zip(frame[RUN_ID], *(frame[name] for name in durations), strict=True):
                    if run_id not in runs and any(valid_duration(cell) is not None for cell in cells):
                        runs.add(run_id)
    for path in journal.journals(database):
        with suppress(OpAtlasError, OSError):
            runs.add(journal.read(path).header.run_id)
    return runs


def _own_durations(kernel_type: str) -> Sequence[str]:
    """Returns the duration columns of replays. A file of messages may have any name."""
    return list(dict.fromkeys((duration_columns(kernel_type)[0], duration_columns("hcom_allReduce_")[0])))


class Staleness(str, Enum):
    """Why a duration is stale or not; the first reason counts."""

    NO_MANIFEST = "without a manifest of their run"
    VERSIONS = "other versions"
    DRIVER = "other driver"
    CODE = "other code"
    OTHER_DEVICE = "of another device"
    FRESH = "measured as now"

    @property
    def is_stale(self) -> bool:
        """Whether a session is to measure the row again."""
        return self not in (Staleness.FRESH, Staleness.OTHER_DEVICE)


@dataclass(frozen=True)
class PresentSetup:
    """The setup of a session.

    Attributes:
        origin: device and versions.
        driver: the version of the driver; "" if there is none, or it is unknown.
        code: the digest of the code (`opatlas.data.manifest.code_digest`).
    """

    origin: MeasurementOrigin
    driver: str
    code: str


class StaleRuns:
    """Judges durations by the manifests of the runs that measured them."""

    def __init__(self, manifests: Mapping[str, Manifest], present: PresentSetup) -> None:
        self._manifests = manifests
        self._present = present
        self._judged: dict[str, Staleness] = {}

    def staleness(self, run_id: str) -> Staleness:
        """Returns the staleness of a run's durations. Unknown facts of the run or the session do not count."""
        if run_id not in self._judged:
            manifest = self._manifests.get(run_id)
            self._judged[run_id] = Staleness.NO_MANIFEST if manifest is None else self._judge(manifest)
        return self._judged[run_id]

    def _judge(self, manifest: Manifest) -> Staleness:
        origins, present = list(run_origins(manifest)), self._present
        if origins and not any(origin.has_same_device(present.origin) for origin in origins):
            return Staleness.OTHER_DEVICE
        if any(_other_versions(origin, present.origin) for origin in origins):
            return Staleness.VERSIONS
        if present.driver and (drivers := run_drivers(manifest)) and drivers != {present.driver}:
            return Staleness.DRIVER
        return Staleness.CODE if manifest.code != present.code else Staleness.FRESH


def _other_versions(theirs: MeasurementOrigin, ours: MeasurementOrigin) -> bool:
    return any(
        version_key(version) != version_key(ours.versions[name])
        for name, version in theirs.versions.items()
        if name in ours.versions
    )
