"""Finds the candidates for tasks in a folder, by the names of files, without running the files."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from opatlas.errors import OpAtlasError
from opatlas.files import read_safely
from opatlas.outer.tasks.task import MODEL, MODEL_NEW, Task, part_of_name
from opatlas.run.implementation_catalog import Finder, KernelInFile

_LARGEST_BYTES = 4 << 20
#: The function of a candidate in AKG's form has a name that ends so.
_KERNEL, _AKG_ENDS = "kernel", ("_torch", "_numpy", "_mindspore")
_DECORATORS_OF_KERNELS = frozenset({"jit", "autotune", "heuristics"})


def find_candidates(tasks: Sequence[Task]) -> Finder:
    """Returns what finds the candidates for tasks in a folder.

    `DIR/level1/19_ReLU.py`, `DIR/19_ReLU.py`              the candidate `DIR` for the task level1/19_ReLU
    `DIR/level1/19_ReLU/fast.py`, `DIR/19_ReLU/fast.py`    the candidate `DIR-fast`
    """
    by_name = _by_name(tasks)

    def find(root: Path, files: Sequence[Path]) -> Iterator[KernelInFile | str]:
        count, notes = 0, []
        for path in files:
            found = _candidate(path, root, by_name)
            if isinstance(found, str):
                notes.append(found)
            count += isinstance(found, KernelInFile)
            if found is not None:
                yield found
        if not count:
            why = f" ({notes[0]})" if notes else ""
            raise OpAtlasError(f"{root}: holds no candidate{why}: name a file after a task ({tasks[0].name}.py)")

    return find


def _candidate(path: Path, root: Path, by_name: Mapping[str, Task]) -> KernelInFile | str | None:
    """Returns the candidate in a file, or why there is none; None for a helper, whose name begins with `_`."""
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


def candidate_function(path: Path) -> str:
    """Returns the class or function of a candidate to be called; "" if the file has none.

    The first that the file has: ModelNew, the function `kernel`, a function whose name ends in `_torch`, `_numpy` or
    `_mindspore` (AKG), Model, the only public function that is not a kernel of Triton.

    A file without a statement, or that is not Python, has ModelNew: its judgement names the problem.

    Raises:
        OpAtlasError: the file cannot be read.
    """
    try:
        tree = ast.parse(read_safely(path, _LARGEST_BYTES), str(path))
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (SyntaxError, ValueError, RecursionError):
        return MODEL_NEW
    if all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in tree.body):
        return MODEL_NEW
    classes = {name for node in tree.body for name in _defined(node)}
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    hosts = [node.name for node in functions if not any(map(_is_kernel, node.decorator_list))]
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


def _is_kernel(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in _DECORATORS_OF_KERNELS


def _by_name(tasks: Sequence[Task]) -> Mapping[str, Task]:
    """Returns the tasks by the names that a file may have, in lower case: full, within the set, or its last part.

    A short name that several tasks have means none of them.
    """
    found: dict[str, Task] = {}
    # A longer name counts where it is the shorter name of another task.
    for which in range(3):
        several: dict[str, list[Task]] = {}
        for task in tasks:
            name = (task.name.rpartition("/")[2], task.name, task.full_name)[which]
            several.setdefault(name.lower(), []).append(task)
        found.update((name, of_name[0]) for name, of_name in several.items() if len(of_name) == 1)
    return found
