"""Mutates the core, one place at a time, and sees whether the tests of its package notice.

    python -m tests.mutations --count 100 --seed 1 --workers 2 --output mutations.json
    python -m tests.mutations --again tests/mutations/baseline.json --output mutations.json

Each mutation runs in a copy of the checkout, with the tests of its package until the first failure. What no test
notices survives. Tests that fail without a mutation are left out. With --again FILE the mutations of an earlier run are
made again, others in place of those whose code has gone, and those that were noticed then and survive now are an error.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: The tests of each part of the core.
TESTS: Mapping[str, Sequence[str]] = {
    "opatlas/data": ("tests/data",),
    "opatlas/row": ("tests/row",),
    "opatlas/capture": ("tests/capture",),
    "opatlas/run/result_check.py": ("tests/run", "tests/bench/test_checking.py"),
    "plugins": ("tests/acceptance",),
}
_COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult}
_LONGEST_S = 900
_FAILED = ("FAILED", "ERROR ")


@dataclass(frozen=True)
class Mutation:
    """A change of one expression.

    Attributes:
        file: the file, from the root of the checkout.
        function: the function around it.
        before, after: the source of the expression.
        number: which of the equal expressions of the function it is.
    """

    file: str
    function: str
    before: str
    after: str
    number: int = 0


class _Places(ast.NodeVisitor):
    """Collects what can be changed in a file: the node, its function, and the node in its place."""

    def __init__(self) -> None:
        self.found: list[tuple[ast.expr, str, ast.expr]] = []
        self._function = ""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer, self._function = self._function, node.name
        for statement in node.body:
            self.visit(statement)
        self._function = outer

    def visit_Compare(self, node: ast.Compare) -> None:
        kind = type(node.ops[0])
        if len(node.ops) == 1 and kind in _COMPARISONS:
            self._add(node, ast.Compare(node.left, [_COMPARISONS[kind]()], node.comparators))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._add(node, ast.BoolOp(other, node.values))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _OPERATORS:
            self._add(node, ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, node.operand)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, ast.Constant(not node.value))
        elif isinstance(node.value, int):
            self._add(node, ast.Constant(node.value + 1))

    def _add(self, node: ast.expr, instead: ast.expr) -> None:
        if self._function:
            self.found.append((node, self._function, ast.copy_location(instead, node)))


def mutations_of(root: Path, file: str) -> Iterator[tuple[Mutation, ast.expr]]:
    """Yields the mutations of a file, each with the expression that it replaces."""
    places = _Places()
    places.visit(ast.parse((root / file).read_text()))
    seen: dict[tuple[str, str, str], int] = {}
    for node, function, instead in places.found:
        key = function, ast.unparse(node), ast.unparse(instead)
        number = seen[key] = seen.get(key, -1) + 1
        yield Mutation(file, *key, number), node


def drawn(root: Path, count: int, seed: int) -> list[Mutation]:
    """Returns mutations, as many of each part of the core; the same for a seed and a checkout."""
    choose = random.Random(seed)
    found: list[Mutation] = []
    for at, part in enumerate(TESTS):
        path = root / part
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        known = [each for file in files for each, _ in mutations_of(root, str(file.relative_to(root)))]
        share = count // len(TESTS) + (at < count % len(TESTS))
        found += choose.sample(known, min(share, len(known)))
    return found


def mutate(root: Path, mutation: Mutation) -> None:
    """Writes a mutation into a checkout."""
    path, node = root / mutation.file, dict(mutations_of(root, mutation.file))[mutation]
    lines = path.read_bytes().splitlines(keepends=True)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start, end = (
        sum(map(len, lines[: line - 1])) + column
        for line, column in ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
    )
    whole = b"".join(lines)
    path.write_bytes(whole[:start] + b"(" + mutation.after.encode() + b")" + whole[end:])


@contextmanager
def checkout() -> Iterator[Path]:
    """Makes a copy of the checkout whose packages Python finds, also where this checkout is installed."""
    with tempfile.TemporaryDirectory(prefix="opatlas-mutation-") as folder:
        root = Path(folder) / "checkout"
        leave = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "build", ".whl")
        shutil.copytree(ROOT, root, ignore=leave, symlinks=True)
        for name in ("bench", "plugins", "shapes"):
            (root / "opatlas" / name).symlink_to(root / name)
        yield root


def run_tests(root: Path, tests: Sequence[str], *options: str) -> subprocess.CompletedProcess[str]:
    """Runs tests of a checkout. Raises subprocess.TimeoutExpired."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *options, *tests]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=_LONGEST_S)


def failing(tests: Sequence[str]) -> list[str]:
    """Returns the ids of the tests that fail without a mutation."""
    with checkout() as root:
        done = run_tests(root, tests, "-rfE")
    return [line.split(" ", 1)[1].partition(" - ")[0] for line in done.stdout.splitlines() if line[:6] in _FAILED]


def tests_of(mutation: Mutation) -> Sequence[str]:
    """Returns the tests of the package that a mutation changes."""
    return next(tests for part, tests in TESTS.items() if mutation.file.startswith(part))


def is_noticed(mutation: Mutation, left_out: Mapping[Sequence[str], Sequence[str]]) -> str:
    """Returns "noticed" or "survived", by the tests of the mutation's package.

    Args:
        left_out: by the tests of a package, the ids of those that fail without a mutation.
    """
    tests = tests_of(mutation)
    with checkout() as root:
        mutate(root, mutation)
        try:
            done = run_tests(root, tests, "-x", *(f"--deselect={each}" for each in left_out[tests]))
        except subprocess.TimeoutExpired:
            return "noticed"
        return "survived" if done.returncode == 0 else "noticed"


def main() -> int:
    """Returns 1 if a mutation survives that an earlier run noticed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--again", type=Path, help="the output of an earlier run")
    arguments = parser.parse_args()
    before: dict[Mutation, str] = {}
    for each in json.loads(arguments.again.read_text()) if arguments.again is not None else ():
        fate, mutation = each.pop("fate"), Mutation(**each)
        if (ROOT / mutation.file).is_file() and mutation in dict(mutations_of(ROOT, mutation.file)):
            before[mutation] = fate
    others = drawn(ROOT, max(0, arguments.count - len(before)), arguments.seed)
    mutations = list(dict.fromkeys([*before, *others]))
    fates: list[dict[str, object]] = []
    lost = 0
    with ThreadPoolExecutor(arguments.workers) as pool:
        packages = list(dict.fromkeys(map(tests_of, mutations)))
        left_out = dict(zip(packages, pool.map(failing, packages), strict=True))
        print(f"left out, since they fail without a mutation: {left_out}", flush=True)
        for mutation, fate in zip(mutations, pool.map(partial(is_noticed, left_out=left_out), mutations), strict=True):
            fates.append({**asdict(mutation), "fate": fate})
            lost += fate == "survived" and before.get(mutation) == "noticed"
            print(f"{fate:9} {mutation.file} {mutation.function}: {mutation.before} -> {mutation.after}", flush=True)
            arguments.output.write_text(json.dumps(fates, indent=1) + "\n")
    print(
        f"{len(fates)} mutations: {sum(each['fate'] == 'noticed' for each in fates)} noticed; {lost} no longer noticed"
    )
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
