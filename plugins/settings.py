"""The settings of a session: read from its options, after contradictions were refused; and where its rows are from."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from opatlas.data.database import Database
from opatlas.data.origin import MeasurementOrigin
from opatlas.files import absolute_path
from opatlas.installation import ROW_SOURCES, code_folder, extensions
from opatlas.options import Scope, at_least, changed, is_disabled, read_only_by
from opatlas.row.location import communication_path, default_path
from opatlas.row.status import UpdateMode
from opatlas.run import collective_plan as collective_options
from opatlas.run.devices.device import DeviceSpec, kind_named
from opatlas.run.group import NODE_OPTIONS
from opatlas.run.group_pool import GroupNodes
from opatlas.run.inputs import experts
from opatlas.run.instruments.instrument import MSPROF, MeasureSettings
from opatlas.run.msprof_sessions import SESSION_ROWS
from opatlas.run.registry import RowSource

from .choice import Choice, keyword_filter
from .options import (
    CASE_TIMEOUT_S,
    FIRST_CASE_TIMEOUT_S,
    OPTIONS,
    REPEAT_COUNT_VARIABLE,
    named,
    outside,
    refuse,
    refuse_useless_versions,
)
from .steps import steps
from .target import SessionTarget, cluster_of, devices_of, named_versions, targets_of

if TYPE_CHECKING:
    from opatlas.outer.generation.session_models import ModelSettings


_FIXTURES = code_folder("bench") / "conftest.py"
_THEORY = code_folder("shapes") / "conftest.py"
#: Options that list rows in place of those of a database, each with an extension of its name.
_LISTING = ("tasks", "suite")
#: Why options of other kinds of sessions have no effect in a session.
NO_EFFECT = {
    Scope.KERNELS: f"only bench/{collective_options.MODULE} measures collectives",
    Scope.PROFILES: "--prof-path runs no row",
    Scope.COLLECTIVES: f"{collective_options.MODULE} runs in groups of processes",
}


def scope_of(config: pytest.Config) -> Scope:
    """Returns the kind of a session. Raises pytest.UsageError if it names collectives beside other files."""
    named = [Path(argument.partition("::")[0]).name == collective_options.MODULE for argument in config.args]
    if all(named) and named:
        return Scope.COLLECTIVES
    if any(named):
        raise pytest.UsageError(f"{collective_options.MODULE} has a database of its own: name it alone")
    is_listed = [f"--{name}" for name in (*_LISTING, "step") if getattr(config.option, name)]
    if len(is_listed) > 1:
        raise pytest.UsageError(f"{' and '.join(is_listed)} both say what is measured: leave one out")
    return Scope.KERNELS if is_listed or config.option.prof_path is None else Scope.PROFILES


def source_of(config: pytest.Config, devices: Sequence[DeviceSpec]) -> RowSource:
    """Returns the rows that options ask for. Raises pytest.UsageError, OpAtlasError."""
    option, scope = config.option, scope_of(config)
    if scope is Scope.COLLECTIVES:
        return collectives(config, devices)
    if option.step:
        return steps(option, devices)
    for name in _LISTING:
        if getattr(option, name):
            return _registered(name)(option, devices)
    return kernels(option) if scope is Scope.KERNELS else profiles(option)


def _registered(name: str) -> Any:
    """Returns what an extension registers under the name of its option. Raises pytest.UsageError."""
    # Sessions without the option import nothing of it.
    if name not in extensions(ROW_SOURCES):
        raise pytest.UsageError(f"--{name}: this installation has nothing of that name")
    return extensions(ROW_SOURCES)[name].load()


def kernels(option: argparse.Namespace) -> RowSource:
    """Returns the rows of a database; an empty one gets theory rows."""
    # Devices that a conftest.py opens are torch's.
    return RowSource(option, lambda kind: kind_named(kind).named_by, default_path, starter=_write_starter)


def profiles(option: argparse.Namespace) -> RowSource:
    """Returns the rows of a database, whose samples are looked up in the profiles of --prof-path."""
    return replace(kernels(option), scope=Scope.PROFILES, verb="look up", starter=None)


def collectives(config: pytest.Config, devices: Sequence[DeviceSpec]) -> RowSource:
    """Returns messages of collectives: options name them, and groups run them. Raises OpAtlasError."""
    plan = collective_options.collective_plan(config.option, GroupNodes(devices))
    rank = plan.options.node_rank
    return RowSource(
        plan.options,
        lambda kind: [kind_named(kind).communication_named_by],
        lambda device, versions: communication_path(device, collective_options.communication_version(device, versions)),
        scope=Scope.COLLECTIVES,
        unit="message",
        verb="measure",
        rows=lambda database: (plan.rows, ()),
        subfolder=f"node{rank}" if rank else "",
        ops=lambda names: frozenset(plan.rows if names else ()),
        notes=plan.about,
    )


def _write_starter(database: Database) -> int:
    from opatlas.shapes.starter import write_starter

    return write_starter(database)


@dataclass(frozen=True, kw_only=True)
class Settings(Choice):
    """The settings of a session of replays: what the user chose, and how it is run.

    Attributes:
        targets: the implementations that are measured, each with its database; at least one.
        devices: the devices that rows are replayed on; with prof_path, the profiled one.
        prune: rows that ran and have no valid duration are moved to pruned/.
        prof_path: profiles to look rows up in; None: rows are run.
        measure: how a row is measured.
        case_timeout_s: deadline of a row in the device process; None: depends on whether it ran before.
        msprof_rows: the most rows of one msprof session; None where msprof is not the instrument.
        in_process: run the bodies of replays in pytest's own process.
        collect_only: nothing is run, and nothing is written.
        read_only: the option by which nothing is written, and durations are compared with those that are stored; "":
            the session writes.
        mixed: durations may be mixed with those of other devices, versions, cache states and instruments.
        group_options: the options of nodes and of expert-parallel groups that the user gave, by name.
        source: where the rows come from.
        named: whether the user named the database. A named database must exist; OpAtlas makes any other database.
        versions: the versions that the user gave, by the name of the software.
        notes: what the user should know about the choice of implementations.
        models: the models that write candidates; None without --models.
        ray: address of the Ray cluster whose devices run the rows; None: this machine's devices run them.
    """

    targets: tuple[SessionTarget, ...]
    devices: tuple[DeviceSpec, ...]
    prune: bool
    prof_path: Path | None
    measure: MeasureSettings
    case_timeout_s: float | None
    msprof_rows: int | None
    in_process: bool
    collect_only: bool
    read_only: str = ""
    mixed: bool = False
    group_options: Mapping[str, object] = field(default_factory=dict)
    source: RowSource = field(default_factory=lambda: kernels(argparse.Namespace()))
    named: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    models: ModelSettings | None = None
    ray: str | None = None

    @property
    def database(self) -> Path:
        """The directory of the CSVs of the first target."""
        return self.targets[0].path

    @property
    def origin(self) -> MeasurementOrigin:
        """What the durations of the first target are measured on."""
        return self.targets[0].origin

    @property
    def baseline(self) -> int | None:
        """The number of the target that the others are compared with, the default or else the first; None without."""
        defaults = (number for number, each in enumerate(self.targets) if each.implementation.is_default)
        return next(defaults, 0) if len(self.targets) > 1 else None

    @property
    def writes(self) -> bool:
        """Whether the session writes into the database."""
        return not (self.collect_only or self.read_only)

    @property
    def models_folder(self) -> Path:
        """The folder of the attempts and candidates of models."""
        assert self.models is not None
        return self.models.folder(self.targets[0].rows_from or self.targets[0].path)

    @property
    def ep_size(self) -> int | None:
        """The number of devices that share the experts, for rows that do not tell it; None: not given."""
        size = self.group_options.get("ep_size")
        return size if isinstance(size, int) else None

    @property
    def unit(self) -> str:
        """The noun for a case."""
        return self.source.unit

    def timeout_s(self, *, first_run: bool) -> float:
        """Returns the deadline of a row."""
        return self.case_timeout_s or (FIRST_CASE_TIMEOUT_S if first_run else CASE_TIMEOUT_S)


def settings_of(config: pytest.Config) -> Settings:
    """Returns the settings of a session.

    Raises:
        OpAtlasError: a device that cannot be replayed on, an instrument that it does not offer, or versions
            that cannot be detected.
        pytest.UsageError: options that contradict each other.
    """
    option, scope = config.option, scope_of(config)
    _refuse_contradictions(config, scope)
    devices = devices_of(config)
    has_msprof = _has_msprof(config, scope, devices)
    source = source_of(config, devices)
    models: ModelSettings | None = None
    if option.models is not None:
        models = _registered("models")(option.models, devices[0].kind)
    targets, notes = targets_of(config, devices, source, models)
    return Settings(
        targets=tuple(targets),
        devices=tuple(devices),
        mode=UpdateMode(option.update_mode),
        prune=option.prune_empty_duration_rows,
        ops=source.ops(option.ops),
        shard=option.shard,
        # A look-up of a row that crashed on a device is safe. All nodes must run the same rows, whatever statuses
        # each of them has stored.
        retry_failed=option.runxfail or option.prof_path is not None or option.nnodes > 1,
        prof_path=absolute_path(option.prof_path) if option.prof_path is not None else None,
        measure=MeasureSettings(
            repeat_count=0 if is_disabled(option) else option.repeat_count or _repeat_count_of_environment(),
            cache=option.cache or ("warm" if scope is Scope.COLLECTIVES or option.step else "cold"),
            instrument=option.instrument.name,
            aic_metrics=option.instrument.metrics,
        ),
        case_timeout_s=option.case_timeout,
        msprof_rows=SESSION_ROWS if has_msprof else None,
        in_process=_is_in_process(option, scope),
        collect_only=option.collectonly,
        where=option.where,
        # pytest's --strict, and not `strict = true` of pytest.ini, which is about how tests are written. A debugger
        # stops at failures, and pytest counts no xfail as one.
        strict=option.strict or bool(option.usepdb),
        read_only=read_only_by(option),
        mixed=option.mixed,
        group_options=changed(option, (*NODE_OPTIONS, *experts.OPTIONS)),
        source=source,
        named=bool(option.database_path) and source.needs_database,
        versions=named_versions(option.versions),
        notes=(*notes, *(cluster_of(config, devices).notes if option.ray is not None else ())),
        models=models,
        ray=option.ray,
    )


def _refuse_contradictions(config: pytest.Config, scope: Scope) -> None:
    """Raises pytest.UsageError where options contradict each other, whatever the device."""
    option = config.option
    keyword_filter(option.keyword)
    _refuse_databases_as_tests(config)
    refuse_useless_versions(config)
    is_looked_up, is_in_process = scope is Scope.PROFILES, _is_in_process(option, scope)
    workers = ["-n"] if is_distributed(config) else []
    refuse(config, outside(OPTIONS, scope), NO_EFFECT[scope], also=workers if is_looked_up else [])
    if option.tasks:
        refuse(config, named("--prof-path"), "profiles hold no candidates for --tasks")
    if option.models is None or not (option.tasks or option.suite):
        refuse(config, named("--models"), "models write candidates: --models belongs to --tasks or --suite")
    if by := read_only_by(option):
        refuse(config, named("--mixed", "--prune-empty-duration-rows", "--models"), f"{by} writes nothing")
    if is_disabled(option):
        useless = named("--repeat-count", "--cache", "--instrument", "--prof-path", "--step")
        refuse(config, useless, "--benchmark-disable measures nothing")
    if option.ray is not None:
        useless = named("--in-process", "--models", *(each.name for each in NODE_OPTIONS))
        also = [*workers, *(["--pdb"] if option.usepdb else [])]
        refuse(config, useless, "--ray runs rows in processes on the hosts of the cluster, which it finds", also=also)
    if is_in_process:
        refuse(config, named("--case-timeout"), "rows run in pytest's own process, which cannot end a row that hangs")
    for is_wrong, why in (
        (getattr(option, "forked", False), "--forked: rows do not run in pytest's process: leave it out"),
        (
            getattr(option, "count", 1) != 1,
            "--count: a row is one test of a session: leave it out; --repeat-count gives a row more samples",
        ),
        (
            is_looked_up and option.update_mode == UpdateMode.STALE.value,
            "--update-mode=stale compares with what rows would be run with, and --prof-path runs no row",
        ),
        (option.in_process and bool(workers), "--in-process runs rows in one process: leave out -n"),
        (
            option.usepdb and not is_in_process and not is_looked_up,
            "--pdb cannot reach into the processes of a group: leave it out",
        ),
    ):
        if is_wrong:
            raise pytest.UsageError(why)


def _is_in_process(option: argparse.Namespace, scope: Scope) -> bool:
    """Returns whether rows run in pytest's own process, as a debugger needs it."""
    return option.in_process or (bool(option.usepdb) and scope is Scope.KERNELS)


def _refuse_databases_as_tests(config: pytest.Config) -> None:
    """Raises pytest.UsageError where a database is named like a folder of tests: another one would be measured."""
    for argument in config.args:
        folder = config.invocation_params.dir / argument
        if any(folder.glob("*.csv")) and not any(folder.glob("*.py")):
            raise pytest.UsageError(f"{argument} has CSVs, no tests: name a database with --database-path {argument}")


def _has_msprof(config: pytest.Config, scope: Scope, devices: Sequence[DeviceSpec]) -> bool:
    """Returns whether rows are measured under msprof.

    Raises:
        OpAtlasError: a device does not offer the instrument.
        pytest.UsageError: an option cannot be combined with msprof.
    """
    option = config.option
    if option.prof_path is not None or is_disabled(option):
        return False
    kinds = [kind for each in {device.kind for device in devices} if (kind := kind_named(each)).instruments]
    instruments = {kind.preferred_instrument(option.instrument.name) for kind in kinds}
    others = " or ".join(name for kind in kinds for name in kind.instruments if name != MSPROF)
    if MSPROF in instruments and option.ray is not None:
        raise pytest.UsageError(f"--ray: profiles of msprof would stay on the hosts: give --instrument {others}")
    if MSPROF in instruments and _is_in_process(option, scope):
        named_by = "--in-process" if option.in_process else "--pdb"
        raise pytest.UsageError(f"{named_by} runs rows in pytest, which msprof cannot profile: --instrument {others}")
    return MSPROF in instruments


def _repeat_count_of_environment() -> int | None:
    text = os.environ.get(REPEAT_COUNT_VARIABLE, "")
    if not text:
        return None
    try:
        return at_least(1)(text)
    except argparse.ArgumentTypeError as error:
        raise pytest.UsageError(f"{REPEAT_COUNT_VARIABLE}={error}, or unset it") from None


def is_distributed(config: pytest.Config) -> bool:
    """Returns whether rows run in xdist's workers."""
    return hasattr(config, "workerinput") or bool(config.getoption("tx", None))


def has_replays(config: pytest.Config) -> bool:
    """Returns whether replays may be collected, before the collection: whether their fixtures are there."""
    # `opatlas shapes` and `pytest -p opatlas.plugins` load the fixtures of replays, whatever is to be collected.
    loaded = config.pluginmanager.has_plugin("opatlas.plugins.collector")
    return _FIXTURES in _plugin_files(config) or (loaded and not has_theory_rows(config))


def has_theory_rows(config: pytest.Config) -> bool:
    """Returns whether theory rows may be collected, before the collection."""
    return _THEORY in _plugin_files(config)


def _plugin_files(config: pytest.Config) -> set[Path]:
    files = (getattr(plugin, "__file__", None) for plugin in config.pluginmanager.get_plugins())
    return {Path(file) for file in files if file}
