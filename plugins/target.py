"""What a session measures on and writes into: the devices, and for each implementation the database."""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from opatlas.data.comparable import captured_elsewhere
from opatlas.data.database import Database, SessionLock
from opatlas.data.origin import MeasurementOrigin, Provenance
from opatlas.errors import OpAtlasError
from opatlas.extensions import SCHEDULERS, extensions
from opatlas.files import absolute_path, expect_folder
from opatlas.options import Scope
from opatlas.row.kind import kind_of, native_kind
from opatlas.row.location import (
    DEFAULT_NPU_DEVICE,
    ROOT,
    beside,
    expect_npu,
    implementation_path,
    public_version,
    slug,
)
from opatlas.row.versions import CANN, TORCH, VLLM, Component, Versions, detect, same_release, versions_option
from opatlas.run.devices.device import DeviceSpec, available_devices, database_name, kind_named
from opatlas.run.devices.system import available_cores
from opatlas.run.implementation import Implementation
from opatlas.run.implementation_catalog import find_implementations
from opatlas.run.registry import RowSource

from .options import named, refuse

if TYPE_CHECKING:
    from opatlas.outer.cluster.ray_cluster import RayCluster
    from opatlas.outer.generation.session_models import ModelSettings

_NAMES_A_DATABASE = (VLLM, TORCH, CANN)
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


def cluster_notes(config: pytest.Config) -> list[str]:
    """Returns which hosts a session does not use; none without a cluster."""
    return config.stash[_CLUSTER].notes if _CLUSTER in config.stash else []


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
    npu = kind_named(native_kind().name)
    if name not in (None, npu.name):
        if not kind_of(name).is_native:
            raise pytest.UsageError(f"--prof-path reads profiles of an NPU, and --device {name} is none")
        if not database:
            expect_npu(name)
        return [DeviceSpec(npu.name, name=name)]
    if npu.is_present():
        return available_devices(npu.name)
    if not database:
        raise pytest.UsageError(
            f"--prof-path: name the NPU that was profiled with --device ({DEFAULT_NPU_DEVICE}, ...), "
            f"or its database with --database-path"
        )
    return [DeviceSpec(npu.name)]


def refuse_useless_versions(config: pytest.Config) -> None:
    """Refuses --versions beside --database-path. Raises pytest.UsageError."""
    if config.option.database_path:
        refuse(config, named("--versions"), "--database-path names the folder, whatever the versions")


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
    found = _implementations(option.implementation, devices[0].kind, source, models)
    usable = [replace(each, counts_missing=source.counts_missing) for each in found if not each.missing]
    lines = [f"{each.name}: {each.missing}" for each in found if each.missing]
    lines += dict.fromkeys(note for each in usable for note in each.notes)
    if not usable:
        raise pytest.UsageError(f"--implementation {','.join(option.implementation)}: {'; '.join(lines)}")
    origin = origin_of(config, devices, source)
    base, captures = absolute_path(database_of(config, devices, source)), None
    is_named_by_this_machine = option.prof_path is not None and not option.database_path
    note = _versions_of_this_machine(option.versions) if is_named_by_this_machine else ""
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
                implementation_path(database_name(devices), each.name, each.version, detect(option.versions))
            )
        )
        versions = {**origin.versions, each.name: each.version}
        own = replace(origin, versions=versions, implementation=each.name)
        targets.append(SessionTarget(each, path, own, rows_from or base, note if captures else "", captures))
    return targets, lines


def _beside_captures(captures: Path, devices: Sequence[DeviceSpec], source: RowSource, versions: Versions) -> Path:
    """Returns the database of a session's device beside a database with captures of another device."""
    name = slug(devices[0].name or devices[0].kind)
    try:
        place = source.default_database(name, detect(versions))
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
    written = models.implementations(source.subjects)
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
    return source.default_database(database_name(devices), detect(option.versions)) / source.subfolder


def given_versions(versions: Versions) -> Mapping[Component, str]:
    """Returns the versions that --versions gives, by the software."""
    by_component = {component: getattr(versions, component.field) for component in _NAMES_A_DATABASE}
    return {component: version for component, version in by_component.items() if version}


def origin_of(config: pytest.Config, devices: Sequence[DeviceSpec], source: RowSource) -> MeasurementOrigin:
    """Returns what the durations of a session are measured on, with the versions that name a database."""
    option, device = config.option, devices[0]
    if option.prof_path is not None:
        # The profiled software is not the software of this machine, and may be unknown.
        return MeasurementOrigin(device.name, device.kind, named_versions(option.versions))
    installed, given_or_installed = detect(), detect(option.versions)
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


def named_versions(versions: Versions) -> Mapping[str, str]:
    """Returns the versions that --versions gives, by the name of the software."""
    return {component.name: version for component, version in given_versions(versions).items()}


def _expect_installed(versions: Versions) -> None:
    """Raises pytest.UsageError where --versions gives another release than the installed one.

    Another patch or candidate of the same release is reported by `folder_note`.
    """
    installed = detect()
    for component, version in given_versions(versions).items():
        here = getattr(installed, component.field)
        if here and not same_release(version, here):
            raise pytest.UsageError(
                f"{versions_option({component: version})}: rows would be measured with the installed "
                f"{component.name} {here}; leave it out, or name a database with --database-path"
            )


def _versions_of_this_machine(versions: Versions) -> str:
    """Returns a note on versions of this machine's software that name a database of profiles, for lack of others."""
    here = [component for component in _NAMES_A_DATABASE if component not in given_versions(versions)]
    found = detect()
    names = ", ".join(f"{component.name} {getattr(found, component.field)}" for component in here)
    return f"{names} as on this machine: where others were profiled, give {versions_option(here)}" if here else ""
