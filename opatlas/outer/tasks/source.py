"""--tasks: each list of inputs of a task is a row, in a database that is made for them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from opatlas.data.database import Database
from opatlas.errors import OpAtlasError
from opatlas.outer.tasks.candidate_files import find_candidates
from opatlas.outer.tasks.task import Task, read_tasks
from opatlas.outer.tasks.task_rows import task_rows
from opatlas.row.location import tasks_path
from opatlas.run.devices.device import DeviceSpec, kind_named
from opatlas.run.row_source import Rows, RowSource
from opatlas.text import suggest


def task_source(option: argparse.Namespace, devices: Sequence[DeviceSpec]) -> RowSource:
    """Returns the tasks that --tasks names. Raises OpAtlasError if there are none, or two of one name."""
    tasks: dict[str, Task] = {}
    for place in option.tasks:
        for task in read_tasks(Path(place)):
            other = tasks.setdefault(task.kernel_type, task)
            if other.path != task.path:
                raise OpAtlasError(f"--tasks: {task.path} and {other.path} are both called {task.full_name}: name one")
    return RowSource(
        option,
        lambda kind: kind_named(kind).tasks_named_by,
        tasks_path,
        rows=lambda database: _rows(tasks, _kernel_types(option.ops), database),
        is_listed=True,
        ops=_kernel_types,
        subjects=tasks,
        find=find_candidates(list(tasks.values())),
    )


def _kernel_types(names: Sequence[str]) -> frozenset[str]:
    """Returns the kernel types of tasks, which may be named by set and path (`kernelbench/level1/19_ReLU`)."""
    return frozenset(name.replace("/", ".") for name in names)


def _rows(tasks: Mapping[str, Task], ops: frozenset[str], database: Database) -> tuple[Rows, Sequence[str]]:
    if unknown := sorted(ops - tasks.keys()):
        meant = "".join(suggest(name, tasks) for name in unknown) or f": the first one is {next(iter(tasks))}"
        raise OpAtlasError(f"--ops {','.join(unknown)}: --tasks names no such task{meant}")
    found = task_rows([task for name, task in tasks.items() if not ops or name in ops], database)
    return found.rows, found.notes
