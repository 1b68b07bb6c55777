"""Whether durations compare: those of a database with those of a session, and those of several databases.

Durations compare only with the same device, software, cache state and instrument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from opatlas.data import journal
from opatlas.data.csv_files import read_table
from opatlas.data.database import Database
from opatlas.data.manifest import Manifest
from opatlas.data.origin import MeasurementOrigin, Provenance, run_drivers, run_origins
from opatlas.errors import OpAtlasError, TableError
from opatlas.row.columns import CACHE_STATE, DURATION, IMPLEMENTATION, INSTRUMENT, RUN_ID
from opatlas.row.location import implementation_label, parse_implementation
from opatlas.row.table import Row, RowTable
from opatlas.row.versions import TORCH
from opatlas.text import Word

#: The cells of a measurement that must be equal, by what they tell.
_SETTINGS = {CACHE_STATE: "cache state", INSTRUMENT: "instrument", IMPLEMENTATION: "implementation"}
_RUNS_SHOWN = 2


class MixedDatabase(OpAtlasError):
    """A database has durations of another device or software than the session.

    Attributes:
        theirs: the origin of the database.
    """

    def __init__(self, place: str, theirs: MeasurementOrigin, ours: MeasurementOrigin, evidence: str) -> None:
        self.theirs = theirs
        super().__init__(f"{place} is of {theirs} ({evidence}), and this session is on {ours}")


def check_origin(provenance: Provenance, ours: MeasurementOrigin) -> None:
    """Raises MixedDatabase if durations, or the path, of a database are of another device or software than a session.

    Args:
        ours: the device and software of the session.
    """
    place, folder = str(provenance.database.path), provenance.folder
    foreign = {
        run_id: other
        for run_id, origins in provenance.origins.items()
        if (other := next((origin for origin in origins if not origin.is_compatible_with(ours)), None)) is not None
    }
    is_foreign_folder = folder is not None and not folder.has_same_release(ours)
    if not foreign and not is_foreign_folder:
        return
    # Reads all tables, so only if some run differs.
    held = _runs_with_durations(provenance.database)
    if runs := sorted(held.intersection(foreign)):
        more = f" and {len(runs) - _RUNS_SHOWN} more" if len(runs) > _RUNS_SHOWN else ""
        evidence = f"run{'s' * (len(runs) > 1)} {', '.join(runs[:_RUNS_SHOWN])}{more} in its runs/"
        raise MixedDatabase(place, foreign[runs[0]], ours, evidence)
    if folder is not None and is_foreign_folder and not held.intersection(provenance.origins):
        raise MixedDatabase(place, folder, ours, "its folder is named for that")


def find_mismatches(
    provenance: Provenance, ours: MeasurementOrigin, rows: Iterable[tuple[Row, Mapping[str, str]]]
) -> list[tuple[int, str]]:
    """Returns how stored durations differ from those of a session, and how many do, the most frequent first.

    Args:
        ours: the device and software of the session.
        rows: each row whose duration is replaced, with the cells of `_SETTINGS` that the session will write; "" if not
            known yet. An implementation has no version, and is "" if the row will name the call of an NPU.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    for row, planned in rows:
        run_id = row.cell(RUN_ID)
        # A row that names no implementation is torch's.
        stored = {IMPLEMENTATION: parse_implementation(row.cell(IMPLEMENTATION))[0] or TORCH.name}
        pairs = {}
        if run_id not in provenance.origins and provenance.folder is None:
            run = f"without a manifest of run {run_id}" if run_id else "without a Run ID"
            pairs["origin"] = (f"unknown: {provenance.shipped or run}", str(ours))
        pairs |= {what: (stored.get(name, row.cell(name)), planned[name]) for name, what in _SETTINGS.items()}
        for what, (theirs, taken) in pairs.items():
            if theirs and taken and theirs != taken:
                found.setdefault((what, theirs, taken), []).append(row.place)
    return [
        (len(places), f"{len(places):,} with {what} {theirs} (such as {places[0]}), this session: {taken}")
        for (what, theirs, taken), places in sorted(found.items(), key=lambda each: -len(each[1]))
    ]


def captured_elsewhere(database: Database, ours: MeasurementOrigin) -> list[str]:
    """Returns the devices of the captured durations of a database, none of which is the device of a session.

    Returns:
        [] if the database has no captured duration, or one of the device of `ours`.
    """
    captured = Provenance(database).captured()
    if any(MeasurementOrigin(device).has_same_device(ours) for device in captured):
        return []
    return captured if any(table.captured.known.any() for table in _tables(database)) else []


def _runs_with_durations(database: Database) -> set[str]:
    """Returns the runs of replays in rows, and of journals that are not written back yet."""
    runs = set[str]()
    for table in _tables(database):
        # A file of messages may have any name.
        for column in dict.fromkeys((table.kind.duration_columns[0], DURATION)):
            cells = zip(table.cells(RUN_ID), table.durations_us(column).tolist(), strict=True)
            runs.update(run_id for run_id, us in cells if run_id and us > 0)
    for path in journal.journals(database):
        with suppress(OpAtlasError, OSError):
            runs.add(journal.read(path).header.run_id)
    return runs


def _tables(database: Database) -> Iterator[RowTable]:
    """Yields the tables of a database. A file that cannot be read is reported where its rows are read."""
    for path in sorted(database.path.glob("[!.]*.csv")):
        with suppress(TableError):
            yield RowTable(path.stem, path, read_table(path))


class Staleness(Word):
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
        if any(origin.other_versions(present.origin) for origin in origins):
            return Staleness.VERSIONS
        if present.driver and (drivers := run_drivers(manifest)) and drivers != {present.driver}:
            return Staleness.DRIVER
        return Staleness.CODE if manifest.code != present.code else Staleness.FRESH


def _implementation(origin: MeasurementOrigin) -> str:
    name = origin.implementation
    return implementation_label(name, origin.versions.get(name, ""))


#: The facts that must be equal, with the words of the error. An empty fact is unknown.
_FACTS: tuple[tuple[str, Callable[[MeasurementOrigin], str]], ...] = (
    ("on", lambda origin: origin.device),
    ("with CPU threads", lambda origin: str(origin.threads or "")),
    ("with torch", lambda origin: origin.versions.get(TORCH.name, "")),
    ("with implementation", lambda origin: _implementation(origin) or "the default of the device"),
)


def expect_comparable(databases: Sequence[tuple[str, Iterable[Manifest]]]) -> None:
    """Checks that databases were measured on one device, with one number of CPU threads, torch and implementation.

    Args:
        databases: names and manifests; the first may have several devices, which the others are compared with.

    Raises:
        OpAtlasError: a database differs from the first, or from an earlier one where the first has no runs.
    """
    named = [(name, [each for run in manifests for each in run_origins(run)]) for name, manifests in databases]
    for where, fact in _FACTS:
        known, holder = frozenset[str](), ""
        for name, origins in named:
            found = frozenset(map(fact, origins)) - {""}
            if known and not found <= known:
                ours, theirs = (f"{where} {', '.join(sorted(facts))}" for facts in (found, known))
                raise OpAtlasError(f"{name} was measured {ours}, {holder} {theirs}: combine it apart, or add --mixed")
            known, holder = (known, holder) if known else (found, name)
