"""The rows of tasks: the shapes and dtypes of their inputs, which a process of their own reads by running the files.

A task whose rows a database has is not run again: the digest of the file says which task the rows belong to.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opatlas.data.database import Database
from opatlas.errors import OpAtlasError
from opatlas.outer.tasks.candidate_files import find_candidates
from opatlas.outer.tasks.task import Task, read_tasks
from opatlas.row.columns import BASE, INPUT_DTYPES, INPUT_FORMATS, INPUT_SHAPES, TASK_DIGEST, TASK_INPUTS
from opatlas.row.location import tasks_path
from opatlas.row.slots import dtype_of_torch
from opatlas.run.devices.device import DeviceSpec, kind_named
from opatlas.run.process.fresh_python import import_environment, module_command
from opatlas.run.registry import Rows, RowSource
from opatlas.text import exception_line, pluralize, suggest

#: Deadline of one task, in seconds. Inputs have no values, so that only files that compute something take long.
_DEADLINE_S = 60.0
#: Seconds that the start of the process may take.
_START_S = 120.0
_SHOWN = 3


@dataclass
class TaskRows:
    """The rows of tasks.

    Attributes:
        rows: cells of the rows, by kernel type.
        failed: why a task has no rows, by its full name.
    """

    rows: dict[str, list[Mapping[str, str]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """Lines for the user on the tasks without rows."""
        if not self.failed:
            return []
        shown = [f"{name}: {reason}" for name, reason in self.failed.items()][:_SHOWN]
        more = [f"and {len(self.failed) - _SHOWN:,} more"] if len(self.failed) > _SHOWN else []
        failed = pluralize(len(self.failed), "task has no row, since its", "tasks have no rows, since their")
        return [f"{failed} inputs cannot be made: {'; '.join([*shown, *more])}"]


def task_rows(tasks: Sequence[Task], database: Database | None = None) -> TaskRows:
    """Returns the rows of tasks: one for each list of inputs.

    Args:
        tasks: the tasks.
        database: a database that may have rows of the tasks; None: all tasks are run.

    Raises:
        OpAtlasError: a file of the database cannot be read, or the process that runs the tasks does not start.
    """
    found = TaskRows()
    stored = {task.kernel_type: _stored(task, database) for task in tasks}
    missing = [task for task in tasks if not stored[task.kernel_type]]
    described = dict(zip((task.kernel_type for task in missing), _describe(missing), strict=True)) if missing else {}
    for task in tasks:
        name = task.kernel_type
        if stored[name]:
            found.rows[name] = stored[name]
        elif isinstance(inputs := described[name], str):
            found.failed[task.full_name] = inputs
        else:
            found.rows[name] = [_cells(task, number, each) for number, each in enumerate(inputs)]
    if not found.rows:
        raise OpAtlasError(found.notes[0])
    return found


def _stored(task: Task, database: Database | None) -> list[Mapping[str, str]]:
    """Returns the rows of a task that a database has, in the order of the inputs."""
    if database is None or not database.csv_path(task.kernel_type).exists():
        return []
    rows = [row for row in database.read_or_empty(task.kernel_type).identities() if row.get(TASK_DIGEST) == task.digest]
    columns = (*BASE, TASK_DIGEST, TASK_INPUTS)
    cells = [{name: row[name] for name in columns if name in row} for row in rows]
    return sorted(cells, key=lambda row: int(row[TASK_INPUTS]))


def _cells(task: Task, number: int, tensors: Sequence[tuple[str, str]]) -> Mapping[str, str]:
    """Returns the cells of a row; the outputs stay empty, since only a run shows them."""
    cells = dict.fromkeys(BASE, "")
    cells[INPUT_SHAPES] = ";".join(shape for shape, _ in tensors)
    cells[INPUT_DTYPES] = ";".join(dtype for _, dtype in tensors)
    cells[INPUT_FORMATS] = ";".join("ND" for _ in tensors)
    return {**cells, TASK_DIGEST: task.digest, TASK_INPUTS: str(number)}


def _describe(tasks: Sequence[Task]) -> list[list[list[tuple[str, str]]] | str]:
    """Returns shapes and dtypes of the tensors in each list of inputs of each task, or why a task has none."""
    try:
        done = subprocess.run(
            module_command("opatlas.outer.tasks.task_rows"),
            input=json.dumps([(str(task.path), task.digest) for task in tasks]),
            capture_output=True,
            text=True,
            timeout=_START_S + _DEADLINE_S * len(tasks),
            env=import_environment(),
            check=False,
        )
        found: list[list[list[tuple[str, str]]] | str] = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OpAtlasError(f"--tasks: the process that reads the inputs of tasks did not run ({error})") from None
    except ValueError:
        said = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        raise OpAtlasError(f"--tasks: the process that reads the inputs of tasks ended early ({said})") from None
    return found


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


def _main() -> None:
    """The process that reads inputs: gets paths and digests on stdin, and prints what `_describe` returns.

    Each task runs in a fork, which is killed at its deadline. torch makes the inputs on device "meta", where tensors
    have no values and take no memory; files that need values get them. What the tasks print goes to stderr.
    """
    import torch

    # Each fork would import it again.
    import opatlas.outer.tasks.model  # noqa: F401

    answers = os.dup(1)
    os.dup2(2, 1)
    # A fork must not inherit threads.
    torch.set_num_threads(1)
    # A task that loads a model from a hub must find the files on this machine: the hub would be asked for minutes.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Loads the parts of torch that device "meta" needs: each fork would load it again.
    torch.randint(0, 2, (2, 2), device="meta").bool().tril().T.contiguous()
    found = [_in_fork(Path(path), digest) for path, digest in json.load(sys.stdin)]
    with os.fdopen(answers, "w", encoding="utf-8") as stream:
        json.dump(found, stream)


def _in_fork(path: Path, digest: str) -> object:
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    fork = context.Process(target=lambda: writer.send_bytes(json.dumps(_inputs(path, digest)).encode()))
    fork.start()
    writer.close()
    try:
        if not reader.poll(_DEADLINE_S):
            return f"still running after {_DEADLINE_S:g} s"
        return json.loads(reader.recv_bytes())
    except EOFError:
        fork.join(_DEADLINE_S)
        how = f" by signal {-fork.exitcode}" if fork.exitcode and fork.exitcode < 0 else ""
        return f"its process ended{how} without inputs"
    finally:
        fork.kill()
        fork.join()


def _inputs(path: Path, digest: str) -> list[list[tuple[str, str]]] | str:
    """Returns the inputs of a task, or why it has none."""
    import torch

    from opatlas.outer.tasks.model import TaskModule

    reason = ""
    for device in ("meta", "cpu"):
        try:
            [task] = read_tasks(path)
            if task.digest != digest:
                return "the file was changed meanwhile: run the session again"
            with torch.device(device):
                return [list(_described(each)) for each in TaskModule(task).input_lists()]
        except BaseException as error:
            reason = exception_line(error)
    return reason


def _described(value: Any) -> Iterator[tuple[str, str]]:
    """Yields shape and dtype of each tensor and array in inputs, also in nested lists."""
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _described(each)
    elif hasattr(value, "shape"):
        yield ",".join(map(str, value.shape)), dtype_of_torch(str(value.dtype).removeprefix("torch."))


if __name__ == "__main__":
    _main()
