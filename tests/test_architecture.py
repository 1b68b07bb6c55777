"""The allowed imports: docs/contributing.md, checked by the syntax trees of every file."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

#: The folders of code, by the name under which Python knows them. Each may import itself and these.
MAY_IMPORT: Mapping[str, frozenset[str]] = {
    "opatlas.plugins": frozenset({"opatlas", "opatlas.shapes"}),
    "opatlas.bench": frozenset({"opatlas", "opatlas.plugins"}),
    "opatlas.shapes": frozenset({"opatlas"}),
    "opatlas": frozenset(),
}
#: The folders of the library from the bottom to the top: each imports itself and those before it.
LAYERS = ("row", "data", "capture", "theory", "run", "ask", "show", "outer", "cli")
#: Imports of a folder above that are still there: the list may only shrink.
STILL_UPWARD = frozenset(
    {
        ("opatlas.show.site.diagnosis", "opatlas.outer.diagnosis.advice"),
        ("opatlas.show.site.diagnosis", "opatlas.outer.diagnosis.diagnosis"),
        ("opatlas.show.site.diagnosis", "opatlas.outer.diagnosis.kernels"),
        ("opatlas.show.site.diagnosis", "opatlas.outer.diagnosis.rules"),
        ("opatlas.show.site.writer", "opatlas.outer.superkernel.advice"),
        ("opatlas.show.site.writer", "opatlas.outer.superkernel.analysis"),
        ("opatlas.show.site.writer", "opatlas.outer.superkernel.report"),
        ("opatlas.show.site.writer", "opatlas.outer.superkernel.timeline"),
        ("opatlas.theory.report", "opatlas.show.render"),
        ("opatlas.theory.report", "opatlas.show.result"),
    }
)
#: Modules that take seconds to import and that a `--help` or a report does not need.
HEAVY = frozenset({"torch", "torch_npu", "transformers"})
#: The parts of the library that may import torch.
WITH_TORCH = (
    "opatlas.run",
    "opatlas.outer.suites",
    "opatlas.outer.guards",
    "opatlas.outer.tasks",
    "opatlas.outer.cluster",
)
WITH_TORCH_IN_FUNCTIONS = ("opatlas.outer.doctor", "opatlas.capture.attention_recorder")
#: They add options to pytest, or run it.
WITH_PYTEST = ("opatlas.run.collectives.options", "opatlas.run.expert_parallel", "opatlas.cli.sessions")
#: A name that is imported when it is needed ("opatlas.run.devices.cpu:CpuDevice").
_LATE = re.compile(r"(opatlas(?:\.\w+)+):(\w+)")


def part_of(module: str) -> str:
    """The entry of MAY_IMPORT that a module of OpAtlas belongs to; "" for any other module."""
    return next((name for name in MAY_IMPORT if f"{module}.".startswith(f"{name}.")), "")


@dataclass(frozen=True)
class Import:
    """One import.

    Attributes:
        importer, module: a module of OpAtlas by its full name.
        line: where.
        at_once: when the importer is imported, and not when one of its functions is called.
        typing: for type checkers alone.
    """

    importer: str
    module: str
    line: int
    at_once: bool = True
    typing: bool = False

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.module}"


def modules() -> dict[str, Path]:
    """Every file of the package and of the folders that a wheel has inside it, by the name that imports it."""
    found = {}
    for folder in ("opatlas", "bench", "plugins", "shapes"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            parts = path.relative_to(REPOSITORY).with_suffix("").parts
            parts = parts if folder == "opatlas" else ("opatlas", *parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(importer: str, source: str, known: Iterable[str], *, is_package: bool = False) -> Iterator[Import]:
    """All imports of a file, also those inside functions."""
    known = frozenset(known)
    here = importer.split(".") if is_package else importer.split(".")[:-1]

    def within(node: ast.AST, at_once: bool, typing: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(importer, alias.name, node.lineno, at_once, typing)
        elif isinstance(node, ast.ImportFrom):
            parents = here[: len(here) + 1 - node.level] if node.level else []
            module = ".".join([*parents, *filter(None, [node.module])])
            for alias in node.names:
                full = f"{module}.{alias.name}"
                yield Import(importer, full if full in known else module, node.lineno, at_once, typing)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for child in node.body:
                yield from within(child, at_once, True)
            for child in node.orelse:
                yield from within(child, at_once, typing)
        else:
            called = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            for child in ast.iter_child_nodes(node):
                yield from within(child, at_once and not called, typing)

    yield from within(ast.parse(source), True, False)


def wrong_direction(imports: Iterable[Import]) -> list[str]:
    """Imports against the direction of dependencies, with the reason."""
    wrong = []
    for found in imports:
        importer, imported = part_of(found.importer), part_of(found.module)
        if imported and imported not in MAY_IMPORT[importer] | {importer}:
            wrong.append(f"{found}, which depends on {importer}")
        if (
            importer == "opatlas"
            and found.package in ("pytest", "_pytest")
            and not (found.typing or found.importer in WITH_PYTEST)
        ):
            wrong.append(f"{found}: the library does without pytest")
        if found.package in HEAVY and not found.typing and importer in ("opatlas", "opatlas.plugins"):
            whole = found.importer.startswith(WITH_TORCH)
            if not whole and (found.at_once or not found.importer.startswith(WITH_TORCH_IN_FUNCTIONS)):
                wrong.append(f"{found}, which only the parts that run on a device do")
        if found.package == "tests":
            wrong.append(f"{found}: it is not installed")
    return wrong


def layer_of(module: str) -> str:
    """The folder of the library that a module lies in; "" for files of the library itself and for other modules."""
    package, _, rest = module.partition(".")
    folder = rest.partition(".")[0]
    return folder if package == "opatlas" and folder in LAYERS else ""


def upward(imports: Iterable[Import]) -> list[str]:
    """Imports from a folder of the library that lies above the importer's."""
    return [
        str(found)
        for found in imports
        if (own := layer_of(found.importer))
        and (other := layer_of(found.module))
        and LAYERS.index(other) > LAYERS.index(own)
    ]


def cycle(imports: Iterable[Import]) -> list[str]:
    """Modules that import each other in a ring, the first again at the end; empty where there are none.

    Imports inside functions count: they hide a ring and do not open it. Annotations need none at run time.
    """
    graph: dict[str, set[str]] = {}
    for found in imports:
        if not found.typing and found.module != found.importer:
            graph.setdefault(found.importer, set()).add(found.module)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        # Each is imported by the next.
        return list(reversed(error.args[1]))
    return []


def brought_along(start: str, imports: Iterable[Import]) -> Mapping[str, str]:
    """The modules that importing `start` imports, by importer, packages that modules lie in included."""
    by_importer: dict[str, list[str]] = {}
    for found in imports:
        if found.at_once and not found.typing:
            by_importer.setdefault(found.importer, []).append(found.module)
    brought, waiting = {start: ""}, [start]
    while waiting:
        name = waiting.pop()
        parents = [name[:dot] for dot in range(len(name)) if name[dot] == "."]
        for other in (*parents, *by_importer.get(name, ())):
            if other not in brought:
                brought[other] = name
                waiting.append(other)
    return brought


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    known = modules()
    return [
        found
        for name, path in known.items()
        for found in imports_of(name, path.read_text("utf-8"), known, is_package=path.stem == "__init__")
    ]


def test_dependencies_point_one_way(imports: list[Import]) -> None:
    assert wrong_direction(imports) == []


def test_no_folder_of_the_library_imports_one_above_it(imports: list[Import]) -> None:
    folders = {name.split(".")[1] for name, path in modules().items() if path.parent.parent.name == "opatlas"}
    assert folders - {"plugins", "bench", "shapes"} == set(LAYERS)
    assert upward(found for found in imports if (found.importer, found.module) not in STILL_UPWARD) == []


def test_no_files_import_each_other_in_a_ring(imports: list[Import]) -> None:
    assert cycle(imports) == []


_TORCHLESS = ("plugins", "row", "data", "capture", "ask", "show", "cli")


@pytest.mark.parametrize(
    "start", [name for name in sorted(modules()) if name.split(".")[1:2] and name.split(".")[1] in _TORCHLESS]
)
def test_plugins_and_data_come_without_torch(start: str, imports: list[Import]) -> None:
    """`pytest --help` imports the plugins, and a query the database: neither may wait for torch."""
    brought = brought_along(start, imports)
    heavy = sorted(name for name in brought if name.partition(".")[0] in HEAVY)
    assert not heavy, f"{heavy[0]} comes with {brought[heavy[0]]}"


def test_names_that_are_imported_late_exist() -> None:
    """Of devices and instruments: their openers are looked up when they are needed, and torch comes with them."""
    named = {
        found.groups()
        for path in modules().values()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for found in [_LATE.fullmatch(node.value)]
        if found
    }
    assert len(named) > 5
    missing = [f"{module}:{name}" for module, name in named if not hasattr(import_module(module), name)]
    assert not missing


def test_class_names_are_unique() -> None:
    where: dict[str, list[str]] = {}
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(module)
    twice = {name: places for name, places in where.items() if len(places) > 1}
    assert not twice


@pytest.mark.parametrize(
    ("importer", "source", "complaint"),
    [
        ("opatlas.run.replay", "def f():\n    from opatlas.plugins import plan", ":2 imports opatlas.plugins.plan"),
        ("opatlas.plugins.plan", "import opatlas.bench.test_norm", "which depends on opatlas.plugins"),
        ("opatlas.plugins.plan", "from ..bench import test_norm", "imports opatlas.bench"),
        ("opatlas.data.csv_files", "import pytest", "does without pytest"),
        ("opatlas.plugins.plan", "def f():\n    import torch.nn", "only the parts that run on a device"),
        ("opatlas.theory.space", "def f():\n    import torch", "only the parts that run on a device"),
        ("opatlas.outer.doctor", "import transformers", "only the parts that run on a device"),
        ("opatlas.run.runner", "from tests.support import sessions", "is not installed"),
    ],
)
def test_a_wrong_import_is_noticed(importer: str, source: str, complaint: str) -> None:
    (wrong,) = wrong_direction(imports_of(importer, source, {"opatlas.plugins.plan"}))
    assert complaint in wrong


def test_an_import_from_a_folder_above_is_noticed() -> None:
    source = "def f():\n    from opatlas.outer.guards.trial import Trial\nfrom opatlas.run.devices import cpu"
    (wrong,) = upward(imports_of("opatlas.run.replay", source, {"opatlas.run.devices.cpu"}))
    assert {"opatlas.run.replay:2", "opatlas.outer.guards.trial"} <= set(wrong.split())


def test_a_ring_is_noticed_also_one_that_a_function_hides() -> None:
    sources = {
        "database.a": "from database import b",
        "database.b": "def f():\n    import database.c",
        "database.c": "from database.a import name",
    }
    ring = [found for name, text in sources.items() for found in imports_of(name, text, sources)]
    found = cycle(ring)
    assert found[0] == found[-1]
    assert set(found) == set(sources)
    assert not cycle(ring[:2])


def test_transitive_imports_are_found_through_packages() -> None:
    sources = {"bench": "", "bench.sub": "import torch", "bench.sub.part": "", "plugins.a": "import bench.sub.part"}
    found = [found for name, text in sources.items() for found in imports_of(name, text, sources)]
    assert brought_along("plugins.a", found)["torch"] == "bench.sub"
