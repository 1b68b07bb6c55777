"""The syntax tree of a candidate, with imported names resolved, and rules on it. The candidate is not imported."""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from opatlas.outer.judging.judgement import ErrorClass

Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Line and detail of what a rule objects to. Line 0 is the whole file.
Finding = tuple[int, str]

#: A kernel of CUDA or HIP in a string of the candidate.
_NATIVE_KERNEL = re.compile(r"__global__\s")
_NATIVE_BUILD = re.compile(r"\b(?:load_inline|cpp_extension|CUDAExtension|RawKernel|RawModule|nvrtc)\b")
_DECORATORS_OF_TRITON = frozenset({"jit", "autotune", "heuristics"})


@dataclass(frozen=True)
class CandidateSource:
    """The source of a candidate.

    Attributes:
        text: the source.
        tree: its syntax tree, without the blocks that never run here: those of `if __name__ == "__main__"`, of
            `if TYPE_CHECKING` and of a constant that is false.
    """

    text: str
    tree: ast.Module

    @classmethod
    def parse(cls, text: str, name: str = "candidate") -> CandidateSource:
        """Returns a parsed source.

        Raises:
            SyntaxError: the text is not Python, or Python cannot compile it ("'return' outside function").
        """
        try:
            # An odd escape in a string of CUDA is no matter for the user's terminal.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(text, name)
                compile(tree, name, "exec", dont_inherit=True)
        except (ValueError, RecursionError, MemoryError) as error:
            raise SyntaxError(f"{type(error).__name__}: {error}") from error
        tree.body = list(_run_on_import(tree.body, text))
        return cls(text, tree)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def imported(self) -> dict[str, str]:
        """The full names behind the imported names: {"F": "torch.nn.functional"}. Relative imports are left out."""
        names: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    names[name] = alias.name if alias.asname else name
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        return names

    def full_name(self, node: ast.AST) -> str:
        """Returns the full name of an imported or built-in thing ("torch.cuda.synchronize"); "" for anything else.

        `getattr(torch, "mm")` is `torch.mm`.
        """
        parts: list[str] = []
        while True:
            if isinstance(node, ast.Attribute):
                parts.append(node.attr)
                node = node.value
            elif _is_constant_getattr(node):
                assert isinstance(node, ast.Call)
                assert isinstance(node.args[1], ast.Constant)
                parts.append(str(node.args[1].value))
                node = node.args[0]
            else:
                break
        if not isinstance(node, ast.Name):
            return ""
        root = self.imported.get(node.id) or (node.id if hasattr(builtins, node.id) else "")
        return ".".join([root, *reversed(parts)]) if root else ""

    @cached_property
    def calls(self) -> tuple[tuple[ast.Call, str], ...]:
        """All calls, with the full names of the called functions."""
        return tuple((node, self.full_name(node.func)) for node in self.nodes if isinstance(node, ast.Call))

    @cached_property
    def functions(self) -> dict[str, list[Function]]:
        """All functions and methods by name."""
        found: dict[str, list[Function]] = {}
        for node in self.nodes:
            if isinstance(node, Function):
                found.setdefault(node.name, []).append(node)
        return found

    @cached_property
    def triton_kernels(self) -> dict[str, Function]:
        """The functions with a decorator of Triton."""
        return {
            name: function
            for name, functions in self.functions.items()
            for function in functions
            if any(self._is_of_triton(decorator) for decorator in function.decorator_list)
        }

    def _is_of_triton(self, decorator: ast.expr) -> bool:
        name = self.full_name(decorator.func if isinstance(decorator, ast.Call) else decorator)
        return name.startswith("triton.") and name.rpartition(".")[2] in _DECORATORS_OF_TRITON

    @cached_property
    def strings(self) -> tuple[tuple[int, str], ...]:
        """Line and text of the strings; docstrings are left out."""
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docstrings = {
            id(node.body[0].value)
            for node in self.nodes
            if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
        }
        return tuple(
            (node.lineno, node.value)
            for node in self.nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        )

    @cached_property
    def native_kernels(self) -> tuple[tuple[int, str], ...]:
        """Line and text of the strings that hold a kernel of CUDA or HIP."""
        return tuple(each for each in self.strings if _NATIVE_KERNEL.search(each[1]))

    @cached_property
    def language(self) -> str:
        """The language of the kernels: "triton", "cuda", or "torch" without a kernel."""
        if self.triton_kernels or any(name.partition(".")[0] == "triton" for name in self.imported.values()):
            return "triton"
        if self.native_kernels or _NATIVE_BUILD.search(" ".join(self.imported.values())):
            return "cuda"
        return "torch"

    @cached_property
    def model(self) -> ast.ClassDef | None:
        """The class ModelNew."""
        classes = [node for node in self.nodes if isinstance(node, ast.ClassDef) and node.name == "ModelNew"]
        return classes[-1] if classes else None

    @cached_property
    def forward_functions(self) -> tuple[Function, ...]:
        """The functions that a call of the candidate reaches by their names, kernels of Triton left out.

        The call starts at `forward` or `__call__` of ModelNew; at every function without ModelNew, or if the source
        sets `forward` of an object.
        """
        sets = any(
            isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in _ENTRIES
            for node in self.nodes
        )
        if self.model is None or sets:
            start = [function for functions in self.functions.values() for function in functions]
        else:
            start = [each for each in self.model.body if isinstance(each, Function) and each.name in _ENTRIES]
        reached: dict[int, Function] = {}
        while start:
            function = start.pop()
            if id(function) in reached or function.name in self.triton_kernels:
                continue
            reached[id(function)] = function
            for name in _named_functions(function):
                start += self.functions.get(name, ())
        return tuple(reached.values())


_ENTRIES = ("forward", "__call__")
#: Tests that are false where a candidate is imported, and the names that they depend on.
_FALSE_HERE = {
    "__name__ == '__main__'": "__name__",
    "'__main__' == __name__": "__name__",
    "TYPE_CHECKING": "TYPE_CHECKING",
}
_IMPORT_OF_TYPING = re.compile(r"^from typing import .*\bTYPE_CHECKING\b", re.MULTILINE)
_HIDES_NAMES = re.compile(r"\bimport \*|\brunpy\b")


def _run_on_import(body: Sequence[ast.stmt], text: str) -> Iterator[ast.stmt]:
    """Yields the statements at the top of a source that an import runs.

    A block behind a test is left out if nothing but such tests, and the import of typing, mentions the name in it: the
    source may give the name another value.
    """
    tests = [ast.unparse(each.test) for each in body if isinstance(each, ast.If)]
    for statement in body:
        if not isinstance(statement, ast.If):
            yield statement
            continue
        test = ast.unparse(statement.test)
        name = _FALSE_HERE.get(test, "")
        known = sum(_FALSE_HERE.get(each) == name for each in tests)
        if name == "TYPE_CHECKING":
            known += len(_IMPORT_OF_TYPING.findall(text))
        is_named = len(re.findall(rf"(?<![.\w]){name}\b", text)) > known or _HIDES_NAMES.search(text)
        is_constant = isinstance(statement.test, ast.Constant) and not statement.test.value
        if is_constant or (name and not is_named):
            yield from _run_on_import(statement.orelse, text)
        else:
            yield statement


def _named_functions(function: Function) -> Iterator[str]:
    """Yields the names of plain functions and of methods of `self` that a function mentions."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            yield node.attr
        elif isinstance(node, ast.Attribute) and node.attr == "apply":
            # torch.autograd.Function: Kernel.apply(x) runs Kernel.forward.
            yield "forward"


def _is_constant_getattr(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "getattr"
        and len(node.args) >= 2
        and isinstance(node.args[1], ast.Constant)
        and isinstance(node.args[1].value, str)
    )


def constant_truth(body: Sequence[ast.stmt]) -> bool | None:
    """Returns the value of a body that only returns True or False; None for any other body."""
    last = body[-1]
    if isinstance(last, ast.Return) and isinstance(last.value, ast.Constant) and isinstance(last.value.value, bool):
        return last.value.value
    return None


@dataclass(frozen=True)
class StaticRule:
    """A rule on the source of a candidate.

    Attributes:
        name: the sub-class of the judgement.
        source: who uses the rule ("AKG", "KernelBench"), or a row of the list of known hacks ("hack 9").
        error_class: the class of the judgement; None for a note.
        finds: what the rule finds, for docs/candidates.md.
        check: yields the findings; one for a rule on a source that cannot be parsed yields none.
        language: the language whose kernels the rule is for; "" for all.
    """

    name: str
    source: str
    error_class: ErrorClass | None
    finds: str
    check: Callable[[CandidateSource], Iterable[Finding]]
    language: str = ""


def rule(
    error_class: ErrorClass | None, source: str, language: str = ""
) -> Callable[[Callable[[CandidateSource], Iterable[Finding]]], StaticRule]:
    """Makes a function the rule of its name, whose docstring says what the rule finds."""
    return lambda check: StaticRule(check.__name__, source, error_class, check.__doc__ or "", check, language)
