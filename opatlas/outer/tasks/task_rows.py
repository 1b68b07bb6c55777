"""The rows of tasks: the shapes and dtypes of their inputs, which a process of their own reads by running the files.

A task whose rows a database has is not run again: the digest of the file says which task the rows belong to.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from opatlas.data.database import Database
from opatlas.data.row_copy import read_rows
from opatlas.errors import OpAtlasError
from opatlas.outer.tasks.task import Task
from opatlas.row.columns import BASE, INPUT_DTYPES, INPUT_FORMATS, INPUT_SHAPES, TASK_DIGEST, TASK_INPUTS
from opatlas.run.process.fresh_python import import_environment, module_command
from opatlas.text import pluralize

#: Deadline of one task, in seconds. Inputs have no values, so that only files that compute something take long.
_DEADLINE_S = 60.0
#: The module that runs the files, and the seconds that its start may take.
_READER, _START_S = "opatlas.outer.tasks.read_inputs", 120.0
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
    rows = [row for row in read_rows(database, task.kernel_type) if row.get(TASK_DIGEST) == task.digest]
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


def _describe(tasks: Sequence[Task]) -> Iterator[list[list[tuple[str, str]]] | str]:
    """Yields shapes and dtypes of the tensors in each list of inputs of each task, or why a task has none."""
    wanted = [
        {"path": str(task.path), "digest": task.digest, "configuration": str(task.configuration or "")}
        for task in tasks
    ]
    try:
        done = subprocess.run(
            module_command(_READER),
            input=json.dumps({"tasks": wanted, "deadline_s": _DEADLINE_S}),
            capture_output=True,
            text=True,
            timeout=_START_S + _DEADLINE_S * len(tasks),
            env=import_environment(),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OpAtlasError(f"--tasks: the process that reads the inputs of tasks did not run ({error})") from None
    try:
        answers = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        raise OpAtlasError(f"--tasks: the process that reads the inputs of tasks ended early ({said})") from None
    for answer in answers:
        reason = answer.get("error")
        yield str(reason) if reason else [[(shape, dtype) for shape, dtype in each] for each in answer["inputs"]]
