"""The sources of rows that need no option of outer/: a database, existing profiles, messages of collectives."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import pytest

from opatlas.data.database import Database
from opatlas.extensions import ROW_SOURCES, extensions
from opatlas.options import Scope
from opatlas.row.location import communication_path, default_path
from opatlas.run.collectives import options as collective_options
from opatlas.run.devices.device import DeviceSpec, kind_named
from opatlas.run.groups.pool import GroupNodes
from opatlas.run.row_source import RowSource

from .cluster import cluster_of

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
    if collective_options.are_named(config):
        return Scope.COLLECTIVES
    if config.option.tasks and config.option.suite:
        raise pytest.UsageError("--tasks and --suite both say what is measured: leave one out")
    is_listed = config.option.tasks or config.option.suite
    return Scope.KERNELS if is_listed or config.option.prof_path is None else Scope.PROFILES


def source_of(config: pytest.Config, devices: Sequence[DeviceSpec]) -> RowSource:
    """Returns the rows that options ask for. Raises pytest.UsageError, OpAtlasError."""
    option, scope = config.option, scope_of(config)
    if scope is Scope.COLLECTIVES:
        return collectives(config, devices)
    for name in _LISTING:
        if getattr(option, name):
            if name not in extensions(ROW_SOURCES):
                raise pytest.UsageError(f"--{name}: this installation has no source of rows of that name")
            found: RowSource = extensions(ROW_SOURCES)[name].load()(option, devices)
            return found
    return kernels(option) if scope is Scope.KERNELS else profiles(option)


def kernels(option: argparse.Namespace) -> RowSource:
    """Returns the rows of a database; an empty one gets theory rows."""
    # Devices that a conftest.py opens are torch's.
    return RowSource(option, lambda kind: kind_named(kind).named_by, default_path, starter=_write_starter)


def profiles(option: argparse.Namespace) -> RowSource:
    """Returns the rows of a database, whose samples are looked up in the profiles of --prof-path."""
    return replace(kernels(option), scope=Scope.PROFILES, verb="look up", starter=None)


def collectives(config: pytest.Config, devices: Sequence[DeviceSpec]) -> RowSource:
    """Returns messages of collectives: options name them, and groups run them. Raises pytest.UsageError."""
    if config.option.ray is None:
        plan = collective_options.collective_plan(config.option, GroupNodes(devices))
    else:
        cluster = cluster_of(config, devices)
        plan = collective_options.collective_plan(config.option, cluster.group_nodes, cluster.nvlink_islands())
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

    rows: int = write_starter(database)
    return rows
