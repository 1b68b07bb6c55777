"""Who may import whom: the contracts of import-linter in pyproject.toml, and what it does not see."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[1]
#: The folders beside the library, and those that each imports besides the library.
BESIDE = {"bench": {"plugins"}, "plugins": {"shapes"}, "shapes": set()}
#: Modules that take seconds to import and that a `--help` or a report does not need.
HEAVY = frozenset({"torch", "torch_npu", "transformers"})
TORCHLESS = frozenset({"plugins", "row", "data", "capture", "ask", "show", "cli"})
#: A name that is imported when it is needed ("opatlas.run.devices.cpu:CpuDevice").
_LATE = re.compile(r"(opatlas(?:\.\w+)+):(\w+)")


class Import(NamedTuple):
    """An import of one module in another; `at_once` when the importer is imported, and not in a function."""

    importer: str
    module: str
    at_once: bool


@cache
def trees() -> dict[str, tuple[ast.Module, bool]]:
    """The syntax tree of each file by the name that imports it, and whether it is a package."""
    found = {}
    for folder in ("opatlas", *BESIDE):
        for path in (REPOSITORY / folder).rglob("*.py"):
            parts = path.relative_to(REPOSITORY).with_suffix("").parts
            parts = parts if folder == "opatlas" else ("opatlas", *parts)
            is_package = parts[-1] == "__init__"
            found[".".join(parts[:-1] if is_package else parts)] = ast.parse(path.read_text("utf-8")), is_package
    return found


def _imports(importer: str, node: ast.AST, at_once: bool = True) -> Iterator[Import]:
    """Yields the imports of a file, those for type checkers left out."""
    if isinstance(node, ast.Import):
        yield from (Import(importer, alias.name, at_once) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        here = importer.split(".") if trees()[importer][1] else importer.split(".")[:-1]
        parents = here[: len(here) + 1 - node.level] if node.level else []
        module = ".".join([*parents, *filter(None, [node.module])])
        for alias in node.names:
            full = f"{module}.{alias.name}"
            yield Import(importer, full if full in trees() else module, at_once)
    else:
        is_typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        is_called = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in node.orelse if is_typing else ast.iter_child_nodes(node):
            yield from _imports(importer, child, at_once and not is_called)


@cache
def imports() -> list[Import]:
    return [found for name, (tree, _) in trees().items() for found in _imports(name, tree)]


def _folder(module: str) -> str:
    return module.split(".")[1] if module.startswith("opatlas.") else ""


def test_the_contracts_of_import_linter_hold() -> None:
    # In a process that has imported opatlas the package has the folders of the checkout, too.
    code = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_logo=True, no_cache=True))"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_folders_beside_the_library_import_each_other_one_way() -> None:
    wrong = [
        found
        for found in imports()
        if (folder := _folder(found.module)) in BESIDE
        and folder not in {_folder(found.importer), *BESIDE.get(_folder(found.importer), set())}
    ]
    assert wrong == []
    assert [found for found in imports() if found.module.split(".")[0] == "tests"] == []


def test_no_files_import_each_other_in_a_ring() -> None:
    """Imports inside functions count: they hide a ring and do not open it."""
    graph: dict[str, set[str]] = {}
    for found in imports():
        if found.module != found.importer:
            graph.setdefault(found.importer, set()).add(found.module)
    graphlib.TopologicalSorter(graph).prepare()


def test_plugins_and_data_come_without_torch() -> None:
    """`pytest --help` imports the plugins, and a query the database: neither may wait for torch."""
    at_once: dict[str, set[str]] = {}
    for found in imports():
        if found.at_once:
            parents = {found.module[:dot] for dot in range(len(found.module)) if found.module[dot] == "."}
            at_once.setdefault(found.importer, set()).update({found.module, *parents})
    brought = dict.fromkeys((name for name in trees() if _folder(name) in TORCHLESS), "itself")
    waiting = list(brought)
    while waiting:
        name = waiting.pop()
        for other in at_once.get(name, set()) - brought.keys():
            brought[other] = name
            waiting.append(other)
    assert {name: brought[name] for name in HEAVY & brought.keys()} == {}


def test_names_that_are_imported_late_exist() -> None:
    """Of devices and instruments: their openers are looked up when they are needed, and torch comes with them."""
    texts = (
        node.value
        for tree, _ in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    named = {found.groups() for text in texts if (found := _LATE.fullmatch(text))}
    assert len(named) > 5
    assert [f"{module}:{name}" for module, name in named if not hasattr(import_module(module), name)] == []


def test_class_names_are_unique() -> None:
    where: dict[str, list[str]] = {}
    for module, (tree, _) in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(module)
    assert {name: places for name, places in where.items() if len(places) > 1} == {}
