"""What a session measures: rows of kernels from a database, or messages of collectives from options."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from opatlas.data.database import Database
from opatlas.data.row_copy import add_rows
from opatlas.data.update_mode import UpdateMode
from opatlas.errors import OpAtlasError
from opatlas.files import expect_folder
from opatlas.options import Scope
from opatlas.outer.suites.listing import suite_name, suite_rows
from opatlas.outer.suites.overload import folder_of
from opatlas.outer.suites.score import read_score
from opatlas.outer.tasks.task import Task, read_tasks
from opatlas.row.location import (
    COMMUNICATION_NAMED_BY,
    NAMED_BY,
    TASKS_NAMED_BY,
    communication_path,
    default_database_of,
    default_path,
    suite_path,
    tasks_path,
)
from opatlas.row.versions import TORCH, Component, Versions
from opatlas.run.collectives import options as collectives
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.groups.pool import GroupNodes, GroupPool
from opatlas.run.implementations.implementation import Implementation
from opatlas.run.scheduler import Scheduler, SingleOrGroup
from opatlas.show.result import Fields
from opatlas.text import pluralize

from .cluster import cluster_of

#: Incomplete files of tasks that are named.
_SHOWN = 3


@dataclass(frozen=True)
class Workload(ABC):
    """What a session measures: the base class.

    Attributes:
        options: the options of pytest, with the grid that collectives use; they choose the group of a row.
        rows: cells of the rows that options name, by kernel type; None: the rows of the database.
        notes: lines that tell the user what was chosen.
        tasks: the tasks that options name, by kernel type; their rows are read with the plan.
    """

    options: argparse.Namespace
    rows: Mapping[str, Sequence[Mapping[str, str]]] | None = None
    notes: Sequence[str] = ()
    tasks: Mapping[str, Task] = field(default_factory=dict)

    #: The noun for a case, and the verb for what happens to it.
    unit: ClassVar[str]
    verb: ClassVar[str]
    #: The kind of session, and why options of other kinds have no effect in it.
    scope: ClassVar[Scope]
    no_effect: ClassVar[str]
    #: State of the cache in which samples are taken by default.
    cache: ClassVar[str]
    #: Whether an empty database is filled with a starter of theory rows.
    has_starter: ClassVar[bool]
    #: Why --co cannot list the starter of an empty database; "": it can.
    starter_unlisted: ClassVar[str] = ""
    #: Whether the database gets a mapping of operators (op_mapping.yaml) on NPUs.
    has_op_mapping: ClassVar[bool]
    #: Whether rows run in one worker of xdist for each device.
    has_workers: ClassVar[bool]
    #: Whether the number of threads of a CPU belongs to the origin of a duration.
    has_threads: ClassVar[bool]
    #: Whether --database-path must exist.
    needs_database: ClassVar[bool]
    #: Whether the databases of implementations lie in the folder of the default's, wherever that is.
    nests_implementations: ClassVar[bool] = False
    #: Whether the starter is kept in the database of the device although only other implementations are measured.
    keeps_starter: ClassVar[bool] = False
    #: Whether rows without a function of an implementation are cases of it, with a status that says so.
    counts_missing: ClassVar[bool] = False

    @abstractmethod
    def naming(self, device_kind: str) -> Sequence[Component]:
        """Returns the software whose versions name a database."""

    @abstractmethod
    def named_database(self, folder: Path) -> Path:
        """Returns the folder of the CSVs, given the folder of --database-path."""

    @abstractmethod
    def default_database(self, device_name: str, versions: Versions) -> Path:
        """Returns the folder of the CSVs by device and versions. Raises OpAtlasError if one of these is unknown."""

    def write_starter(self, database: Database) -> int:
        """Fills a database without rows, and returns the number of rows. Raises OpAtlasError."""
        from opatlas.shapes.starter import write_starter

        rows: int = write_starter(database)
        return rows

    def scores(self, targets: Sequence[tuple[Implementation, Path]]) -> list[Fields]:
        """Returns figures for the end of a session; `targets` are the implementations and their databases."""
        return []

    @abstractmethod
    def ops(self, named: Sequence[str]) -> frozenset[str]:
        """Returns the kernel types to run, from the names of --ops; empty: all."""

    @abstractmethod
    def write_back_mode(self, mode: UpdateMode) -> UpdateMode:
        """Returns how records are written back in a session of an update mode."""

    @abstractmethod
    def scheduler(self, single: Scheduler, groups: GroupPool) -> Scheduler:
        """Returns the scheduler of the rows.

        Args:
            single: for rows that need one device.
            groups: for rows that need a group.
        """

    @abstractmethod
    def unmatched(self, count: int) -> str:
        """Returns a line on records without a row in the database."""


@dataclass(frozen=True)
class KernelWorkload(Workload):
    """Rows of kernels, which a database holds."""

    unit = "row"
    verb = "replay"
    scope = Scope.KERNELS
    no_effect = f"only bench/{collectives.MODULE} measures collectives"
    cache = "cold"
    has_starter = True
    has_op_mapping = True
    has_workers = True
    has_threads = True
    needs_database = True

    def naming(self, device_kind: str) -> Sequence[Component]:
        """Returns the software whose versions name a database; devices that a conftest.py opens are torch's."""
        return NAMED_BY.get(device_kind, [TORCH])

    def named_database(self, folder: Path) -> Path:
        return folder

    def default_database(self, device_name: str, versions: Versions) -> Path:
        return default_path(device_name, versions)

    def ops(self, named: Sequence[str]) -> frozenset[str]:
        return frozenset(named)

    def write_back_mode(self, mode: UpdateMode) -> UpdateMode:
        return mode

    def scheduler(self, single: Scheduler, groups: GroupPool) -> Scheduler:
        return SingleOrGroup(single, groups)

    def unmatched(self, count: int) -> str:
        return f"{pluralize(count, 'record matches', 'records match')} no row of the database: not added"


@dataclass(frozen=True)
class ProfiledWorkload(KernelWorkload):
    """Rows of kernels that are looked up in the profiles of --prof-path."""

    verb = "look up"
    scope = Scope.PROFILES
    no_effect = "--prof-path runs no row"
    has_starter = False
    has_workers = False


@dataclass(frozen=True)
class ListedWorkload(KernelWorkload):
    """Rows that an option lists, in a database that is made for them."""

    nests_implementations = True
    has_op_mapping = False
    needs_database = False

    def naming(self, device_kind: str) -> Sequence[Component]:
        return TASKS_NAMED_BY.get(device_kind, [TORCH])

    def named_database(self, folder: Path) -> Path:
        """Returns the folder. Raises OpAtlasError if the folder can neither be used nor made."""
        expect_folder(folder, "", option="--database-path", may_be_made=True)
        return folder


@dataclass(frozen=True)
class TaskWorkload(ListedWorkload):
    """Tasks: each of their inputs is a row, which is added to the database."""

    has_starter = False

    def default_database(self, device_name: str, versions: Versions) -> Path:
        return tasks_path(device_name, versions)

    def ops(self, named: Sequence[str]) -> frozenset[str]:
        """Returns the kernel types of tasks, which may be named by set and path (`kernelbench/level1/19_ReLU`)."""
        return frozenset(name.replace("/", ".") for name in named)


@dataclass(frozen=True)
class SuiteWorkload(ListedWorkload):
    """Operators of torch with the samples of a suite, which fill the database (docs/candidates.md).

    Attributes:
        device_kind: the kind of the device, whose dtypes OpInfo knows.
        name: the suite, as its database is called.
    """

    device_kind: str = "cpu"
    name: str = ""

    unit = "case"
    starter_unlisted = "without --co the session first lists the cases of the suite, which takes minutes"
    keeps_starter = True
    counts_missing = True

    def default_database(self, device_name: str, versions: Versions) -> Path:
        return suite_path(device_name, self.name, versions)

    def write_starter(self, database: Database) -> int:
        """Lists the cases of the suite into a database. Raises OpAtlasError."""
        return add_rows(database, suite_rows(self.options.suite, self.device_kind))

    def ops(self, named: Sequence[str]) -> frozenset[str]:
        """Returns the kernel types of operators, which may be named as torch names them (`add.Tensor`)."""
        return frozenset(folder_of(name) if "." in name else name for name in named)

    def scores(self, targets: Sequence[tuple[Implementation, Path]]) -> list[Fields]:
        """Returns the score of each implementation against torch."""
        found = []
        for implementation, path in targets:
            baseline = default_database_of(path)
            if not implementation.is_default and baseline is not None:
                score = read_score(Database(path), Database(baseline), self.ops(self.options.ops) or None)
                found.append(Fields(score.figures(), implementation.name))
        return found


@dataclass(frozen=True)
class CollectiveWorkload(Workload):
    """Messages of collectives: options name them, groups run them, and their rows are added to the database."""

    unit = "message"
    verb = "measure"
    scope = Scope.COLLECTIVES
    no_effect = f"{collectives.MODULE} runs in groups of processes"
    cache = "warm"
    has_starter = False
    has_op_mapping = False
    has_workers = False
    has_threads = False
    needs_database = False

    def naming(self, device_kind: str) -> Sequence[Component]:
        return [COMMUNICATION_NAMED_BY.get(device_kind, TORCH)]

    def named_database(self, folder: Path) -> Path:
        """Returns the folder of this node's CSVs. Raises OpAtlasError if the folder can neither be used nor made."""
        expect_folder(folder, "", option="--database-path", may_be_made=True)
        return self._node_database(folder)

    def default_database(self, device_name: str, versions: Versions) -> Path:
        version = collectives.communication_version(device_name, versions)
        return self._node_database(communication_path(device_name, version))

    def _node_database(self, folder: Path) -> Path:
        """Returns the folder of this node: all nodes may see the same disk, and each has the same results."""
        rank = self.options.node_rank
        return folder / f"node{rank}" if rank else folder

    def ops(self, named: Sequence[str]) -> frozenset[str]:
        assert self.rows is not None
        return frozenset(self.rows if named else ())

    def write_back_mode(self, mode: UpdateMode) -> UpdateMode:
        """Returns ALL: a message that the database lacks is added."""
        return UpdateMode.ALL

    def scheduler(self, single: Scheduler, groups: GroupPool) -> Scheduler:
        return groups

    def unmatched(self, count: int) -> str:
        return f"{pluralize(count, 'message')} not measured, and so without a row"


def workload_type(config: pytest.Config) -> type[Workload]:
    """Returns what the session measures. Raises pytest.UsageError if it names collectives beside other files."""
    if collectives.are_named(config):
        return CollectiveWorkload
    if config.option.tasks and config.option.suite:
        raise pytest.UsageError("--tasks and --suite both say what is measured: leave one out")
    if config.option.tasks:
        return TaskWorkload
    if config.option.suite:
        return SuiteWorkload
    return KernelWorkload if config.option.prof_path is None else ProfiledWorkload


def make_workload(kind: type[Workload], config: pytest.Config, devices: Sequence[DeviceSpec]) -> Workload:
    """Returns what the options ask for. Raises pytest.UsageError for options that contradict each other."""
    option = config.option
    if kind is TaskWorkload:
        incomplete: list[str] = []
        tasks = _tasks(option.tasks, incomplete)
        return TaskWorkload(option, notes=_incomplete_notes(incomplete), tasks=tasks)
    if kind is SuiteWorkload:
        return SuiteWorkload(option, device_kind=devices[0].kind, name=suite_name(option.suite))
    if kind is not CollectiveWorkload:
        return kind(option)
    if option.ray is None:
        plan = collectives.collective_plan(option, GroupNodes(devices))
    else:
        cluster = cluster_of(config, devices)
        plan = collectives.collective_plan(option, cluster.group_nodes, cluster.nvlink_islands())
    return CollectiveWorkload(plan.options, plan.rows, plan.about)


def _tasks(places: Sequence[str], incomplete: list[str]) -> Mapping[str, Task]:
    """Returns the tasks in files and folders. Raises OpAtlasError if there are none, or two of one name."""
    found: dict[str, Task] = {}
    for place in places:
        for task in read_tasks(Path(place), incomplete):
            other = found.setdefault(task.kernel_type, task)
            if other.path != task.path:
                raise OpAtlasError(f"--tasks: {task.path} and {other.path} are both called {task.full_name}: name one")
    return found


def _incomplete_notes(incomplete: Sequence[str]) -> list[str]:
    """Returns the line on files that lack a half of a task; no line for no files."""
    if not incomplete:
        return []
    more = [f"and {len(incomplete) - _SHOWN:,} more"] if len(incomplete) > _SHOWN else []
    files = pluralize(len(incomplete), "file is no task", "files are no tasks")
    return [f"{files}: {'; '.join([*incomplete[:_SHOWN], *more])}"]
