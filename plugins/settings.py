"""What the options of a session come to: contradictions refused, devices, database and measuring settled."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from opatlas.collectives import options as collectives
from opatlas.collectives.options import CollectivePlan
from opatlas.combine.provenance import MeasurementOrigin
from opatlas.devices.cgroups import available_cores
from opatlas.devices.device import DeviceSpec
from opatlas.devices.discovery import available_devices, database_name, npus_present
from opatlas.engine import expert_parallel
from opatlas.engine.group_spec import NODE_OPTIONS
from opatlas.engine.job import LEAST_SAMPLES
from opatlas.files import absolute
from opatlas.instruments.attribution import MOST_ROWS
from opatlas.instruments.instrument import INSTRUMENTS, MSPROF, MeasureSettings, choose_instrument
from opatlas.model.location import (
    COMMUNICATION_NAMED_BY,
    DEFAULT_NPU_DEVICE,
    NAMED_BY,
    communication_path,
    default_path,
    device_kind,
    expect_npu,
    public_version,
    refuse_former_name,
)
from opatlas.model.versions import (
    CANN,
    TORCH,
    VLLM,
    Versions,
    detect,
    same_release,
)
from opatlas.options import Scope, at_least, changed
from opatlas.store.write_back import UpdateMode

from .options import (
    CASE_TIMEOUT_S,
    FIRST_CASE_TIMEOUT_S,
    OPTIONS,
    REPEAT_COUNT_VARIABLE,
    refuse,
)
from .selection import Choice, Shard, keyword_filter
from .where import Where

#: Options that say what is written, and when.
_ABOUT_WRITING = ("--mixed", "--prune-empty-duration-rows", "--wait")


@dataclass(frozen=True)
class Settings:
    """What the options of a session come to.

    Attributes:
        database: directory of the CSVs.
        devices: the devices that rows are replayed on; with prof_path, the one that was profiled.
        mode, prune: how durations are written back.
        ops: the only kernel types to run; empty: all.
        shard: the part of the rows to run, and of how many; None: all of them.
        status: the only statuses of rows to run; empty: all.
        where: what the cells of a row to run must say; None: anything.
        strict: rows that failed before fail, instead of being xfail.
        retry_failed: run rows again that crashed or timed out in two sessions in a row.
        prof_path: profiles that rows are looked up in instead of being run; None: they are run.
        measure: how a row is measured.
        case_timeout_s: deadline of a row in the device process; None: by whether it ran before.
        wait_s: how long to wait for another session that has the database.
        msprof_rows: the most rows of one msprof session; None where msprof is not the instrument.
        in_process: run the bodies of replays in pytest itself.
        collect_only: nothing is to be written, for nothing is run.
        read_only: rows are measured and compared, and nothing is to be written.
        mixed: durations may be mixed with those of other devices, versions, cache states and instruments.
        origin: what durations are measured on; of profiles, as far as the user has said.
        of_operators: options that belong to some operators, by name, where the user has given them.
        messages: what a session that measures communication is to measure; None: it replays rows.
        named: whether the user named the database, which must be there then; others are made.
        versions: those that the user gave for the database's folder, by the name of the software.
        note: what the user should know of the choice of the database; "" mostly.
    """

    database: Path
    devices: tuple[DeviceSpec, ...]
    mode: UpdateMode
    prune: bool
    ops: frozenset[str]
    shard: Shard | None
    retry_failed: bool
    prof_path: Path | None
    measure: MeasureSettings
    case_timeout_s: float | None
    wait_s: float
    msprof_rows: int | None
    in_process: bool
    collect_only: bool
    status: frozenset[str] = frozenset()
    where: Where | None = None
    strict: bool = False
    read_only: bool = False
    mixed: bool = False
    origin: MeasurementOrigin = field(default_factory=MeasurementOrigin)
    of_operators: Mapping[str, object] = field(default_factory=dict)
    messages: CollectivePlan | None = None
    named: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def writes(self) -> bool:
        """Whether the session writes into the database."""
        return not (self.collect_only or self.read_only)

    @property
    def choice(self) -> Choice:
        """The rows that the user chose."""
        return Choice(self.mode, self.ops, self.shard, self.retry_failed, self.status, self.where, self.strict)

    @property
    def rows_at_once(self) -> int:
        """How many rows the instrument measures before it tells any duration."""
        return self.msprof_rows or 1

    @property
    def ep_size(self) -> int | None:
        """How many devices share the experts of rows that do not tell it; None where the user has not said."""
        given = self.of_operators.get("ep_size")
        return given if isinstance(given, int) else None

    @property
    def unit(self) -> str:
        """What a case is called."""
        return "row" if self.messages is None else "message"

    def timeout_s(self, *, first_run: bool) -> float:
        """The deadline of a row."""
        return self.case_timeout_s or (FIRST_CASE_TIMEOUT_S if first_run else CASE_TIMEOUT_S)


def settings_of(config: pytest.Config) -> Settings:
    """The settings of a session.

    Raises:
        OpAtlasError: a device that cannot be replayed on, an instrument that it does not offer, or versions
            that cannot be detected.
        pytest.UsageError: options that contradict each other.
    """
    option, communicates = config.option, collectives.are_named(config)
    _expect_consistent(config, communicates)
    devices = devices_of(config)
    has_msprof = _expect_of_devices(config, devices)
    database, note = _place_of(option, devices, communicates)
    messages = collectives.collective_plan(option, devices) if communicates else None
    return Settings(
        database=absolute(database),
        devices=tuple(devices),
        mode=UpdateMode(option.update_mode),
        prune=option.prune_empty_duration_rows,
        ops=frozenset(messages.rows if messages is not None and option.ops else option.ops),
        shard=option.shard,
        # What crashed on a device costs nothing to look up, and all nodes must run the same rows, whatever statuses
        # each of them has stored.
        retry_failed=option.retry_failed or option.prof_path is not None or option.nnodes > 1,
        prof_path=absolute(option.prof_path) if option.prof_path is not None else None,
        measure=_measure_settings(option, devices, communicates),
        case_timeout_s=option.case_timeout,
        wait_s=option.wait,
        msprof_rows=option.msprof_rows if has_msprof else None,
        in_process=option.in_process,
        collect_only=option.collectonly,
        status=frozenset(option.status),
        where=option.where,
        # pytest's --strict; not `strict = true` in pytest.ini, which is about how tests are written. And a debugger
        # stops at failures, of which pytest counts no xfail as one.
        strict=option.strict or bool(option.usepdb),
        read_only=option.read_only,
        mixed=option.mixed,
        origin=_origin(option, devices, communicates),
        of_operators=changed(option, (*NODE_OPTIONS, *expert_parallel.OPTIONS)),
        messages=messages,
        named=bool(option.database_path) and not communicates,
        versions=_given_versions(option),
        note=note,
    )


def _expect_consistent(config: pytest.Config, communicates: bool) -> None:
    """Raises pytest.UsageError where options contradict each other, whatever the device."""
    option = config.option
    keyword_filter(option.keyword)
    _expect_tests(config)
    refuse_useless_versions(config)
    if communicates:
        # Collectives run in the ranks of a group: what says how one process is to run rows has no meaning.
        refuse(
            config,
            OPTIONS,
            Scope.KERNELS,
            f"{collectives.MODULE} runs in groups of processes",
        )
    else:
        refuse(config, OPTIONS, Scope.COLLECTIVES, f"only bench/{collectives.MODULE} measures collectives")
    if option.prof_path is not None:
        # It takes samples as they are: what says how rows are to be run has no meaning.
        workers = ["-n"] if is_distributed(config) else []
        refuse(config, OPTIONS, Scope.RUNNING, "--prof-path runs no row", also=workers)
        if option.update_mode == UpdateMode.STALE.value:
            raise pytest.UsageError(
                "--update-mode=stale compares with the code, driver and versions that rows would be run with, and "
                "--prof-path runs no row: choose another mode"
            )
    if option.read_only:
        about_writing = [each for each in OPTIONS if each.name in _ABOUT_WRITING]
        refuse(config, about_writing, Scope.REPLAYS, "--read-only writes nothing")
    if option.in_process and is_distributed(config):
        raise pytest.UsageError("--in-process runs rows in one process: leave out -n")
    if option.in_process:
        deadline = [each for each in OPTIONS if each.name == "--case-timeout"]
        refuse(config, deadline, Scope.RUNNING, "--in-process cannot end a row that hangs")
    if option.usepdb and not option.in_process:
        raise pytest.UsageError("--pdb cannot reach into the device process: add --in-process")
    if option.msprof_rows > MOST_ROWS:
        raise pytest.UsageError(f"--msprof-rows {option.msprof_rows}: a profile tells at most {MOST_ROWS} rows apart")


def _expect_tests(config: pytest.Config) -> None:
    """Raises pytest.UsageError where a database is named as if it held tests: another one would be measured."""
    for argument in config.args:
        folder = config.invocation_params.dir / argument
        if any(folder.glob("*.csv")) and not any(folder.glob("*.py")):
            raise pytest.UsageError(
                f"{argument} holds CSVs and no tests: name a database with --database-path {argument}"
            )


def refuse_useless_versions(config: pytest.Config) -> None:
    """Raises pytest.UsageError where both a folder and versions say where the CSVs are."""
    if config.option.database_path:
        refuse(config, OPTIONS, Scope.FINDS_DATABASE, "--database-path names the folder, whatever the versions")


def versions_of(option: argparse.Namespace) -> Versions:
    """The versions that name a database: those given, and else those of the installed software."""
    return detect(vllm=option.vllm_version, torch=option.torch_version, cann=option.cann_version)


def devices_of(config: pytest.Config) -> Sequence[DeviceSpec]:
    """The devices that rows are replayed on, or that --prof-path has profiles of.

    Raises:
        OpAtlasError: --device names one that is not here.
        pytest.UsageError: --device names none of those that a conftest.py knows, or no NPU with --prof-path.
    """
    named: str | None = config.option.device
    if config.option.prof_path is not None:
        return _profiled_devices(named, config.option.database_path)
    devices: list[DeviceSpec] = config.hook.pytest_opatlas_devices(config=config)
    for device in devices:
        if named not in (None, device.kind, device.name):
            raise pytest.UsageError(
                f"--device {named}: the hook pytest_opatlas_devices of a conftest.py or plugin gives {device}"
                f"{f' ({device.name})' if device.name else ''}: name that, leave --device out, or let the hook heed it"
            )
    return devices


def _profiled_devices(name: str | None, database: str | None) -> list[DeviceSpec]:
    """The NPU whose profiles --prof-path names; it need not be at hand. msprof profiles nothing else.

    Raises:
        OpAtlasError, pytest.UsageError: nothing names it, or a name that is none.
    """
    if name not in (None, "npu"):
        if device_kind(name) != "npu":
            raise pytest.UsageError(f"--prof-path reads profiles of an NPU, and --device {name} is none")
        if not database:
            expect_npu(name)
        return [DeviceSpec("npu", name=name)]
    if npus_present():
        return available_devices("npu")
    if not database:
        raise pytest.UsageError(
            f"--prof-path: name the NPU that was profiled with --device ({DEFAULT_NPU_DEVICE}, ...), "
            f"or its database with --database-path"
        )
    return [DeviceSpec("npu")]


def _expect_of_devices(config: pytest.Config, devices: Sequence[DeviceSpec]) -> bool:
    """Whether rows are measured under msprof. Raises OpAtlasError, pytest.UsageError for what devices do not offer."""
    option = config.option
    if option.prof_path is not None:
        return False
    kinds = {device.kind for device in devices}
    instruments = {choose_instrument(kind, option.instrument) for kind in kinds & INSTRUMENTS.keys()}
    if "npu" not in kinds:
        refuse(config, OPTIONS, Scope.NPUS, f"rows are replayed on {devices[0]}, which is no NPU")
    if MSPROF in instruments and option.in_process:
        raise pytest.UsageError("--in-process cannot run under msprof: choose another --instrument")
    return MSPROF in instruments


def _place_of(option: argparse.Namespace, devices: Sequence[DeviceSpec], communicates: bool) -> tuple[Path, str]:
    """Returns the folder of the CSVs, and the note of `Settings`. Raises OpAtlasError, pytest.UsageError."""
    if communicates:
        return collectives.database_of(option, lambda: _communication_database(option, devices)), ""
    if option.database_path:
        return Path(option.database_path), ""
    versions = versions_of(option)
    if option.prof_path is None and not option.collectonly:
        _expect_installed(versions)
    note = _of_this_machine(option, versions) if option.prof_path is not None else ""
    return default_path(database_name(devices), versions), note


def _of_this_machine(option: argparse.Namespace, versions: Versions) -> str:
    """Which of the versions that name a database of profiles are only those of the software that is installed here."""
    here = [component for component in (VLLM, TORCH, CANN) if component.name not in _given_versions(option)]
    if not here:
        return ""
    names = ", ".join(f"{component.name} {getattr(versions, component.field)}" for component in here)
    return f"{names} as on this machine: where others were profiled, give {', '.join(c.option for c in here)}"


def _given_versions(option: argparse.Namespace) -> Mapping[str, str]:
    """The versions that the user gave, by the name of the software."""
    given = {VLLM: option.vllm_version, TORCH: option.torch_version, CANN: option.cann_version}
    return {component.name: version for component, version in given.items() if version}


def _origin(option: argparse.Namespace, devices: Sequence[DeviceSpec], communicates: bool) -> MeasurementOrigin:
    """What the durations of a session are measured on, with the versions of the software that names a database."""
    device = devices[0]
    if option.prof_path is not None:
        # The software that was profiled is not that of this machine; nobody need say which it was.
        return MeasurementOrigin(device.name, device.kind, _given_versions(option))
    installed, given_or_installed = detect(), versions_of(option)
    threads = option.threads or available_cores()
    # Devices that a conftest.py opens are torch's too.
    naming = [COMMUNICATION_NAMED_BY.get(device.kind, TORCH)] if communicates else NAMED_BY.get(device.kind, [TORCH])
    # What measures is what is installed, whatever version of the same release the user calls it by.
    named = {each.name: getattr(installed, each.field) or getattr(given_or_installed, each.field) for each in naming}
    return MeasurementOrigin(
        device.name,
        device.kind,
        {name: public_version(version) for name, version in named.items() if version},
        threads=threads if device.kind == "cpu" and not communicates else None,
        host=platform.node(),
    )


def _communication_database(option: argparse.Namespace, devices: Sequence[DeviceSpec]) -> Path:
    """Raises OpAtlasError where a version that names it is not known, or not the installed one."""
    name, versions = database_name(devices), versions_of(option)
    if not option.collectonly:
        _expect_installed(versions)
    folder = communication_path(name, collectives.communication_version(name, versions))
    refuse_former_name(folder)
    return folder


def _expect_installed(versions: Versions) -> None:
    """Raises pytest.UsageError where the installed software is of another release than the versions that are named.

    Another patch or candidate of the same release is told (`Provenance.folder_note`).
    """
    installed = detect()
    for component in (VLLM, TORCH, CANN):
        named, here = getattr(versions, component.field), getattr(installed, component.field)
        if named and here and not same_release(named, here):
            raise pytest.UsageError(
                f"{component.option} {named}: rows would be measured with the installed {component.name} {here}; "
                f"leave it out, or name a database with --database-path"
            )


def _measure_settings(option: argparse.Namespace, devices: Sequence[DeviceSpec], communicates: bool) -> MeasureSettings:
    repeat_count = option.repeat_count or _repeat_count_of_environment()
    if option.max_noise is not None and repeat_count is not None and repeat_count < LEAST_SAMPLES:
        raise pytest.UsageError(
            f"--max-noise needs at least {LEAST_SAMPLES} samples of a row, and --repeat-count or "
            f"{REPEAT_COUNT_VARIABLE} asks for {repeat_count}"
        )
    return MeasureSettings(
        repeat_count=repeat_count,
        cache=option.cache or ("warm" if communicates else "cold"),
        time_limit_s=option.time_limit,
        threads=option.threads,
        instrument=option.instrument,
        aic_metrics=option.aic_metrics,
        max_noise=option.max_noise,
    )


def _repeat_count_of_environment() -> int | None:
    text = os.environ.get(REPEAT_COUNT_VARIABLE, "")
    if not text:
        return None
    try:
        return at_least(1)(text)
    except argparse.ArgumentTypeError as error:
        raise pytest.UsageError(f"{REPEAT_COUNT_VARIABLE}={error}, or unset it") from None


def is_distributed(config: pytest.Config) -> bool:
    """Whether rows run in xdist's workers."""
    return hasattr(config, "workerinput") or bool(config.getoption("tx", None))
