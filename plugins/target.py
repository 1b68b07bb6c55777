"""What a session measures on and writes into: devices, a database for each implementation, and what may not mix."""

from __future__ import annotations

import platform
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from opatlas.capture.profile_samples import CACHE_UNKNOWN
from opatlas.data.comparable import MixedDatabase, captured_elsewhere, check_origin, find_mismatches
from opatlas.data.database import Database, SessionLock
from opatlas.data.origin import MeasurementOrigin, Provenance
from opatlas.errors import OpAtlasError
from opatlas.files import absolute_path, expect_folder
from opatlas.installation import SCHEDULERS, extensions
from opatlas.options import Scope
from opatlas.row import versions as software
from opatlas.row.columns import CACHE_STATE, IMPLEMENTATION, INSTRUMENT, RUN_ID
from opatlas.row.location import ROOT, beside, expect_npu, implementation_path, public_version, slug
from opatlas.row.status import UpdateMode
from opatlas.row.table import Row
from opatlas.run.devices.device import DeviceSpec, available_devices, database_name, device_kinds, kind_named
from opatlas.run.devices.system import available_cores
from opatlas.run.implementation import Implementation
from opatlas.run.implementation_catalog import find_implementations
from opatlas.run.registry import RowSource
from opatlas.text import pluralize, printable

if TYPE_CHECKING:
    from opatlas.outer.cluster.ray_cluster import RayCluster
    from opatlas.outer.generation.session_models import ModelSettings

    from .cases import Plan
    from .session_context import SessionContext
    from .settings import Settings

_NAMES_A_DATABASE = (software.VLLM, software.TORCH, software.CANN)
_CLUSTER = pytest.StashKey["RayCluster"]()


@dataclass(frozen=True)
class SessionTarget:
    """An implementation, and the database of its durations.

    Attributes:
        implementation: what is measured.
        path: the folder of the CSVs.
        origin: what durations are measured on; for profiles, only what options tell.
        rows_from: the database whose rows are added to this one without durations; None: the rows are there.
        note: what the user should know about the choice of the database; "" if nothing.
        captures: the database that the user named, which holds captures of another device, so that its rows are
            measured in this one; None: no such database.
    """

    implementation: Implementation
    path: Path
    origin: MeasurementOrigin
    rows_from: Path | None = None
    note: str = ""
    captures: Path | None = None


@dataclass
class TargetDatabase:
    """The database of a target in one process of a session.

    Attributes:
        provenance: what the durations of the database were measured on; read with the plan.
        lock: the lock of the database, taken with the plan.
        left_behind: journals of earlier sessions that could not be merged.
    """

    target: SessionTarget
    provenance: Provenance | None = None
    lock: SessionLock | None = None
    left_behind: Collection[Path] = ()

    @property
    def database(self) -> Database:
        return Database(self.target.path)


def cluster_of(config: pytest.Config, own: Sequence[DeviceSpec]) -> RayCluster:
    """Returns the cluster of --ray, joined at the first call and left when pytest ends.

    Args:
        own: the devices that a conftest.py gives each host; empty: devices are looked for.

    Raises:
        OpAtlasError: there is no cluster, it has no device that fits, or its devices differ.
    """
    if _CLUSTER not in config.stash:
        registered = extensions(SCHEDULERS).get("ray")
        if registered is None:
            raise OpAtlasError("--ray: this installation has no scheduler of clusters")
        # Sessions without a cluster import nothing of it.
        join = registered.load()
        cluster = config.stash[_CLUSTER] = join(config.option.ray, config.option.device, own, mixed=config.option.mixed)
        config.add_cleanup(cluster.close)
    return config.stash[_CLUSTER]


def devices_of(config: pytest.Config) -> Sequence[DeviceSpec]:
    """Returns the devices that rows are replayed on; with --prof-path, the device that was profiled.

    Raises:
        OpAtlasError: --device names a device that this machine lacks.
        pytest.UsageError: --device names none of the devices that a conftest.py gives, or no NPU with --prof-path.
    """
    name: str | None = config.option.device
    if config.option.prof_path is not None:
        return _profiled_devices(name, config.option.database_path)
    devices: list[DeviceSpec] = config.hook.pytest_opatlas_devices(config=config)
    if config.option.ray is not None:
        devices = cluster_of(config, devices).specs
    for device in devices:
        if name not in (None, device.kind, device.name):
            raise pytest.UsageError(
                f"--device {name}: the hook pytest_opatlas_devices of a conftest.py or plugin gives {device}"
                f"{f' ({device.name})' if device.name else ''}: name that, leave --device out, or let the hook heed it"
            )
    return devices


def _profiled_devices(name: str | None, database: str | None) -> list[DeviceSpec]:
    """Returns the NPU whose profiles --prof-path names, whether or not this machine has it.

    Raises:
        OpAtlasError, pytest.UsageError: neither --device nor --database-path names it, or --device names no NPU, which
            msprof cannot have profiled.
    """
    npu = kind_named(software.native_kind().name)
    if name not in (None, npu.name):
        if not software.kind_of(name).is_native:
            raise pytest.UsageError(f"--prof-path reads profiles of an NPU, and --device {name} is none")
        if not database:
            expect_npu(name)
        return [DeviceSpec(npu.name, name=name)]
    if npu.is_present():
        return available_devices(npu.name)
    if not database:
        raise pytest.UsageError("--prof-path: name the profiled NPU with --device, or its database (--database-path)")
    return [DeviceSpec(npu.name)]


def targets_of(
    config: pytest.Config, devices: Sequence[DeviceSpec], source: RowSource, models: ModelSettings | None = None
) -> tuple[list[SessionTarget], list[str]]:
    """Returns a target for each implementation of --implementation that is installed, and lines about the others.

    Args:
        source: the rows of the session.
        models: models that write candidates; each is an implementation.

    Raises:
        OpAtlasError: an implementation is unknown or does not run on the device, or a version that names a folder is
            not known.
        pytest.UsageError: options contradict each other, or no named implementation is installed.
    """
    option = config.option
    found = _implementations(source.options.implementation, devices[0].kind, source, models)
    usable = [replace(each, counts_missing=source.counts_missing) for each in found if not each.missing]
    lines = [f"{each.name}: {each.missing}" for each in found if each.missing]
    lines += dict.fromkeys(note for each in usable for note in each.notes)
    if not usable:
        raise pytest.UsageError(f"--implementation {','.join(option.implementation)}: {'; '.join(lines)}")
    origin = origin_of(config, devices, source)
    base, captures = absolute_path(database_of(config, devices, source)), None
    note = assumed_versions(option.versions) if option.prof_path is not None and not option.database_path else ""
    if option.database_path and not option.mixed and (captured := captured_elsewhere(Database(base), origin)):
        home = _beside_captures(base, devices, source, option.versions)
        captures, base = (base, home) if home != base.resolve() else (None, base)
        names, here = ", ".join(captured), devices[0].name or devices[0]
        note = f"{captures} was captured on {names}: durations of {here} belong into {base}"
    rows_from = captures if source.needs_database else None
    targets = []
    for each in usable:
        if each.is_default:
            own = replace(origin, implementation=each.name)
            targets.append(SessionTarget(each, base, own, rows_from, note, captures))
            continue
        path = (
            Database(base).implementation_dir(each.name, each.version)
            if option.database_path or source.is_listed
            else absolute_path(
                implementation_path(database_name(devices), each.name, each.version, software.detect(option.versions))
            )
        )
        versions = {**origin.versions, each.name: each.version}
        own = replace(origin, versions=versions, implementation=each.name)
        targets.append(SessionTarget(each, path, own, rows_from or base, note if captures else "", captures))
    return targets, lines


def _beside_captures(
    captures: Path, devices: Sequence[DeviceSpec], source: RowSource, versions: software.Versions
) -> Path:
    """Returns the database of a session's device beside a database with captures of another device."""
    name = slug(devices[0].name or devices[0].kind)
    try:
        place = source.default_database(name, software.detect(versions))
    except OpAtlasError:
        # The versions of profiled software may be unknown.
        place = ROOT / name / devices[0].kind / "unknown_versions"
    return beside(captures, place)


def _implementations(
    names: Sequence[str], kind: str, source: RowSource, models: ModelSettings | None
) -> list[Implementation]:
    """Returns the implementations that a user names, and the models as implementations. Raises OpAtlasError."""
    if models is None:
        return find_implementations(names, kind, source.find)
    found = find_implementations(names, kind, source.find) if names else []
    written = models.implementations(source.asked)
    if taken := {each.name for each in found} & {each.name for each in written}:
        raise OpAtlasError(f"--implementation, --models: two of them are called {min(taken)}: rename a folder")
    return [*found, *written]


def database_of(config: pytest.Config, devices: Sequence[DeviceSpec], source: RowSource) -> Path:
    """Returns the folder of the CSVs.

    Args:
        source: the rows of the session.

    Raises:
        OpAtlasError: a version that names the folder is not known, or --database-path names no folder.
        pytest.UsageError: --versions names another release than the installed one.
    """
    option = config.option
    if option.database_path:
        named = Path(option.database_path)
        if not source.needs_database:
            expect_folder(named, "", option="--database-path", may_be_made=True)
        return named / source.subfolder
    if option.prof_path is None and not option.collectonly:
        _expect_installed(option.versions)
    return source.default_database(database_name(devices), software.detect(option.versions)) / source.subfolder


def given_versions(versions: software.Versions) -> Mapping[software.Component, str]:
    """Returns the versions that --versions gives, by the software."""
    by_component = {component: getattr(versions, component.field) for component in _NAMES_A_DATABASE}
    return {component: version for component, version in by_component.items() if version}


def origin_of(config: pytest.Config, devices: Sequence[DeviceSpec], source: RowSource) -> MeasurementOrigin:
    """Returns what the durations of a session are measured on, with the versions that name a database."""
    option, device = config.option, devices[0]
    if option.prof_path is not None:
        # The profiled software is not the software of this machine, and may be unknown.
        return MeasurementOrigin(device.name, device.kind, named_versions(option.versions))
    installed, given_or_installed = software.detect(), software.detect(option.versions)
    naming = source.naming(device.kind)
    # The installed software measures, by whatever version of the same release the user calls it.
    versions = {each.name: getattr(installed, each.field) or getattr(given_or_installed, each.field) for each in naming}
    cores = available_cores() if option.ray is None else cluster_of(config, devices).cores
    return MeasurementOrigin(
        device.name,
        device.kind,
        {name: public_version(version) for name, version in versions.items() if version},
        threads=cores if device.kind == "cpu" and source.scope is not Scope.COLLECTIVES else None,
        # The hosts of a cluster are told with its devices.
        host=platform.node() if option.ray is None else "",
    )


def named_versions(versions: software.Versions) -> Mapping[str, str]:
    """Returns the versions that --versions gives, by the name of the software."""
    return {component.name: version for component, version in given_versions(versions).items()}


def _expect_installed(versions: software.Versions) -> None:
    """Raises pytest.UsageError where --versions gives another release than the installed one."""
    installed = software.detect()
    for component, version in given_versions(versions).items():
        here = getattr(installed, component.field)
        if here and not software.same_release(version, here):
            raise pytest.UsageError(
                f"{software.versions_option({component: version})}: rows would be measured with the installed "
                f"{component.name} {here}; leave it out, or name a database with --database-path"
            )


def assumed_versions(versions: software.Versions) -> str:
    """Returns a note on versions of this machine's software that name a database of profiles, for lack of others."""
    here, found = [each for each in _NAMES_A_DATABASE if each not in given_versions(versions)], software.detect()
    names = ", ".join(f"{each.name} {getattr(found, each.field)}" for each in here)
    return (
        f"{names} as on this machine: where others were profiled, give {software.versions_option(here)}" if here else ""
    )


def read_origin(context: SessionContext, own: TargetDatabase) -> tuple[Provenance, str]:
    """Reads what a database was measured on. Returns also what the user should know of it; "" if nothing.

    Raises:
        OpAtlasError: the durations would be mixed, without --mixed and --read-only.
    """
    settings = context.settings
    own.provenance = provenance = Provenance(own.database)
    try:
        check_origin(provenance, own.target.origin)
    except MixedDatabase as error:
        if settings.read_only:
            return provenance, printable(f"{error}: the two do not compare")
        if settings.mixed:
            return provenance, printable(f"--mixed: {error}")
        raise OpAtlasError(f"{printable(str(error))}: the two do not compare.\n{_remedy(settings)}") from None
    folder, ours = provenance.folder, own.target.origin
    if folder is None or not (patched := folder.other_versions(ours)):
        return provenance, ""
    named, here = (", ".join(f"{name} {each.versions[name]}" for name in patched) for each in (folder, ours))
    return provenance, f"{own.database.path} is named for {named}, and this session is on {here}"


def captured_note(provenance: Provenance, plan: Plan, settings: Settings) -> str:
    """Returns a note if captured durations of rows to run are of another device than the session's; "" if not."""
    tables = plan.tables.values()
    if all(np.isnan(table.captured[[case.position for case in table.to_run]]).all() for table in tables):
        return ""
    return captured_mismatch(provenance, settings)


def captured_mismatch(provenance: Provenance, settings: Settings) -> str:
    """Returns why captured durations do not compare with those of a session; "" where they do."""
    captured = provenance.captured()
    others = [name for name in captured if not MeasurementOrigin(name).has_same_device(settings.origin)]
    if not others:
        return ""
    here = settings.origin.device or settings.origin.kind
    return printable(f"captured on {', '.join(others)}, replayed on {here}: the two do not compare")


def check_replaced(
    provenance: Provenance, settings: Settings, plan: Plan, in_groups: Container[str], number: int = 0
) -> list[str]:
    """Compares the stored durations of the collected rows of a target with those that the session will measure.

    Args:
        number: number of the target.
        in_groups: kernel types whose rows need several devices at once.

    Returns:
        What the user should know about the durations that are replaced.

    Raises:
        OpAtlasError: the session may not replace them.
    """
    rows: list[tuple[Row, Mapping[str, str]]] = []
    target = settings.targets[number]
    for table in plan.tables.values():
        if table.target == number:
            planned = _planned_cells(settings, target, in_group=table.kernel_type in in_groups)
            known = table.table.replayed.known
            # Rows of one signature get one duration.
            ids = {case.id for case in table.cases if case.account and case.will_run}
            rows += [(case.row, planned) for case in table.cases if case.id in ids and known[case.position]]
    mismatches = find_mismatches(provenance, target.origin, rows)
    if mismatches and not settings.mixed:
        # The durations of a row may differ in several ways.
        lines = "".join(f"\n  {printable(each)}" for _, each in mismatches)
        refused = f"{target.path}: these durations would be replaced by durations that do not compare:{lines}"
        raise OpAtlasError(f"{refused}\n{_remedy(settings)}")
    notes = [f"--mixed replaces durations of {pluralize(count, settings.unit)}: {each}" for count, each in mismatches]
    notes += _other_machine(provenance, settings, {row.cell(RUN_ID) for row, _ in rows})
    return [printable(note) for note in notes]


def _planned_cells(settings: Settings, target: SessionTarget, *, in_group: bool) -> Mapping[str, str]:
    """Returns the cells that tell how a session will measure a row of a target (`find_mismatches`)."""
    if settings.prof_path is not None:
        return {CACHE_STATE: CACHE_UNKNOWN, INSTRUMENT: "msprof", IMPLEMENTATION: ""}
    kind, name = kind_named(settings.devices[0].kind), settings.measure.instrument
    preferred = kind.group_instrument if in_group else kind.preferred_instrument
    chosen = preferred(name) if kind.instruments else ""
    # An NPU's rows name its calls, and a device of a conftest.py may run something else than torch.
    is_unknown = target.implementation.is_default and (kind.name not in device_kinds() or kind.is_native)
    implementation = "" if is_unknown else target.implementation.name
    return {CACHE_STATE: settings.measure.cache, INSTRUMENT: chosen, IMPLEMENTATION: implementation}


def _other_machine(provenance: Provenance, settings: Settings, run_ids: Collection[str]) -> list[str]:
    """Returns a note if durations of another machine of the same kind are replaced or joined."""
    own = "--database-path names a folder of your own"
    if provenance.shipped:
        fate = "join them" if settings.mode in (UpdateMode.MISSING_ONLY, UpdateMode.UNREPLAYED) else "take their place"
        theirs = f"this database ships with OpAtlas, with durations of {provenance.shipped}"
        return [f"{theirs}: those of this machine {fate}; {own}"]
    others = [host for host in provenance.hosts(run_ids) if host != settings.origin.host]
    if others and settings.origin.host:
        return [f"durations of {', '.join(others)} are replaced by durations of {settings.origin.host}; {own}"]
    return []


def _remedy(settings: Settings) -> str:
    again = "measure as they were measured (--cache, --instrument, or taskset for the number of threads), "
    again += "compare without writing (--read-only), "
    again = "" if settings.prof_path is not None else again
    return f"Name a folder of your own with --database-path, {again}or let them be mixed (--mixed)"
