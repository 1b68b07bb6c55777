"""`--tasks`: the rows of tasks, and the candidates for them.

Shapes and dtypes of inputs are read by a process of its own, which runs the files; candidates are found by the names of
their files, which are not run.

A task whose rows a database has is not run again: the digest of the file says which task the rows belong to.
"""

from __future__ import annotations

import argparse
import ast
import atexit
import json
import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from opatlas.data.database import Database
from opatlas.errors import OpAtlasError
from opatlas.files import TemporaryFolder, read_file
from opatlas.outer.judging.rules import CandidateSource
from opatlas.outer.tasks.definitions import definition_name, is_definition, read_solution, unpack_solution
from opatlas.outer.tasks.task import MODEL, MODEL_NEW, Task, part_of_name, read_tasks
from opatlas.row.columns import BASE, INPUT_DTYPES, INPUT_FORMATS, INPUT_SHAPES, TASK_DIGEST, TASK_INPUTS
from opatlas.row.location import tasks_path
from opatlas.row.slots import dtype_of_torch
from opatlas.run.devices.device import DeviceSpec, kind_named
from opatlas.run.implementation_catalog import Finder, KernelInFile
from opatlas.run.process.fresh_python import answers_of, request_of_parent
from opatlas.run.registry import Rows, RowSource
from opatlas.text import exception_line, pluralize, suggest

#: Deadline of one task, in seconds. Inputs have no values, so that only files that compute something take long.
_DEADLINE_S = 60.0
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
    request = [(str(task.path), task.digest) for task in missing]
    answers = answers_of(__name__, request, "--tasks: the inputs of tasks cannot be read") if missing else ()
    described: dict[str, list[list[tuple[str, str]]] | str]
    described = dict(zip((task.kernel_type for task in missing), answers, strict=True))
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
        asked=tasks,
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


_LARGEST_BYTES = 4 << 20
#: The function of a candidate in AKG's form has a name that ends so.
_KERNEL, _AKG_ENDS = "kernel", ("_torch", "_numpy", "_mindspore")


def find_candidates(tasks: Sequence[Task]) -> Finder:
    """Returns what finds the candidates for tasks in a folder.

    `DIR/level1/19_ReLU.py`, `DIR/19_ReLU.py`              the candidate `DIR` for the task level1/19_ReLU
    `DIR/level1/19_ReLU/fast.py`, `DIR/19_ReLU/fast.py`    the candidate `DIR-fast`
    `DIR/solutions/fast_v1.json`                           the candidate `DIR-fast_v1` for the definition that it names
    """
    by_name = _by_name(tasks)

    def find(root: Path, files: Sequence[Path]) -> Iterator[KernelInFile | str]:
        found = [each for path in files if (each := _candidate(path, root, by_name)) is not None]
        if not any(isinstance(each, KernelInFile) for each in found):
            why = f" ({found[0]})" if found else ""
            raise OpAtlasError(f"{root}: holds no candidate{why}: name a file after a task ({tasks[0].name}.py)")
        yield from found

    return find


def _candidate(path: Path, root: Path, by_name: Mapping[str, Task]) -> KernelInFile | str | None:
    """Returns the candidate in a file, or why there is none; None for a helper, whose name begins with `_`."""
    if path.suffix == ".json":
        return _of_solution(path, by_name)
    within = (path.relative_to(root) if path != root else Path(path.name)).with_suffix("").parts
    if any(part.startswith("_") for part in within):
        return None
    # As the names of tasks are made from files: a candidate may have the name of the task's file (26_GELU_.py).
    names = [part_of_name(part).lower() for part in within]
    task, candidate = by_name.get("/".join(names)), ""
    if task is None and len(within) > 1:
        task, candidate = by_name.get("/".join(names[:-1])), within[-1]
    if task is None:
        task, candidate = by_name.get(names[-1]), ""
    if task is None:
        return f"{path}: no task is called {'/'.join(within)}"
    function = candidate_function(path)
    if not function:
        return f"{path}: has no class {MODEL_NEW}, and no function {_KERNEL}"
    return KernelInFile(task.kernel_type, candidate, path, function)


def _of_solution(path: Path, by_name: Mapping[str, Task]) -> KernelInFile | str | None:
    """Returns the candidate in a solution, whose sources lie in a folder until the process ends; None for other JSON.

    Like `_candidate` it returns why there is none.
    """
    try:
        solution = read_solution(path)
        if solution is None:
            return None
        task = by_name.get(solution.definition.lower())
        if task is None:
            return f"{path}: definition {solution.definition!r}: no task is called so: name its file by --tasks"
        temporary = TemporaryFolder("solution")
        atexit.register(temporary.remove)
        writes = solution.spec.destination_passing_style
        # The name of the folder is part of the version, and so is how the sources are called.
        folder = temporary.path.resolve() / sha256(f"{solution.spec.entry_point} {writes}".encode()).hexdigest()
        entry, function = unpack_solution(path, solution, folder)
        return KernelInFile(task.kernel_type, solution.name, entry, function, folder, writes)
    except OpAtlasError as error:
        return str(error)


def candidate_function(path: Path) -> str:
    """Returns the class or function of a candidate to be called; "" if the file has none.

    The first that the file has: ModelNew, the function `kernel`, a function whose name ends in `_torch`, `_numpy` or
    `_mindspore` (AKG), Model, the only public function that is not a kernel of Triton.

    A file without a statement, or that is not Python, has ModelNew: its judgement names the problem.

    Raises:
        OpAtlasError: the file cannot be read.
    """
    content = read_file(path, _LARGEST_BYTES, "correct the path or its rights")
    source = CandidateSource(content.decode("utf-8-sig", "replace"))
    body = source.tree.body
    if source.is_empty:
        return MODEL_NEW
    classes = {name for node in body for name in _defined(node)}
    functions = [node.name for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    hosts = [name for name in functions if name not in source.triton_kernels]
    if MODEL_NEW in classes:
        return MODEL_NEW
    if _KERNEL in hosts:
        return _KERNEL
    named = [name for name in hosts if name.endswith(_AKG_ENDS)]
    if named:
        return named[-1]
    if MODEL in classes:
        return MODEL
    return hosts[0] if len(hosts) == 1 else ""


def _defined(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        case ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name for alias in names)
        case ast.If() | ast.Try():
            yield from (name for child in node.body for name in _defined(child))
        case _:
            pass


def _by_name(tasks: Sequence[Task]) -> Mapping[str, Task]:
    """Returns the tasks by the names that a file may have, in lower case: full, within the set, or its last part.

    A short name that several tasks have means none of them. A definition has its own name, too.
    """
    found = {definition_name(task.path).lower(): task for task in tasks if is_definition(task.path)}
    # A longer name counts where it is the shorter name of another task.
    for which in range(3):
        several: dict[str, list[Task]] = {}
        for task in tasks:
            name = (task.name.rpartition("/")[2], task.name, task.full_name)[which]
            several.setdefault(name.lower(), []).append(task)
        found.update((name, of_name[0]) for name, of_name in several.items() if len(of_name) == 1)
    return found


def _main() -> None:
    """The process that reads inputs: gets paths and digests, and answers with what `_inputs` returns for each task.

    Each task runs in a fork, which is killed at its deadline. torch makes the inputs on device "meta", where tensors
    have no values and take no memory; files that need values get them.
    """
    import torch

    # Each fork would import it again.
    import opatlas.outer.tasks.task_replay  # noqa: F401

    request, answer = request_of_parent()
    # A fork must not inherit threads.
    torch.set_num_threads(1)
    # A task that loads a model from a hub must find the files on this machine: the hub would be asked for minutes.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Loads the parts of torch that device "meta" needs: each fork would load it again.
    torch.randint(0, 2, (2, 2), device="meta").bool().tril().T.contiguous()
    for path, digest in request:
        answer(_in_fork(Path(path), digest))


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

    from opatlas.outer.tasks.task_replay import TaskModule

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
